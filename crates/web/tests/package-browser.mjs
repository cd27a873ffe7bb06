// Tests of the package in a browser, with fake binaries: `BROWSER=chromium|firefox node --test tests/package-browser.mjs`.

import assert from "node:assert/strict";
import { mkdirSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";


import { cases, checks } from "./package-cases.mjs";
import { fakeModel, fakePackage, scratch } from "./package-fake.mjs";
import { ISOLATED, noise, serve, sha256 } from "./package-server.mjs";
import { launch } from "./browsers.mjs";

const name = process.env.BROWSER ?? "chromium";
const CSP = "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; connect-src 'self'; worker-src 'self'";

const folder = fakePackage();
const pages = scratch();
writeFileSync(join(pages, "index.html"), "<!doctype html><title>test</title>");
writeFileSync(join(pages, "own-worker.js"), `import "/dist/worker.js";`);

/** Files that all servers have. */
function files() {
  return {
    "/audio": { bytes: Buffer.from("12345678") },
    "/split-00001-of-00002.gguf": { bytes: fakeModel() },
    "/split-00002-of-00002.gguf": { bytes: Buffer.from("second") },
  };
}

const folders = { "/dist/": join(folder, "dist"), "/": pages };
let browser;
let plain;
let isolated;
let strict;
/** Another origin, as a CDN. */
let cdn;

before(async () => {
  browser = await launch(name, { hasMedia: true });
  plain = await serve({ folders, files: files() });
  isolated = await serve({ folders, files: files(), headers: ISOLATED });
  strict = await serve({ folders, files: files(), headers: { "Content-Security-Policy": CSP } });
  cdn = await serve({ folders, files: files(), headers: { "Access-Control-Allow-Origin": "*", "Cross-Origin-Resource-Policy": "cross-origin" } });
});

after(async () => {
  await browser?.close();
  await Promise.all([plain, isolated, strict, cdn].map((server) => server?.close()));
});

/** Opens a page of its own context; its errors fail the test. */
async function open(server, work, { expected = [] } = {}) {
  const context = await browser.newContext();
  const page = await context.newPage();
  const errors = [];
  const notes = [];
  page.on("pageerror", (error) => errors.push(String(error)));
  page.on("console", (message) => notes.push(message.text()));
  try {
    await page.goto(`${server.url}/index.html`);
    const result = await work(page, notes);
    assert.deepEqual(errors.filter((error) => !expected.some((one) => one.test(error))), []);
    return result;
  } finally {
    await context.close();
  }
}

let lastScript = 0;

/** Runs code in the page with the module as `stonechat` and `given` as `given`: a script of the page's server, which strict policies allow. */
function inPage(page, code, given = {}, dist = "/dist/") {
  lastScript += 1;
  const source = `
    import * as stonechat from ${JSON.stringify(`${dist}index.js`)};
    ${checks}
    const model = (fields = {}, size = 1000) =>
      new File([JSON.stringify({ kind: "language", memory_bytes: size, ...fields }).padEnd(size)], "model.gguf");
    export default async function run(given) {
      ${code}
    }
  `;
  writeFileSync(join(pages, `run-${lastScript}.js`), source);
  return page.evaluate(([url, value]) => import(url).then((script) => script.default(value)), [`/run-${lastScript}.js`, given]);
}

function caseSource(title) {
  const method = cases[title].toString().replace(/^async "(?:[^"\\]|\\.)*"/, "async function one");
  return `
    const environment = { model, options: given.options, server: location.origin, missing: location.origin + "/none.gguf", isolated: crossOriginIsolated };
    await (${method})(stonechat, environment);
  `;
}

/** Errors that browsers report of cases whose worker traps outside a promise. */
function traps(title) {
  return { expected: title.startsWith("a worker that dies") ? [/unreachable/] : [] };
}

describe("isolated page", () => {
  for (const title of Object.keys(cases)) {
    test(title, () => open(isolated, (page) => inPage(page, caseSource(title), { options: {} }), traps(title)));
  }
});

