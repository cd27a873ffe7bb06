// Minifies a module in its place: `node js/minify.mjs FILE`.

import { readFileSync, writeFileSync } from "node:fs";

import { transform } from "esbuild";

const [file] = process.argv.slice(2);
const { code } = await transform(readFileSync(file, "utf8"), { minify: true, format: "esm", target: "es2022" });
writeFileSync(file, code);
