// Fake of the script that wasm-bindgen makes for a binary of the engine. `package-fake.mjs` fills in the two constants.

const binary = BINARY;
const isFaulty = IS_FAULTY;
const ARRIVED = 0;
const FAILING = 1;
const OPTIONS = ["name", "device", "threads", "n_ctx", "n_parallel", "cache_type", "chat_template"];

let memory;
let trap;
let vadBytes = 0;

function start(module, given) {
  memory = given;
  const instance = new WebAssembly.Instance(module, { env: { call: () => undefined, memory: given } });
  trap = instance.exports.trap;
  return instance.exports;
}

export default async function init({ module_or_path, memory: given }) {
  return start(module_or_path, given);
}

export function initSync({ module, memory: given, thread_stack_size }) {
  if (thread_stack_size % 65536 !== 0) {
    throw new Error("expected a stack of whole pages");
  }
  return start(module, given);
}

export function build_info() {
  const isa = { relaxed: "relaxed", scalar: "scalar" }[binary] ?? "simd128";
  const is_gpu = binary === "gpu";
  return JSON.stringify({ version: "0.0.0", isa, has_threads: !is_gpu, has_gpu: is_gpu, has_language: true, vad_weights: "external" });
}

export function self_test() {
  if (isFaulty) {
    throw new Error("a product is wrong");
  }
}

let hasSubgroups;

export function set_subgroups(areOn) {
  hasSubgroups = areOn;
}

/** `globalThis.brokenGpu` is "subgroups" or "all". */
export async function self_test_gpu() {
  if (globalThis.brokenGpu === "all" || (globalThis.brokenGpu === "subgroups" && hasSubgroups)) {
    throw new Error("a product of the GPU is wrong");
  }
}

export function set_vad_weights(bytes) {
  vadBytes = bytes.length;
}

function cells() {
  return new Int32Array(memory.buffer);
}

export function thread_main() {
  Atomics.add(cells(), ARRIVED, 1);
  Atomics.wait(cells(), FAILING, 0);
  trap();
}

export function wait_for_threads(n) {
  return Atomics.load(cells(), ARRIVED) >= n;
}

function header(files) {
  const bytes = new Uint8Array(Math.min(1000, files[0].size));
  files[0].read(0, bytes);
  return JSON.parse(new TextDecoder().decode(bytes));
}

/** Sum of all bytes, read at odd offsets. */
function checksum(files) {
  let sum = 0;
  for (const file of files) {
    for (let at = 0; at < file.size; at += 1_000_001) {
      const part = new Uint8Array(Math.min(1_000_001, file.size - at));
      file.read(at, part);
      for (const byte of part) {
        sum += byte;
      }
    }
  }
  return sum % 1_000_000_007;
}

export function inspect(files) {
  return JSON.stringify(header(files));
}

