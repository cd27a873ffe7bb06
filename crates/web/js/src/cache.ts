/**
 * Cache of downloaded files.
 *
 *     <SHA-256 of the URL, 32 digits>/
 *         data           bytes of the file
 *         state.json     ranges that are written, while the download runs
 *         commit.json    size and identity, written last
 *
 * A file without `commit.json` is never used: the next load resumes it. A file that does not fit goes on in memory.
 */

import { sha256 } from "@noble/hashes/sha2.js";
import { bytesToHex } from "@noble/hashes/utils.js";

import { download, isState, type DownloadLimits, type DownloadState, type Target, type Validators } from "./download.js";
import { failedDownload, mib, tooLarge } from "./errors.js";
import { isNode } from "./host.js";
import { cacheKey } from "./key.js";
import { BlobFile, PiecesFile, type OpenFile } from "./sources.js";
import { isQuota, type Folder, type Storage, type WritableFile } from "./storage.js";
import type { CachedFile, LoadProgress } from "./types.js";

const DATA = "data";
const STATE = "state.json";
const COMMIT = "commit.json";

/** Bytes of a piece of a file in memory. */
const PIECE = 4 * 2 ** 20;

/** Maximum bytes of downloads that are kept in memory. */
const MAX_IN_MEMORY = 8 * 2 ** 30;

/** Milliseconds after which a load says that it waits for another one. */
const WAIT_PAUSE = 200;

/** Times that a file is downloaded because its copy is gone or damaged right after. */
const MAX_TRIES = 3;

/** Record of a whole file. */
interface Commit extends Validators {
  url: string;
  sha256: string | null;
  time: number;
}

/** Facts that all files of a load share. @internal */
export interface CacheContext {
  /** `undefined` for downloads that stay in memory. */
  storage: Storage | undefined;
  headers: Record<string, string>;
  signal: AbortSignal;
  onProgress(progress: LoadProgress): void;
  /** Counts bytes of the model; throws if they cannot fit. */
  reserve(bytes: number): void;
  /** Tells the user something once. */
  note(text: string): void;
  limits?: Partial<DownloadLimits>;
}

/** A file to fetch. @internal */
export interface RemoteFile {
  name: string;
  url: string;
  sha256?: string | undefined;
}

/** Opens the cached copy of a file, or downloads it. A cached file is not removed before it is closed. @internal */
export async function fetchFile(file: RemoteFile, context: CacheContext): Promise<OpenFile> {
  const { storage } = context;
  if (!storage) {
    return new Fetch(file, context).inMemory();
  }
  const key = await cacheKey(file.url);
  for (let tries = 0; tries < MAX_TRIES; tries += 1) {
    const release = await lockFile(storage, key, "shared", file, context);
    let opened: OpenFile | undefined;
    try {
      opened = await openCommitted(storage, key, file);
    } finally {
      if (!opened) {
        release?.();
      }
    }
    if (opened) {
      context.reserve(opened.size);
      context.onProgress({ status: "download", file: file.name, loaded: opened.size, total: opened.size });
      return held(opened, release);
    }
    const unkept = await downloadLocked(storage, key, file, context);
    if (unkept) {
      return unkept;
    }
  }
  throw failedDownload(`${file.url}: expected a file that stays in the cache, got one that was removed or changed ${MAX_TRIES} times`);
}

/** Locks a file, and reports a wait for another load. */
async function lockFile(
  storage: Storage,
  key: string,
  mode: "shared" | "exclusive",
  file: RemoteFile,
  context: CacheContext,
): Promise<(() => void) | undefined> {
  const onWait = () => context.onProgress({ status: "wait", file: file.name, loaded: 0, total: 0 });
  const timer = setTimeout(onWait, WAIT_PAUSE);
  return storage.lock(key, mode, context.signal).finally(() => clearTimeout(timer));
}

/** Downloads into the cache; the result is the file if it had to stay in memory. */
async function downloadLocked(
  storage: Storage,
  key: string,
  file: RemoteFile,
  context: CacheContext,
): Promise<OpenFile | undefined> {
  const release = await lockFile(storage, key, "exclusive", file, context);
  try {
    const folder = await storage.folder(key);
    // The other one may have been faster.
    if (await readCommit(folder)) {
      return undefined;
    }
    return await new Fetch(file, context).into(storage, folder, () => storage.remove(key));
  } finally {
    release?.();
  }
}

