/** The cache in a folder of Node. */

import { sleep } from "./download.js";
import { nodeModule, nodeProcess, type NodeFs } from "./host.js";
import { PathFile, type OpenFile } from "./sources.js";
import type { Folder, Storage, WritableFile } from "./storage.js";

/** Milliseconds between looks at a lock that another process has. */
const LOCK_PAUSE = 200;

/** The cache in the folder `path`, which is made if it is missing. @internal */
export async function openFolder(path: string): Promise<Storage> {
  const fs = await nodeModule("fs");
  fs.mkdirSync(path, { recursive: true });
  return new NodeStorage(fs, path);
}

class NodeStorage implements Storage {
  constructor(
    private readonly fs: NodeFs,
    private readonly path: string,
  ) {}

  async list(): Promise<string[]> {
    return this.fs.readdirSync(this.path).filter((name) => /^[0-9a-f]{32}$/.test(name));
  }

  async folder(name: string): Promise<Folder> {
    const path = `${this.path}/${name}`;
    this.fs.mkdirSync(path, { recursive: true });
    return new NodeFolder(this.fs, path);
  }

  async remove(name: string): Promise<void> {
    this.fs.rmSync(`${this.path}/${name}`, { recursive: true, force: true });
  }

  async free(): Promise<number> {
    return Infinity;
  }

  /** Lock file with the number of the process. Readers need none: an open file outlives its removal. */
  async lock(
    name: string,
    mode: "shared" | "exclusive",
    signal: AbortSignal,
    isNow = false,
  ): Promise<(() => void) | undefined> {
    if (mode === "shared") {
      return () => undefined;
    }
    const path = `${this.path}/${name}.lock`;
    for (;;) {
      signal.throwIfAborted();
      try {
        this.fs.writeFileSync(path, String(nodeProcess().pid), { flag: "wx" });
        return () => this.fs.rmSync(path, { recursive: false, force: true });
      } catch (error) {
        if ((error as { code?: unknown }).code !== "EEXIST") {
          throw error;
        }
      }
      if (this.#isStale(path)) {
        this.fs.rmSync(path, { recursive: false, force: true });
      } else if (isNow) {
        return undefined;
      } else {
        await sleep(LOCK_PAUSE, signal);
      }
    }
  }

  /** Whether the process of a lock has ended. */
  #isStale(path: string): boolean {
    try {
      const pid = Number(new TextDecoder().decode(this.fs.readFileSync(path)));
      if (pid > 0) {
        nodeProcess().kill(pid, 0);
      }
      return false;
    } catch (error) {
      return (error as { code?: unknown }).code === "ESRCH";
    }
  }
}

class NodeFolder implements Folder {
  constructor(
    private readonly fs: NodeFs,
    private readonly path: string,
  ) {}

  async readText(name: string): Promise<string | undefined> {
    const path = `${this.path}/${name}`;
    return this.fs.existsSync(path) ? new TextDecoder().decode(this.fs.readFileSync(path)) : undefined;
  }

  async writeText(name: string, text: string): Promise<void> {
    const path = `${this.path}/${name}`;
    this.fs.writeFileSync(`${path}.new`, text);
    this.fs.renameSync(`${path}.new`, path);
  }

  async openWritable(name: string): Promise<WritableFile> {
    const path = `${this.path}/${name}`;
    return new NodeFile(this.fs, this.fs.openSync(path, this.fs.existsSync(path) ? "r+" : "w+"));
  }

  async openSource(name: string, shown: string): Promise<OpenFile | undefined> {
    const path = `${this.path}/${name}`;
    return this.fs.existsSync(path) ? new PathFile(shown, path, this.fs) : undefined;
  }

  async remove(name: string): Promise<void> {
    this.fs.rmSync(`${this.path}/${name}`, { recursive: false, force: true });
  }
}

class NodeFile implements WritableFile {
  constructor(
    private readonly fs: NodeFs,
    private readonly fd: number,
  ) {}

  size(): number {
    return this.fs.fstatSync(this.fd).size;
  }

  write(bytes: Uint8Array<ArrayBuffer>, at: number): void {
    for (let done = 0; done < bytes.length; ) {
      done += this.fs.writeSync(this.fd, bytes, done, bytes.length - done, at + done);
    }
  }

  truncate(size: number): void {
    this.fs.ftruncateSync(this.fd, size);
  }

  flush(): void {
    this.fs.fsyncSync(this.fd);
  }

  close(): void {
    this.fs.closeSync(this.fd);
  }
}