function apiError(status, type, message, param) {
  return Object.assign(new Error(message), { status, type, param });
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

export class Model {
  static async open(files, json, on_progress) {
    const options = JSON.parse(json);
    const unknown = Object.keys(options).find((name) => !OPTIONS.includes(name));
    if (unknown) {
      throw apiError(400, "invalid_request_error", `unknown option ${unknown}`, unknown);
    }
    const fields = header(files);
    if (fields.open === "fail") {
      throw apiError(400, "invalid_request_error", "the file is damaged");
    }
    if (fields.open === "trap") {
      trap();
    }
    for (let i = 0; i <= 4; i += 1) {
      await pause(fields.open === "slow" ? 200 : 0);
      on_progress(i / 4);
    }
    const model = new Model();
    model.fields = { ...fields, options, n_files: files.length, names: files.map((file) => file.name), sum: checksum(files) };
    return model;
  }

  info() {
    const { kind, options, sum, n_files, names } = this.fields;
    const memory_bytes = memory?.buffer.byteLength ?? 0;
    const extra = { n_ctx: options.n_ctx ?? 2048, n_parallel: 1, languages: ["en", "de"], device: options.device };
    return JSON.stringify({ kind, name: options.name, architecture: "fake", weights: "F32", ...extra, memory_bytes, sum, n_files, names, vad_bytes: vadBytes, has_subgroups: hasSubgroups });
  }

  request(method, json, audio, on_event) {
    return new Job(this, method, JSON.parse(json), audio, on_event);
  }

  listen(options, on_event) {
    return new Listener(JSON.parse(options), on_event);
  }

  free() {
    this.fields = undefined;
  }
}

class Job {
  isCancelled = false;

  constructor(model, method, body, audio, on_event) {
    this.answer = this.run(model, method, body, audio, on_event);
    // As a task of the engine: only `done` reports its error.
    this.answer.catch(() => undefined);
  }

  done() {
    return this.answer;
  }

  cancel() {
    this.isCancelled = true;
  }

  free() {}

  async run(model, method, body, audio, on_event) {
    const { fields } = model;
    await pause(fields.milliseconds?.[fields.options.device] ?? 0);
    switch (body.fake ?? body.prompt) {
      case "refuse":
        throw apiError(400, "exceed_context_size_error", "the prompt is too long", "messages");
      case "trap":
        trap();
        break;
      case "task":
        // A trap in a task of the engine: the job never ends.
        void pause(0).then(() => trap());
        return new Promise(() => undefined);
      case "throw":
        setTimeout(() => trap(), 0);
        return new Promise(() => undefined);
      case "thread":
        Atomics.store(cells(), FAILING, 1);
        Atomics.notify(cells(), FAILING);
        // The engine's thread waits for the dead one.
        Atomics.wait(cells(), 2, 0);
        break;
      case "hang":
        while (!this.isCancelled) {
          await pause(5);
        }
        return JSON.stringify({ cancelled: true });
    }
    if (method === "transcribe") {
      return this.transcribe(body, audio, on_event);
    }
    if (method === "tokenize") {
      return JSON.stringify({ tokens: [...body.content].map((letter) => letter.codePointAt(0)) });
    }
    if (method === "detokenize") {
      return JSON.stringify({ content: String.fromCodePoint(...body.tokens) });
    }
    if (method === "apply_template") {
      return JSON.stringify({ prompt: body.messages.map(({ role, content }) => `<${role}>${content}`).join("") });
    }
    if (method === "embeddings") {
      return JSON.stringify({ object: "list", data: [{ object: "embedding", index: 0, embedding: [0.5, 1] }], model: "fake", usage: {} });
    }
    const n = body.max_tokens ?? 5;
    for (let i = 0; body.stream && i < n && !this.isCancelled; i += 1) {
      const waiting = on_event(JSON.stringify({ object: "chunk", choices: [{ index: 0, delta: { content: `t${i} ` }, finish_reason: null }] }));
      globalThis.fakeMade = i + 1;
      await waiting;
      await pause(0);
    }
    const content = body.fake === "made" ? String(globalThis.fakeMade) : JSON.stringify(body);
    return JSON.stringify({ object: "chat.completion", choices: [{ index: 0, message: { role: "assistant", content }, finish_reason: "stop" }] });
  }

  async transcribe(body, audio, on_event) {
    on_event(JSON.stringify({ type: "language", language: "en" }));
    const kind = audio.constructor.name;
    const texts = [` ${kind} of ${audio.length}`, ` ${JSON.stringify(body)}`, " --> end"];
    const hasWords = body.timestamp_granularities.includes("word");
    const words = (id, text) => [{ word: text, start: id * 2 + 0.5, end: id * 2 + 1, probability: 0.5 }];
    const segments = texts.map((text, id) => ({ id, start: id * 2, end: id * 2 + 2, text, tokens: [id], no_speech_prob: 0 }));
    for (const [i, segment] of segments.entries()) {
      if (this.isCancelled) {
        break;
      }
      await on_event(JSON.stringify({ type: "segment", ...segment, ...(hasWords && { words: words(i, segment.text) }) }));
      await on_event(JSON.stringify({ type: "progress", done: i + 1, total: segments.length }));
      await pause(0);
    }
    return JSON.stringify({ text: texts.join("").trim(), language: "english", duration: 6, segments });
  }
}

class Listener {
  seconds = 0;

  constructor(options, on_event) {
    this.options = options;
    this.on_event = on_event;
  }

  push(samples, rate) {
    this.seconds += samples.length / rate;
    if (this.options.prompt === "slow") {
      const end = performance.now() + 300;
      while (performance.now() < end);
    }
    void this.on_event(JSON.stringify({ type: "partial", text: `${this.seconds.toFixed(1)} s`, start: 0, end: this.seconds }));
  }

  async end() {
    await this.on_event(JSON.stringify({ type: "committed", text: "all", start: 0, end: this.seconds }));
    return JSON.stringify({ text: "all", language: "english", duration: this.seconds, words: [] });
  }

  cancel() {}

  free() {}
}
