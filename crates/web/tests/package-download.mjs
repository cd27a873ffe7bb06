// Tests of downloads, the cache and the sources of models, in Node: `node --test tests/package-download.mjs`.

import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { scratch, sourceModule } from "./package-fake.mjs";
import { noise, serve, sha256 } from "./package-server.mjs";

const KIB = 1024;
const SIZE = 700 * KIB + 123;
const LIMITS = { chunk: 128 * KIB, probe: 32 * KIB, backoff: 5, maxBackoff: 50, stall: 300, saved: 64 * KIB, progress: 16 * KIB };

let source;
let server;

before(async () => {
  source = await sourceModule("download", "cache", "folder", "files", "open", "wasm", "audio", "transcript", "storage");
  server = await serve();
});

after(() => server.close());

let lastName = 0;

/** A file of the server; the result has its URL and the log of its requests. */
function put(fields = {}) {
  lastName += 1;
  const path = `/file-${lastName}.gguf`;
  const file = { bytes: noise(SIZE, lastName), ...fields };
  server.files[path] = file;
  return { file, url: server.url + path, log: () => server.log.filter((one) => one.path === path) };
}

/** A target of `download` in memory. */
function buffer() {
  const target = {
    bytes: new Uint8Array(),
    begun: 0,
    states: [],
    async begin(size) {
      target.begun += 1;
      target.bytes = new Uint8Array(size);
    },
    async write(part, at) {
      if (at + part.length > target.bytes.length) {
        const longer = new Uint8Array(at + part.length);
        longer.set(target.bytes);
        target.bytes = longer;
      }
      target.bytes.set(part, at);
    },
    async save(state) {
      target.states.push(structuredClone(state));
    },
  };
  return target;
}

async function fetchAll(one, { target = buffer(), signal = new AbortController().signal, limits, resume, onProgress = () => undefined } = {}) {
  const request = { url: one.url, headers: {}, signal, target, resume, onProgress, limits: { ...LIMITS, ...limits } };
  const found = await source.download(request);
  return { found, target };
}

function assertBytes(got, expected) {
  assert.equal(got.length, expected.length);
  assert.equal(sha256(got), sha256(expected));
}

test("a file is downloaded by ranges in several lanes", async () => {
  const one = put();
  const progress = [];
  const { found, target } = await fetchAll(one, { onProgress: (loaded, total) => progress.push([loaded, total]) });
  assertBytes(target.bytes, one.file.bytes);
  assert.deepEqual(found.size, SIZE);
  assert.equal(found.etag, '"v1"');
  // The probe, the rest of its chunk, and five further chunks.
  assert.equal(one.log().length, 7);
  assert.deepEqual(progress.at(-1), [SIZE, SIZE]);
  const loaded = progress.map(([n]) => n);
  assert.deepEqual(loaded, [...loaded].sort((a, b) => a - b));
});

test("a file that is smaller than the first request needs one", async () => {
  const one = put({ bytes: noise(1000) });
  const { target } = await fetchAll(one);
  assertBytes(target.bytes, one.file.bytes);
  assert.equal(one.log().length, 1);
});

test("a server without ranges is read as one stream", async () => {
  const one = put({ fault: "noRanges" });
  const { target } = await fetchAll(one);
  assertBytes(target.bytes, one.file.bytes);
  assert.equal(one.log().length, 2);
});

for (const [fault, requests] of Object.entries({ breaks: 3, short: 3, stalls: 2 })) {
  test(`a connection that ${fault} is resumed where it stopped`, async () => {
    const one = put({ fault, n: requests });
    const { target } = await fetchAll(one);
    assertBytes(target.bytes, one.file.bytes);
    assert.equal(target.begun, 1);
    const ranges = one.log().map(({ range }) => range);
    assert.equal(new Set(ranges).size, ranges.length, "no range is asked for twice");
  });
}

test("an error of the server is retried, and its pause is bounded", async () => {
  const one = put({ fault: "status", status: 503, n: 3, retryAfter: 3600 });
  const { target } = await fetchAll(one);
  assertBytes(target.bytes, one.file.bytes);
});

test("attempts are bounded", async () => {
  const one = put({ fault: "status", status: 500, n: 1e9 });
  await assert.rejects(fetchAll(one), { name: "StonechatError", status: 500, type: "download_error" });
  assert.equal(one.log().length, 6);
});

