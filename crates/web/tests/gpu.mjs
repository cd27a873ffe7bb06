// The binary `gpu` in Chromium on SwiftShader, without the package around it.
//
//   cargo xtask web --binary gpu --quick
//   node crates/web/tests/gpu.mjs DIST TASK...
//
// | task | does |
// |---|---|
// | `conformance[:PART[:VARIANT]]` | ops against their reference, with the limits of any browser for `portable` (default) |
// | `speech:FOLDER:AUDIO:TEXT` | the transcript of a CTranslate2 folder is TEXT |
// | `text:GGUF:PROMPT:TEXT` | greedy tokens after PROMPT are TEXT; a token of the second run makes no object but its commands |
// | `golden:NAME[,NAME...]` | greedy tokens of tiny models of `test-data/golden/llm` are those of transformers |
// | `memory:MODEL:INPUT[:N[:LOADS]]` | N answers of an open model, then loads and unloads, take no more GPU memory than the first ones |
// | `loss:MODEL:INPUT` | a lost device and an error that nobody waits for are errors of the request; a new load works |
//
// MODEL is a folder or file, or `tiny` for a tiny Whisper model with random weights; INPUT is a recording, or a prompt for a language model.
//
// SwiftShader has subgroups of 4, which the kernels with subgroups refuse. An answer of a real model takes it minutes. Variables: CHROMIUM names
// the browser (/usr/bin/chromium); TRACE=1 prints the calls of WebGPU; RUNS (2) says how often `speech` and `text` ask, TOKENS (32) how many tokens.
// Fails with the first task that does.

