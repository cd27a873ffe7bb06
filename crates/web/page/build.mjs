// Builds the page into crates/server/src/page, which the server embeds. With --check it builds nothing and fails if those
// files differ from what the sources give.

import { createHash } from "node:crypto";
import { mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

import { build } from "esbuild";

const SOURCE = dirname(fileURLToPath(import.meta.url));
const TARGET = join(SOURCE, "../../server/src/page");
/** Bytes of gzip that script and styles may have. */
const MAX_BYTES = 150_000;
const BROWSERS = ["chrome123", "firefox121", "safari17.5"];

const common = {
  absWorkingDir: SOURCE,
  bundle: true,
  minify: true,
  charset: "utf8",
  legalComments: "none",
  target: BROWSERS,
  // Texts with escapes: in a template literal a line could end with a space, which the rules of the tree refuse.
  supported: { "template-literal": false },
  write: false,
  logLevel: "warning",
};

async function bundle(options) {
  const { outputFiles } = await build({ ...common, ...options });
  return Buffer.from(outputFiles[0].contents);
}

const hashOf = (bytes) => createHash("sha256").update(bytes).digest("hex").slice(0, 16);

/** Notices of the licences of what is bundled. */
async function licences() {
  const names = ["preact", "@preact/signals", "marked", "dompurify", "highlight.js"];
  const notices = names.map(async (name) => {
    const { version, license } = JSON.parse(await readFile(join(SOURCE, "../node_modules", name, "package.json"), "utf8"));
    return `${name} ${version} (${license})`;
  });
  return `/* stonechat. Includes ${(await Promise.all(notices)).join(", ")}. */\n`;
}

const endLine = (bytes) => (bytes.at(-1) === 10 ? bytes : Buffer.concat([bytes, Buffer.from("\n")]));

/** Files of the page by name. */
async function files() {
  const banner = await licences();
  const app = await bundle({
    entryPoints: ["src/main.tsx"], format: "esm", jsx: "automatic", jsxImportSource: "preact", banner: { js: banner.trim() },
    define: { "process.env.NODE_ENV": '"production"' },
  });
  const found = {
    "app.js": app,
    "app.css": await bundle({ entryPoints: ["src/app.css"] }),
    "capture.js": await bundle({ entryPoints: ["src/capture_worklet.ts"], format: "iife" }),
    "icon.svg": await readFile(join(SOURCE, "icon.svg")),
    "manifest.webmanifest": await readFile(join(SOURCE, "manifest.webmanifest")),
  };
  // A reference names the content, so that a browser may keep the file for ever.
  const name = (file) => `${file}?v=${hashOf(found[file])}`;
  let html = await readFile(join(SOURCE, "index.html"), "utf8");
  for (const file of Object.keys(found)) html = html.replaceAll(`"${file}"`, `"${name(file)}"`);
  found["index.html"] = Buffer.from(html);
  const version = hashOf(Buffer.concat(Object.values(found)));
  const kept = ["", ...Object.keys(found).filter((file) => file !== "index.html").flatMap((file) => [name(file), file])];
  const define = { FILES: JSON.stringify(kept), VERSION: JSON.stringify(version) };
  found["sw.js"] = await bundle({ entryPoints: ["src/service_worker.ts"], format: "iife", define });
  return Object.fromEntries(Object.entries(found).map(([file, bytes]) => [file, endLine(bytes)]));
}

const built = await files();
const size = gzipSync(built["app.js"], { level: 9 }).length + gzipSync(built["app.css"], { level: 9 }).length;
console.log(`page: app.js and app.css have ${size} bytes of gzip, at most ${MAX_BYTES}`);
if (size > MAX_BYTES) throw new Error(`expected at most ${MAX_BYTES} bytes of gzip, got ${size}`);

if (process.argv.includes("--check")) {
  const there = new Set(await readdir(TARGET).catch(() => []));
  const stale = [];
  for (const [file, bytes] of Object.entries(built)) {
    if (!there.delete(file) || !bytes.equals(await readFile(join(TARGET, file)))) stale.push(file);
  }
  stale.push(...there);
  if (stale.length > 0) {
    console.error(`crates/server/src/page differs from its sources: ${stale.join(", ")}. Run \`cargo xtask page\`.`);
    process.exit(1);
  }
} else {
  await rm(TARGET, { recursive: true, force: true });
  await mkdir(TARGET, { recursive: true });
  for (const [file, bytes] of Object.entries(built)) await writeFile(join(TARGET, file), bytes);
}