test("a stream without ranges is retried from its start, and a bounded number of times", async () => {
  const one = put({ fault: "status", status: 404, n: 1e9 });
  await assert.rejects(fetchAll(one), { status: 404, type: "download_error" });
  assert.equal(one.log().length, 1, "a missing file is not retried");
});

test("a server that trickles a byte each time is given up", async () => {
  const one = put({ fault: "stalls", n: 1e9 });
  // Half of each answer comes, so that progress falls below the limit in the end.
  await assert.rejects(fetchAll(one, { limits: { stall: 30, progress: SIZE, attempts: 3 } }), { type: "download_error" });
  assert.ok(one.log().length <= 3 * 5, `${one.log().length} requests`);
});

for (const fault of ["shifted", "long"]) {
  test(`a server whose ranges are ${fault} is read as one stream`, async () => {
    const one = put({ fault });
    const { target } = await fetchAll(one);
    assertBytes(target.bytes, one.file.bytes);
    assert.equal(one.log().at(-1).range, undefined);
  });
}

test("a file that changes during the download is started again", async () => {
  const later = noise(SIZE + 5000, 99);
  const one = put({ fault: "changes", n: 3, later });
  const { found, target } = await fetchAll(one);
  assertBytes(target.bytes, later);
  assert.equal(found.etag, '"v2"');
  assert.equal(target.begun, 2);
});

test("a file that changes each time is refused", async () => {
  const one = put({ fault: "changesAlways" });
  await assert.rejects(fetchAll(one), /expected the same file in every response/);
  assert.ok(one.log().length < 40);
});

test("an absurd size is refused before a byte is stored", async () => {
  const one = put();
  const target = buffer();
  await assert.rejects(fetchAll(one, { target, limits: { size: 1000 } }), /expected at most/);
  assert.equal(target.begun, 0);
});

test("an empty file is refused", async () => {
  await assert.rejects(fetchAll(put({ bytes: Buffer.alloc(0) })), /got 0 bytes/);
});

test("a download is aborted at once, and its state resumes it", async () => {
  const one = put({ fault: "slow", delay: 20, step: 16 * KIB });
  const stop = new AbortController();
  const target = buffer();
  const reason = new Error("enough");
  const onProgress = (loaded) => loaded > SIZE / 2 && stop.abort(reason);
  await assert.rejects(fetchAll(one, { target, signal: stop.signal, onProgress }), (error) => error === reason);
  const resume = target.states.at(-1);
  assert.ok(source.isState(resume));
  const before = resume.done.reduce((sum, n) => sum + n, 0);
  assert.ok(before >= SIZE / 2 && before < SIZE);
  const asked = one.log().length;
  one.file.fault = undefined;
  target.begun = 0;
  await fetchAll(one, { target, resume });
  assertBytes(target.bytes, one.file.bytes);
  assert.equal(target.begun, 0);
  const length = ({ range }) => {
    const [from, to] = range.slice(6).split("-").map(Number);
    return to - from + 1;
  };
  const again = one.log().slice(asked).reduce((sum, request) => sum + length(request), 0);
  assert.equal(again, SIZE - before, "only the missing bytes are asked for");
});

test("records that contradict themselves are no states", () => {
  const state = { size: 100, etag: null, lastModified: null, chunk: 64, done: [64, 36] };
  assert.ok(source.isState(state));
  const wrong = [
    null,
    [],
    "text",
    { ...state, done: [64] },
    { ...state, done: [64, 37] },
    { ...state, done: [-1, 0] },
    { ...state, chunk: 0 },
    { ...state, size: 2 ** 60 },
    { ...state, etag: 5 },
  ];
  for (const one of wrong) {
    assert.equal(source.isState(one), false, JSON.stringify(one));
  }
});

// The cache.

function context(storage, fields = {}) {
  const notes = [];
  const progress = [];
  return {
    storage,
    headers: {},
    signal: new AbortController().signal,
    onProgress: (one) => progress.push(one),
    reserve: () => undefined,
    note: (text) => notes.push(text),
    limits: LIMITS,
    notes,
    progress,
    ...fields,
  };
}

function contentOf(file) {
  const bytes = new Uint8Array(file.size);
  file.read(0, bytes);
  return bytes;
}

