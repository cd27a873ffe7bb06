/** The cache in the origin private file system of a browser. */

import { BlobFile, type OpenFile } from "./sources.js";
import { ROOT, type Folder, type Storage, type WritableFile } from "./storage.js";

/** Handle of workers, which the types of pages do not have. */
interface SyncAccessHandle {
  write(bytes: Uint8Array, options: { at: number }): number;
  truncate(size: number): void;
  getSize(): number;
  flush(): void;
  close(): void;
}

type FileHandle = FileSystemFileHandle & { createSyncAccessHandle(): Promise<SyncAccessHandle> };

/** The cache of this origin; `undefined` where the browser has none, such as in some private windows. @internal */
export async function openOpfs(): Promise<Storage | undefined> {
  try {
    let folder = await navigator.storage.getDirectory();
    for (const name of ROOT) {
      folder = await folder.getDirectoryHandle(name, { create: true });
    }
    return new Opfs(folder);
  } catch {
    return undefined;
  }
}

class Opfs implements Storage {
  constructor(private readonly root: FileSystemDirectoryHandle) {}

  async list(): Promise<string[]> {
    const names: string[] = [];
    for await (const name of this.root.keys()) {
      names.push(name);
    }
    return names;
  }

  async folder(name: string): Promise<Folder> {
    return new OpfsFolder(await this.root.getDirectoryHandle(name, { create: true }));
  }

  async remove(name: string): Promise<void> {
    await ignoreMissing(this.root.removeEntry(name, { recursive: true }));
  }

  async free(): Promise<number> {
    const { quota, usage } = await navigator.storage.estimate();
    return quota === undefined ? Infinity : quota - (usage ?? 0);
  }

  async lock(
    name: string,
    mode: "shared" | "exclusive",
    signal: AbortSignal,
    isNow = false,
  ): Promise<(() => void) | undefined> {
    if (!navigator.locks) {
      return () => undefined;
    }
    // A request takes a signal or `ifAvailable`, not both.
    const options = isNow ? { mode, ifAvailable: true } : { mode, signal };
    return new Promise((resolve, reject) => {
      const held = navigator.locks.request(`stonechat:${name}`, options, (lock) => {
        if (!lock) {
          resolve(undefined);
          return undefined;
        }
        return new Promise<void>((release) => resolve(release));
      });
      held.catch(reject);
    });
  }
}

class OpfsFolder implements Folder {
  constructor(private readonly folder: FileSystemDirectoryHandle) {}

  async readText(name: string): Promise<string | undefined> {
    const handle = await ignoreMissing(this.folder.getFileHandle(name));
    return handle && (await handle.getFile()).text();
  }

  async writeText(name: string, text: string): Promise<void> {
    const file = await this.openWritable(name);
    try {
      const bytes = new TextEncoder().encode(text);
      file.write(bytes, 0);
      file.truncate(bytes.length);
      file.flush();
    } finally {
      file.close();
    }
  }

  async openWritable(name: string): Promise<WritableFile> {
    const handle = (await this.folder.getFileHandle(name, { create: true })) as FileHandle;
    return new OpfsFile(await handle.createSyncAccessHandle());
  }

  async openSource(name: string, shown: string): Promise<OpenFile | undefined> {
    const handle = await ignoreMissing(this.folder.getFileHandle(name));
    // A `File` is read by several tabs at once, which an access handle does not allow in every browser.
    return handle && new BlobFile(shown, await handle.getFile());
  }

  async remove(name: string): Promise<void> {
    await ignoreMissing(this.folder.removeEntry(name));
  }
}

class OpfsFile implements WritableFile {
  constructor(private readonly handle: SyncAccessHandle) {}

  size(): number {
    return this.handle.getSize();
  }

  write(bytes: Uint8Array<ArrayBuffer>, at: number): void {
    for (let done = 0; done < bytes.length; ) {
      const n = this.handle.write(bytes.subarray(done), { at: at + done });
      // Chromium returns a negative error code as an unsigned number where storage is in memory.
      if (!(n > 0 && n <= bytes.length - done)) {
        throw new DOMException("no byte could be written", "QuotaExceededError");
      }
      done += n;
    }
  }

  truncate(size: number): void {
    this.handle.truncate(size);
  }

  flush(): void {
    this.handle.flush();
  }

  close(): void {
    this.handle.close();
  }
}

async function ignoreMissing<T>(work: Promise<T>): Promise<T | undefined> {
  try {
    return await work;
  } catch (error) {
    if ((error as Error).name === "NotFoundError") {
      return undefined;
    }
    throw error;
  }
}
