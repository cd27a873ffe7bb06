// The conformance suite of a binary in a browser: every op and every block format against its reference.
//
//     cargo xtask web --quick --binary base
//     PACKAGE=target/web/quick BROWSER=chromium|firefox BINARY=relaxed|base|scalar node --test tests/package-conformance.mjs
//
// Variables: THREADS (2), PLAIN=1 for a page that is not cross-origin isolated, which has one thread.

import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { launch } from "./browsers.mjs";
import { scratch } from "./package-fake.mjs";
import { ISOLATED, serve } from "./package-server.mjs";

const root = fileURLToPath(new URL("../../..", import.meta.url));
const { BROWSER = "chromium", BINARY = "base", THREADS = "2", PLAIN } = process.env;
const folder = resolve(process.env.PACKAGE ?? join(root, "target/web/quick"));
const TIERS = { relaxed: "relaxed", base: "simd128", scalar: "scalar" };

/** Worker: an engine, or a thread of its pool. */
const WORKER = `
onmessage = async ({ data }) => {
  try {
    const glue = await import(data.glue);
    if (data.thread) {
      glue.initSync({ ...data.thread, thread_stack_size: 1 << 20 });
      glue.thread_main();
    }
    const module = await WebAssembly.compileStreaming(fetch(data.wasm));
    const memory = new WebAssembly.Memory({ initial: 512, maximum: 65536, shared: true });
    await glue.default({ module_or_path: module, memory });
    glue.self_test();
    for (let i = 1; i < data.threads; i += 1) {
      new Worker("worker.js", { type: "module" }).postMessage({ glue: data.glue, thread: { module, memory } });
    }
    while (!glue.wait_for_threads(data.threads - 1)) {
      await new Promise((wake) => setTimeout(wake, 5));
    }
    postMessage({ devices: glue.conformance(data.threads) });
  } catch (error) {
    postMessage({ error: String(error) });
  }
};`;

test(`${BINARY} conforms in ${BROWSER}`, { timeout: 1_200_000 }, async (t) => {
  const pages = scratch();
  writeFileSync(join(pages, "index.html"), "<!doctype html><title>conformance</title>");
  writeFileSync(join(pages, "worker.js"), WORKER);
  const headers = PLAIN ? {} : ISOLATED;
  const server = await serve({ folders: { "/dist/": join(folder, "dist"), "/": pages }, headers });
  t.after(() => server.close());
  const browser = await launch(BROWSER);
  t.after(() => browser.close());
  const page = await (await browser.newContext()).newPage();
  page.setDefaultTimeout(0);
  page.on("console", (message) => console.log(`# ${message.text()}`));
  await page.goto(`${server.url}/index.html`);
  const threads = PLAIN ? 1 : Number(THREADS);
  const result = await page.evaluate(
    ([binary, n]) =>
      new Promise((done) => {
        const worker = new Worker("worker.js", { type: "module" });
        worker.onmessage = ({ data }) => done(data);
        worker.onerror = (event) => done({ error: event.message });
        const urls = ["js", "wasm"].map((kind) => new URL(`/dist/stonechat-${binary}.${kind}`, location.href).href);
        worker.postMessage({ glue: urls[0], wasm: urls[1], threads: n });
      }),
    [BINARY, threads],
  );
  assert.equal(result.error, undefined);
  const lines = result.devices.split("\n");
  assert.equal(lines.length, 2, result.devices);
  assert.ok(lines.every((line) => line.includes(`${TIERS[BINARY]}, ${threads} threads`)), result.devices);
});
