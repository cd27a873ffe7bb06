/**
 * Download of one file: parallel range requests, resumed after an error.
 *
 *     GET bytes=0-16M ── 206 + Content-Range ──► chunks in four lanes, each resumed where it stopped
 *                     └─ 200 ──────────────────► one stream from the start
 *
 * Every response must describe the same file (size, `ETag`, `Last-Modified`). A server whose ranges contradict its answers is read as one stream.
 */

import { failedDownload, isAbort, mib } from "./errors.js";

/** Limits of a download. @internal */
export interface DownloadLimits {
  /** Bytes of a range request. */
  chunk: number;
  /** Bytes of the first request, which tells the size. */
  probe: number;
  /** Requests at the same time. */
  lanes: number;
  /** Attempts in a row without `progress` new bytes. */
  attempts: number;
  /** New bytes after which the attempts count from 0 again. */
  progress: number;
  /** Milliseconds before the second attempt; doubled for each further one. */
  backoff: number;
  /** Maximum milliseconds between attempts, also if the server asks for more. */
  maxBackoff: number;
  /** Milliseconds without a byte after which a request is given up. */
  stall: number;
  /** Times that a file may change during its download. */
  changes: number;
  /** Bytes between two records of the state. */
  saved: number;
  /** Maximum bytes of a file. */
  size: number;
}

/** Limits in use. @internal */
export const LIMITS: DownloadLimits = {
  chunk: 16 * 2 ** 20,
  probe: 2 ** 20,
  lanes: 4,
  attempts: 6,
  progress: 2 ** 16,
  backoff: 500,
  maxBackoff: 15_000,
  stall: 30_000,
  changes: 2,
  saved: 16 * 2 ** 20,
  size: 2 ** 38,
};

/** Identity of a remote file. @internal */
export interface Validators {
  size: number;
  etag: string | null;
  lastModified: string | null;
}

/** Record of a download that can be resumed: for each chunk the bytes from its start that are written. @internal */
export interface DownloadState extends Validators {
  chunk: number;
  done: number[];
}

/** Receiver of the bytes. @internal */
export interface Target {
  /** Starts from nothing; earlier bytes are dropped. The size is 0 if it is not known. */
  begin(size: number): Promise<void>;
  write(bytes: Uint8Array<ArrayBuffer>, at: number): Promise<void>;
  /** Records the state, after the bytes it describes. */
  save(state: DownloadState): Promise<void>;
}

/** A file to download. @internal */
export interface DownloadRequest {
  url: string;
  headers: Record<string, string>;
  signal: AbortSignal;
  target: Target;
  /** State of an earlier download whose bytes are in the target. */
  resume: DownloadState | undefined;
  onProgress(loaded: number, total: number): void;
  limits?: Partial<DownloadLimits>;
}

/** The server's ranges contradict its answers, or there are none. */
class NoRanges extends Error {}

/** The remote file is another one than before. */
class Changed extends Error {}

/** An attempt failed in a way that may pass. */
class Transient extends Error {
  constructor(
    message: string,
    /** Milliseconds that the server asks to wait for. */
    readonly retryAfter = 0,
    readonly status = 502,
  ) {
    super(message);
  }
}

/** Downloads a file into its target. @internal */
export async function download(request: DownloadRequest): Promise<Validators> {
  const limits = { ...LIMITS, ...request.limits };
  let resume = request.resume;
  for (let changes = 0; ; changes += 1) {
    const run = new Run(request, limits, resume);
    try {
      return await run.ranges();
    } catch (error) {
      if (error instanceof NoRanges) {
        return run.stream();
      }
      if (!(error instanceof Changed)) {
        throw error;
      }
      if (changes === limits.changes) {
        throw failedDownload(`${request.url}: expected the same file in every response, got another one ${changes + 1} times`);
      }
      resume = undefined;
    }
  }
}

/** One try at a file, whose identity is fixed by the first response. */
class Run {
  #state: DownloadState | undefined;
  readonly #chunkSize: number;
  #unsaved = 0;
  #saving: Promise<void> | undefined;