describe("many workers", () => {
  // Firefox may never return from `new Worker` in a worker that follows others: their threads are workers of the page.
  test("48 loads one after the other, each with a pool", { timeout: 240_000 }, () =>
    open(isolated, (page) => {
      const code = `
        for (let i = 0; i < 12; i++) {
          await rejects(stonechat.Chat.load(location.origin + "/none.gguf", { threads: 2 }), (error) => error.status === 404);
          await rejects(stonechat.Chat.load(model({ open: "fail" }), { threads: 2 }), (error) => error.message === "the file is damaged");
          await rejects(stonechat.Chat.load(model({ kind: "speech" }), { threads: 2 }), (error) => error.param === "source");
          const llm = await stonechat.Chat.load(model(), { threads: 2 });
          equal(llm.info.threads, 2);
          await llm.close();
        }`;
      return inPage(page, code);
    }));
});

describe("page without isolation", () => {
  const chosen = Object.keys(cases).filter((title) => /stream|threads|dies/.test(title));
  for (const title of chosen) {
    test(title, () => open(plain, (page) => inPage(page, caseSource(title), { options: {} }), traps(title)));
  }

  test("one thread is noted once", () =>
    open(plain, async (page, notes) => {
      await inPage(page, `await (await stonechat.Chat.load(model())).close();`);
      assert.equal(notes.filter((note) => /one thread is used: the page is not cross-origin isolated/.test(note)).length, 1);
    }));
});

describe("page with a strict policy", () => {
  test("neither blob: nor eval is needed", () => open(strict, (page) => inPage(page, caseSource(Object.keys(cases)[0]), { options: {} })));
});

describe("worker of the page", () => {
  test("it runs the engine, and again its pool", () =>
    open(isolated, async (page) => {
      const code = `
        const worker = new Worker("/own-worker.js", { type: "module" });
        const llm = await stonechat.Chat.load(model(), { worker, threads: 2 });
        equal([llm.info.threads, await llm.tokenize("a")], [2, [97]]);
        await llm.close();`;
      await inPage(page, code);
    }));
});

describe("another origin", () => {
  test("module, worker and binaries come from a CDN", () =>
    open(plain, (page) => inPage(page, caseSource(Object.keys(cases)[0]), { options: {} }, `${cdn.url}/dist/`)));

  test("assets of a CDN, on an isolated page with threads", () =>
    open(isolated, (page) => {
      const title = Object.keys(cases).find((one) => one.startsWith("threads"));
      return inPage(page, caseSource(title), { options: { assets: `${cdn.url}/dist` } });
    }));

  test("a server that hides its ranges from other origins is read as one stream", async () => {
    const bytes = fakeModel({}, 3_000_000);
    cdn.files["/hidden.gguf"] = { bytes, fault: "hidden" };
    await open(plain, async (page) => {
      const code = `const llm = await stonechat.Chat.load(given.url); const { sum } = llm.info; await llm.close(); return sum;`;
      const sum = await inPage(page, code, { url: `${cdn.url}/hidden.gguf` });
      assert.equal(sum, [...bytes].reduce((total, byte) => total + byte, 0));
    });
  });
});

