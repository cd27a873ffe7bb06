// A package whose binaries are small fakes with the exports of the engine, for tests of the TypeScript side.
//
// A model file of the fakes is JSON: {"kind", "memory_bytes", "open": "fail" | "trap" | "slow", "milliseconds": {"cpu", "gpu"}}, padded to any size; a
// request takes the milliseconds of its device. Requests echo what they were given; the field `fake` of a body asks for a fault.

import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));

/** Pages that the fake modules declare. */
export const MINIMUM_PAGES = 20;

const folders = [];
process.on("exit", () => folders.forEach((folder) => rmSync(folder, { recursive: true, force: true })));

/** Folder that is removed at the end of the process. */
export function scratch() {
  const folder = mkdtempSync(join(tmpdir(), "stonechat-package-"));
  folders.push(folder);
  return folder;
}

/** Builds the package with fake binaries; `faults` names the binaries whose self-test fails, `missing` those left out. */
export function fakePackage({ faults = [], missing = [] } = {}) {
  const out = scratch();
  execFileSync(process.execPath, [join(here, "../js/build.mjs"), out], { stdio: "inherit" });
  fillPackage(out, { faults, missing });
  return out;
}

/** Writes the fake binaries into a built package. */
export function fillPackage(out, { faults = [], missing = [] } = {}) {
  mkdirSync(join(out, "dist"), { recursive: true });
  for (const name of ["relaxed", "base", "scalar", "gpu"]) {
    if (!missing.includes(name)) {
      const glue = fakeGlue(name, faults.includes(name));
      for (const file of name === "gpu" ? [name] : [name, `${name}-speech`]) {
        writeFileSync(join(out, `dist/stonechat-${file}.js`), glue);
        writeFileSync(join(out, `dist/stonechat-${file}.wasm`), fakeModule(name !== "gpu"));
      }
    }
  }
  writeFileSync(join(out, "dist/silero.bin"), "weights of speech detection");
}

/** Bundles one module of the sources, for tests of its functions. */
export async function sourceModule(...names) {
  const out = join(scratch(), "module.mjs");
  const contents = names.map((name) => `export * from ${JSON.stringify(join(here, "../js/src", `${name}.ts`))};`).join("\n");
  const stdin = { contents, resolveDir: here };
  await build({ stdin, bundle: true, format: "esm", outfile: out, define: { VERSION: '"test"' }, logLevel: "warning" });
  return import(out);
}

/** Bytes of a model file of the fakes. */
export function fakeModel(fields = {}, size = 1000) {
  const bytes = Buffer.alloc(size, " ");
  bytes.write(JSON.stringify({ kind: "language", memory_bytes: size, ...fields }));
  return bytes;
}

/** A module that imports a function and then shared memory, or has its own memory. */
function fakeModule(isShared) {
  const header = [0, 97, 115, 109, 1, 0, 0, 0];
  const leb = (n) => (n < 128 ? [n] : [(n & 127) | 128, ...leb(n >> 7)]);
  const text = (value) => [value.length, ...Buffer.from(value)];
  const section = (id, content) => [id, ...leb(content.length), ...content];
  const type = section(1, [1, 96, 0, 0]);
  const call = [...text("env"), ...text("call"), 0, 0];
  const memory = [...text("env"), ...text("memory"), 2, 3, ...leb(MINIMUM_PAGES), ...leb(65536)];
  const imports = isShared ? section(2, [2, ...call, ...memory]) : section(2, [1, ...call]);
  // One function that traps.
  const body = [...section(3, [1, 0]), ...section(7, [1, ...text("trap"), 0, 1]), ...section(10, [1, 3, 0, 0, 11])];
  return Buffer.from([...header, ...type, ...imports, ...body]);
}

function fakeGlue(name, isFaulty) {
  const source = readFileSync(join(here, "package-fake-glue.js"), "utf8");
  return source.replace("BINARY", JSON.stringify(name)).replace("IS_FAULTY", String(isFaulty));
}
