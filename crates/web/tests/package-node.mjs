// Tests of the package in Node, with fake binaries in worker threads: `node --test tests/package-node.mjs`.

import assert from "node:assert/strict";
import { execFile, execFileSync } from "node:child_process";
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { promisify } from "node:util";
import { gzipSync } from "node:zlib";

import { cases, checks } from "./package-cases.mjs";
import { fakeModel, fakePackage, scratch } from "./package-fake.mjs";
import { serve } from "./package-server.mjs";

const run = promisify(execFile);

/** Maximum bytes of the scripts of the package without those of wasm-bindgen, after gzip. */
const MAX_SCRIPTS = 30_000;

const folder = fakePackage();
const stonechat = await import(join(folder, "dist/index.js"));
let server;

before(async () => {
  const first = fakeModel({ kind: "language" });
  const files = {
    "/audio": { bytes: Buffer.from("12345678") },
    "/model.gguf": { bytes: fakeModel({}, 300_000) },
    "/split-00001-of-00002.gguf": { bytes: first },
    "/split-00002-of-00002.gguf": { bytes: Buffer.from("second") },
  };
  server = await serve({ files });
});

after(() => server.close());

/** Runs a case with the checks in scope. */
async function runCase(name) {
  const source = cases[name].toString();
  const method = source.replace(/^async /, "async function ").replace(/^async function "(?:[^"\\]|\\.)*"/, "async function one");
  const body = new Function(`${checks}; return (${method});`)();
  const model = (fields = {}) => new File([fakeModel(fields)], "model.gguf");
  await body(stonechat, { model, options: {}, server: server.url, missing: `${server.url}/none.gguf`, isolated: true });
}

for (const name of Object.keys(cases)) {
  test(name, () => runCase(name));
}

test("a model by address is cached in a folder", async () => {
  const cacheDir = scratch();
  const url = `${server.url}/model.gguf`;
  const progress = [];
  const first = await stonechat.Chat.load(url, { cacheDir, onProgress: (one) => progress.push(one) });
  await first.close();
  assert.ok(progress.some(({ status, loaded, total }) => status === "download" && loaded === total && total === 300_000));
  assert.ok(progress.some(({ status, loaded }) => status === "open" && loaded === 1));
  const asked = server.log.length;
  const second = await stonechat.Chat.load(url, { cacheDir });
  assert.equal(second.info.sum, first.info.sum);
  await second.close();
  assert.equal(server.log.length, asked);
  assert.deepEqual((await stonechat.models.list({ cacheDir })).map(({ name, bytes }) => [name, bytes]), [[url, 300_000]]);
  assert.equal((await stonechat.models.usage({ cacheDir })).models, 300_000);
  await stonechat.models.remove(url, { cacheDir });
  assert.deepEqual(await stonechat.models.list({ cacheDir }), []);
});

test("a path and a folder of Node", async () => {
  const path = scratch();
  writeFileSync(join(path, "model.bin"), fakeModel());
  writeFileSync(join(path, "config.json"), fakeModel());
  writeFileSync(join(path, "other.txt"), "no part of the model");
  const file = await stonechat.Chat.load(join(path, "model.bin"));
  assert.deepEqual(file.info.names, ["model.bin"]);
  await file.close();
  const whole = await stonechat.Chat.load(path);
  assert.deepEqual(whole.info.names, ["config.json", "model.bin"]);
  await whole.close();
  await assert.rejects(stonechat.Chat.load(join(path, "none.gguf")), { param: "source" });
});

test("the process ends by itself with a model that was not closed, and warns of nothing", async () => {
  const script = join(scratch(), "script.mjs");
  const model = join(scratch(), "model.gguf");
  writeFileSync(model, fakeModel());
  const text = `
    import { Chat } from ${JSON.stringify(join(folder, "dist/index.js"))};
    const downloaded = await Chat.load("${server.url}/model.gguf", { cacheDir: ${JSON.stringify(scratch())} });
    await downloaded.close();
    const llm = await Chat.load(${JSON.stringify(model)}, { threads: 3 });
    console.log(JSON.stringify(await llm.tokenize("a")));
  `;
  writeFileSync(script, text);
  const { stdout, stderr } = await run(process.execPath, [script], { timeout: 20_000 });
  assert.equal(stdout, "[97]\n");
  // Node reports a descriptor that is closed twice.
  assert.equal(stderr, "");
});

