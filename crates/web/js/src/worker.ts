/** Worker of the package: one engine with one model, or one thread of its pool. */

import type { EngineJob, EngineListener, EngineModel, Glue } from "./assets.js";
import { importGlue } from "./assets.js";
import type { CacheContext } from "./cache.js";
import { StonechatError, invalid, isAbort, mib, toWire, tooLarge } from "./errors.js";
import { startEngine, type Engine, type Link, type Post } from "./engine.js";
import { openFolder } from "./folder.js";
import { isIsolated, isNode, nodeModule } from "./host.js";
import { openFiles } from "./open.js";
import { openOpfs } from "./opfs.js";
import { WINDOW, type Calls, type LoadCall, type ThreadStart, type ToPage, type ToWorker } from "./protocol.js";
import type { OpenFile } from "./sources.js";
import type { Storage } from "./storage.js";
import type { LoadProgress } from "./types.js";

/** Milliseconds between two reports of progress. */
const PROGRESS_PAUSE = 50;

/** Maximum share of the engine's memory for the bytes of one recording. */
const AUDIO_SHARE = 0.25;

/** Maximum bytes of one recording where the memory is not limited. */
const MAX_AUDIO = 2 ** 30;

/** Maximum characters of events that wait for a consumer, after which its call ends. */
const MAX_QUEUED = 32 * 2 ** 20;

/** A call that can be cancelled. */
interface Running {
  cancel(): void;
  ack(n: number): void;
  push?(samples: Float32Array, rate: number): void;
  /** Ends live speech. */
  end?(): void;
}

/** Events of one call, of which the page has at most `WINDOW` that it has not taken. */
class Outbox {
  #free = WINDOW;
  readonly #queue: string[] = [];
  #size = 0;
  #wake: (() => void)[] = [];

  constructor(
    private readonly id: number,
    private readonly post: Post,
    private readonly onOverflow: () => void,
  ) {}

  /** Sends an event now or later; the promise settles once the next one may come. */
  send(event: string): void | Promise<void> {
    this.#queue.push(event);
    this.#size += event.length;
    this.#flush();
    if (this.#size > MAX_QUEUED) {
      this.clear();
      this.onOverflow();
      return;
    }
    if (this.#queue.length > 0) {
      return new Promise((resolve) => this.#wake.push(resolve));
    }
  }

  ack(n: number): void {
    this.#free = Math.min(WINDOW, this.#free + n);
    this.#flush();
  }

  /** Sends all that is left, before the result. */
  async drain(): Promise<void> {
    while (this.#queue.length > 0) {
      await new Promise<void>((resolve) => this.#wake.push(resolve));
    }
  }

  /** Drops what is left. */
  clear(): void {
    this.#queue.length = 0;
    this.#size = 0;
    this.#flush();
  }

  #flush(): void {
    while (this.#free > 0 && this.#queue.length > 0) {
      const event = this.#queue.shift() as string;
      this.#free -= 1;
      this.#size -= event.length;
      this.post({ op: "event", id: this.id, event });
    }
    if (this.#queue.length === 0) {
      const wake = this.#wake;
      this.#wake = [];
      wake.forEach((resolve) => resolve());
    }
  }
}

/** The worker with an engine. */
class Host {
  #engine: Engine | undefined;
  #link: Link | undefined;
  #model: EngineModel | undefined;
  #files: OpenFile[] = [];
  readonly #running = new Map<number, Running>();
  readonly #work = new Set<Promise<void>>();

  constructor(private readonly post: Post) {}

  receive(message: Exclude<ToWorker, { op: "thread" }>): void {
    switch (message.op) {
      case "cancel":
        this.#running.get(message.id)?.cancel();
        break;
      case "ack":
        this.#running.get(message.id)?.ack(message.n);
        break;
      case "push":
        this.#running.get(message.id)?.push?.(message.samples, message.rate);
        this.post({ op: "pushed", id: message.id, seconds: message.samples.length / message.rate });
        break;
      case "end":
        this.#running.get(message.id)?.end?.();
        break;
      case "poolFailed":
        if (this.#link) {
          this.#link.poolFailure ??= message.message;
        }
        break;
      case "close":
        void this.#answer(message.id, this.#close());
        break;
      default:
        this.#track(this.#answer(message.id, this.#call(message)));
    }
  }

  /** Remembers work that `close` waits for. */
  #track(work: Promise<void>): void {
    this.#work.add(work);
    void work.finally(() => this.#work.delete(work));
  }

  #call(message: Extract<ToWorker, { op: "load" | "request" | "listen" }>): Promise<unknown> {
    switch (message.op) {
      case "load":
        return this.#load(message.id, message.args);
      case "request":
        return this.#request(message.id, message.args);
      case "listen":
        return this.#listen(message.id, message.args.options);
    }
  }