import assert from "node:assert/strict";
import { createReadStream, existsSync } from "node:fs";
import { mkdtemp, readFile, readdir, rm, stat } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { basename, extname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { transform } from "esbuild";
import { chromium } from "playwright-core";

import { chromiumOptions } from "./browsers.mjs";

const [dist, ...tasks] = process.argv.slice(2);
if (!dist || tasks.length === 0) {
  console.error("expected a folder of the package and tasks");
  process.exit(2);
}

const PARTS = 7;
const { RUNS = "2", TOKENS = "32" } = process.env;
/** Submissions, mappings or uploads of an answer beside those of its tokens: the prompt, and steps that run ahead. */
const MAX_OTHERS = 4;
/** Weights of voice activity detection, which are not in the binary. */
const VAD = "../../audio/src/vad/silero_vad_v6.bin";

// Counts the memory of buffers and keeps the last device, in the worker of the engine.
const WORKER = `
import init, * as glue from "/dist/stonechat-gpu.js";
import { requestSubgroups } from "/webgpu.js";

const live = { bytes: 0, buffers: 0, devices: 0 };
const calls = {};
const started = performance.now();
let tracing = false;
let lastDevice;

/** Counts the calls of a method, and prints them with TRACE. */
function counted(prototype, name, note = () => "") {
  const method = prototype[name];
  calls[name] = 0;
  prototype[name] = function (...args) {
    const n = (calls[name] += 1);
    const at = performance.now();
    const result = method.apply(this, args);
    if (tracing) {
      const seconds = (time) => ((time - started) / 1000).toFixed(3);
      console.log(seconds(at), name, n, note(...args), (performance.now() - at).toFixed(1), "ms");
      result?.then?.(() => console.log(seconds(performance.now()), name, n, "is done"));
    }
    return result;
  };
}
counted(GPUQueue.prototype, "submit", (buffers) => buffers.length + " command buffers");
counted(GPUQueue.prototype, "writeBuffer", (...[, , , , size]) => size ?? "");
counted(GPUQueue.prototype, "onSubmittedWorkDone");
counted(GPUBuffer.prototype, "mapAsync");
counted(GPUDevice.prototype, "createBuffer", ({ size }) => size);
counted(GPUDevice.prototype, "createBindGroup");
counted(GPUDevice.prototype, "createComputePipeline", ({ label }) => label);
counted(GPUDevice.prototype, "createCommandEncoder");
const { requestDevice } = GPUAdapter.prototype;
GPUAdapter.prototype.requestDevice = async function (...args) {
  const device = await requestDevice.apply(this, args);
  live.devices += 1;
  const own = new Map();
  const forget = (buffer) => {
    if (own.has(buffer)) {
      live.bytes -= own.get(buffer);
      live.buffers -= 1;
      own.delete(buffer);
    }
  };
  const { createBuffer, destroy } = device;
  device.createBuffer = (descriptor) => {
    const buffer = createBuffer.call(device, descriptor);
    own.set(buffer, descriptor.size);
    live.bytes += descriptor.size;
    live.buffers += 1;
    const release = buffer.destroy;
    buffer.destroy = () => (forget(buffer), release.call(buffer));
    return buffer;
  };
  device.destroy = () => {
    live.devices -= 1;
    [...own.keys()].forEach(forget);
    destroy.call(device);
  };
  return (lastDevice = device);
};

class BlobFile {
  constructor(name, blob) {
    Object.assign(this, { name, blob, size: blob.size });
  }
  read(offset, into) {
    const part = new FileReaderSync().readAsArrayBuffer(this.blob.slice(offset, offset + into.length));
    into.set(new Uint8Array(part));
  }
}

let model;
const operations = {
  async start({ hasTrace }) {
    tracing = hasTrace;
    await init({ module_or_path: "/dist/stonechat-gpu.wasm" });
    glue.set_vad_weights?.(new Uint8Array(await (await fetch("/vad.bin")).arrayBuffer()));
    const hasSubgroups = await requestSubgroups();
    glue.set_subgroups(hasSubgroups);
    const start = performance.now();
    await glue.self_test_gpu();
    const selfTestSeconds = ((performance.now() - start) / 1000).toFixed(2);
    return { hasSubgroups, selfTestSeconds, ...JSON.parse(glue.build_info()) };
  },
  conformance: ({ part, variant, isLimited }) => glue.conformance_gpu(part, variant, isLimited),
  async open({ files, options }) {
    const blobOf = async (url) => (url ? (await fetch(url)).blob() : new Blob([glue.tiny_whisper()]));
    const blobs = files.map(async ({ name, url }) => new BlobFile(name, await blobOf(url)));
    model = await glue.Model.open(await Promise.all(blobs), JSON.stringify(options), () => undefined);
    return JSON.parse(model.info());
  },
  close() {
    model.free();
    model = undefined;
  },
  async request({ method, body, audio }) {
    const bytes = audio && new Uint8Array(await (await fetch(audio)).arrayBuffer());
    const start = performance.now();
    const times = [];
    const job = model.request(method, JSON.stringify(body), bytes, () => void times.push(performance.now() - start));
    const answer = await job.done();
    return { answer, times, milliseconds: performance.now() - start };
  },
  lose: () => lastDevice.destroy(),
  fail() {
    const error = new GPUOutOfMemoryError("none is left, says the test");
    lastDevice.dispatchEvent(new GPUUncapturedErrorEvent("uncapturederror", { error }));
  },
  live: () => ({ ...live }),
  calls: () => ({ ...calls }),
};

onmessage = async ({ data: { id, op, argument } }) => {
  try {
    postMessage({ id, value: await operations[op](argument ?? {}) });
  } catch (error) {
    postMessage({ id, error: error?.message ?? String(error), status: error?.status });
  }
};
postMessage({ id: 0 });
`;

const webgpu = await transform(await readFile(new URL("../js/src/webgpu.ts", import.meta.url), "utf8"), { loader: "ts" });
const TYPES = { ".js": "text/javascript", ".wasm": "application/wasm" };
/** Files of tasks by their address. */
const shared = new Map([["/vad.bin", fileURLToPath(new URL(VAD, import.meta.url))]]);

function share(path) {
  const url = `/files/${shared.size}/${basename(path)}`;
  shared.set(url, path);
  return url;
}

const server = createServer((request, response) => {
  const { pathname } = new URL(request.url, "http://localhost");
  const path = pathname.startsWith("/dist/") ? join(dist, basename(pathname)) : shared.get(pathname);
  if (path) {
    response.setHeader("content-type", TYPES[extname(path)] ?? "application/octet-stream");
    createReadStream(path).on("error", () => response.writeHead(404).end()).pipe(response);
    return;
  }
  const scripts = { "/worker.js": WORKER, "/webgpu.js": webgpu.code };
  response.setHeader("content-type", scripts[pathname] ? "text/javascript" : "text/html");
  response.end(scripts[pathname] ?? "<!doctype html><title>GPU</title>");
});
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));

