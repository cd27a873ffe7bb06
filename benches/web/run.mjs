/**
 * Measures stonechat and its peers in one Chromium, in turns, and prints a run as JSON.
 *
 *     npm ci --prefix benches/web
 *     node benches/web/run.mjs --package target/web/package/dist --speech ggml-tiny.en-q5_1.bin --onnx ONNX_FOLDER \
 *         --language smollm2-135m-q4_1.gguf --audio clip.wav > run.json
 *
 * Engines without their files are left out, by name. `ONNX_FOLDER` is a Whisper model as transformers.js reads it (`export.py`).
 */

import { createServer } from "node:http";
import { createReadStream } from "node:fs";
import { stat } from "node:fs/promises";
import { cpus, totalmem } from "node:os";
import { basename, dirname, extname, join, resolve, sep } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const HERE = dirname(fileURLToPath(import.meta.url));

const TYPES = {
  ".css": "text/css",
  ".html": "text/html",
  ".js": "text/javascript",
  ".json": "application/json",
  ".mjs": "text/javascript",
  ".wasm": "application/wasm",
};

/** 128 tokens or a few more in the vocabularies of small models. */
const PROMPT = Array.from({ length: 8 }, (_, i) => `Chapter ${i + 1}. The stonechat is a small bird of open country.`).join(" ");

const OPTIONS = {
  package: { type: "string" },
  modules: { type: "string", default: join(HERE, "node_modules") },
  speech: { type: "string" },
  onnx: { type: "string" },
  language: { type: "string" },
  audio: { type: "string" },
  chromium: { type: "string", default: "/usr/bin/chromium" },
  binary: { type: "string" },
  dtype: { type: "string", default: "q8" },
  threads: { type: "string", default: "2" },
  rounds: { type: "string", default: "2" },
  tokens: { type: "string", default: "48" },
  timeout: { type: "string", default: "600" },
  log: { type: "boolean", default: false },
};

/** A whole number of at least 1. */
function count(values, name) {
  const value = Number(values[name]);
  if (!Number.isInteger(value) || value < 1) {
    throw new Error(`--${name}: expected a number of 1 or more, got ${values[name]}`);
  }
  return value;
}

/** A path below `folder`, or none. */
function below(folder, path) {
  const file = resolve(folder, `.${sep}${path}`);
  return file.startsWith(resolve(folder) + sep) ? file : undefined;
}