  async #answer(id: number, work: Promise<unknown>): Promise<void> {
    try {
      this.post({ op: "value", id, value: await work });
    } catch (error) {
      this.post({ op: "error", id, error: toWire(error), isAbort: isAbort(error) });
      if (error instanceof WebAssembly.RuntimeError) {
        // A module that has trapped is in no state to be used.
        this.post({ op: "died", message: error.message });
      }
    } finally {
      this.#running.delete(id);
    }
  }

  async #load(id: number, call: LoadCall): Promise<Calls["load"]["value"]> {
    if (this.#engine) {
      throw invalid("load", "a worker without a model", "one with a model");
    }
    const stop = new AbortController();
    this.#running.set(id, { cancel: () => stop.abort(), ack: () => undefined });
    const onProgress = throttled((progress) => this.post({ op: "event", id, event: progress }));
    try {
      this.#link = { post: this.post, signal: stop.signal, poolFailure: undefined };
      this.#engine = await startEngine(call, this.#link);
      this.#noteThreads(this.#engine, call);
      const storage = await this.#storage(call);
      const { memoryMaximum } = this.#engine;
      const context = {
        storage,
        headers: call.headers,
        signal: stop.signal,
        onProgress,
        reserve: reservation(memoryMaximum),
        note: (text: string) => this.post({ op: "note", text }),
      } satisfies CacheContext;
      this.#files = await openFiles(call.files, context);
      stop.signal.throwIfAborted();
      return await this.#open(this.#engine, call, onProgress, stop.signal);
    } catch (error) {
      this.#free();
      throw error;
    }
  }

  async #open(
    engine: Engine,
    call: LoadCall,
    onProgress: (progress: LoadProgress) => void,
    signal: AbortSignal,
  ): Promise<Calls["load"]["value"]> {
    const { glue, memoryMaximum } = engine;
    const found = JSON.parse(glue.inspect(this.#files)) as { kind: string; memory_bytes?: number };
    if (found.kind !== call.kind) {
      throw invalid("source", `a ${call.kind} model`, `a ${found.kind} model`);
    }
    const needed = found.memory_bytes ?? 0;
    if (memoryMaximum > 0 && needed > memoryMaximum) {
      const limit = `a model that needs at most ${mib(memoryMaximum)} of memory, which this browser allows`;
      throw tooLarge(`expected ${limit}, got one that needs ${mib(needed)}`);
    }
    const name = (call.files[0]?.name ?? "model").replace(/\.(gguf|bin|safetensors)$/, "");
    const options = JSON.stringify({ ...call.options, name, device: call.device, threads: engine.threads });
    const report = (fraction: number) => onProgress({ status: "open", file: "", loaded: fraction, total: 1 });
    const model = await glue.Model.open(this.#files, options, report);
    if (signal.aborted) {
      model.free();
      throw signal.reason;
    }
    this.#model = model;
    const { binary, isa, version, threads, threadsReason } = engine;
    const facts = { binary, isa, version, threads, threadsReason, memoryMaximum, isolated: isIsolated() };
    return { ...facts, ...(JSON.parse(model.info()) as object) };
  }

  async #request(id: number, { method, body, audio }: Calls["request"]["args"]): Promise<string> {
    let job: EngineJob | undefined;
    let isCancelled = false;
    let isTooSlow = false;
    const outbox = new Outbox(id, this.post, () => {
      isTooSlow = true;
      cancel();
    });
    const cancel = () => {
      isCancelled = true;
      outbox.clear();
      job?.cancel();
    };
    this.#running.set(id, { ack: (n) => outbox.ack(n), cancel });
    const bytes = audio instanceof Blob ? await this.#bytesOf(audio) : this.#checked(audio);
    if (isCancelled) {
      throw new DOMException("cancelled", "AbortError");
    }
    job = this.#opened().request(method, body, bytes, (event) => (isCancelled ? undefined : outbox.send(event)));
    try {
      const answer = await job.done();
      if (isTooSlow) {
        throw tooSlow();
      }
      await outbox.drain();
      return answer;
    } finally {
      job.free();
    }
  }

  async #listen(id: number, options: string): Promise<string> {
    let fail: (error: unknown) => void = () => undefined;
    const outbox = new Outbox(id, this.post, () => fail(tooSlow()));
    const listener: EngineListener = this.#opened().listen(options, (event) => outbox.send(event));
    const done = new Promise<string>((resolve, reject) => {
      fail = reject;
      this.#running.set(id, {
        ack: (n) => outbox.ack(n),
        push(samples, rate) {
          try {
            listener.push(samples, rate);
          } catch (error) {
            reject(error);
          }
        },
        end: () => void listener.end().then(resolve, reject),
        cancel() {
          outbox.clear();
          listener.cancel();
          reject(new DOMException("cancelled", "AbortError"));
        },
      });
    });
    try {
      const answer = await done;
      await outbox.drain();
      return answer;
    } finally {
      this.#running.delete(id);
      listener.free();
    }
  }

  async #close(): Promise<null> {
    for (const running of this.#running.values()) {
      running.cancel();
    }
    await Promise.all(this.#work);
    this.#free();
    return null;
  }

  #free(): void {
    this.#model?.free();
    this.#model = undefined;
    this.#files.forEach((file) => file.close());
    this.#files = [];
    this.#engine?.end();
    this.#engine = undefined;
  }

  #opened(): EngineModel {
    if (!this.#model) {
      throw invalid("request", "a model that is loaded", "none");
    }
    return this.#model;
  }

  async #bytesOf(blob: Blob): Promise<Uint8Array> {
    this.#checkAudio(blob.size);
    return new Uint8Array(await blob.arrayBuffer());
  }

  #checked(audio: Uint8Array | Float32Array | undefined): Uint8Array | Float32Array | undefined {
    this.#checkAudio(audio?.byteLength ?? 0);
    return audio;
  }

  #checkAudio(size: number): void {
    const maximum = this.#engine?.memoryMaximum || Infinity;
    const limit = Math.min(maximum * AUDIO_SHARE, MAX_AUDIO);
    if (size > limit) {
      const message = `expected a recording of at most ${mib(limit)}, got ${mib(size)}`;
      throw new StonechatError(message, { status: 413, type: "invalid_request_error", param: "audio" });
    }
  }

  async #storage(call: LoadCall): Promise<Storage | undefined> {
    if (call.cache === "memory") {
      return undefined;
    }
    if (isNode) {
      return call.cacheDir ? openFolder(call.cacheDir) : undefined;
    }
    const storage = await openOpfs();
    if (!storage && call.files.some((file) => file.url)) {
      this.post({ op: "note", text: "this browser offers no private file system here: downloads stay in memory" });
    }
    return storage;
  }

  #noteThreads(engine: Engine, call: LoadCall): void {
    const isSlow = engine.threads === 1 && engine.binary !== "gpu" && call.threads !== 1 && !isIsolated();
    if (isSlow || (call.threads ?? engine.threads) !== engine.threads) {
      this.post({ op: "note", text: `one thread is used: ${engine.threadsReason}` });
    }
  }
}