const profile = await mkdtemp(join(tmpdir(), "stonechat-gpu-"));
const context = await chromium.launchPersistentContext(profile, chromiumOptions({ hasGpu: true }));

/** A worker with the engine, and its operations. */
async function engine() {
  const page = await context.newPage();
  page.setDefaultTimeout(0);
  page.on("console", (message) => console.error(`  ${message.type()}: ${message.text()}`));
  await page.goto(`http://localhost:${server.address().port}/`);
  await page.evaluate(
    () =>
      new Promise((resolve, reject) => {
        const worker = new Worker("/worker.js", { type: "module" });
        const waiting = new Map([[0, { resolve, reject }]]);
        let n = 0;
        worker.onmessage = ({ data: { id, value, error, status } }) => {
          const { resolve, reject } = waiting.get(id);
          waiting.delete(id);
          error === undefined ? resolve(value) : reject(Object.assign(new Error(error), { status }));
        };
        worker.onerror = ({ message }) => waiting.forEach(({ reject }) => reject(new Error(`the worker died: ${message}`)));
        globalThis.call = (op, argument) =>
          new Promise((resolve, reject) => {
            waiting.set((n += 1), { resolve, reject });
            worker.postMessage({ id: n, op, argument });
          });
      }),
  );
  const call = (op, argument) => page.evaluate(([op, argument]) => globalThis.call(op, argument), [op, argument]);
  const info = await call("start", { hasTrace: Boolean(process.env.TRACE) });
  return { call, info, close: () => page.close() };
}

async function folder(path) {
  if (path === "tiny") {
    return [{ name: "tiny.gguf" }];
  }
  const names = (await stat(path)).isDirectory() ? (await readdir(path)).map((name) => join(path, name)) : [path];
  return names.map((name) => ({ name: basename(name), url: share(name) }));
}

const GREEDY = { response_format: "json", temperature: 0, beam_size: 1 };
/** One pass of a model that writes noise, whose text is the same each time. */
const NOISE = { response_format: "json", temperature: 0.01, best_of: 1, seed: 1, vad_filter: false };
const GOLDEN = new URL("../../../test-data/golden/llm/", import.meta.url);

async function transcript(call, audio) {
  const { answer, milliseconds } = await call("request", { method: "transcribe", body: GREEDY, audio });
  return { text: JSON.parse(answer).text.trim(), milliseconds };
}

/** Answers of an open model to INPUT: its text. */
function asking(call, model, input) {
  if (existsSync(input)) {
    const request = { method: "transcribe", body: model === "tiny" ? NOISE : GREEDY, audio: share(input) };
    return async () => JSON.parse((await call("request", request)).answer).text;
  }
  const body = { prompt: input, n_predict: 16, temperature: 0, cache_prompt: false };
  return async () => JSON.parse((await call("request", { method: "native_completion", body })).answer).content;
}