test("a binary whose self-test fails is replaced by the next one, and a missing one too", async () => {
  const faulty = fakePackage({ faults: ["relaxed", "base"], missing: [] });
  const model = new File([fakeModel()], "m");
  const { Chat } = await import(join(faulty, "dist/index.js"));
  const llm = await Chat.load(model);
  assert.equal(llm.info.binary, "scalar");
  await llm.close();
  await assert.rejects(Chat.load(model, { binary: "base" }), /a product is wrong/);
  const none = fakePackage({ faults: ["scalar"], missing: ["relaxed", "base"] });
  const { Chat: Other } = await import(join(none, "dist/index.js"));
  await assert.rejects(Other.load(model), (error) => error.status === 501 && /scalar: a product is wrong/.test(error.message));
});

test("assets elsewhere", async () => {
  const llm = await stonechat.Chat.load(new File([fakeModel()], "m"), { assets: join(folder, "dist") });
  assert.equal(llm.info.architecture, "fake");
  await llm.close();
  await assert.rejects(stonechat.Chat.load(new File([fakeModel()], "m"), { assets: scratch() }), { type: "worker_error" });
});

test("support", async () => {
  const support = await stonechat.isSupported();
  assert.equal(support.wasm && support.simd && support.threads && support.isolated, true);
  assert.equal(support.gpu || support.opfs, false);
});

test("the package holds exactly the files it should", () => {
  const out = execFileSync("npm", ["pack", "--dry-run", "--json"], { cwd: folder, encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] });
  const packed = JSON.parse(out);
  const [{ files }] = Array.isArray(packed) ? packed : Object.values(packed);
  const names = files.map(({ path }) => path).filter((path) => !path.endsWith(".d.ts"));
  const binaries = ["base", "base-speech", "gpu", "relaxed", "relaxed-speech", "scalar", "scalar-speech"].flatMap((name) => [`dist/stonechat-${name}.js`, `dist/stonechat-${name}.wasm`]);
  const expected = ["README.md", "package.json", "dist/index.js", "dist/microphone.js", "dist/silero.bin", "dist/worker.js", ...binaries];
  assert.deepEqual(names.sort(), expected.sort());
  const declarations = files.filter(({ path }) => path.endsWith(".d.ts")).length;
  assert.equal(declarations, readdirSync(join(folder, "dist")).filter((name) => name.endsWith(".d.ts")).length);
});

test("the scripts keep their size", () => {
  const sizes = ["index", "worker", "microphone"].map((name) => gzipSync(readFileSync(join(folder, `dist/${name}.js`)), { level: 9 }).length);
  const total = sizes.reduce((sum, size) => sum + size, 0);
  assert.ok(total <= MAX_SCRIPTS, `${total} bytes`);
});

test("the declarations compile in a strict program without the types of the package's sources", () => {
  const program = scratch();
  mkdirSync(join(program, "node_modules"), { recursive: true });
  execFileSync("ln", ["-s", folder, join(program, "node_modules/stonechat")]);
  const text = `
    import { Chat, Transcriber, pipeline, type Segment, type LoadOptions } from "stonechat";
    const options: LoadOptions = { device: "auto", onProgress: ({ loaded, total }) => console.log(loaded / total) };
    const asr = await Transcriber.load("./a.bin", options);
    const text: string = await asr.transcribe("a.wav", { responseFormat: "srt" });
    const segments: Segment[] = (await asr.transcribe(new Float32Array(1))).segments;
    const llm = await Chat.load(new URL("https://a.example/m.gguf"), { nCtx: 4096 });
    for await (const chunk of llm.chat.completions.create({ messages: [{ role: "user", content: text }], stream: true })) {
      console.log(chunk.choices[0]?.delta.content, segments.length);
    }
    const { choices } = await llm.chat.completions.create({ messages: [] });
    const content: string | undefined = choices[0]?.message.reasoning_content ?? undefined;
    const p = await pipeline("automatic-speech-recognition", "./a.bin");
    const { chunks } = await p("a.wav", { return_timestamps: "word" });
    console.log(content, chunks?.[0]?.timestamp[0]);
    // @ts-expect-error an unknown option
    await Chat.load("m", { nctx: 5 });
  `;
  writeFileSync(join(program, "a.mts"), text);
  const compilerOptions = { noEmit: true, strict: true, target: "es2022", module: "esnext", moduleResolution: "bundler", lib: ["es2023", "dom"], types: [] };
  writeFileSync(join(program, "tsconfig.json"), JSON.stringify({ compilerOptions, files: ["a.mts"] }));
  const tsc = new URL("../node_modules/typescript/bin/tsc", import.meta.url).pathname;
  execFileSync(process.execPath, [tsc, "-p", program], { stdio: "inherit" });
});
