/** Messages between the page and its worker. */

import type { WireError } from "./errors.js";
import type { BinaryName, LoadProgress } from "./types.js";

/** File of a model: a `Blob`, a URL, or a path of Node. @internal */
export interface FileSpec {
  name: string;
  blob?: Blob;
  url?: string;
  path?: string;
  sha256?: string;
  /** Whether the model may do without it: a missing one is left out. */
  isOptional?: boolean;
}

/** Arguments of a load. @internal */
export interface LoadCall {
  files: FileSpec[];
  kind: "speech" | "language";
  device: "cpu" | "gpu";
  threads: number | undefined;
  binary: BinaryName | undefined;
  cache: "opfs" | "memory";
  cacheDir: string | undefined;
  assets: string | undefined;
  headers: Record<string, string>;
  /** Options of the model, under the names of the engine. */
  options: Record<string, unknown>;
}

/** Audio of a request. @internal */
export type WireAudio = Blob | Uint8Array<ArrayBuffer> | Float32Array<ArrayBuffer>;

/** Results of calls by their name. @internal */
export interface Calls {
  load: { args: LoadCall; value: Record<string, unknown>; event: LoadProgress };
  request: { args: { method: string; body: string; audio?: WireAudio | undefined }; value: string; event: string };
  listen: { args: { options: string }; value: string; event: string };
  close: { args: null; value: null; event: never };
}

/** First message on the port of a thread of the pool. @internal */
export interface ThreadStart {
  glue: string;
  module: WebAssembly.Module;
  memory: WebAssembly.Memory;
  stack: number;
}

/** Message from the page. `thread` makes the worker a thread of the pool, which the engine starts over `port`. @internal */
export type ToWorker =
  | { [K in keyof Calls]: { op: K; id: number; args: Calls[K]["args"] } }[keyof Calls]
  | { op: "cancel"; id: number }
  | { op: "ack"; id: number; n: number }
  | { op: "push"; id: number; samples: Float32Array<ArrayBuffer>; rate: number }
  | { op: "end"; id: number }
  | { op: "poolFailed"; message: string }
  | { op: "thread"; port: MessagePort };

/**
 * Message from the worker. `pool` asks for a worker of the script `url` per port: the page makes them, since Firefox may never return from
 * `new Worker` in a worker. The memory goes over the ports, so that the page holds none of it. @internal
 */
export type ToPage =
  | { op: "value"; id: number; value: unknown }
  | { op: "error"; id: number; error: WireError; isAbort: boolean }
  | { op: "event"; id: number; event: unknown }
  | { op: "pushed"; id: number; seconds: number }
  | { op: "pool"; url: string; ports: MessagePort[] }
  | { op: "poolReady" }
  | { op: "poolEnd" }
  | { op: "noThread"; message: string }
  | { op: "note"; text: string }
  | { op: "died"; message: string };

/** Events that may be on the way or unread on the page; the worker keeps back later ones. @internal */
export const WINDOW = 64;

/** Bytes of the stack of each thread of the pool. @internal */
export const THREAD_STACK = 2 ** 20;