test("a cached file is used without the server, and only once it is committed", async () => {
  const folder = scratch();
  const one = put();
  const first = await source.fetchFile({ name: "m", url: one.url }, context(await source.openFolder(folder)));
  assertBytes(contentOf(first), one.file.bytes);
  first.close();
  const asked = one.log().length;
  const second = await source.fetchFile({ name: "m", url: one.url }, context(await source.openFolder(folder)));
  assertBytes(contentOf(second), one.file.bytes);
  second.close();
  assert.equal(one.log().length, asked);

  const storage = await source.openFolder(folder);
  const [key] = await storage.list();
  assert.deepEqual((await source.listFiles(storage)).map(({ name, bytes, isComplete }) => [name, bytes, isComplete]), [[one.url, SIZE, true]]);
  // A record that was cut off, and one that contradicts the file, are not trusted.
  for (const spoil of [(text) => text.slice(0, 20), (text) => text.replace(`"size":${SIZE}`, `"size":${SIZE - 1}`)]) {
    const path = join(folder, key, "commit.json");
    writeFileSync(path, spoil(readFileSync(path, "utf8")));
    const before = one.log().length;
    const again = await source.fetchFile({ name: "m", url: one.url }, context(storage));
    assertBytes(contentOf(again), one.file.bytes);
    again.close();
    assert.ok(one.log().length > before);
  }
  assert.equal(await source.removeFile(storage, one.url), true);
  assert.deepEqual(await source.listFiles(storage), []);
});

test("two loads of one file download it once", async () => {
  const folder = scratch();
  const one = put({ fault: "slow", delay: 5 });
  const contexts = [context(await source.openFolder(folder)), context(await source.openFolder(folder))];
  const files = await Promise.all(contexts.map((each) => source.fetchFile({ name: "m", url: one.url }, each)));
  files.forEach((file) => assertBytes(contentOf(file), one.file.bytes));
  files.forEach((file) => file.close());
  assert.equal(one.log().length, 7);
  assert.equal(contexts.filter(({ progress }) => progress.some(({ status }) => status === "wait")).length, 1);
});

test("a download that was aborted is resumed by the next load", async () => {
  const folder = scratch();
  const one = put({ fault: "slow", delay: 10, step: 16 * KIB });
  const stop = new AbortController();
  const storage = await source.openFolder(folder);
  const onProgress = ({ loaded }) => loaded > SIZE / 2 && stop.abort();
  const aborted = source.fetchFile({ name: "m", url: one.url }, context(storage, { signal: stop.signal, onProgress }));
  await assert.rejects(aborted, { name: "AbortError" });
  const [partial] = await source.listFiles(storage);
  assert.equal(partial.isComplete, false);
  assert.ok(partial.bytes >= SIZE / 2 && partial.total === SIZE);
  one.file.fault = undefined;
  const before = one.log().length;
  const file = await source.fetchFile({ name: "m", url: one.url }, context(storage));
  assertBytes(contentOf(file), one.file.bytes);
  file.close();
  assert.ok(one.log().slice(before).every(({ range }) => range), "all requests are for ranges");
});

test("a file whose server has another version than its partial download is started again", async () => {
  const folder = scratch();
  const one = put({ fault: "slow", delay: 10, step: 16 * KIB });
  const stop = new AbortController();
  const storage = await source.openFolder(folder);
  const onProgress = ({ loaded }) => loaded > SIZE / 2 && stop.abort();
  await assert.rejects(source.fetchFile({ name: "m", url: one.url }, context(storage, { signal: stop.signal, onProgress })));
  Object.assign(one.file, { fault: "changes", n: 0, later: noise(SIZE, 1234) });
  const file = await source.fetchFile({ name: "m", url: one.url }, context(storage));
  assertBytes(contentOf(file), one.file.later);
  file.close();
});

test("a checksum is verified before the commit, and of a cached file", async () => {
  const folder = scratch();
  const one = put();
  const storage = await source.openFolder(folder);
  const wrong = { name: "m", url: one.url, sha256: "0".repeat(64) };
  await assert.rejects(source.fetchFile(wrong, context(storage)), /expected the SHA-256/);
  assert.deepEqual(await storage.list(), []);
  const right = { name: "m", url: one.url, sha256: sha256(one.file.bytes).toUpperCase() };
  const file = await source.fetchFile(right, context(storage));
  assertBytes(contentOf(file), one.file.bytes);
  file.close();
  const asked = one.log().length;
  (await source.fetchFile(right, context(storage))).close();
  assert.equal(one.log().length, asked);
  await assert.rejects(source.fetchFile(wrong, context(undefined)), /expected the SHA-256/);
});

