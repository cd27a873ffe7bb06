// Cases of the package that run in Node and in browsers alike: functions of the module `stonechat`, the address of a server and `load` options.
// A case throws if it fails. No case uses a name from outside its own body, since pages receive its source text.

export const cases = {
  async "a chat is answered whole and as a stream"({ Chat }, { model, options }) {
    const llm = await Chat.load(model(), { ...options, nCtx: 512 });
    const { choices } = await llm.chat.completions.create({ messages: [{ role: "user", content: "hi" }], temperature: 0 });
    const echoed = JSON.parse(choices[0].message.content);
    equal(echoed, { messages: [{ role: "user", content: "hi" }], temperature: 0 });
    let text = "";
    for await (const chunk of llm.chat.completions.create({ messages: [], stream: true, max_tokens: 300 })) {
      text += chunk.choices[0].delta.content;
    }
    equal(text.split(" ").length, 301);
    ok(text.startsWith("t0 t1 ") && text.endsWith("t299 "));
    equal(await llm.tokenize("ab"), [97, 98]);
    equal(await llm.detokenize([97, 98]), "ab");
    equal(await llm.applyTemplate([{ role: "user", content: "x" }]), "<user>x");
    equal((await llm.embeddings.create({ input: "x" })).data[0].embedding, [0.5, 1]);
    equal(llm.info.nCtx, 512);
    equal(llm.info.kind, "language");
    await llm.close();
  },

  async "the pace of the consumer bounds what is made"({ Chat }, { model, options }) {
    const llm = await Chat.load(model(), options);
    const chunks = llm.chat.completions.create({ messages: [], stream: true, max_tokens: 100000 });
    for (let i = 0; i < 3; i += 1) {
      await chunks.next();
    }
    await new Promise((resolve) => setTimeout(resolve, 300));
    const { choices } = await llm.chat.completions.create({ messages: [], fake: "made" });
    const made = Number(choices[0].message.content);
    ok(made >= 3 && made <= 140, `${made} were made`);
    await chunks.return();
    await llm.close();
  },

  async "leaving a loop cancels the request"({ Chat }, { model, options }) {
    const llm = await Chat.load(model(), options);
    for await (const chunk of llm.chat.completions.create({ messages: [], stream: true, max_tokens: 1e9 })) {
      if (chunk.choices[0].delta.content === "t100 ") {
        break;
      }
    }
    await new Promise((resolve) => setTimeout(resolve, 50));
    const made = async () => Number((await llm.chat.completions.create({ messages: [], fake: "made" })).choices[0].message.content);
    const before = await made();
    await new Promise((resolve) => setTimeout(resolve, 100));
    equal(await made(), before);
    await llm.close();
  },

  async "signals cancel a load, a request and a stream"({ Chat }, { model, options }) {
    const reason = new Error("enough");
    const aborted = AbortSignal.abort(reason);
    await rejects(Chat.load(model(), { ...options, signal: aborted }), (error) => error === reason);

    const slow = new AbortController();
    const loading = Chat.load(model({ open: "slow" }), { ...options, signal: slow.signal });
    setTimeout(() => slow.abort(reason), 250);
    await rejects(loading, (error) => error === reason);

    const llm = await Chat.load(model(), options);
    await rejects(llm.chat.completions.create({ messages: [], signal: aborted }), (error) => error === reason);
    const stop = new AbortController();
    const hanging = llm.chat.completions.create({ messages: [], fake: "hang" }, { signal: stop.signal });
    setTimeout(() => stop.abort(reason), 50);
    await rejects(hanging, (error) => error === reason);

    const middle = new AbortController();
    let n = 0;
    const read = async () => {
      for await (const _ of llm.chat.completions.create({ messages: [], stream: true, max_tokens: 1e9, signal: middle.signal })) {
        n += 1;
        if (n === 10) {
          middle.abort(reason);
        }
      }
    };
    await rejects(read(), (error) => error === reason);
    // The model still works.
    equal(await llm.tokenize("a"), [97]);
    await llm.close();
  },

  async "errors carry status, type and field"({ Chat, StonechatError }, { model, options, missing }) {
    const llm = await Chat.load(model(), options);
    const refused = (error) =>
      error instanceof StonechatError &&
      error.name === "StonechatError" &&
      error.status === 400 &&
      error.type === "exceed_context_size_error" &&
      error.param === "messages";
    await rejects(llm.chat.completions.create({ messages: [], fake: "refuse" }), refused);
    await rejects(llm.chat.completions.create({ messages: [], fake: "refuse", stream: true }).next(), refused);
    await llm.close();
    await rejects(llm.tokenize("a"), (error) => error.type === "worker_error");
    await llm.close();
    const bad = [
      [model(), { nCtx: 0 }, "nCtx"],
      [model(), { nctx: 5 }, "nctx"],
      [model(), { threads: 65 }, "threads"],
      [model(), { device: "tpu" }, "device"],
      [model(), { binary: "gpu", device: "cpu" }, "binary"],
      [model(), { cacheType: "q4" }, "cacheType"],
      [5, {}, "source"],
    ];
    for (const [source, fields, param] of bad) {
      await rejects(Chat.load(source, { ...options, ...fields }), (error) => error.status === 400 && error.param === param);
    }
    await rejects(Chat.load(missing, options), (error) => error.status === 404 && error.type === "download_error");
    await rejects(Chat.load(model({ open: "fail" }), options), (error) => error.message === "the file is damaged");
    await rejects(Chat.load(model({ kind: "speech" }), options), (error) => error.param === "source");
  },

  async "a model that needs more memory than there is, is refused with numbers"({ Chat }, { model, options }) {
    const load = Chat.load(model({ memory_bytes: 5 * 2 ** 30 }), { ...options, device: "cpu" });
    await rejects(load, (error) => error.status === 507 && /4096\.0 MiB.*5120\.0 MiB/.test(error.message));
  },

  async "a worker that dies rejects everything, and a new load works"({ Chat }, { model, options }) {
    const faults = ["trap", "task", "throw"];
    for (const fake of faults) {
      const llm = await Chat.load(model(), options);
      const waiting = llm.chat.completions.create({ messages: [], fake: "hang" });
      const stream = llm.chat.completions.create({ messages: [], stream: true, max_tokens: 1e9 });
      await stream.next();
      const dying = llm.chat.completions.create({ messages: [], fake });
      const isDead = (error) => error.type === "worker_error" && error.status === 500;
      await Promise.all([rejects(waiting, isDead), rejects(dying, (error) => isDead(error) || /unreachable/.test(error.message))]);
      const drain = async () => {
        for await (const _ of stream);
      };
      await rejects(drain(), isDead);
      await rejects(llm.tokenize("a"), isDead);
    }
    await rejects(Chat.load(model({ open: "trap" }), options), (error) => error.status === 500);
    const llm = await Chat.load(model(), options);
    equal(await llm.tokenize("a"), [97]);
    await llm.close();
  },

  async "threads of the pool: as many as asked, and the end of one ends all"({ Chat }, { model, options, isolated }) {
    const llm = await Chat.load(model(), { ...options, device: "cpu", threads: 3 });
    equal(llm.info.isolated, isolated);
    equal(llm.info.threads, isolated ? 3 : 1);
    if (isolated) {
      const request = llm.chat.completions.create({ messages: [], fake: "thread" });
      await rejects(request, (error) => error.type === "worker_error" && /a thread of the worker has ended/.test(error.message));
    } else {
      ok(/Cross-Origin-Opener-Policy/.test(llm.info.threadsReason));
      await llm.close();
    }
  },

  async "recordings in every form"({ Transcriber }, { model, options, server }) {
    const asr = await Transcriber.load(model({ kind: "speech" }), options);
    equal(asr.info.vadBytes, 27);
    const heard = async (audio) => (await asr.transcribe(audio)).segments[0].text.trim();
    equal(await heard(new Float32Array(10)), "Float32Array of 10");
    equal(await heard({ samples: new Float32Array(10), sampleRate: 16000 }), "Float32Array of 10");
    equal(await heard({ samples: new Float32Array(10), sampleRate: 48000 }), "Uint8Array of 84");
    equal(await heard({ samples: [new Float32Array(10), new Float32Array(10)], sampleRate: 16000 }), "Uint8Array of 124");
    equal(await heard(new Blob(["12345"])), "Uint8Array of 5");
    equal(await heard(new Uint8Array(6)), "Uint8Array of 6");
    const bytes = new ArrayBuffer(7);
    equal(await heard(bytes), "Uint8Array of 7");
    equal(bytes.byteLength, 7);
    equal(await heard(`${server}/audio`), "Uint8Array of 8");
    await rejects(asr.transcribe(`${server}/none`), (error) => error.param === "audio");
    await rejects(asr.transcribe(5), (error) => error.param === "audio");
    await rejects(asr.transcribe(new Float32Array(1), { lang: "de" }), (error) => error.param === "lang");
    await asr.close();
  },

  async "options, segments and formats of a transcription"({ Transcriber, pipeline }, { model, options }) {
    const source = model({ kind: "speech" });
    const asr = await Transcriber.load(source, options);
    const segments = [];
    const fractions = [];
    const transcript = await asr.transcribe(new Float32Array(1), {
      language: "de",
      wordTimestamps: true,
      batchSize: 2,
      vad: false,
      onSegment: (segment) => segments.push(segment.id),
      onProgress: (fraction) => fractions.push(fraction),
    });
    equal(segments, [0, 1, 2]);
    equal(fractions, [1 / 3, 2 / 3, 1]);
    equal(JSON.parse(transcript.segments[1].text), {
      response_format: "verbose_json",
      timestamp_granularities: ["segment", "word"],
      language: "de",
      batch_size: 2,
      vad: false,
    });
    equal(transcript.language, "en");
    equal(transcript.segments.map((segment) => segment.words.length), [1, 1, 1]);
    ok((await asr.transcribe(new Float32Array(1), { responseFormat: "srt" })).includes("00:00:04,000 --> 00:00:06,000\n-> end"));
    const ids = [];
    for await (const segment of asr.segments(new Float32Array(1))) {
      ids.push(segment.id);
    }
    equal(ids, [0, 1, 2]);
    await asr.close();

    const asr2 = await pipeline("automatic-speech-recognition", source, { ...options, device: "wasm" });
    const plain = await asr2(new Float32Array(1), { chunk_length_s: 30, stride_length_s: 5 });
    equal(Object.keys(plain), ["text"]);
    const [words] = await asr2([new Float32Array(1)], { return_timestamps: "word" });
    equal(words.chunks.map(({ timestamp }) => timestamp), [[0.5, 1], [2.5, 3], [4.5, 5]]);
    const { chunks } = await asr2(new Float32Array(1), { return_timestamps: true });
    equal(chunks[0], { text: " Float32Array of 1", timestamp: [0, 2] });
    await rejects(asr2(new Float32Array(1), { max_new_tokens: 5 }), (error) => error.param === "max_new_tokens");
    await rejects(asr2(new Float32Array(1), { chunk_length_s: 31 }), (error) => error.param === "chunk_length_s");
    await rejects(pipeline("text-generation", source), (error) => error.param === "task");
    await asr2.dispose();
  },

  async "live speech"({ Transcriber }, { model, options }) {
    const asr = await Transcriber.load(model({ kind: "speech" }), options);
    const partial = [];
    const committed = [];
    const live = asr.listen({ language: "en", onPartial: ({ text }) => partial.push(text), onCommitted: (text) => committed.push(text) });
    for (let i = 0; i < 200; i += 1) {
      live.push(new Float32Array(4800), 48000);
      await new Promise((resolve) => setTimeout(resolve, 0));
    }
    const transcript = await live.end();
    equal(transcript.text, "all");
    equal(transcript.segments.map(({ id, text }) => [id, text]), [[0, "all"]]);
    equal(partial.length, 200);
    equal(committed, [{ text: "all", start: 0, end: transcript.duration }]);
    throws(() => live.push(new Float32Array(1), 48000));

    const late = asr.listen({ prompt: "slow" });
    let refused;
    for (let i = 0; i < 100 && !refused; i += 1) {
      try {
        late.push(new Float32Array(16000), 16000);
      } catch (error) {
        refused = error;
      }
    }
    equal(refused.status, 429);
    late.cancel();
    await rejects(late.done, (error) => error.name === "AbortError");
    await asr.close();
  },

  async "files of a folder, parts of a split file, and bytes that are read at any offset"({ Chat }, { options, server }) {
    const one = JSON.stringify({ kind: "language" }).padEnd(1000);
    const big = new Uint8Array(9_000_001).fill(3);
    const files = [new File([one], "a.gguf"), new File([big], "b.gguf")];
    const llm = await Chat.load(files, options);
    equal(llm.info.names, ["a.gguf", "b.gguf"]);
    const sum = [...new TextEncoder().encode(one)].reduce((total, byte) => total + byte, 0) + 3 * big.length;
    equal(llm.info.sum, sum % 1_000_000_007);
    await llm.close();
    const parts = await Chat.load(`${server}/split-00001-of-00002.gguf`, options);
    equal(parts.info.names, ["split-00001-of-00002.gguf", "split-00002-of-00002.gguf"]);
    await parts.close();
  },
};

/** Checks that cases use; their source text precedes that of a case in pages. */
export const checks = `
function ok(value, message = "not true") {
  if (!value) {
    throw new Error(message);
  }
}
function equal(got, expected) {
  const [a, b] = [JSON.stringify(got), JSON.stringify(expected)];
  ok(a === b, "expected " + b + ", got " + a);
}
function throws(work) {
  try {
    work();
  } catch {
    return;
  }
  throw new Error("expected an error, got none");
}
async function rejects(work, isExpected) {
  let error;
  try {
    await work;
  } catch (thrown) {
    error = thrown;
  }
  ok(error !== undefined, "expected an error, got none");
  ok(isExpected(error), "unexpected error: " + error + " " + JSON.stringify(error));
}
`;
