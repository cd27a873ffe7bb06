/** Probes of WebAssembly features, the memory of a module, and its compilation. */

import { StonechatError, failedDownload, mib, tooLarge } from "./errors.js";
import { isNode, nodeModule } from "./host.js";

/** Bytes of a WebAssembly page. */
const PAGE = 65536;

/** Bytes of a module that are searched for its imports. */
const MAX_HEAD = 2 ** 20;

/**
 * Maxima of shared memory in MiB, tried in this order. Browsers reserve the maximum; iOS refuses a large one whatever the model's size.
 */
const MEMORY_LADDER = [4096, 2048, 1536, 1024, 512];

const HEADER = [0, 97, 115, 109, 1, 0, 0, 0];

/** A function of the type `() -> v128` with the body `code`. */
function vectorModule(code: number[]): Uint8Array<ArrayBuffer> {
  const body = [0, ...code, 11];
  return Uint8Array.of(...HEADER, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, body.length + 2, 1, body.length, ...body);
}

/** `i32.const 1; i8x16.splat` */
const SPLAT = [65, 1, 253, 15];

/** WebAssembly features. @internal */
export interface WasmFeatures {
  wasm: boolean;
  simd: boolean;
  relaxed: boolean;
  threads: boolean;
}

/** Validates a small module for each feature. @internal */
export function wasmFeatures(): WasmFeatures {
  if (typeof WebAssembly !== "object") {
    return { wasm: false, simd: false, relaxed: false, threads: false };
  }
  const has = (bytes: Uint8Array<ArrayBuffer>) => WebAssembly.validate(bytes);
  // `i32.const 0; i32.atomic.load` on a shared memory.
  const atomics = [1, 4, 1, 96, 0, 0, 3, 2, 1, 0, 5, 4, 1, 3, 1, 1, 10, 11, 1, 9, 0, 65, 0, 254, 16, 2, 0, 26, 11];
  return {
    wasm: true,
    // `i8x16.popcnt`
    simd: has(vectorModule([...SPLAT, 253, 98])),
    // `i32x4.relaxed_dot_i8x16_i7x16_add_s`
    relaxed: has(vectorModule([...SPLAT, ...SPLAT, ...SPLAT, 253, 147, 2])),
    threads: has(Uint8Array.of(...HEADER, ...atomics)),
  };
}

/** Memory that a module imports, in pages. @internal */
export interface MemoryImport {
  minimum: number;
  maximum: number | undefined;
  isShared: boolean;
}

/** Memory that a module imports; `undefined` if it has its own. Throws `RangeError` if `bytes` end before that is known. @internal */
export function memoryImport(bytes: Uint8Array): MemoryImport | undefined {
  const reader = new ModuleReader(bytes);
  if (!HEADER.every((byte) => reader.byte() === byte)) {
    throw new StonechatError("expected a WebAssembly module, got other bytes", { status: 502, type: "download_error" });
  }
  for (;;) {
    const section = reader.byte();
    const size = reader.number();
    if (section === 2) {
      return reader.imports();
    }
    if (section > 2) {
      return undefined;
    }
    reader.skip(size);
  }
}

class ModuleReader {
  #at = 0;

  constructor(private readonly bytes: Uint8Array) {}

  byte(): number {
    const byte = this.bytes[this.#at];
    if (byte === undefined) {
      throw new RangeError("end of the module");
    }
    this.#at += 1;
    return byte;
  }

  /** Unsigned LEB128. */
  number(): number {
    let value = 0;
    for (let scale = 1; scale < 2 ** 50; scale *= 128) {
      const byte = this.byte();
      value += (byte & 127) * scale;
      if (byte < 128) {
        return value;
      }
    }
    throw new StonechatError("expected a WebAssembly module, got a damaged one", { status: 502, type: "download_error" });
  }

  skip(size: number): void {
    this.#at += size;
  }

  imports(): MemoryImport | undefined {
    for (let left = this.number(); left > 0; left -= 1) {
      this.skip(this.number());
      this.skip(this.number());
      const kind = this.byte();
      if (kind === 2) {
        const { flags, minimum, maximum } = this.limits();
        return { minimum, maximum, isShared: (flags & 2) !== 0 };
      }
      if (kind === 0) {
        this.number();
      } else if (kind === 1) {
        this.skip(1);
        this.limits();
      } else {
        this.skip(1);
        this.number();
      }
    }
    return undefined;
  }

  limits(): { flags: number; minimum: number; maximum: number | undefined } {
    const flags = this.number();
    const minimum = this.number();
    return { flags, minimum, maximum: flags & 1 ? this.number() : undefined };
  }
}

/** Makes the memory for an import with the greatest maximum that this browser grants, and gives that maximum in bytes. @internal */
export function makeMemory(wanted: MemoryImport): { memory: WebAssembly.Memory; maximum: number } {
  const declared = wanted.maximum ?? PAGE;
  let refusal: unknown;
  for (const size of MEMORY_LADDER) {
    const maximum = Math.min((size * 2 ** 20) / PAGE, declared);
    if (maximum < wanted.minimum) {
      break;
    }
    try {
      const memory = new WebAssembly.Memory({ initial: wanted.minimum, maximum, shared: wanted.isShared });
      return { memory, maximum: maximum * PAGE };
    } catch (error) {
      refusal = error;
    }
  }
  const least = mib(Math.max(wanted.minimum * PAGE, (MEMORY_LADDER.at(-1) ?? 0) * 2 ** 20));
  throw tooLarge(`expected ${least} of memory for the engine, got a refusal of this browser: ${String(refusal)}`);
}

/** A compiled module and the memory that it imports. @internal */
export interface Compiled {
  module: WebAssembly.Module;
  memory: MemoryImport | undefined;
}

/** Compiles the module at `url`; while it arrives, if the server gives it the type `application/wasm`. @internal */
export async function compile(url: URL, signal: AbortSignal): Promise<Compiled> {
  if (isNode && url.protocol === "file:") {
    const [fs, { fileURLToPath }] = await Promise.all([nodeModule("fs"), nodeModule("url")]);
    return compileBytes(fs.readFileSync(fileURLToPath(url)));
  }
  const response = await fetch(url, { signal });
  if (!response.ok) {
    throw failedDownload(`${url.href}: expected status 200, got ${response.status}`, response.status);
  }
  const type = response.headers.get("Content-Type") ?? "";
  if (!type.startsWith("application/wasm") || !response.body) {
    return compileBytes(new Uint8Array(await response.arrayBuffer()));
  }
  const head = readImport(response.clone());
  const [memory, module] = await Promise.all([head, WebAssembly.compileStreaming(response)]);
  return { module, memory };
}

async function compileBytes(bytes: Uint8Array<ArrayBuffer>): Promise<Compiled> {
  return { module: await WebAssembly.compile(bytes), memory: memoryImport(bytes) };
}

/** Reads a response until the imports are known. */
async function readImport(response: Response): Promise<MemoryImport | undefined> {
  const reader = (response.body as ReadableStream<Uint8Array<ArrayBuffer>>).getReader();
  let head = new Uint8Array();
  for (;;) {
    const { value, done } = await reader.read();
    if (value) {
      const longer = new Uint8Array(head.length + value.length);
      longer.set(head);
      longer.set(value, head.length);
      head = longer;
    }
    try {
      const found = memoryImport(head);
      await reader.cancel();
      return found;
    } catch (error) {
      if (!(error instanceof RangeError) || done || head.length > MAX_HEAD) {
        throw error;
      }
    }
  }
}