/** A file that keeps a lock until it is closed. */
function held(file: OpenFile, release: (() => void) | undefined): OpenFile {
  return {
    name: file.name,
    size: file.size,
    read: (offset, into) => file.read(offset, into),
    close() {
      file.close();
      release?.();
    },
  };
}

/** One download. */
class Fetch {
  constructor(
    private readonly file: RemoteFile,
    private readonly context: CacheContext,
  ) {}

  /** Downloads into memory. */
  async inMemory(): Promise<OpenFile> {
    const target = new MemoryTarget(this.context, this.file);
    await this.#run(target, undefined);
    const opened = target.open();
    await this.#verify(opened, () => opened.close());
    return opened;
  }

  /** Downloads into a folder; the result is the file if it had to go on in memory. */
  async into(storage: Storage, folder: Folder, removeFolder: () => Promise<void>): Promise<OpenFile | undefined> {
    const resume = await readState(folder, this.file.url);
    let data: WritableFile;
    try {
      data = await folder.openWritable(DATA);
    } catch (error) {
      this.context.note(`the cache of models cannot be written (${String(error)}): the download stays in memory`);
      return this.inMemory();
    }
    const target = new SpillTarget(this.context, this.file, storage, folder, data);
    try {
      const found = await this.#run(target, resume && isCovered(resume, data.size()) ? resume : undefined);
      const memory = target.memory;
      if (memory) {
        const opened = memory.open();
        await this.#verify(opened, () => opened.close());
        return opened;
      }
      data.truncate(found.size);
      data.flush();
      if (data.size() !== found.size) {
        throw failedDownload(`${this.file.url}: expected ${found.size} bytes in the cache, got ${data.size()}`);
      }
      // A descriptor of Node that is closed twice may be another file's by then.
      target.close();
      try {
        await this.#commit(folder, found, removeFolder);
        return undefined;
      } catch (error) {
        if (!isQuota(error)) {
          throw error;
        }
        this.context.note(`${this.file.name} is downloaded again next time: the quota is used up`);
        return await folder.openSource(DATA, this.file.name);
      }
    } finally {
      target.close();
      if (target.memory) {
        await removeFolder();
      }
    }
  }

  async #commit(folder: Folder, found: Validators, removeFolder: () => Promise<void>): Promise<void> {
    const { url, sha256: expected } = this.file;
    if (expected) {
      const opened = await folder.openSource(DATA, this.file.name);
      await this.#verify(opened as OpenFile, () => {
        opened?.close();
        return removeFolder();
      });
      opened?.close();
    }
    const { size, etag, lastModified } = found;
    const commit: Commit = { url, size, etag, lastModified, sha256: expected?.toLowerCase() ?? null, time: Date.now() };
    await folder.writeText(COMMIT, JSON.stringify(commit));
    await folder.remove(STATE);
  }

  async #run(target: Target, resume: DownloadState | undefined): Promise<Validators> {
    const { signal, headers, limits } = this.context;
    const { url, name } = this.file;
    if (resume) {
      this.context.reserve(resume.size);
    }
    const onProgress = (loaded: number, total: number) =>
      this.context.onProgress({ status: "download", file: name, loaded, total });
    return download({ url, headers, signal, target, resume, onProgress, ...(limits && { limits }) });
  }

  async #verify(file: OpenFile, discard: () => void | Promise<void>): Promise<void> {
    const expected = this.file.sha256;
    if (expected && hashOf(file) !== expected.toLowerCase()) {
      await discard();
      throw failedDownload(`${this.file.url}: expected the SHA-256 ${expected}, got another one`);
    }
  }
}

/** Bytes in memory: disk-backed `Blob`s where the browser has them, outside the memory of the engine. */
class MemoryTarget implements Target {
  #pieces: Uint8Array<ArrayBuffer>[] = [];
  #blobs: (Blob | undefined)[] = [];
  #filled: number[] = [];
  #size = 0;
  #declared = 0;