function tooSlow(): StonechatError {
  const message = `expected a consumer that takes the events, got one that left ${mib(MAX_QUEUED)} of them`;
  return new StonechatError(message, { status: 429, type: "rate_limit_error" });
}

/** Counts the bytes of the files of a model, and refuses ones that the memory cannot hold. */
function reservation(maximum: number): (bytes: number) => void {
  let total = 0;
  return (bytes) => {
    total += bytes;
    if (maximum > 0 && total > maximum) {
      throw tooLarge(`expected a model of at most ${mib(maximum)}, which this browser allows, got ${mib(total)}`);
    }
  };
}

/** Passes on at most one report of a file in each pause, and every last one. */
function throttled(report: (progress: LoadProgress) => void): (progress: LoadProgress) => void {
  let last = { key: "", time: 0 };
  return (progress) => {
    const key = `${progress.status} ${progress.file}`;
    const now = performance.now();
    if (key !== last.key || now - last.time >= PROGRESS_PAUSE || progress.loaded === progress.total) {
      last = { key, time: now };
      report(progress);
    }
  };
}

/** Runs one thread of the pool, which does not return. The page hears of its end: the engine may wait for it. */
async function runThread({ glue: url, module, memory, stack }: ThreadStart, post: Post): Promise<void> {
  let glue: Glue;
  try {
    glue = await importGlue(url);
    glue.initSync({ module, memory, thread_stack_size: stack });
  } catch (error) {
    post({ op: "noThread", message: (error as Error).message });
    return;
  }
  try {
    glue.thread_main?.();
  } catch (error) {
    post({ op: "died", message: (error as Error).message });
  }
}

/** Connects this script to the thread that has started it. */
async function main(): Promise<void> {
  const port = isNode ? (await nodeModule("worker_threads")).parentPort : undefined;
  const scope = globalThis as unknown as {
    postMessage(message: ToPage, transfer: Transferable[]): void;
    onmessage: (event: MessageEvent<ToWorker>) => void;
    addEventListener(type: string, listener: (event: never) => void): void;
  };
  const post: Post = (message, transfer = []) =>
    port ? port.postMessage(message, transfer) : scope.postMessage(message, transfer);
  const host = new Host(post);
  const receive = (message: ToWorker): void => {
    if (message.op === "thread") {
      message.port.onmessage = (event) => void runThread(event.data as ThreadStart, post);
    } else {
      host.receive(message);
    }
  };
  if (port) {
    port.on("message", receive as (value: never) => void);
    return;
  }
  scope.onmessage = (event) => receive(event.data);
  // An engine that traps inside a task of its own leaves calls without an answer.
  scope.addEventListener("unhandledrejection", (event: PromiseRejectionEvent) => {
    event.preventDefault();
    post({ op: "died", message: (event.reason as Error | undefined)?.message ?? String(event.reason) });
  });
}

void main();