  constructor(
    private readonly request: DownloadRequest,
    private readonly limits: DownloadLimits,
    resume: DownloadState | undefined,
  ) {
    this.#state = resume;
    this.#chunkSize = resume?.chunk ?? limits.chunk;
  }

  /** Downloads by ranges. */
  async ranges(): Promise<Validators> {
    const { signal, target } = this.request;
    const stop = new AbortController();
    const onAbort = () => stop.abort(signal.reason);
    signal.addEventListener("abort", onAbort, { once: true });
    try {
      signal.throwIfAborted();
      const free: number[] = [];
      if (this.#state) {
        this.#report();
      } else {
        await this.#chunk(0, stop.signal, this.limits.probe);
      }
      const state = this.#known();
      for (let i = 0; i < state.done.length; i += 1) {
        if ((state.done[i] ?? 0) < this.#length(i)) {
          free.push(i);
        }
      }
      free.reverse();
      const lane = async () => {
        for (let i = free.pop(); i !== undefined; i = free.pop()) {
          await this.#chunk(i, stop.signal);
        }
      };
      const lanes = Array.from({ length: this.limits.lanes }, () =>
        lane().catch((error: unknown) => {
          stop.abort(error);
          throw error;
        }),
      );
      const results = await Promise.allSettled(lanes);
      const failed = results.find((result) => result.status === "rejected");
      if (failed) {
        // The first error of a lane is the reason of the others' ends.
        throw stop.signal.reason ?? failed.reason;
      }
      await this.#saving;
      return state;
    } catch (error) {
      await this.#saving;
      if (this.#state && !(error instanceof NoRanges) && !(error instanceof Changed)) {
        await target.save(this.#state).catch(() => undefined);
      }
      throw error;
    } finally {
      signal.removeEventListener("abort", onAbort);
    }
  }

  /** Downloads from the start in one stream. */
  async stream(): Promise<Validators> {
    const { target, signal, url, onProgress } = this.request;
    let found: Validators | undefined;
    await this.#attempts(signal, async (attempt) => {
      const response = await attempt.fetch({});
      if (response.status !== 200) {
        throw failedStatus(url, response);
      }
      const declared = contentLength(response);
      this.#checkSize(declared);
      await target.begin(declared);
      let loaded = 0;
      for await (const bytes of attempt.body(response)) {
        await target.write(bytes, loaded);
        loaded += bytes.length;
        this.#checkSize(loaded);
        onProgress(loaded, Math.max(declared, loaded));
      }
      // More bytes than declared are those of a compressed response.
      if (loaded < declared) {
        throw new Transient(`expected ${declared} bytes, got ${loaded}`);
      }
      found = { ...validators(response), size: loaded };
    });
    if (!found || found.size === 0) {
      throw failedDownload(`${url}: expected a model, got 0 bytes`);
    }
    return found;
  }

  /** Downloads the missing bytes of chunk `i` up to its byte `limit`. */
  async #chunk(i: number, signal: AbortSignal, limit = this.#chunkSize): Promise<void> {
    await this.#attempts(signal, async (attempt) => {
      const start = i * this.#chunkSize;
      const from = start + (this.#state?.done[i] ?? 0);
      const to = start + Math.min(limit, this.#state ? this.#length(i) : this.#chunkSize);
      if (from >= to) {
        return;
      }
      const response = await attempt.fetch({ Range: `bytes=${from}-${to - 1}` });
      const end = await this.#checkRange(response, from, to);
      let at = from;
      try {
        for await (const bytes of attempt.body(response)) {
          if (at + bytes.length > end) {
            throw new NoRanges(`expected ${end - from} bytes, got more`);
          }
          await this.request.target.write(bytes, at);
          at += bytes.length;
          this.#advance(i, bytes.length);
        }
      } catch (error) {
        throw error instanceof Transient ? attempt.after(at - from, error) : error;
      }
      if (at < end) {
        throw attempt.after(at - from, new Transient(`expected ${end - from} bytes, got ${at - from}`));
      }
    });
  }

  /** Checks a response to `bytes=from-(to-1)`, and returns the end of its range. The first response fixes the identity. */
  async #checkRange(response: Response, from: number, to: number): Promise<number> {
    if (response.status === 200 || (response.status === 416 && !this.#state)) {
      throw new NoRanges("the server sends no ranges");
    }
    if (response.status === 416) {
      throw new Changed("the file is shorter than before");
    }
    if (response.status !== 206) {
      throw failedStatus(this.request.url, response);
    }
    // A server of another origin may hide the header.
    const range = /^bytes (\d+)-(\d+)\/(\d+)$/.exec(response.headers.get("Content-Range") ?? "");
    if (!range) {
      throw new NoRanges("the server does not tell which range it sends");
    }
    const [first, last, size] = range.slice(1).map(Number) as [number, number, number];
    const got = { ...validators(response), size };
    if (this.#state && !isSame(this.#state, got)) {
      throw new Changed("the file has changed");
    }
    if (first !== from || last !== Math.min(to, size) - 1) {
      throw new NoRanges(`expected the range ${from}-${to - 1}, got ${first}-${last}`);
    }
    if (!this.#state) {
      this.#checkSize(size);
      await this.request.target.begin(size);
      const chunk = this.#chunkSize;
      this.#state = { ...got, chunk, done: new Array<number>(Math.ceil(size / chunk)).fill(0) };
    }
    return last + 1;
  }

  #advance(i: number, n: number): void {
    const state = this.#known();
    state.done[i] = (state.done[i] ?? 0) + n;
    this.#report();
    this.#unsaved += n;
    if (this.#unsaved >= this.limits.saved && !this.#saving) {
      this.#unsaved = 0;
      const saved = this.request.target.save(structuredClone(state)).catch(() => undefined);
      this.#saving = saved.then(() => {
        this.#saving = undefined;
      });
    }
  }

  #report(): void {
    const { done, size } = this.#known();
    const loaded = done.reduce((sum, n) => sum + n, 0);
    this.request.onProgress(loaded, size);
  }

  #known(): DownloadState {
    if (!this.#state) {
      throw failedDownload(`${this.request.url}: expected a size, got none`);
    }
    return this.#state;
  }

  /** Bytes of chunk `i`. */
  #length(i: number): number {
    return Math.min(this.#chunkSize, this.#known().size - i * this.#chunkSize);
  }

  #checkSize(size: number): void {
    if (size > this.limits.size) {
      throw failedDownload(`${this.request.url}: expected at most ${mib(this.limits.size)}, got ${mib(size)}`);
    }
  }

  /** Repeats `work` after errors that may pass, with growing pauses. */
  async #attempts(signal: AbortSignal, work: (attempt: Attempt) => Promise<void>): Promise<void> {
    const { attempts, backoff, maxBackoff, progress } = this.limits;
    for (let failures = 0; ; ) {
      signal.throwIfAborted();
      const attempt = new Attempt(this.request, this.limits, signal);
      try {
        await work(attempt);
        return;
      } catch (error) {
        signal.throwIfAborted();
        if (!(error instanceof Transient)) {
          throw error;
        }
        failures = attempt.gained >= progress ? 1 : failures + 1;
        if (failures >= attempts) {
          throw failedDownload(`${this.request.url}: ${error.message} (attempt ${failures} of ${attempts})`, error.status, error);
        }
        const pause = Math.max(backoff * 2 ** (failures - 1) * (0.5 + Math.random() / 2), error.retryAfter);
        await sleep(Math.min(pause, maxBackoff), signal);
      } finally {
        attempt.end();
      }
    }
  }
}