/** A storage whose files hold `quota` bytes, over one of a folder. */
async function small(quota, { free = Infinity } = {}) {
  const storage = await source.openFolder(scratch());
  let used = 0;
  const limited = (file) => ({
    size: () => file.size(),
    truncate: (size) => file.truncate(size),
    flush: () => file.flush(),
    close: () => file.close(),
    write(bytes, at) {
      used += bytes.length;
      if (used > quota) {
        throw new DOMException("full", "QuotaExceededError");
      }
      file.write(bytes, at);
    },
  });
  return {
    list: () => storage.list(),
    remove: (name) => storage.remove(name),
    lock: (...args) => storage.lock(...args),
    free: async () => free,
    async folder(name) {
      const folder = await storage.folder(name);
      return {
        readText: (file) => folder.readText(file),
        writeText: (file, text) => folder.writeText(file, text),
        openWritable: async (file) => limited(await folder.openWritable(file)),
        openSource: (file, shown) => folder.openSource(file, shown),
        remove: (file) => folder.remove(file),
      };
    },
  };
}

for (const quota of [0, 100 * KIB, SIZE - 1]) {
  test(`a quota that is full after ${quota} bytes leaves the file in memory`, async () => {
    const one = put();
    const storage = await small(quota);
    const all = context(storage);
    const file = await source.fetchFile({ name: "m", url: one.url, sha256: sha256(one.file.bytes) }, all);
    assertBytes(contentOf(file), one.file.bytes);
    file.close();
    assert.match(all.notes.join(), /kept in memory/);
    assert.deepEqual(await storage.list(), [], "no bytes are left behind");
  });
}

test("a file larger than the free space is kept in memory from the start", async () => {
  const one = put();
  const storage = await small(Infinity, { free: 1000 });
  const all = context(storage);
  const file = await source.fetchFile({ name: "m", url: one.url }, all);
  assertBytes(contentOf(file), one.file.bytes);
  assert.match(all.notes.join(), /free/);
  assert.deepEqual(await storage.list(), []);
});

test("a model larger than the memory is refused with numbers after the first response", async () => {
  const one = put();
  const reserve = (bytes) => {
    throw new Error(`${bytes} are too many`);
  };
  for (const storage of [undefined, await source.openFolder(scratch())]) {
    const before = one.log().length;
    await assert.rejects(source.fetchFile({ name: "m", url: one.url }, context(storage, { reserve })), new RegExp(`${SIZE} are too many`));
    assert.equal(one.log().length, before + 1);
  }
});

// Sources.

function specs(from, options) {
  return source.specsOf(from, { hub: "https://hub.example/", ...options });
}

test("names, addresses and parts", () => {
  const urls = (from, options) => specs(from, options).map(({ url }) => url);
  assert.deepEqual(urls("owner/repo/sub/file.gguf"), ["https://hub.example/owner/repo/resolve/main/sub/file.gguf"]);
  assert.deepEqual(urls("hf:owner/repo/file.bin"), ["https://hub.example/owner/repo/resolve/main/file.bin"]);
  assert.deepEqual(urls("owner/repo:file.gguf"), ["https://hub.example/owner/repo/resolve/main/file.gguf"]);
  assert.deepEqual(urls("owner/repo:Q4_K_M"), ["https://hub.example/owner/repo#repository=Q4_K_M"]);
  assert.deepEqual(urls("hf:owner/repo"), ["https://hub.example/owner/repo#repository="]);
  assert.deepEqual(urls("https://hub.example/o/r/blob/main/f.gguf"), ["https://hub.example/o/r/resolve/main/f.gguf"]);
  assert.deepEqual(urls(new URL("https://a.example/x.gguf?k=1")), ["https://a.example/x.gguf?k=1"]);
  assert.deepEqual(urls("https://a.example/m-00001-of-00003.gguf?k=1"), [1, 2, 3].map((i) => `https://a.example/m-0000${i}-of-00003.gguf?k=1`));
  assert.deepEqual(specs({ "config.json": "https://a.example/1", "model.bin": new Blob(["x"]) }).map(({ name }) => name), ["config.json", "model.bin"]);
  assert.deepEqual(specs([new File(["a"], "a.gguf"), new File(["b"], "b.gguf")]).map(({ name }) => name), ["a.gguf", "b.gguf"]);
});