const run = {
  async conformance({ call }, part, variant = "portable") {
    const parts = part ? [Number(part)] : [...Array(PARTS).keys()];
    for (const part of parts) {
      const start = performance.now();
      const done = await call("conformance", { part, variant, isLimited: variant === "portable" });
      console.log(`  ${done}, ${((performance.now() - start) / 1000).toFixed(1)} s`);
    }
  },
  async speech({ call }, path, audio, text) {
    const info = await call("open", { files: await folder(path), options: { device: "gpu" } });
    for (let run = 0; run < Number(RUNS); run += 1) {
      const got = await transcript(call, share(audio));
      console.log(`  ${info.device}: ${(got.milliseconds / 1000).toFixed(2)} s: ${got.text}`);
      assert.equal(got.text, text);
    }
  },
  async text({ call }, path, prompt, text) {
    const info = await call("open", { files: await folder(path), options: { device: "gpu", n_ctx: 512 } });
    const body = { prompt, n_predict: Number(TOKENS), temperature: 0, stream: true };
    for (let run = 0; run < Number(RUNS); run += 1) {
      const before = await call("calls");
      const { answer, times, milliseconds } = await call("request", { method: "native_completion", body });
      const after = await call("calls");
      const made = Object.fromEntries(Object.keys(after).map((name) => [name, after[name] - before[name]]));
      console.log(`  ${info.device}: ${times.length} events, ${(milliseconds / 1000).toFixed(2)} s: ${answer.slice(0, 400)}`);
      console.log(`  ${JSON.stringify(made)}`);
      assert.equal(JSON.parse(answer).content, text);
      const most = JSON.parse(answer).tokens_predicted + MAX_OTHERS;
      assert.ok(made.submit <= most && made.mapAsync <= most, `expected at most ${most} submissions and mappings`);
      if (run > 0) {
        const { createBuffer, createBindGroup, createComputePipeline, writeBuffer } = made;
        assert.deepEqual({ createBuffer, createBindGroup, createComputePipeline }, { createBuffer: 0, createBindGroup: 0, createComputePipeline: 0 });
        assert.ok(writeBuffer <= most, `expected at most ${most} uploads`);
      }
    }
  },
  async golden({ call }, names) {
    for (const name of names.split(",")) {
      const { model, tokens, greedy, n_ctx } = JSON.parse(await readFile(new URL(`${name}.json`, GOLDEN), "utf8"));
      const files = await folder(fileURLToPath(new URL(model, GOLDEN)));
      await call("open", { files, options: { device: "gpu", n_ctx } });
      const body = { prompt: tokens, n_predict: greedy.length, temperature: 0, return_tokens: true, ignore_eos: true };
      const { answer, milliseconds } = await call("request", { method: "native_completion", body });
      console.log(`  ${name}: ${(milliseconds / 1000).toFixed(2)} s: ${JSON.parse(answer).tokens}`);
      assert.deepEqual(JSON.parse(answer).tokens, greedy, name);
      await call("close");
    }
  },
  async memory({ call }, model, input, n = "100", loads = "20") {
    const files = await folder(model);
    const ask = asking(call, model, input);
    const options = { device: "gpu" };
    await call("open", { files, options });
    await ask();
    await ask();
    const first = await call("live");
    for (let i = 2; i < Number(n); i += 1) await ask();
    const last = await call("live");
    console.log(`  ${n} answers: ${JSON.stringify(first)}, then ${JSON.stringify(last)}`);
    assert.deepEqual(last, first);
    for (let i = 0; i < Number(loads); i += 1) {
      await call("close");
      await new Promise((resolve) => setTimeout(resolve, 100));
      const closed = await call("live");
      assert.deepEqual(closed, { bytes: 0, buffers: 0, devices: 0 }, `after unload ${i}`);
      await call("open", { files, options });
      await ask();
    }
    console.log(`  ${loads} loads and unloads: nothing is left after each`);
  },
  async loss({ call }, model, input) {
    const files = await folder(model);
    const ask = asking(call, model, input);
    const options = { device: "gpu" };
    await call("open", { files, options });
    const text = await ask();
    await call("fail");
    // wgpu keeps the kind of this error, not the message of the browser.
    await assert.rejects(ask(), /out of memory/i);
    assert.equal(await ask(), text, "after an error that was reported");
    const running = ask();
    await call("lose");
    await assert.rejects(running, /device was lost/);
    await assert.rejects(ask(), /device was lost/);
    await call("close");
    await call("open", { files, options });
    assert.equal(await ask(), text, "after a new load");
    console.log("  errors are those of the request, and a new load works");
  },
};

let failed = false;
try {
  for (const task of tasks) {
    const [name, ...parameters] = task.split(":");
    console.log(task);
    const started = await engine();
    console.log(`  ${JSON.stringify(started.info)}`);
    await run[name](started, ...parameters);
    await started.close();
  }
} catch (error) {
  failed = true;
  console.error(error);
} finally {
  await context.close();
  server.close();
  await rm(profile, { recursive: true, force: true, maxRetries: 5, retryDelay: 200 });
}
process.exit(failed ? 1 : 0);