describe("cache", () => {
  const url = (file) => `${isolated.url}${file}`;
  const asked = (file) => isolated.log.filter(({ path }) => path === file).length;
  const load = `const llm = await stonechat.Chat.load(given.url, given.options); const { sum } = llm.info; await llm.close();`;

  test("a model is downloaded once, listed, used without the server, and removed", async () => {
    const bytes = Buffer.concat([fakeModel({}, 1000), noise(40_000_000)]);
    const sum = bytes.reduce((total, byte) => (total + byte) % 1_000_000_007, 0);
    isolated.files["/big.gguf"] = { bytes };
    await open(isolated, async (page) => {
      const given = { url: url("/big.gguf"), options: { sha256: sha256(bytes) } };
      assert.equal(await inPage(page, `${load} return sum;`, given), sum);
      const before = asked("/big.gguf");
      assert.ok(before >= 4);
      await page.reload();
      assert.equal(await inPage(page, `${load} return sum;`, given), sum);
      assert.equal(asked("/big.gguf"), before);
      const [file] = await inPage(page, `return stonechat.models.list();`);
      assert.deepEqual([file.name, file.bytes, file.isComplete], [given.url, bytes.length, true]);
      assert.equal(await inPage(page, `await stonechat.models.remove(given.url); return (await stonechat.models.list()).length;`, given), 0);
      await inPage(page, load, given);
      assert.ok(asked("/big.gguf") > before);
    });
  });

  test("a reload in the middle of a download resumes it", async () => {
    const bytes = Buffer.concat([fakeModel({}, 1000), noise(40_000_000, 5)]);
    isolated.files["/resumed.gguf"] = { bytes, fault: "slow", delay: 100, step: 400_000 };
    await open(isolated, async (page) => {
      const start = `
        void stonechat.Chat.load(given.url);
        for (;;) {
          await new Promise((resolve) => setTimeout(resolve, 50));
          const [file] = await stonechat.models.list();
          if (file?.bytes > 17e6) return file;
        }`;
      const partial = await inPage(page, start, { url: url("/resumed.gguf") });
      assert.equal(partial.isComplete, false);
      await page.reload();
      const before = asked("/resumed.gguf");
      isolated.files["/resumed.gguf"].fault = undefined;
      await inPage(page, load, { url: url("/resumed.gguf") });
      const ranges = isolated.log.filter(({ path }) => path === "/resumed.gguf").slice(before).map(({ range }) => range.slice(6).split("-").map(Number));
      const again = ranges.reduce((total, [from, to]) => total + to - from + 1, 0);
      assert.ok(again <= bytes.length - partial.bytes, `${again} of ${bytes.length} bytes were asked for again`);
    });
  });

  test("two tabs download one file once", async () => {
    // Two minutes, unless the second tab waits.
    const file = { bytes: fakeModel({}, 5_000_000), fault: "slow", delay: 500, step: 20_000 };
    isolated.files["/shared.gguf"] = file;
    await open(isolated, async (page) => {
      await page.context().exposeFunction("onWait", () => (file.delay = 0));
      const other = await page.context().newPage();
      await other.goto(`${isolated.url}/index.html`);
      const onProgress = `({ status }) => { seen.push(status); if (status === "wait") void globalThis.onWait(); }`;
      const code = `const seen = []; given.options = { onProgress: ${onProgress} }; ${load} return seen;`;
      const given = { url: url("/shared.gguf") };
      const seen = await Promise.all([inPage(page, code, given), inPage(other, code, given)]);
      assert.equal(seen.filter((one) => one.includes("wait")).length, 1);
      assert.equal(asked("/shared.gguf"), 2);
    });
  });

  test("a file that is being downloaded is not removed", async () => {
    isolated.files["/busy.gguf"] = { bytes: fakeModel({}, 5_000_000), fault: "slow", delay: 500, step: 20_000 };
    await open(isolated, async (page) => {
      const code = `
        const stop = new AbortController();
        const loading = stonechat.Chat.load(given.url, { signal: stop.signal });
        while ((await stonechat.models.list()).length === 0) await new Promise((resolve) => setTimeout(resolve, 20));
        await rejects(stonechat.models.remove(given.url), (error) => error.status === 409);
        stop.abort();
        await rejects(loading, (error) => error.name === "AbortError");
        for (;;) {
          try { await stonechat.models.remove(given.url); break; } catch { await new Promise((resolve) => setTimeout(resolve, 50)); }
        }
        return (await stonechat.models.list()).length;`;
      assert.equal(await inPage(page, code, { url: url("/busy.gguf") }), 0);
    });
  });

  test("cache: memory leaves nothing behind", async () => {
    isolated.files["/memory.gguf"] = { bytes: fakeModel({}, 9_000_000) };
    await open(isolated, async (page) => {
      const given = { url: url("/memory.gguf"), options: { cache: "memory" } };
      const sum = await inPage(page, `${load} return [sum, (await stonechat.models.list()).length];`, given);
      assert.deepEqual(sum, [isolated.files["/memory.gguf"].bytes.reduce((total, byte) => total + byte, 0), 0]);
    });
  });

  if (name === "chromium") {
    test("a full quota: the download goes on in memory", async () => {
      isolated.files["/quota.gguf"] = { bytes: fakeModel({}, 30_000_000) };
      await open(isolated, async (page, notes) => {
        const session = await page.context().newCDPSession(page);
        await session.send("Storage.overrideQuotaForOrigin", { origin: isolated.url, quotaSize: 10_000_000 });
        const sum = await inPage(page, `${load} return [sum, (await stonechat.models.list()).length];`, { url: url("/quota.gguf") });
        assert.deepEqual(sum, [isolated.files["/quota.gguf"].bytes.reduce((total, byte) => total + byte, 0), 0]);
        assert.ok(notes.some((note) => /kept in memory/.test(note)));
      });
    });
  }
});

