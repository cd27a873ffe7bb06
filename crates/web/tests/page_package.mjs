// A stand-in for the npm package, with the interface that the page uses. Names of options are checked as the package does.

export const PACKAGE = `
const wait = (ms, signal) => new Promise((resolve, reject) => {
  const timer = setTimeout(resolve, ms);
  signal?.addEventListener("abort", () => { clearTimeout(timer); reject(signal.reason); }, { once: true });
});
function checkNames(options, names) {
  const wrong = Object.keys(options).find((name) => !names.includes(name));
  if (wrong) throw new Error("unknown option " + wrong);
}
const cache = new Map();
async function load(source, { onProgress, signal, ...rest }) {
  checkNames(rest, ["device"]);
  const file = typeof source === "string" ? source : (source.name ?? source[0]?.name ?? Object.keys(source)[0]);
  if (file.includes("broken")) throw new Error("the file is no model");
  for (let i = 1; i <= 4; i++) {
    await wait(60, signal);
    onProgress({ status: "download", file, loaded: i * 25, total: 100 });
    while (globalThis.isLoadHeld) await wait(20, signal);
  }
  if (typeof source === "string") cache.set(source, { name: source, bytes: 1000, total: 1000, isComplete: true, time: 0 });
}
const info = { device: "cpu", isa: "relaxed", threads: 2, threadsReason: "", nCtx: 2048, memoryBytes: 123000000 };
export const isSupported = async () => ({ wasm: true, reasons: ["No WebGPU: models run on the CPU."] });
export const models = { list: async () => [...cache.values()], remove: async (name) => cache.delete(name) };
export class Transcriber {
  info = info;
  static async load(source, options) { await load(source, options); return new Transcriber(); }
  async transcribe(audio, { signal, onSegment, onProgress, ...rest }) {
    checkNames(rest, ["language", "task", "wordTimestamps", "vad", "prompt"]);
    if (!(audio instanceof Blob) || audio.size === 0) throw new Error("expected audio");
    const words = rest.wordTimestamps ? [{ word: " Browser", start: 0, end: 0.5 }, { word: " words", start: 0.5, end: 1 }] : undefined;
    const segment = { id: 0, start: 0, end: 1, text: " Browser words", tokens: [1], words };
    await wait(50, signal);
    onProgress(0.5);
    onSegment(segment);
    await wait(50, signal);
    return { text: "Browser words", language: "en", duration: 1, segments: [segment] };
  }
  listen({ onPartial, onCommitted, ...rest }) {
    checkNames(rest, ["language", "prompt"]);
    let n = 0;
    return {
      push(samples, rate) {
        if (!(samples instanceof Float32Array) || !(rate > 0)) throw new Error("expected samples");
        n++;
        if (n === 1) onPartial({ text: "hel", start: 0, end: 1 });
        if (n === 3) onCommitted({ text: "hello", start: 0, end: 1 });
      },
      end: async () => ({ text: "hello there", segments: [{ id: 0, start: 0, end: 1, text: " hello there" }] }),
      cancel() {},
    };
  }
  async close() {}
}
export class Chat {
  info = info;
  static async load(source, options) { await load(source, options); return new Chat(); }
  chat = { completions: { create: (body, { signal }) => stream(body, signal) } };
  async close() {}
}
async function* stream({ messages }, signal) {
  const text = "Browser says: " + messages.at(-1).content;
  for (const piece of text.match(/\\s*\\S+/g)) {
    await wait(5, signal);
    yield { choices: [{ index: 0, delta: { content: piece }, finish_reason: null }] };
  }
  yield { choices: [{ index: 0, delta: {}, finish_reason: "stop" }], timings: { predicted_n: 3, predicted_per_second: 50, prompt_n: 3, prompt_per_second: 90 } };
}
`;
