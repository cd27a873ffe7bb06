/** Folders of the cache, in the origin private file system or in a folder of Node. */

import type { OpenFile } from "./sources.js";

/** A file that is written at any offset. @internal */
export interface WritableFile {
  size(): number;
  /** Writes all bytes; throws `QuotaExceededError` if they do not fit. */
  write(bytes: Uint8Array<ArrayBuffer>, at: number): void;
  truncate(size: number): void;
  flush(): void;
  close(): void;
}

/** A folder of one cached file. @internal */
export interface Folder {
  /** Text of a small file; `undefined` if it is missing. */
  readText(name: string): Promise<string | undefined>;
  writeText(name: string, text: string): Promise<void>;
  /** Opens a file, and makes one that is missing. */
  openWritable(name: string): Promise<WritableFile>;
  /** Opens a file under the name that the engine is told; `undefined` if it is missing. */
  openSource(name: string, shown: string): Promise<OpenFile | undefined>;
  remove(name: string): Promise<void>;
}

/** All folders of the cache. @internal */
export interface Storage {
  list(): Promise<string[]>;
  folder(name: string): Promise<Folder>;
  remove(name: string): Promise<void>;
  /** Bytes that may still be stored. */
  free(): Promise<number>;
  /**
   * Takes the lock of a folder and returns its release. `shared` for readers. With `isNow` the result is `undefined` if another one has it.
   */
  lock(name: string, mode: "shared" | "exclusive", signal: AbortSignal, isNow?: boolean): Promise<(() => void) | undefined>;
}

/** Path of the cache in the origin private file system. @internal */
export const ROOT = ["stonechat", "models"] as const;

/** Name of a storage error that says that the quota is used up. @internal */
export function isQuota(error: unknown): boolean {
  const { name, code } = (error ?? {}) as { name?: unknown; code?: unknown };
  return name === "QuotaExceededError" || code === "ENOSPC" || code === "EDQUOT";
}