/** One request with a watch on its pace. */
class Attempt {
  /** Bytes that this attempt has added. */
  gained = 0;
  readonly #stop = new AbortController();
  readonly #onAbort: () => void;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #isStalled = false;

  constructor(
    private readonly request: DownloadRequest,
    private readonly limits: DownloadLimits,
    private readonly signal: AbortSignal,
  ) {
    this.#onAbort = () => this.#stop.abort(signal.reason);
    signal.addEventListener("abort", this.#onAbort, { once: true });
  }

  async fetch(headers: Record<string, string>): Promise<Response> {
    this.#watch();
    try {
      // The cache of the browser would store the model a second time.
      const init = { headers: { ...this.request.headers, ...headers }, signal: this.#stop.signal, cache: "no-store" } as const;
      return await fetch(this.request.url, init);
    } catch (error) {
      throw this.#failure(error);
    }
  }

  async *body(response: Response): AsyncGenerator<Uint8Array<ArrayBuffer>, void, void> {
    const reader = response.body?.getReader();
    try {
      while (reader) {
        this.#watch();
        const { value, done } = await reader.read();
        // The consumer's time does not count.
        clearTimeout(this.#timer);
        if (done) {
          return;
        }
        yield value;
      }
    } catch (error) {
      throw this.#failure(error);
    } finally {
      await reader?.cancel().catch(() => undefined);
    }
  }

  /** Notes the bytes that came before an error. */
  after(gained: number, error: Transient): Transient {
    this.gained = gained;
    return error;
  }

  end(): void {
    clearTimeout(this.#timer);
    this.#stop.abort();
    this.signal.removeEventListener("abort", this.#onAbort);
  }

  #watch(): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.#isStalled = true;
      this.#stop.abort();
    }, this.limits.stall);
  }

  #failure(error: unknown): unknown {
    if (this.signal.aborted) {
      return this.signal.reason;
    }
    if (this.#isStalled) {
      return new Transient(`expected data within ${this.limits.stall / 1000} s, got none`);
    }
    // `fetch` and readers report broken connections as `TypeError`.
    const isBroken = error instanceof TypeError || isAbort(error);
    return isBroken ? new Transient((error as Error).message || "the connection failed") : error;
  }
}

function failedStatus(url: string, response: Response): Error {
  const { status } = response;
  if (status === 408 || status === 425 || status === 429 || status >= 500) {
    const seconds = Number(response.headers.get("Retry-After"));
    return new Transient(`expected status 200 or 206, got ${status}`, seconds > 0 ? seconds * 1000 : 0, status);
  }
  return failedDownload(`${url}: expected status 200 or 206, got ${status}`, status);
}

function validators(response: Response): Omit<Validators, "size"> {
  return { etag: response.headers.get("ETag"), lastModified: response.headers.get("Last-Modified") };
}

function isSame(a: Validators, b: Validators): boolean {
  return a.size === b.size && a.etag === b.etag && a.lastModified === b.lastModified;
}

function contentLength(response: Response): number {
  const n = Number(response.headers.get("Content-Length"));
  return Number.isSafeInteger(n) && n > 0 ? n : 0;
}

/** Waits, unless it is cancelled. @internal */
export function sleep(milliseconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const onAbort = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal.removeEventListener("abort", onAbort);
      resolve();
    }, milliseconds);
    signal.addEventListener("abort", onAbort, { once: true });
  });
}

/** Whether an object read from a record is a state of a download. @internal */
export function isState(value: unknown): value is DownloadState {
  const state = value as Partial<DownloadState> | null;
  const isText = (text: unknown) => text === null || typeof text === "string";
  if (!state || !Array.isArray(state.done) || !isText(state.etag) || !isText(state.lastModified)) {
    return false;
  }
  const { size, chunk, done } = state;
  const isCount = (n: unknown): n is number => Number.isSafeInteger(n) && (n as number) >= 0;
  return (
    isCount(size) &&
    isCount(chunk) &&
    chunk > 0 &&
    done.length === Math.ceil(size / chunk) &&
    done.every((n, i) => isCount(n) && n <= Math.min(chunk, size - i * chunk))
  );
}

