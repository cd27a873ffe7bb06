// Bundles the package: `node js/build.mjs OUT` writes OUT/dist/{index,worker,microphone}.js, the declarations and the other files of the
// package. The binaries are put beside them by `cargo xtask web`.

import { execFileSync } from "node:child_process";
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const out = resolve(process.argv[2] ?? join(here, "../../../target/web/package"));
const { version } = JSON.parse(readFileSync(join(here, "package.json"), "utf8"));

/** Entry points and their names in the package. */
const entries = { index: "index.ts", worker: "worker.ts", microphone: "microphone-worklet.ts" };

mkdirSync(join(out, "dist"), { recursive: true });
await build({
  absWorkingDir: here,
  entryPoints: Object.entries(entries).map(([name, file]) => ({ in: `src/${file}`, out: name })),
  outdir: join(out, "dist"),
  bundle: true,
  format: "esm",
  target: "es2022",
  minify: true,
  legalComments: "none",
  define: { VERSION: JSON.stringify(version) },
  logLevel: "warning",
});
for (const name of Object.keys(entries)) {
  // Addresses of scripts are found at run time; bundlers leave an import alone that says so. The minifier drops the comments.
  const path = join(out, "dist", `${name}.js`);
  const marked = readFileSync(path, "utf8").replace(/\bimport\((?=[\w`])/g, "import(/* webpackIgnore: true *//* @vite-ignore */");
  writeFileSync(path, marked);
}
const tsc = join(dirname(createRequire(import.meta.url).resolve("typescript/package.json")), "bin/tsc");
execFileSync(process.execPath, [tsc, "-p", here, "--outDir", join(out, "dist")], { stdio: "inherit" });
for (const file of ["package.json", "README.md"]) {
  copyFileSync(join(here, file), join(out, file));
}