describe("microphone", () => {
  const code = `
    const asr = await stonechat.Transcriber.load(model({ kind: "speech" }));
    let seconds = 0;
    const live = asr.listen({ onPartial: ({ end }) => (seconds = end) });
    const mic = await stonechat.microphone(live);
    while (seconds < 0.5) await new Promise((resolve) => setTimeout(resolve, 50));
    await mic.stop();
    const { duration } = await live.end();
    await asr.close();
    return duration;`;

  if (name === "chromium") {
    test("its samples reach live speech", async () => {
      const seconds = await open(isolated, (page) => inPage(page, code));
      assert.ok(seconds >= 0.5 && seconds < 20, `${seconds} s`);
    });
  } else {
    // Firefox starts no audio on a machine without a device.
    test("audio that does not start is an error", () =>
      open(isolated, (page) => {
        const sink = `{ push() {} }`;
        return inPage(page, `await rejects(stonechat.microphone(${sink}), (error) => error.status === 501);`);
      }));
  }
});

describe("bundlers", () => {
  /** A project whose `node_modules` holds the package. */
  function project() {
    const root = scratch();
    mkdirSync(join(root, "node_modules"));
    symlinkSync(folder, join(root, "node_modules/stonechat"));
    const script = `
      import { Chat } from "stonechat";
      const file = new File([JSON.stringify({ kind: "language", memory_bytes: 10 }).padEnd(1000)], "m");
      const llm = await Chat.load(file, { threads: 2 });
      globalThis.result = { tokens: await llm.tokenize("ab"), threads: llm.info.threads };
      await llm.close();
    `;
    writeFileSync(join(root, "main.js"), script);
    writeFileSync(join(root, "index.html"), `<!doctype html><script type="module" src="./main.js"></script>`);
    writeFileSync(join(root, "package.json"), `{ "private": true, "type": "module" }`);
    return root;
  }

  async function check(server, path) {
    const context = await browser.newContext();
    const page = await context.newPage();
    const errors = [];
    page.on("pageerror", (error) => errors.push(String(error)));
    page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
    try {
      await page.goto(server + path);
      await page.waitForFunction("globalThis.result", undefined, { timeout: 15_000 }).catch((error) => {
        throw new Error(`${error.message}\n${errors.join("\n")}`);
      });
      assert.deepEqual(await page.evaluate("globalThis.result"), { tokens: [97, 98], threads: 2 });
    } finally {
      await context.close();
    }
  }

  test("Vite, built", async () => {
    const { build } = await import("vite");
    const root = project();
    await build({ root, logLevel: "error", base: "./", build: { outDir: "out", target: "es2022" } });
    const server = await serve({ folders: { "/sub/": join(root, "out") }, headers: ISOLATED });
    await check(server.url, "/sub/index.html").finally(() => server.close());
  });

  test("Vite, in development", async () => {
    const { createServer } = await import("vite");
    const root = project();
    const server = await createServer({
      root,
      logLevel: "error",
      optimizeDeps: { exclude: ["stonechat"] },
      server: { port: 0, host: "127.0.0.1", headers: ISOLATED, fs: { strict: false }, hmr: false },
    });
    await server.listen();
    const { port } = server.httpServer.address();
    await check(`http://127.0.0.1:${port}`, "/index.html").finally(() => server.close());
  });

  test("webpack", async () => {
    const { default: webpack } = await import("webpack");
    const root = project();
    const stats = await new Promise((resolve, reject) => {
      const options = { context: root, mode: "production", entry: "./main.js", output: { path: join(root, "out") }, resolve: { symlinks: false } };
      webpack(options, (error, result) => (error ? reject(error) : resolve(result)));
    });
    assert.equal(stats.hasErrors(), false, stats.toString());
    assert.deepEqual(stats.toJson().warnings.map(({ message }) => message).filter((message) => !/size limit|performance/.test(message)), []);
    writeFileSync(join(root, "out/index.html"), `<!doctype html><script src="main.js"></script>`);
    const server = await serve({ folders: { "/sub/": join(root, "out") }, headers: ISOLATED });
    await check(server.url, "/sub/index.html").finally(() => server.close());
    rmSync(join(root, "out"), { recursive: true });
  });
});
