/** Start of an engine in the worker: choice of the binary, memory, self-test, threads. */

import { binaryUrls, candidates, importGlue, vadUrl, type Glue } from "./assets.js";
import { StonechatError, failedDownload, unsupported } from "./errors.js";
import { coreCount, isIsolated, isNode, nodeModule } from "./host.js";
import { THREAD_STACK, type LoadCall, type ThreadStart, type ToPage } from "./protocol.js";
import { sleep } from "./download.js";
import type { BinaryName } from "./types.js";
import { compile, makeMemory, wasmFeatures, type Compiled } from "./wasm.js";
import { requestSubgroups } from "./webgpu.js";

/** Maximum threads that are started without being asked for. */
const MAX_DEFAULT_THREADS = 8;

/** Milliseconds for which the threads of the pool may take to start. */
const POOL_TIMEOUT = 20_000;

/** Maximum bytes of the weights of voice activity detection. */
const MAX_VAD = 16 * 2 ** 20;

/** A started engine. @internal */
export interface Engine {
  glue: Glue;
  binary: BinaryName;
  isa: string;
  version: string;
  threads: number;
  threadsReason: string;
  /** Bytes that the memory may grow to; 0 if the module has its own. */
  memoryMaximum: number;
  /** Ends the threads of the pool. */
  end(): void;
}

/** Sends a message to the page. @internal */
export type Post = (message: ToPage, transfer?: Transferable[]) => void;

/** The link of an engine that starts to the page. @internal */
export interface Link {
  post: Post;
  signal: AbortSignal;
  /** Message of a thread of the pool that did not start. */
  poolFailure: string | undefined;
}

/** Starts the first binary that works here. @internal */
export async function startEngine(call: LoadCall, link: Link): Promise<Engine> {
  const { post, signal } = link;
  const names = candidates(wasmFeatures(), call.device, call.binary);
  const failures: string[] = [];
  for (const name of names) {
    signal.throwIfAborted();
    try {
      return await startBinary(name, call, link);
    } catch (error) {
      signal.throwIfAborted();
      const isFinal = name === names.at(-1) || (error as { status?: unknown }).status === 507;
      failures.push(`${name}: ${(error as Error).message}`);
      if (isFinal) {
        throw error instanceof StonechatError && failures.length === 1
          ? error
          : unsupported(`expected a binary of the engine that starts here, got ${failures.join("; ")}`);
      }
      post({ op: "note", text: `the binary \`${name}\` does not run here (${(error as Error).message})` });
    }
  }
  throw unsupported("expected a binary of the engine that starts here, got none");
}

async function startBinary(name: BinaryName, call: LoadCall, link: Link): Promise<Engine> {
  const urls = binaryUrls(name, call.kind, call.assets);
  const [glue, compiled] = await Promise.all([
    importGlue(urls.glue.href).catch((error: unknown) => {
      throw failedDownload(`${urls.glue.href}: expected the script of the binary, got ${String(error)}`, 502, error);
    }),
    compile(urls.wasm, link.signal),
  ]);
  const { count, reason } = await threadCount(call.threads, compiled);
  try {
    return await startModule({ name, glue, compiled, urls, count, reason }, call, link);
  } catch (error) {
    if (!(error instanceof NoPool)) {
      throw error;
    }
    // A module whose threads came in part cannot be used again.
    const again = await importGlue(`${urls.glue.href}#one`);
    const one = { name, glue: again, compiled, urls, count: 1, reason: error.message };
    return startModule(one, call, link);
  }
}

/** The threads of the pool did not start. */
class NoPool extends Error {}

interface Start {
  name: BinaryName;
  glue: Glue;
  compiled: Compiled;
  urls: { glue: URL };
  count: number;
  reason: string;
}

