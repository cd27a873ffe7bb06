// Tests of `device: "auto"` and of the check of the GPU, with fake binaries and a fake adapter:
// `BROWSER=chromium|firefox node --test tests/package-device.mjs`.

import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { launch } from "./browsers.mjs";
import { fakePackage, scratch } from "./package-fake.mjs";
import { serve } from "./package-server.mjs";

const folder = fakePackage();
const pages = scratch();
writeFileSync(join(pages, "index.html"), "<!doctype html><title>device</title>");
// The check of the GPU runs in the worker, which gets its faults and its adapter by the address of its script.
writeFileSync(join(pages, "worker.js"), `import "/faults.js"; import "/dist/worker.js";`);
writeFileSync(
  join(pages, "faults.js"),
  `const asked = new URL(location.href).searchParams;
   globalThis.brokenGpu = asked.get("broken");
   if (asked.has("subgroups")) {
     class GPUAdapter {
       features = new Set(["subgroups"]);
       requestDevice() {}
     }
     globalThis.GPUAdapter = GPUAdapter;
     const gpu = { wgslLanguageFeatures: new Set(["subgroup_id"]), requestAdapter: async () => new GPUAdapter() };
     Object.defineProperty(navigator, "gpu", { value: gpu, configurable: true });
   }`,
);

let browser;
let server;

before(async () => {
  browser = await launch(process.env.BROWSER ?? "chromium");
  server = await serve({ folders: { "/dist/": join(folder, "dist"), "/": pages } });
});

after(async () => {
  await browser?.close();
  await server?.close();
});

const ADAPTER = { vendor: "maker", architecture: "one", device: "", description: "" };

/** Opens a page whose browser has the adapter of `info`, or none. */
async function pageWith(context, info) {
  const page = await context.newPage();
  await page.addInitScript((info) => {
    const gpu = { requestAdapter: async () => (info ? { info } : null) };
    Object.defineProperty(navigator, "gpu", { value: gpu, configurable: true });
  }, info);
  await page.goto(`${server.url}/index.html`);
  return page;
}

/** Loads a fake model in a page; gives the device, and how often the model was run to measure. */
function load(page, { milliseconds, options = {}, name = "model.gguf", worker }) {
  return page.evaluate(
    async ({ milliseconds, options, name, worker }) => {
      const { Chat } = await import("/dist/index.js");
      const fields = { kind: "language", memory_bytes: 1000, milliseconds };
      const file = new File([JSON.stringify(fields).padEnd(1000)], name);
      let runs = 0;
      const onProgress = ({ status }) => (runs += status === "measure" ? 1 : 0);
      const own = worker && { worker: new Worker(worker, { type: "module" }) };
      const llm = await Chat.load(file, { ...options, ...own, onProgress });
      const { device, hasSubgroups } = llm.info;
      await llm.close();
      return { device, runs, hasSubgroups };
    },
    { milliseconds, options, name, worker },
  );
}

async function inContext(work) {
  const context = await browser.newContext();
  try {
    await work(context);
  } finally {
    await context.close();
  }
}

const FAST_GPU = { cpu: 300, gpu: 10 };
const FAST_CPU = { cpu: 10, gpu: 300 };

test("the faster device is measured once and remembered by later pages", () =>
  inContext(async (context) => {
    for (const [milliseconds, device] of [[FAST_GPU, "gpu"], [FAST_CPU, "cpu"]]) {
      const name = `${device}.gguf`;
      const first = await pageWith(context, ADAPTER);
      const measured = await load(first, { milliseconds, name });
      assert.deepEqual([measured.device, measured.runs], [device, 4]);
      const again = await load(first, { milliseconds, name });
      assert.deepEqual([again.device, again.runs], [device, 0]);
      await first.close();
      // Speeds that have changed show that the record decides.
      const swapped = { cpu: milliseconds.gpu, gpu: milliseconds.cpu };
      const later = await load(await pageWith(context, ADAPTER), { milliseconds: swapped, name });
      assert.deepEqual([later.device, later.runs], [device, 0]);
    }
  }));

test("another model or adapter is measured anew", () =>
  inContext(async (context) => {
    const page = await pageWith(context, ADAPTER);
    assert.equal((await load(page, { milliseconds: FAST_GPU })).runs, 4);
    assert.equal((await load(page, { milliseconds: FAST_GPU, name: "other.gguf" })).runs, 4);
    const other = await pageWith(context, { ...ADAPTER, architecture: "two" });
    assert.deepEqual((await load(other, { milliseconds: FAST_CPU })).device, "cpu");
    assert.equal((await load(page, { milliseconds: FAST_GPU })).runs, 0);
  }));

test("a GPU that is far slower is given up at the time of the CPU", () =>
  inContext(async (context) => {
    const page = await pageWith(context, ADAPTER);
    const start = performance.now();
    const { device, runs } = await load(page, { milliseconds: { cpu: 10, gpu: 8_000 } });
    assert.deepEqual([device, runs], ["cpu", 4]);
    // One run of the GPU is finished, the second one is not.
    assert.ok(performance.now() - start < 14_000, `${performance.now() - start} ms`);
  }));

test("nothing is measured without a GPU in hardware", () =>
  inContext(async (context) => {
    for (const info of [undefined, { ...ADAPTER, isFallbackAdapter: true }]) {
      const { device, runs } = await load(await pageWith(context, info), { milliseconds: FAST_GPU });
      assert.deepEqual([device, runs], ["cpu", 0]);
    }
  }));

test("a cancelled measurement is not remembered", () =>
  inContext(async (context) => {
    const page = await pageWith(context, ADAPTER);
    const error = await page.evaluate(async () => {
      const { Chat } = await import("/dist/index.js");
      const fields = { kind: "language", memory_bytes: 1000, milliseconds: { cpu: 10, gpu: 5_000 } };
      const stop = new AbortController();
      let runs = 0;
      const onProgress = ({ status }) => {
        runs += status === "measure" ? 1 : 0;
        // The third run is the first one on the GPU.
        if (runs === 3) setTimeout(() => stop.abort(), 50);
      };
      const file = new File([JSON.stringify(fields).padEnd(1000)], "model.gguf");
      return Chat.load(file, { signal: stop.signal, onProgress }).then(() => "none", ({ name }) => name);
    });
    assert.equal(error, "AbortError");
    assert.equal(await page.evaluate(() => localStorage.length), 0);
    assert.equal((await load(page, { milliseconds: FAST_GPU })).runs, 4);
  }));

test("a GPU that computes something wrong is refused, or used without subgroups", () =>
  inContext(async (context) => {
    const page = await pageWith(context, ADAPTER);
    const notes = [];
    page.on("console", (message) => notes.push(message.text()));
    const options = { binary: "gpu" };
    await assert.rejects(load(page, { options, worker: "/worker.js?broken=all" }), /a product of the GPU is wrong/);
    await assert.rejects(load(page, { options, worker: "/worker.js?broken=all&subgroups" }), /a product of the GPU is wrong/);
    assert.equal((await load(page, { options, worker: "/worker.js?subgroups" })).hasSubgroups, true);
    assert.deepEqual(notes.filter((note) => /subgroups/.test(note)), []);
    assert.equal((await load(page, { options, worker: "/worker.js?broken=subgroups&subgroups" })).hasSubgroups, false);
    assert.deepEqual(notes.filter((note) => /subgroups of the GPU are not used/.test(note)).length, 1);
  }));
