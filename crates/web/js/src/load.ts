/** Loads of models: options, the choice of the device, the connection. */

import { Connection, type CallOptions } from "./client.js";
import { chooseDevice, modelKey } from "./device.js";
import { StonechatError, checkNames, invalid, isAbort } from "./errors.js";
import { specsOf } from "./files.js";
import { isNode } from "./host.js";
import type { LoadCall } from "./protocol.js";
import type { LoadOptions, LoadProgress, ModelInfo, Source } from "./types.js";

const LOAD_OPTIONS = [
  "device",
  "threads",
  "binary",
  "cache",
  "cacheDir",
  "onProgress",
  "signal",
  "assets",
  "worker",
  "headers",
  "sha256",
  "hub",
];

/** Maximum of the option `threads`. */
const MAX_THREADS = 64;

/** A loaded model. @internal */
export interface Loaded {
  connection: Connection;
  info: ModelInfo;
}

/** What one kind of model adds to a load. @internal */
export interface LoadKind {
  kind: "speech" | "language";
  /** Names of its options. */
  names: string[];
  /** Options of the engine, under its names. */
  options: Record<string, unknown>;
  /** Runs the model once, for `device: "auto"`. */
  measure(connection: Connection, signal: AbortSignal | undefined): Promise<void>;
}

/** Loads a model on the device of the options. @internal */
export async function load(source: Source, options: LoadOptions, kind: LoadKind): Promise<Loaded> {
  const { signal, onProgress } = options;
  signal?.throwIfAborted();
  const call = loadCall(source, options, kind);
  if (call.cache === "opfs" && !isNode && call.files.some((file) => file.url)) {
    void globalThis.navigator?.storage?.persist?.().catch(() => false);
  }
  const open = async (device: "cpu" | "gpu"): Promise<Loaded> => {
    const connection = await Connection.open({ worker: options.worker, assets: call.assets });
    const callOptions: CallOptions = { signal, onEvent: onProgress as ((event: LoadProgress) => void) | undefined };
    try {
      const info = await connection.call("load", { ...call, device }, callOptions).done;
      return { connection, info: camelCase(info) as unknown as ModelInfo };
    } catch (error) {
      // The worker records how far a download came before it ends.
      void connection.close();
      throw error;
    }
  };
  const wanted = options.binary === "gpu" ? "gpu" : options.binary ? "cpu" : (options.device ?? "auto");
  if (wanted !== "auto") {
    return open(wanted);
  }
  if (options.worker) {
    // One worker holds one engine, so that nothing can be compared.
    return open("cpu");
  }
  const report = () => onProgress?.({ status: "measure", file: "", loaded: 0, total: 0 });
  const measure = (connection: Connection) => {
    report();
    return kind.measure(connection, signal);
  };
  return chooseDevice({ key: modelKey(kind.kind, call.files), open, measure, isFinal: (error) => isFinal(error, signal) });
}

/** Whether another device would not help. */
function isFinal(error: unknown, signal: AbortSignal | undefined): boolean {
  const { status, type } = error as Partial<StonechatError>;
  return signal?.aborted === true || isAbort(error) || type === "download_error" || (status === 400 && type === "invalid_request_error");
}

function loadCall(source: Source, options: LoadOptions, kind: LoadKind): LoadCall {
  checkNames("load", options, [...LOAD_OPTIONS, ...kind.names]);
  oneOf("device", options.device, ["auto", "cpu", "gpu"]);
  oneOf("binary", options.binary, ["relaxed", "base", "scalar", "gpu"]);
  oneOf("cache", options.cache, ["opfs", "memory"]);
  const { threads, binary, device } = options;
  if (threads !== undefined && !(Number.isInteger(threads) && threads >= 1 && threads <= MAX_THREADS)) {
    throw invalid("threads", `a whole number from 1 to ${MAX_THREADS}`, threads);
  }
  if (binary && device && device !== "auto" && (binary === "gpu") !== (device === "gpu")) {
    throw invalid("binary", `one for the device \`${device}\``, binary);
  }
  if (options.cacheDir !== undefined && !isNode) {
    throw invalid("cacheDir", "no folder outside Node", options.cacheDir);
  }
  if (options.worker && options.assets === undefined && !(options.worker instanceof Worker)) {
    throw invalid("worker", "a `Worker`", options.worker);
  }
  return {
    files: specsOf(source, options),
    kind: kind.kind,
    device: "cpu",
    threads,
    binary,
    cache: options.cache ?? "opfs",
    cacheDir: options.cacheDir,
    assets: options.assets === undefined ? undefined : assetsBase(options.assets),
    headers: options.headers ?? {},
    options: kind.options,
  };
}

/** Folder of the assets as an absolute address that ends in a slash. */
function assetsBase(assets: string | URL): string {
  const text = String(assets);
  const base = isNode ? `file://${(globalThis as unknown as { process: { cwd(): string } }).process.cwd()}/` : globalThis.location?.href;
  return new URL(text.endsWith("/") ? text : `${text}/`, base).href;
}

/** Refuses a value that is none of `values`. @internal */
export function oneOf(name: string, value: unknown, values: readonly string[]): void {
  if (value !== undefined && !values.includes(value as string)) {
    throw invalid(name, values.map((one) => `\`${one}\``).join(", "), value);
  }
}

/** Renames the fields of the engine, `n_ctx` to `nCtx`. */
function camelCase(fields: Record<string, unknown>): Record<string, unknown> {
  const rename = (name: string) => name.replace(/_([a-z0-9])/g, (_, letter: string) => letter.toUpperCase());
  return Object.fromEntries(Object.entries(fields).map(([name, value]) => [rename(name), value]));
}
