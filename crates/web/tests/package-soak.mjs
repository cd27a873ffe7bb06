// The built package for a long time in Chromium: windows of speech, and loads and unloads; memory must be flat.
//
//     cargo xtask web
//     BINARY=relaxed|base|scalar node --test tests/package-soak.mjs
//
// Variables: PACKAGE (target/web/package), MODELS (~/.cache/stonechat/models), SPEECH (tiny.en), LANGUAGE (smollm2-135m, or none), WINDOWS (100), LOADS (20),
// THREADS (2). The memory is that of the process of the page: its resident bytes, which hold the engine's, and the JavaScript heap of the page.

import assert from "node:assert/strict";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";

import { launch } from "./browsers.mjs";
import { scratch } from "./package-fake.mjs";
import { filesOf, models } from "./package-installed.mjs";
import { ISOLATED, serve } from "./package-server.mjs";

const root = fileURLToPath(new URL("../../..", import.meta.url));
const { BINARY = "base", WINDOWS = "100", LOADS = "20", THREADS = "2", SPEECH = "tiny.en", LANGUAGE = "smollm2-135m" } = process.env;
const folder = resolve(process.env.PACKAGE ?? join(root, "target/web/package"));
const audio = join(root, "test-data/audio");

const RATE = 16_000;
const WINDOW = 30 * RATE;
/** Windows between two looks at the memory. */
const STEP = 10;
/** Bytes that the later half of a series may have more than the earlier half, at their minima. */
const MAX_GROWTH = 16 * 2 ** 20;

let browser;
let server;
let page;
let system;
let session;

before(async () => {
  for (const path of [join(folder, "dist/index.js"), join(models, SPEECH)]) {
    assert.ok(existsSync(path), `expected ${path}`);
  }
  const pages = scratch();
  writeFileSync(join(pages, "index.html"), "<!doctype html><title>soak</title>");
  server = await serve({ folders: { "/dist/": join(folder, "dist"), "/models/": models, "/": pages }, headers: ISOLATED });
  browser = await launch("chromium");
  page = await (await browser.newContext()).newPage();
  page.setDefaultTimeout(0);
  await page.goto(`${server.url}/index.html`);
  system = await browser.newBrowserCDPSession();
  session = await page.context().newCDPSession(page);
});

after(async () => {
  await browser?.close();
  await server?.close();
});

/** Resident bytes of the largest renderer, and the heap of the page. */
async function memory() {
  await session.send("HeapProfiler.collectGarbage");
  const { usedSize } = await session.send("Runtime.getHeapUsage");
  const { processInfo } = await system.send("SystemInfo.getProcessInfo");
  const resident = ({ id }) => 1024 * Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${id}/status`, "utf8"))?.[1]);
  return { resident: Math.max(...processInfo.filter(({ type }) => type === "renderer").map(resident)), heap: usedSize };
}

/** Fails if a series grows: its first value is left out, since the engine allocates with the first request. */
function assertFlat(name, series) {
  const megabytes = (one) => series.map((value) => (value[one] / 2 ** 20).toFixed(1)).join(" ");
  console.log(`# ${name}: resident MiB ${megabytes("resident")}; heap MiB ${megabytes("heap")}`);
  const later = series.slice(1);
  const half = Math.ceil(later.length / 2);
  assert.ok(half >= 2, `expected at least 4 looks, got ${series.length}`);
  // The least of each half: garbage that is not collected yet comes and goes.
  for (const one of ["resident", "heap"]) {
    const least = (values) => Math.min(...values.map((value) => value[one]));
    const growth = least(later.slice(half)) - least(later.slice(0, half));
    assert.ok(growth <= MAX_GROWTH, `${name}: ${one} grew by ${(growth / 2 ** 20).toFixed(1)} MiB`);
  }
}

/** `n` windows, each of a clip in English and silence: no window is retried at another temperature. */
function recording(n) {
  const clips = ["counting.wav", "hello_world.wav", "quick_brown_fox.wav"].map((name) => {
    const bytes = readFileSync(join(audio, name));
    const at = bytes.indexOf("data") + 8;
    assert.deepEqual([bytes.readUInt16LE(20), bytes.readUInt16LE(22), bytes.readUInt32LE(24)], [3, 1, RATE], `${name}: floats of one channel`);
    return new Float32Array(bytes.buffer.slice(bytes.byteOffset + at, bytes.byteOffset + at + bytes.readUInt32LE(at - 4)));
  });
  const samples = new Float32Array(n * WINDOW);
  for (let i = 0; i < n; i += 1) {
    samples.set(clips[i % clips.length], i * WINDOW);
  }
  return samples;
}

const options = { binary: BINARY, threads: Number(THREADS), cache: "memory" };

test(`${WINDOWS} windows of speech`, async () => {
  const bytes = Buffer.from(recording(STEP).buffer);
  server.files["/recording"] = { bytes };
  const start = async ({ source, options }) => {
    const { Transcriber } = await import("/dist/index.js");
    window.asr = await Transcriber.load(source, options);
    window.samples = new Float32Array(await (await fetch("/recording")).arrayBuffer());
    return window.asr.info.binary;
  };
  assert.equal(await page.evaluate(start, { source: filesOf(SPEECH, "/models"), options }), BINARY);
  const series = [];
  const texts = new Set();
  const begin = performance.now();
  for (let done = 0; done < Number(WINDOWS); done += STEP) {
    const { text, duration } = await page.evaluate(async () => {
      const { text, duration } = await window.asr.transcribe(window.samples, { language: "en", temperature: 0 });
      return { text, duration };
    });
    assert.ok(Math.abs(duration - STEP * 30) < 0.1, `${duration} s`);
    texts.add(text);
    series.push(await memory());
    console.log(`# ${done + STEP} windows in ${((performance.now() - begin) / 1000).toFixed(0)} s`);
  }
  await page.evaluate(() => window.asr.close());
  assert.equal(texts.size, 1, "the same recording has the same text");
  assert.match([...texts][0], /brown fox/i);
  assertFlat(`${WINDOWS} windows`, series);
});

for (const name of [SPEECH, LANGUAGE].filter((one) => one !== "none")) {
  test(`${LOADS} loads and unloads of ${name}`, async () => {
    const series = [];
    const isSpeech = name === SPEECH;
    const work = async ({ source, options, isSpeech }) => {
      const { Chat, Transcriber } = await import("/dist/index.js");
      const model = await (isSpeech ? Transcriber : Chat).load(source, options);
      const text = isSpeech
        ? (await model.transcribe(window.samples.subarray(0, 80_000))).text
        : (await model.completions.create({ prompt: "The capital of France is", max_tokens: 4, temperature: 0 })).choices[0].text;
      await model.close();
      return text;
    };
    for (let i = 0; i < Number(LOADS); i += 1) {
      const text = await page.evaluate(work, { source: filesOf(name, "/models"), options, isSpeech });
      assert.match(text, isSpeech ? /\w{3}/ : /Paris/);
      series.push(await memory());
    }
    assertFlat(`${LOADS} loads of ${name}`, series);
  });
}
