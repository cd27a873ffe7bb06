/** Files of a model that the engine reads at any offset, one read at a time. */

import type { SourceFile } from "./assets.js";
import { StonechatError } from "./errors.js";
import type { NodeFs } from "./host.js";

/** Bytes that are read from a `Blob` at a time: each read makes a copy. */
const STEP = 8 * 2 ** 20;

/** Reader of workers, which the types of pages do not have. */
declare class FileReaderSync {
  readAsArrayBuffer(blob: Blob): ArrayBuffer;
}

/** A file that is closed after the load. @internal */
export interface OpenFile extends SourceFile {
  close(): void;
}

/** A `Blob` or `File`, read in place. @internal */
export class BlobFile implements OpenFile {
  readonly size: number;
  readonly #reader = new FileReaderSync();

  constructor(
    readonly name: string,
    private readonly blob: Blob,
  ) {
    this.size = blob.size;
  }

  read(offset: number, into: Uint8Array): void {
    checkRange(this, offset, into);
    for (let at = 0; at < into.length; at += STEP) {
      const n = Math.min(STEP, into.length - at);
      const part = this.blob.slice(offset + at, offset + at + n);
      into.set(new Uint8Array(this.#reader.readAsArrayBuffer(part)), at);
    }
  }

  close(): void {}
}

/** A file in pieces of equal size, but for the last. @internal */
export class PiecesFile implements OpenFile {
  constructor(
    readonly name: string,
    readonly size: number,
    private readonly pieces: Uint8Array[],
    private readonly piece: number,
  ) {}

  read(offset: number, into: Uint8Array): void {
    checkRange(this, offset, into);
    for (let at = 0; at < into.length; ) {
      const piece = this.pieces[Math.floor((offset + at) / this.piece)] as Uint8Array;
      const start = (offset + at) % this.piece;
      const part = piece.subarray(start, start + into.length - at);
      into.set(part, at);
      at += part.length;
    }
  }

  close(): void {
    this.pieces.length = 0;
  }
}

/** A file of Node. @internal */
export class PathFile implements OpenFile {
  readonly size: number;
  readonly #fd: number;

  constructor(
    readonly name: string,
    path: string,
    private readonly fs: NodeFs,
  ) {
    this.#fd = fs.openSync(path, "r");
    this.size = fs.fstatSync(this.#fd).size;
  }

  read(offset: number, into: Uint8Array): void {
    checkRange(this, offset, into);
    for (let at = 0; at < into.length; ) {
      const n = this.fs.readSync(this.#fd, into, at, Math.min(into.length - at, 2 ** 30), offset + at);
      if (n === 0) {
        throw unreadable(`${this.name}: expected ${this.size} bytes, got ${offset + at}`);
      }
      at += n;
    }
  }

  close(): void {
    this.fs.closeSync(this.#fd);
  }
}

function checkRange(file: SourceFile, offset: number, into: Uint8Array): void {
  if (!(offset >= 0 && offset + into.length <= file.size)) {
    throw unreadable(`${file.name}: expected at least ${offset + into.length} bytes, got ${file.size}`);
  }
}

function unreadable(message: string): StonechatError {
  return new StonechatError(message, { status: 400, type: "invalid_request_error" });
}
