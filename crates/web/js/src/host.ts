/** Differences between browsers and Node. */

/** Whether this is Node. @internal */
export const isNode: boolean =
  typeof (globalThis as { process?: { versions?: { node?: string } } }).process?.versions?.node === "string" &&
  typeof (globalThis as { WorkerGlobalScope?: unknown }).WorkerGlobalScope === "undefined" &&
  typeof (globalThis as { document?: unknown }).document === "undefined";

/** Parts of `node:fs` in use. @internal */
export interface NodeFs {
  mkdirSync(path: string, options: { recursive: boolean }): unknown;
  openSync(path: string, flags: string): number;
  closeSync(fd: number): void;
  fstatSync(fd: number): { size: number };
  readSync(fd: number, into: Uint8Array, offset: number, length: number, position: number): number;
  writeSync(fd: number, bytes: Uint8Array, offset: number, length: number, position: number): number;
  ftruncateSync(fd: number, length: number): void;
  fsyncSync(fd: number): void;
  readFileSync(path: string): Uint8Array<ArrayBuffer>;
  writeFileSync(path: string, text: string, options?: { flag: string }): void;
  renameSync(from: string, to: string): void;
  readdirSync(path: string): string[];
  rmSync(path: string, options: { recursive: boolean; force: boolean }): void;
  existsSync(path: string): boolean;
  statSync(path: string): { size: number; isDirectory(): boolean };
}

/** Port between threads of Node. @internal */
export interface NodePort {
  postMessage(message: unknown, transfer?: readonly Transferable[]): void;
  on(event: string, listener: (value: never) => void): void;
}

/** Worker thread of Node. @internal */
export interface NodeThread extends NodePort {
  terminate(): Promise<number>;
  ref(): void;
  unref(): void;
}

interface NodeModules {
  fs: NodeFs;
  path: { join(...parts: string[]): string; resolve(...parts: string[]): string; basename(path: string): string };
  url: { pathToFileURL(path: string): URL; fileURLToPath(url: string | URL): string };
  os: { availableParallelism(): number };
  worker_threads: {
    Worker: new (url: URL, options?: { name?: string }) => NodeThread;
    parentPort: NodePort | null;
  };
}

/** Built-in module of Node. The name is not a literal, so that bundlers for browsers leave the import alone. @internal */
export async function nodeModule<K extends keyof NodeModules>(name: K): Promise<NodeModules[K]> {
  const specifier = `node:${name}`;
  return (await import(/* webpackIgnore: true */ /* @vite-ignore */ specifier)) as NodeModules[K];
}

/** Process of Node. @internal */
export function nodeProcess(): { pid: number; kill(pid: number, signal: 0): void; env: Record<string, string | undefined> } {
  return (globalThis as unknown as { process: ReturnType<typeof nodeProcess> }).process;
}

/** Whether shared memory may be sent to other threads. @internal */
export function isIsolated(): boolean {
  return isNode || globalThis.crossOriginIsolated === true;
}

/** Number of logical processors, at least 1. @internal */
export async function coreCount(): Promise<number> {
  const n = isNode ? (await nodeModule("os")).availableParallelism() : globalThis.navigator?.hardwareConcurrency;
  return Math.max(1, n || 1);
}

/** Worker of a browser or of Node behind one interface. @internal */
export interface Peer {
  post(message: unknown, transfer?: Transferable[]): void;
  /** Sets the receivers of messages and of an uncaught error or an early end. */
  listen(onMessage: (message: never) => void, onFailure: (message: string) => void): void;
  terminate(): void;
  /** Sets whether the worker keeps the process running (Node). */
  hold(isHeld: boolean): void;
}

/** Wraps a worker of a browser. @internal */
export function browserPeer(worker: Worker, release?: () => void): Peer {
  return {
    post: (message, transfer) => worker.postMessage(message, transfer ?? []),
    listen(onMessage, onFailure) {
      worker.onmessage = (event) => onMessage(event.data as never);
      worker.onmessageerror = () => onFailure("a message could not be decoded");
      worker.onerror = (event) => {
        event.preventDefault?.();
        onFailure(event.message || "the script could not be loaded, or memory ran out");
      };
    },
    terminate() {
      worker.terminate();
      release?.();
    },
    hold: () => undefined,
  };
}

/** Starts a worker thread of Node. @internal */
export async function nodePeer(url: URL): Promise<Peer> {
  const { Worker } = await nodeModule("worker_threads");
  const thread = new Worker(url);
  let isEnding = false;
  return {
    post: (message, transfer) => thread.postMessage(message, transfer),
    listen(onMessage, onFailure) {
      thread.on("message", onMessage);
      thread.on("error", ((error: Error) => onFailure(error.message)) as (value: never) => void);
      thread.on("exit", ((code: number) => {
        if (!isEnding) {
          onFailure(`the thread ended with code ${code}`);
        }
      }) as (value: never) => void);
    },
    terminate() {
      isEnding = true;
      void thread.terminate();
    },
    hold: (isHeld) => (isHeld ? thread.ref() : thread.unref()),
  };
}

/** Starts another instance of the script of a worker. @internal */
export async function scriptPeer(url: string): Promise<Peer> {
  return isNode ? nodePeer(new URL(url)) : browserPeer(new Worker(url, { type: "module" }));
}