test("wrong sources are refused by name", () => {
  const wrong = ["", "hf:owner", "hf:../../x", "ftp://a.example/x", 5, null, [], {}, ["x"], { a: 5 }, "https://a.example/m-00001-of-99999.gguf"];
  for (const one of wrong) {
    assert.throws(() => specs(one), { name: "StonechatError", status: 400 }, JSON.stringify(one));
  }
  assert.throws(() => specs([new File(["a"], "a"), new File(["b"], "a")]), /twice/);
  assert.throws(() => specs("https://a.example/x.gguf", { sha256: "12" }), /64 hexadecimal digits/);
  assert.throws(() => specs("https://a.example/x.gguf", { sha256: { "y.gguf": "0".repeat(64) } }), /names of files/);
});

/** A hub with one repository. */
async function hub(names, bodies = {}) {
  const siblings = names.map((rfilename) => ({ rfilename }));
  const files = { "/api/models/o/r": { bytes: Buffer.from(JSON.stringify({ siblings })), fault: "noRanges" } };
  for (const name of names) {
    files[`/o/r/resolve/main/${name}`] = { bytes: bodies[name] ?? Buffer.from(`content of ${name}`) };
  }
  return serve({ files });
}

const CHOICES = [
  ["hf:o/r", ["README.md", "config.json", "model.safetensors", "model.bin", "tokenizer.json"], ["config.json", "tokenizer.json", "model.safetensors"]],
  ["hf:o/r", ["m-Q8_0.gguf", "m-Q4_K_M.gguf", "mmproj-m-Q4_K_M.gguf"], ["m-Q4_K_M.gguf"]],
  ["o/r:q8_0", ["m-Q8_0.gguf", "m-Q4_K_M.gguf"], ["m-Q8_0.gguf"]],
  ["o/r:Q4_K_M", ["a/m-Q4_K_M-00002-of-00002.gguf", "a/m-Q4_K_M-00001-of-00002.gguf"], ["m-Q4_K_M-00001-of-00002.gguf", "m-Q4_K_M-00002-of-00002.gguf"]],
];

for (const [name, names, chosen] of CHOICES) {
  test(`the repository ${name} of ${names.join(", ")}`, async () => {
    const server = await hub(names);
    try {
      const files = await source.openFiles(source.specsOf(name, { hub: server.url }), context(undefined));
      assert.deepEqual(files.map((file) => file.name), chosen);
      assert.match(Buffer.from(contentOf(files[0])).toString(), /^content of /);
    } finally {
      await server.close();
    }
  });
}

test("split safetensors of a repository are those of the index", async () => {
  const index = Buffer.from(JSON.stringify({ weight_map: { a: "model-00001-of-00001.safetensors" } }));
  const names = ["model.safetensors.index.json", "model-00001-of-00001.safetensors", "other.safetensors", "config.json"];
  const server = await hub(names, { "model.safetensors.index.json": index });
  try {
    const files = await source.openFiles(source.specsOf("hf:o/r", { hub: server.url }), context(undefined));
    assert.deepEqual(files.map((file) => file.name), ["config.json", "model.safetensors.index.json", "model-00001-of-00001.safetensors"]);
  } finally {
    await server.close();
  }
});

test("a repository without a model, and one that is missing", async () => {
  const server = await hub(["README.md"]);
  const open = (name) => source.openFiles(source.specsOf(name, { hub: server.url }), context(undefined));
  try {
    await assert.rejects(open("hf:o/r"), /README.md/);
    await assert.rejects(open("o/r:Q4_0"), /a GGUF file of the type Q4_0/);
    await assert.rejects(open("hf:o/none"), { status: 404 });
  } finally {
    await server.close();
  }
});

// Modules, samples, subtitles.

