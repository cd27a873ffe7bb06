/**
 * Connection of the page to its worker: calls with ids, events with back-pressure, cancelled by an `AbortSignal`.
 *
 *     page                                  worker
 *     {op: "request", id, args}  ───────►   starts a job
 *                                ◄───────   {op: "event", id, event}   at most WINDOW of them unacknowledged
 *     {op: "ack", id, n}         ───────►   sends more
 *     {op: "cancel", id}         ───────►   the job ends early
 *                                ◄───────   {op: "value" | "error", id}
 */

import { dead, fromWire } from "./errors.js";
import { browserPeer, isNode, nodePeer, scriptPeer, type Peer } from "./host.js";
import { WINDOW, type Calls, type ToPage, type ToWorker } from "./protocol.js";

/** Milliseconds for which `close` waits for the worker. */
const CLOSE_TIMEOUT = 2000;

/** State of a call on the page. */
interface Pending {
  resolve(value: unknown): void;
  reject(error: unknown): void;
  onEvent(event: unknown): void;
  onPushed(seconds: number): void;
}

/** A running call. @internal */
export interface Call<K extends keyof Calls> {
  readonly id: number;
  readonly done: Promise<Calls[K]["value"]>;
  /** Tells the worker that `n` events were taken. */
  ack(n: number): void;
  cancel(): void;
}

/** Options of a call. @internal */
export interface CallOptions {
  signal?: AbortSignal | undefined;
  transfer?: Transferable[] | undefined;
  onEvent?: ((event: never) => void) | undefined;
  onPushed?: ((seconds: number) => void) | undefined;
}

/** Workers that are the threads of the engine. */
class Pool {
  readonly #peers: Peer[] = [];
  #hasEnded = false;
  /** Whether all threads are in the engine. */
  isReady = false;

  /** Adds a worker; one that comes after the end of the pool is ended. */
  add(peer: Peer): void {
    if (this.#hasEnded) {
      peer.terminate();
    } else {
      this.#peers.push(peer);
    }
  }

  end(): void {
    this.#hasEnded = true;
    this.#peers.forEach((peer) => peer.terminate());
  }
}

/** Connection to one worker. @internal */
export class Connection {
  readonly #peer: Peer;
  readonly #pending = new Map<number, Pending>();
  #pool: Pool | undefined;
  #lastId = 0;
  #failure: Error | undefined;

  private constructor(peer: Peer) {
    this.#peer = peer;
    peer.hold(false);
    peer.listen(
      (message: ToPage) => this.#receive(message),
      (message) => this.#die(`the worker has ended: ${message}`),
    );
  }

  /** Starts the worker of the package, or takes one over. */
  static async open(options: { worker?: Worker | undefined; assets?: string | undefined }): Promise<Connection> {
    return new Connection(options.worker ? browserPeer(options.worker) : await startWorker(options.assets));
  }

  /** Whether the worker has ended or was closed. */
  get isClosed(): boolean {
    return this.#failure !== undefined;
  }

