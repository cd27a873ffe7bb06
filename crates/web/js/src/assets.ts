/** Binaries of the engine: their addresses and the glue of wasm-bindgen. */

import { unsupported } from "./errors.js";
import type { BinaryName } from "./types.js";
import type { WasmFeatures } from "./wasm.js";

/** File of a model that can be read at any offset. @internal */
export interface SourceFile {
  readonly name: string;
  readonly size: number;
  /** Fills `into` from `offset`; throws if the file ends before. */
  read(offset: number, into: Uint8Array): void;
}

/** A running request of the engine. @internal */
export interface EngineJob {
  done(): Promise<string>;
  cancel(): void;
  free(): void;
}

/** Live speech of the engine. @internal */
export interface EngineListener {
  push(samples: Float32Array, rate: number): void;
  end(): Promise<string>;
  cancel(): void;
  free(): void;
}

/** A model of the engine. @internal */
export interface EngineModel {
  info(): string;
  /** The engine waits for a promise that `onEvent` returns before it reports the next event. */
  request(
    method: string,
    body: string,
    audio: Uint8Array | Float32Array | undefined,
    onEvent: (json: string) => void | Promise<void>,
  ): EngineJob;
  listen(options: string, onEvent: (json: string) => void | Promise<void>): EngineListener;
  free(): void;
}

/** Options of the start of a module. @internal */
export interface GlueInit {
  module_or_path: WebAssembly.Module;
  memory?: WebAssembly.Memory;
}

/** Module `stonechat-<binary>.js` that wasm-bindgen makes. @internal */
export interface Glue {
  default(options: GlueInit): Promise<unknown>;
  initSync(options: { module: WebAssembly.Module; memory: WebAssembly.Memory; thread_stack_size: number }): unknown;
  build_info(): string;
  self_test(): void;
  thread_main?(): void;
  wait_for_threads?(n: number): boolean;
  /** Gives the engine the weights of voice activity detection, if `build_info` says that they are not in the binary. */
  set_vad_weights(bytes: Uint8Array): void;
  /** Says whether devices of this browser have subgroups. The binary `gpu` alone has this function and the next one. */
  set_subgroups(areOn: boolean): void;
  /** Checks one product of each kind of kernel on the GPU. */
  self_test_gpu(): Promise<void>;
  inspect(files: SourceFile[]): string;
  Model: { open(files: SourceFile[], options: string, onProgress: (fraction: number) => void): Promise<EngineModel> };
}

/** Addresses of a binary. @internal */
export interface BinaryUrls {
  glue: URL;
  wasm: URL;
}

/** Name of a binary in its files: those of the CPU come without language models, too. */
type BinaryFile = BinaryName | `${Exclude<BinaryName, "gpu">}-speech`;

/** Addresses beside this module, in the form that bundlers know. */
const BESIDE: Record<BinaryFile, () => BinaryUrls> = {
  relaxed: () => ({
    glue: new URL("./stonechat-relaxed.js", import.meta.url),
    wasm: new URL("./stonechat-relaxed.wasm", import.meta.url),
  }),
  "relaxed-speech": () => ({
    glue: new URL("./stonechat-relaxed-speech.js", import.meta.url),
    wasm: new URL("./stonechat-relaxed-speech.wasm", import.meta.url),
  }),
  base: () => ({
    glue: new URL("./stonechat-base.js", import.meta.url),
    wasm: new URL("./stonechat-base.wasm", import.meta.url),
  }),
  "base-speech": () => ({
    glue: new URL("./stonechat-base-speech.js", import.meta.url),
    wasm: new URL("./stonechat-base-speech.wasm", import.meta.url),
  }),
  scalar: () => ({
    glue: new URL("./stonechat-scalar.js", import.meta.url),
    wasm: new URL("./stonechat-scalar.wasm", import.meta.url),
  }),
  "scalar-speech": () => ({
    glue: new URL("./stonechat-scalar-speech.js", import.meta.url),
    wasm: new URL("./stonechat-scalar-speech.wasm", import.meta.url),
  }),
  gpu: () => ({
    glue: new URL("./stonechat-gpu.js", import.meta.url),
    wasm: new URL("./stonechat-gpu.wasm", import.meta.url),
  }),
};

/** Addresses of a binary for a kind of model, beside this module or at `assets`. @internal */
export function binaryUrls(name: BinaryName, kind: "speech" | "language", assets: string | undefined): BinaryUrls {
  const file: BinaryFile = kind === "speech" && name !== "gpu" ? `${name}-speech` : name;
  if (!assets) {
    return BESIDE[file]();
  }
  return { glue: new URL(`stonechat-${file}.js`, assets), wasm: new URL(`stonechat-${file}.wasm`, assets) };
}

/** Address of the weights of voice activity detection. @internal */
export function vadUrl(assets: string | undefined): URL {
  return assets ? new URL("silero.bin", assets) : new URL("./silero.bin", import.meta.url);
}

/** Imports the glue at an address. @internal */
export async function importGlue(url: string): Promise<Glue> {
  return (await import(/* webpackIgnore: true */ /* @vite-ignore */ url)) as Glue;
}

/** Binaries to try, the best one first. @internal */
export function candidates(
  features: WasmFeatures,
  device: "cpu" | "gpu",
  wanted: BinaryName | undefined,
): BinaryName[] {
  if (!features.wasm) {
    throw unsupported("expected a browser with WebAssembly, got one without it");
  }
  if (device === "gpu") {
    if (!features.simd) {
      throw unsupported("`device`: expected WebAssembly SIMD for the binary of the GPU, got a browser without it", "device");
    }
    return ["gpu"];
  }
  const runs: Record<BinaryName, boolean> = {
    relaxed: features.relaxed && features.threads,
    base: features.simd && features.threads,
    scalar: features.threads,
    gpu: false,
  };
  const names = (["relaxed", "base", "scalar"] as const).filter((name) => runs[name]);
  if (wanted) {
    if (!runs[wanted]) {
      throw unsupported(`\`binary\`: expected one that this browser runs (${names.join(", ")}), got \`${wanted}\``, "binary");
    }
    return [wanted];
  }
  if (names.length === 0) {
    throw unsupported("expected a browser with atomic operations in WebAssembly, got one without them");
  }
  return names;
}