/** Serves the page, the engines and the models, with the headers of an isolated page. */
async function serve(values) {
  const roots = { modules: values.modules, stonechat: values.package, onnx: values.onnx && dirname(resolve(values.onnx)) };
  const files = { speech: values.speech, language: values.language, audio: values.audio };
  const find = (path) => {
    const [, root, ...rest] = path.split("/");
    if (root === "files") {
      return files[rest[0]];
    }
    return roots[root] ? below(roots[root], rest.join("/")) : below(HERE, path);
  };
  const server = createServer(async (request, response) => {
    const path = decodeURIComponent(new URL(request.url, "http://localhost").pathname);
    const file = find(path);
    const size = file && (await stat(file).then((found) => (found.isFile() ? found.size : undefined), () => undefined));
    if (size === undefined) {
      response.writeHead(404).end();
      return;
    }
    const range = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? "");
    const start = range ? Number(range[1]) : 0;
    const end = range?.[2] ? Math.min(Number(range[2]), size - 1) : size - 1;
    if (start > end && size > 0) {
      response.writeHead(416, { "Content-Range": `bytes */${size}` }).end();
      return;
    }
    const headers = {
      "Accept-Ranges": "bytes",
      "Content-Length": end - start + 1,
      "Content-Type": TYPES[extname(file)] ?? "application/octet-stream",
      "Cross-Origin-Embedder-Policy": "require-corp",
      "Cross-Origin-Opener-Policy": "same-origin",
      "Cross-Origin-Resource-Policy": "same-origin",
      ETag: `"${size}"`,
    };
    if (range) {
      headers["Content-Range"] = `bytes ${start}-${end}/${size}`;
    }
    response.writeHead(range ? 206 : 200, headers);
    if (request.method === "HEAD" || size === 0) {
      response.end();
    } else {
      createReadStream(file, { start, end }).on("error", () => response.destroy()).pipe(response);
    }
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  return server;
}

/** Engines and works that the given files allow, and the reasons for those left out. */
function jobs(values) {
  const [jobs, leftOut] = [[], []];
  const add = (engine, work, needed) => {
    const missing = needed.filter((name) => !values[name]);
    if (missing.length > 0) {
      leftOut.push({ engine, work, reason: `needs ${missing.map((name) => `--${name}`).join(", ")}` });
    } else {
      jobs.push({ engine, work });
    }
  };
  add("stonechat", "speech", ["package", "speech", "audio"]);
  add("shout", "speech", ["speech", "audio"]);
  add("transformers", "speech", ["onnx", "audio"]);
  add("stonechat", "text", ["package", "language"]);
  add("wllama", "text", ["language"]);
  return { jobs, leftOut };
}

/** Runs an engine in a page of its own. */
async function measure(browser, origin, { engine, work }, job, { timeout, log }) {
  const context = await browser.newContext();
  const page = await context.newPage();
  const errors = [];
  page.on("pageerror", (error) => errors.push(String(error)));
  if (log) {
    page.on("console", (message) => console.error(`${engine}: ${message.text()}`));
  }
  try {
    await page.goto(`${origin}/page.html`);
    await page.waitForFunction(() => globalThis.isReady);
    const run = page.evaluate(([engine, work, job]) => globalThis.measure(engine, work, job), [engine, work, job]);
    const late = new Promise((_, reject) => {
      setTimeout(() => reject(new Error(`took more than ${timeout} s`)), timeout * 1000).unref();
    });
    return await Promise.race([run, late]);
  } catch (error) {
    return { error: [error.message.split("\n")[0], ...errors].join("; ") };
  } finally {
    // A browser that has died closes nothing.
    await context.close().catch(() => {});
  }
}

async function main() {
  const { values } = parseArgs({ options: OPTIONS });
  const [threads, rounds, nTokens, timeout] = ["threads", "rounds", "tokens", "timeout"].map((name) => count(values, name));
  const { chromium } = await import("playwright-core");
  const server = await serve(values);
  const origin = `http://localhost:${server.address().port}`;
  const browser = await chromium.launch({
    executablePath: values.chromium,
    args: ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
      "--disable-component-update", "--disable-sync", "--autoplay-policy=no-user-gesture-required"],
  });
  const address = (name) => [name, values[name] && `/files/${name}/${basename(values[name])}`];
  const files = Object.fromEntries(["speech", "language", "audio"].map(address));
  files.onnx = values.onnx && basename(resolve(values.onnx));
  const job = { files, threads, binary: values.binary, dtype: values.dtype, prompt: PROMPT, nTokens };
  const plan = jobs(values);
  const results = [];
  try {
    for (let round = 1; round <= rounds; round++) {
      for (const task of plan.jobs) {
        if (!browser.isConnected()) {
          throw new Error("the browser has ended");
        }
        const result = await measure(browser, origin, task, job, { timeout, log: values.log });
        results.push({ round, ...task, ...result });
        console.error(`round ${round}: ${task.engine}, ${task.work}: ${result.error ?? result.runs.map((run) => run.seconds.toFixed(2))}`);
      }
    }
  } finally {
    await browser.close();
    server.close();
  }
  const machine = { cpu: cpus()[0]?.model, cores: cpus().length, memoryBytes: totalmem() };
  const given = Object.fromEntries(["speech", "onnx", "language", "audio"].map((name) => [name, values[name] && basename(values[name])]));
  const run = { date: new Date().toISOString(), browser: browser.version(), machine, threads, files: given, leftOut: plan.leftOut, results };
  console.log(JSON.stringify(run, null, 2));
  if (results.some((result) => result.error)) {
    process.exitCode = 1;
  }
}

await main();