async function startModule(start: Start, call: LoadCall, link: Link): Promise<Engine> {
  const { name, glue, compiled, urls, count, reason } = start;
  const made = compiled.memory && makeMemory(compiled.memory);
  await glue.default({ module_or_path: compiled.module, ...(made && { memory: made.memory }) });
  glue.self_test();
  if (name === "gpu") {
    await testGpu(glue, link.post);
  }
  const { isa, version, vad_weights } = JSON.parse(glue.build_info()) as Record<string, unknown>;
  if (vad_weights === "external" && call.kind === "speech") {
    glue.set_vad_weights(await vadWeights(call.assets, link.signal));
  }
  const end = () => link.post({ op: "poolEnd" });
  if (count > 1 && made) {
    const thread = { glue: urls.glue.href, module: compiled.module, memory: made.memory, stack: THREAD_STACK };
    await startPool(glue, count - 1, thread, link).catch((error: unknown) => {
      end();
      throw error;
    });
  }
  return {
    glue,
    binary: name,
    isa: String(isa),
    version: String(version),
    threads: count,
    threadsReason: reason,
    memoryMaximum: made?.maximum ?? 0,
    end,
  };
}

/** Checks the GPU with one product. A GPU whose subgroups fail the check is used without them. */
async function testGpu(glue: Glue, post: Post): Promise<void> {
  const hasSubgroups = await requestSubgroups();
  glue.set_subgroups(hasSubgroups);
  try {
    await glue.self_test_gpu();
  } catch (error) {
    if (!hasSubgroups) {
      throw error;
    }
    glue.set_subgroups(false);
    await glue.self_test_gpu();
    post({ op: "note", text: `subgroups of the GPU are not used (${(error as Error).message})` });
  }
}

/** Number of threads and its reason. */
async function threadCount(wanted: number | undefined, compiled: Compiled): Promise<{ count: number; reason: string }> {
  if (!compiled.memory?.isShared) {
    return { count: 1, reason: "the binary has no threads" };
  }
  if (!isIsolated()) {
    const headers = "`Cross-Origin-Opener-Policy: same-origin` and `Cross-Origin-Embedder-Policy: require-corp`";
    return { count: 1, reason: `the page is not cross-origin isolated; threads need the headers ${headers}` };
  }
  if (wanted !== undefined) {
    return { count: wanted, reason: "option `threads`" };
  }
  const cores = await coreCount();
  return { count: Math.min(cores, MAX_DEFAULT_THREADS), reason: `${cores} processors` };
}

/** Starts `n` threads of the pool, and waits until they are in the engine. */
async function startPool(glue: Glue, n: number, thread: ThreadStart, link: Link): Promise<void> {
  link.poolFailure = undefined;
  const ports: MessagePort[] = [];
  for (let i = 0; i < n; i += 1) {
    const { port1, port2 } = new MessageChannel();
    port1.postMessage(thread);
    ports.push(port2);
  }
  link.post({ op: "pool", url: isNode ? import.meta.url : globalThis.location.href, ports }, ports);
  const deadline = performance.now() + POOL_TIMEOUT;
  for (let pause = 1; !glue.wait_for_threads?.(n); pause = Math.min(2 * pause, 20)) {
    if (link.poolFailure !== undefined || performance.now() > deadline) {
      throw new NoPool(`the threads did not start: ${link.poolFailure ?? "they took too long"}`);
    }
    await sleep(pause, link.signal);
  }
  link.post({ op: "poolReady" });
}

async function vadWeights(assets: string | undefined, signal: AbortSignal): Promise<Uint8Array> {
  const url = vadUrl(assets);
  if (isNode && url.protocol === "file:") {
    const [fs, { fileURLToPath }] = await Promise.all([nodeModule("fs"), nodeModule("url")]);
    return fs.readFileSync(fileURLToPath(url));
  }
  const response = await fetch(url, { signal });
  const bytes = response.ok ? new Uint8Array(await response.arrayBuffer()) : undefined;
  if (!bytes || bytes.length > MAX_VAD) {
    throw failedDownload(`${url.href}: expected status 200, got ${response.status}`, response.status);
  }
  return bytes;
}