  constructor(
    private readonly context: CacheContext,
    private readonly file: RemoteFile,
    private isCounted = false,
  ) {}

  async begin(size: number): Promise<void> {
    this.#pieces = [];
    this.#blobs = [];
    this.#filled = [];
    this.#size = 0;
    this.#declared = size;
    this.#check(size);
    if (!this.isCounted) {
      this.isCounted = true;
      this.context.reserve(size);
    }
  }

  async write(bytes: Uint8Array<ArrayBuffer>, at: number): Promise<void> {
    this.#check(at + bytes.length);
    for (let done = 0; done < bytes.length; ) {
      const index = Math.floor((at + done) / PIECE);
      const start = (at + done) % PIECE;
      const part = bytes.subarray(done, done + PIECE - start);
      const piece = (this.#pieces[index] ??= new Uint8Array(PIECE));
      piece.set(part, start);
      this.#filled[index] = (this.#filled[index] ?? 0) + part.length;
      if (this.#filled[index] === PIECE && !isNode) {
        this.#blobs[index] = new Blob([piece]);
        delete this.#pieces[index];
      }
      done += part.length;
    }
    this.#size = Math.max(this.#size, at + bytes.length);
  }

  async save(): Promise<void> {}

  open(): OpenFile {
    const { name } = this.file;
    if (isNode) {
      return new PiecesFile(name, this.#size, this.#pieces, PIECE);
    }
    const n = Math.ceil(this.#size / PIECE);
    const part = (i: number) =>
      this.#blobs[i] ?? (this.#pieces[i] as Uint8Array<ArrayBuffer>).subarray(0, this.#size - i * PIECE);
    const blob = new Blob(Array.from({ length: n }, (_, i) => part(i)));
    this.#pieces = [];
    this.#blobs = [];
    return new BlobFile(name, blob);
  }

  #check(size: number): void {
    if (size > MAX_IN_MEMORY) {
      const limit = `at most ${mib(MAX_IN_MEMORY)} of a file that is not cached`;
      throw tooLarge(`${this.file.name}: expected ${limit}, got ${mib(Math.max(size, this.#declared))}`);
    }
  }
}

/** Bytes in the cache, which go on in memory once the quota is used up. */
class SpillTarget implements Target {
  memory: MemoryTarget | undefined;
  #moving: Promise<MemoryTarget> | undefined;
  #isCounted = false;
  #isClosed = false;
  /** End of the written bytes. */
  #end = 0;

  constructor(
    private readonly context: CacheContext,
    private readonly file: RemoteFile,
    private readonly storage: Storage,
    private readonly folder: Folder,
    private readonly data: WritableFile,
  ) {
    this.#end = data.size();
  }

  async begin(size: number): Promise<void> {
    if (this.memory) {
      return this.memory.begin(size);
    }
    if (!this.#isCounted) {
      this.#isCounted = true;
      this.context.reserve(size);
    }
    await this.folder.remove(STATE);
    this.data.truncate(0);
    this.#end = 0;
    const free = await this.storage.free();
    if (size > free) {
      this.#tell(`${mib(size)} needed, ${mib(free)} free`);
      this.memory = new MemoryTarget(this.context, this.file, true);
      await this.memory.begin(size);
    }
  }

  async write(bytes: Uint8Array<ArrayBuffer>, at: number): Promise<void> {
    if (!this.#moving && !this.memory) {
      try {
        this.data.write(bytes, at);
        this.#end = Math.max(this.#end, at + bytes.length);
        return;
      } catch (error) {
        if (!isQuota(error)) {
          throw error;
        }
        this.#moving = this.#move();
      }
    }
    const memory = this.memory ?? (await this.#moving);
    await memory?.write(bytes, at);
  }

  async save(state: DownloadState): Promise<void> {
    if (!this.memory && !this.#moving && !this.#isClosed) {
      this.data.flush();
      await this.folder.writeText(STATE, JSON.stringify({ ...state, url: this.file.url }));
    }
  }

  close(): void {
    if (!this.#isClosed) {
      this.#isClosed = true;
      this.data.close();
    }
  }

  /** Copies what was written to memory, and frees the file. */
  async #move(): Promise<MemoryTarget> {
    this.#tell("the quota is used up");
    const memory = new MemoryTarget(this.context, this.file, true);
    await memory.begin(this.#end);
    this.data.flush();
    this.close();
    const written = await this.folder.openSource(DATA, this.file.name);
    const end = Math.min(this.#end, written?.size ?? 0);
    for (let at = 0; written && at < end; at += PIECE) {
      const bytes = new Uint8Array(Math.min(PIECE, end - at));
      written.read(at, bytes);
      await memory.write(bytes, at);
    }
    written?.close();
    await this.folder.remove(DATA);
    this.memory = memory;
    return memory;
  }

  #tell(reason: string): void {
    this.context.note(`${this.file.name} is kept in memory and downloaded again next time: ${reason}`);
  }
}

/** Files of the cache. @internal */
export async function listFiles(storage: Storage): Promise<CachedFile[]> {
  const files: CachedFile[] = [];
  for (const key of await storage.list()) {
    const folder = await storage.folder(key);
    const commit = await readCommit(folder);
    if (commit) {
      const { url, size, time } = commit;
      files.push({ name: url, bytes: size, total: size, isComplete: true, time });
      continue;
    }
    const record = parse(await folder.readText(STATE));
    if (isState(record)) {
      const { url } = record as unknown as { url: string };
      const bytes = record.done.reduce((sum, n) => sum + n, 0);
      files.push({ name: url, bytes, total: record.size, isComplete: false, time: 0 });
    } else {
      files.push({ name: key, bytes: 0, total: 0, isComplete: false, time: 0 });
    }
  }
  return files;
}

/** Removes a file by its URL, or by the key of one without a record; the result says whether nobody uses it. @internal */
export async function removeFile(storage: Storage, name: string): Promise<boolean> {
  const key = /^[0-9a-f]{32}$/.test(name) ? name : await cacheKey(name);
  const release = await storage.lock(key, "exclusive", new AbortController().signal, true);
  if (!release) {
    return false;
  }
  try {
    await storage.remove(key);
    return true;
  } finally {
    release();
  }
}

/** The file of a commit record whose size agrees; a file that contradicts its record is removed. */
async function openCommitted(storage: Storage, key: string, file: RemoteFile): Promise<OpenFile | undefined> {
  const folder = await storage.folder(key);
  const commit = await readCommit(folder);
  const opened = commit && (await folder.openSource(DATA, file.name));
  const isWhole = opened?.size === commit?.size;
  if (opened && isWhole && (!file.sha256 || file.sha256.toLowerCase() === (commit.sha256 ?? hashOf(opened)))) {
    return opened;
  }
  opened?.close();
  if (commit) {
    await folder.remove(COMMIT);
  }
  return undefined;
}

async function readCommit(folder: Folder): Promise<Commit | undefined> {
  const commit = parse(await folder.readText(COMMIT)) as Partial<Commit> | undefined;
  const isWhole = typeof commit?.url === "string" && Number.isSafeInteger(commit.size) && (commit.size ?? 0) > 0;
  return isWhole ? (commit as Commit) : undefined;
}

async function readState(folder: Folder, url: string): Promise<DownloadState | undefined> {
  const state = parse(await folder.readText(STATE));
  return isState(state) && (state as { url?: unknown }).url === url ? state : undefined;
}

/** Whether a file has all bytes that a state names. */
function isCovered(state: DownloadState, size: number): boolean {
  return state.done.every((n, i) => n === 0 || i * state.chunk + n <= size);
}

function parse(text: string | undefined): unknown {
  try {
    return text === undefined ? undefined : JSON.parse(text);
  } catch {
    // A record that was cut off.
    return undefined;
  }
}

function hashOf(file: OpenFile): string {
  const hash = sha256.create();
  const buffer = new Uint8Array(Math.min(PIECE, file.size));
  for (let at = 0; at < file.size; at += buffer.length) {
    const part = buffer.subarray(0, Math.min(buffer.length, file.size - at));
    file.read(at, part);
    hash.update(part);
  }
  return bytesToHex(hash.digest());
}