  /** Starts a call. Cancelling its signal rejects `done` at once; the worker is told. */
  call<K extends keyof Calls>(op: K, args: Calls[K]["args"], options: CallOptions = {}): Call<K> {
    const { signal, transfer, onEvent, onPushed } = options;
    const id = ++this.#lastId;
    const cancel = () => this.send({ op: "cancel", id });
    let onAbort: (() => void) | undefined;
    const done = new Promise<Calls[K]["value"]>((resolve, reject) => {
      if (this.#failure || signal?.aborted) {
        reject(this.#failure ?? signal?.reason);
        return;
      }
      this.#pending.set(id, {
        resolve: resolve as (value: unknown) => void,
        reject,
        onEvent: (onEvent as ((event: unknown) => void) | undefined) ?? (() => undefined),
        onPushed: onPushed ?? (() => undefined),
      });
      onAbort = () => {
        cancel();
        this.#settle(id)?.reject(signal?.reason);
      };
      signal?.addEventListener("abort", onAbort, { once: true });
      this.#peer.hold(true);
      try {
        this.#peer.post({ op, id, args }, transfer);
      } catch (error) {
        this.#settle(id);
        reject(error);
      }
    }).finally(() => onAbort && signal?.removeEventListener("abort", onAbort));
    return { id, done, cancel, ack: (n) => this.send({ op: "ack", id, n }) };
  }

  /** Sends a message without an answer. */
  send(message: ToWorker, transfer?: Transferable[]): void {
    if (!this.#failure) {
      this.#peer.post(message, transfer);
    }
  }

  /** Frees the model, and ends the worker with its pool. Calls that run reject. */
  async close(): Promise<void> {
    if (this.#failure) {
      return;
    }
    const { done } = this.call("close", null);
    done.catch(() => undefined);
    let timer: ReturnType<typeof setTimeout> | undefined;
    const timeout = new Promise((resolve) => (timer = setTimeout(resolve, CLOSE_TIMEOUT)));
    await Promise.race([done.catch(() => undefined), timeout]);
    clearTimeout(timer);
    this.#die("the model was closed");
  }

  /** Ends the worker at once. */
  kill(reason: string): void {
    this.#die(reason);
  }

  #receive(message: ToPage): void {
    switch (message.op) {
      case "value":
        this.#settle(message.id)?.resolve(message.value);
        break;
      case "error":
        this.#settle(message.id)?.reject(fromWire(message.error));
        break;
      case "event":
        this.#pending.get(message.id)?.onEvent(message.event);
        break;
      case "pushed":
        this.#pending.get(message.id)?.onPushed(message.seconds);
        break;
      case "pool":
        this.#pool = new Pool();
        void this.#startPool(this.#pool, message.url, message.ports);
        break;
      case "poolReady":
        if (this.#pool) {
          this.#pool.isReady = true;
        }
        break;
      case "poolEnd":
        this.#pool?.end();
        this.#pool = undefined;
        break;
      case "note":
        console.info(`stonechat: ${message.text}`);
        break;
      case "died":
        this.#die(`the worker has ended: ${message.message}`);
        break;
    }
  }

  /** Starts a thread per port. The engine goes on without a pool that does not start; the end of a thread ends a started one. */
  async #startPool(pool: Pool, url: string, ports: MessagePort[]): Promise<void> {
    const die = (message: string) => this.#die(`a thread of the worker has ended: ${message}`);
    const fail = (message: string) => (pool.isReady ? die(message) : this.send({ op: "poolFailed", message }));
    try {
      for (const port of ports) {
        const peer = await scriptPeer(url);
        pool.add(peer);
        peer.listen((message: ToPage) => {
          if (message.op === "noThread") {
            fail(message.message);
          } else if (message.op === "died") {
            die(message.message);
          }
        }, fail);
        peer.post({ op: "thread", port }, [port]);
        peer.hold(false);
      }
    } catch (error) {
      fail((error as Error).message);
    }
  }

  #settle(id: number): Pending | undefined {
    const pending = this.#pending.get(id);
    this.#pending.delete(id);
    if (this.#pending.size === 0 && !this.#failure) {
      this.#peer.hold(false);
    }
    return pending;
  }

  #die(message: string): void {
    if (this.#failure) {
      return;
    }
    this.#failure = dead(message);
    this.#peer.terminate();
    this.#pool?.end();
    for (const pending of this.#pending.values()) {
      pending.reject(this.#failure);
    }
    this.#pending.clear();
  }
}

/**
 * Iterates over the events of a call at the consumer's pace. The call starts with the first `next()`; leaving the loop
 * cancels it. @internal
 */
export async function* events<K extends keyof Calls, E>(
  start: (onEvent: (event: E) => void) => Call<K>,
): AsyncGenerator<E, Calls[K]["value"], void> {
  const queue: E[] = [];
  let wake: (() => void) | undefined;
  let end: { value: Calls[K]["value"] } | { error: unknown } | undefined;
  const call = start((event) => {
    queue.push(event);
    wake?.();
  });
  const finish = (result: typeof end) => {
    end = result;
    wake?.();
  };
  call.done.then(
    (value) => finish({ value }),
    (error: unknown) => finish({ error }),
  );
  let unacknowledged = 0;
  try {
    for (;;) {
      const event = queue.shift();
      if (event !== undefined) {
        yield event;
        unacknowledged += 1;
        if (unacknowledged >= WINDOW / 2) {
          call.ack(unacknowledged);
          unacknowledged = 0;
        }
      } else if (end) {
        if ("error" in end) {
          throw end.error;
        }
        return end.value;
      } else {
        await new Promise<void>((resolve) => (wake = resolve));
        wake = undefined;
      }
    }
  } finally {
    if (!end) {
      call.cancel();
    }
  }
}

/** Starts the worker beside this module, or at `assets`. */
async function startWorker(assets: string | undefined): Promise<Peer> {
  const base: string = import.meta.url;
  if (isNode) {
    return nodePeer(assets ? new URL("worker.js", assets) : new URL("./worker.js", base));
  }
  const other = assets ? new URL("worker.js", assets) : otherOrigin(base);
  if (other) {
    return other.origin === globalThis.location.origin
      ? browserPeer(new Worker(other.href, { type: "module" }))
      : shimmedPeer(other.href);
  }
  // This form is the one that bundlers know.
  return browserPeer(new Worker(new URL("./worker.js", import.meta.url), { type: "module" }));
}

/** URL of the worker if this module comes from another origin, such as a CDN. */
function otherOrigin(base: string): URL | undefined {
  const url = new URL(base);
  const isRemote = /^https?:$/.test(url.protocol) && url.origin !== globalThis.location?.origin;
  return isRemote ? new URL("worker.js", url) : undefined;
}

/** Worker of another origin: browsers start one only through a script of this origin that imports it. */
function shimmedPeer(href: string): Peer {
  const source = `import ${JSON.stringify(href)};`;
  const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  return browserPeer(new Worker(url, { type: "module" }), () => URL.revokeObjectURL(url));
}
