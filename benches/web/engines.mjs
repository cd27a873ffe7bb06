/**
 * The engines behind two functions: `speech` transcribes one clip twice, `text` continues one prompt twice.
 *
 * Each run gets a page of its own, so that no engine finds the memory, the caches or the threads of another one. The first run
 * includes what an engine does once (compilation of its binary, warm-up); loading the model is timed apart. Texts are greedy.
 */

const now = () => performance.now();

/** Seconds since `start`. */
const since = (start) => (now() - start) / 1000;

/** Runs `work` twice and times each run. */
async function twice(work) {
  const runs = [];
  for (let i = 0; i < 2; i++) {
    const start = now();
    runs.push({ ...(await work()), seconds: since(start) });
  }
  return runs;
}

/**
 * Times a stream of tokens: the first token ends the prompt, the others are decoded. An engine may send several tokens in a
 * chunk, or none: `countTokens` counts those of the whole text.
 */
async function timeStream(stream, textOf, countTokens) {
  const start = now();
  let [text, first, last] = ["", 0, 0];
  for await (const chunk of stream) {
    const piece = textOf(chunk);
    if (piece) {
      text += piece;
      last = since(start);
      first ||= last;
    }
  }
  const nTokens = await countTokens(text);
  return { text, firstTokenSeconds: first, decodeTokens: nTokens - 1, decodeSeconds: last - first };
}

/** The samples of a WAV file at 16 kHz, decoded by the browser: for engines that take samples. */
async function samples(url) {
  const context = new OfflineAudioContext(1, 1, 16_000);
  const audio = await context.decodeAudioData(await (await fetch(url)).arrayBuffer());
  if (audio.numberOfChannels !== 1) {
    throw new Error(`expected a clip with one channel, got ${audio.numberOfChannels}`);
  }
  return audio.getChannelData(0);
}

const blob = async (url, name) => new File([await (await fetch(url)).blob()], name);

const ENGINES = {
  stonechat: {
    async speech({ files, threads, binary }) {
      const { Transcriber } = await import("stonechat");
      const start = now();
      const model = await Transcriber.load(files.speech, { device: "cpu", threads, binary, cache: "memory" });
      const loadSeconds = since(start);
      const clip = await blob(files.audio, "clip.wav");
      const runs = await twice(async () => {
        const { text } = await model.transcribe(clip, { language: "en", temperature: 0, vad: false });
        return { text };
      });
      const { info } = model;
      await model.close();
      return { loadSeconds, runs, info };
    },
    async text({ files, threads, binary, prompt, nTokens }) {
      const { Chat } = await import("stonechat");
      const start = now();
      const options = { device: "cpu", threads, binary, cache: "memory", nCtx: 1024, parallel: 1 };
      const model = await Chat.load(files.language, options);
      const loadSeconds = since(start);
      const promptTokens = (await model.tokenize(prompt)).length;
      const runs = await twice(() => {
        const body = { prompt, max_tokens: nTokens, temperature: 0, stream: true, cache_prompt: false };
        const stream = model.completions.create(body);
        const count = async (text) => (await model.tokenize(text)).length;
        return timeStream(stream, (chunk) => chunk.choices[0]?.text, count);
      });
      const { info } = model;
      await model.close();
      return { loadSeconds, promptTokens, runs, info };
    },
  },

  shout: {
    async speech({ files, threads }) {
      const { default: createModule } = await import("@transcribe/shout");
      const { FileTranscriber } = await import("@transcribe/transcriber");
      const start = now();
      const quiet = () => {};
      const model = await blob(files.speech, "model.bin");
      const transcriber = new FileTranscriber({ createModule, model, print: quiet, printErr: quiet });
      await transcriber.init();
      const loadSeconds = since(start);
      const clip = await blob(files.audio, "clip.wav");
      const runs = await twice(async () => {
        const result = await transcriber.transcribe(clip, { lang: "en", threads, token_timestamps: false });
        return { text: result.transcription.map((segment) => segment.text).join("") };
      });
      return { loadSeconds, runs };
    },
  },

  transformers: {
    async speech({ files, threads, dtype }) {
      const { env, pipeline } = await import("@huggingface/transformers");
      env.allowRemoteModels = false;
      env.allowLocalModels = true;
      env.localModelPath = "/onnx/";
      env.useBrowserCache = false;
      env.useWasmCache = false;
      env.backends.onnx.wasm.wasmPaths = new URL("/modules/onnxruntime-web/dist/", location.href).href;
      env.backends.onnx.wasm.numThreads = threads;
      const start = now();
      const model = await pipeline("automatic-speech-recognition", files.onnx, { device: "wasm", dtype });
      const loadSeconds = since(start);
      const clip = await samples(files.audio);
      const runs = await twice(async () => ({ text: (await model(clip)).text }));
      return { loadSeconds, runs, info: { dtype } };
    },
  },

  wllama: {
    async text({ files, threads, prompt, nTokens }) {
      const { LoggerWithoutDebug, Wllama } = await import("@wllama/wllama");
      const paths = { default: new URL("/modules/@wllama/wllama/esm/wasm/wllama.wasm", location.href).href };
      const wllama = new Wllama(paths, { logger: LoggerWithoutDebug, suppressNativeLog: true });
      const start = now();
      const model = await blob(files.language, "model.gguf");
      await wllama.loadModel([model], { n_threads: threads, n_gpu_layers: 0, n_ctx: 1024, n_parallel: 1 });
      const loadSeconds = since(start);
      let usage;
      const runs = await twice(async () => {
        const body = { prompt, max_tokens: nTokens, temperature: 0, stream: true, cache_prompt: false };
        const stream = await wllama.createCompletion(body);
        const textOf = (chunk) => {
          usage = chunk.usage ?? usage;
          return chunk.choices[0]?.text;
        };
        return timeStream(stream, textOf, () => usage?.completion_tokens ?? nTokens);
      });
      const info = { threads: wllama.getNumThreads() };
      const promptTokens = usage?.prompt_tokens;
      await wllama.exit();
      return { loadSeconds, promptTokens, runs, info };
    },
  },
};

/** Runs an engine; called by `run.mjs`. */
globalThis.measure = async (engine, work, job) => {
  if (!crossOriginIsolated) {
    throw new Error("expected a cross-origin isolated page");
  }
  const run = ENGINES[engine]?.[work];
  if (!run) {
    throw new Error(`expected an engine with ${work}, got ${engine}`);
  }
  return run(job);
};
globalThis.isReady = true;