test("the memory of a module is found, and damaged modules end in errors", () => {
  const header = [0, 97, 115, 109, 1, 0, 0, 0];
  // Imports: a table, a global, then a memory of 20 to 65536 shared pages.
  const imports = [3, 1, 97, 1, 98, 1, 112, 0, 5, 1, 97, 1, 99, 3, 127, 0, 1, 97, 1, 100, 2, 3, 20, 128, 128, 4];
  const bytes = Uint8Array.of(...header, 1, 1, 0, 2, imports.length, ...imports);
  assert.deepEqual(source.memoryImport(bytes), { minimum: 20, maximum: 65536, isShared: true });
  for (let n = 0; n < bytes.length - 4; n += 1) {
    assert.throws(() => source.memoryImport(bytes.subarray(0, n)), RangeError);
  }
  assert.equal(source.memoryImport(Uint8Array.of(...header, 3, 1, 0)), undefined);
  assert.throws(() => source.memoryImport(Uint8Array.of(60, 104, 116, 109, 108, 62)), /expected a WebAssembly module/);
  assert.throws(() => source.memoryImport(Uint8Array.of(...header, 1, 255, 255, 255, 255, 255, 255, 255, 255, 255)), /damaged/);
});

test("memory gets the greatest maximum, and at least the declared minimum", () => {
  const { memory, maximum } = source.makeMemory({ minimum: 30, maximum: 65536, isShared: true });
  assert.equal(memory.buffer.byteLength, 30 * 65536);
  assert.equal(maximum, 2 ** 32);
  assert.equal(source.makeMemory({ minimum: 30, maximum: 100, isShared: true }).maximum, 100 * 65536);
  const real = WebAssembly.Memory;
  const tried = [];
  try {
    WebAssembly.Memory = class extends real {
      constructor(type) {
        tried.push((type.maximum * 65536) / 2 ** 20);
        if (type.maximum > 16384) {
          throw new RangeError("Out of memory");
        }
        super(type);
      }
    };
    assert.equal(source.makeMemory({ minimum: 30, maximum: 65536, isShared: true }).maximum, 2 ** 30);
    assert.deepEqual(tried, [4096, 2048, 1536, 1024]);
    assert.throws(() => source.makeMemory({ minimum: 20000, maximum: 65536, isShared: true }), { status: 507 });
  } finally {
    WebAssembly.Memory = real;
  }
});

test("samples become a WAV file", () => {
  const bytes = source.waveFile([Float32Array.of(0, 0.5), Float32Array.of(-1, 1)], 48000);
  const view = new DataView(bytes.buffer);
  assert.equal(Buffer.from(bytes.subarray(0, 4)).toString(), "RIFF");
  assert.equal(view.getUint16(20, true), 3);
  assert.equal(view.getUint16(22, true), 2);
  assert.equal(view.getUint32(24, true), 48000);
  assert.deepEqual([...new Float32Array(bytes.buffer, 44)], [0, -1, 0.5, 1]);
  assert.throws(() => source.waveFile([Float32Array.of(0), Float32Array.of(0, 1)], 48000), /same length/);
  assert.throws(() => source.waveFile([Float32Array.of(0)], 0.5), /sampleRate/);
  assert.throws(() => source.waveFile([], 16000), /1 to 32/);
});

test("subtitles, and the names of languages", () => {
  const segments = [{ id: 0, start: 0, end: 1.9996, text: " one --> two" }, { id: 1, start: 3601.5, end: 3602, text: " three" }];
  const reported = segments.map((segment) => ({ ...segment, words: [] }));
  const transcript = source.transcriptOf({ text: "one two three", duration: 4000, segments }, reported, "en");
  assert.equal(transcript.toSrt(), "1\n00:00:00,000 --> 00:00:02,000\none -> two\n\n2\n01:00:01,500 --> 01:00:02,000\nthree\n\n");
  assert.equal(transcript.toVtt(), "WEBVTT\n\n00:00.000 --> 00:02.000\none -> two\n\n01:00:01.500 --> 01:00:02.000\nthree\n\n");
  assert.equal(transcript.toText(), "one --> two\nthree\n");
  assert.deepEqual(transcript.segments, reported);
  assert.deepEqual(source.transcriptOf({ text: "", segments }, [], "en").segments, segments);
  assert.deepEqual(Object.keys(JSON.parse(JSON.stringify(transcript))), ["text", "language", "duration", "segments"]);
  assert.equal(source.languageCode("german", ["en", "de"]), "de");
  assert.equal(source.languageCode("DE", ["en", "de"]), "de");
  assert.equal(source.languageCode("klingon", ["en", "de"]), "klingon");
});
