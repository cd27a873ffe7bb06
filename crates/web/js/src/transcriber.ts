/** Speech recognition: whole recordings, their segments as they come, and live speech. */

import { prepareAudio, type PreparedAudio } from "./audio.js";
import { events, type Call, type Connection } from "./client.js";
import { StonechatError, checkNames, invalid } from "./errors.js";
import { load, oneOf, type LoadKind } from "./load.js";
import { Transcript, languageCode, transcriptOf, type VerboseAnswer } from "./transcript.js";
import type { AudioInput, LoadOptions, ModelInfo, Segment, Source, TranscribeOptions, Word } from "./types.js";

/** Names of the options of a transcription in requests. */
const FIELDS = {
  language: "language",
  task: "task",
  temperature: "temperature",
  prompt: "prompt",
  hotwords: "hotwords",
  beamSize: "beam_size",
  conditionOnPreviousText: "condition_on_previous_text",
  batchSize: "batch_size",
  vad: "vad",
} as const;

const CALL_OPTIONS = ["wordTimestamps", "signal", "onSegment", "onProgress", "responseFormat"];

/** Seconds of live speech that may wait for the engine. */
const MAX_WAITING = 60;

/** Samples of the recording that compares devices: five seconds. */
const MEASURED_SAMPLES = 5 * 16_000;

/** Event of a transcription. */
type SpeechEvent =
  | ({ type: "segment" } & Segment)
  | { type: "language"; language: string }
  | { type: "progress"; done: number; total: number };

/** A loaded speech model. */
export class Transcriber {
  /** Facts about the model and the engine. */
  readonly info: ModelInfo;
  readonly #connection: Connection;

  private constructor(connection: Connection, info: ModelInfo) {
    this.#connection = connection;
    this.info = info;
  }

  /**
   * Loads a Whisper model: a GGUF or whisper.cpp `.bin` file, or the files of a CTranslate2 or safetensors folder.
   *
   * @example
   * const asr = await Transcriber.load("./models/ggml-base-q5_1.bin", { onProgress: console.log });
   * console.log((await asr.transcribe(file)).text);
   */
  static async load(source: Source, options: LoadOptions = {}): Promise<Transcriber> {
    const kind: LoadKind = { kind: "speech", names: [], options: {}, measure };
    const { connection, info } = await load(source, options, kind);
    return new Transcriber(connection, info);
  }

  /** Transcribes a recording to subtitles or plain text. */
  transcribe(audio: AudioInput, options: TranscribeOptions & { responseFormat: "text" | "srt" | "vtt" }): Promise<string>;
  /** Transcribes a recording. */
  transcribe(audio: AudioInput, options?: TranscribeOptions): Promise<Transcript>;
  async transcribe(audio: AudioInput, options: TranscribeOptions = {}): Promise<Transcript | string> {
    const { responseFormat, onSegment } = options;
    const segments: Segment[] = [];
    const body = requestBody(options);
    const prepared = await prepareAudio(audio, options.signal);
    let language: string | undefined;
    const call: Call<"request"> = this.#start(prepared, body, options, (event) => {
      call.ack(1);
      if (event.type === "language") {
        language = event.language;
      } else if (event.type === "segment") {
        const segment = segmentOf(event);
        segments.push(segment);
        onSegment?.(segment);
      }
    });
    const answer = JSON.parse(await call.done) as VerboseAnswer;
    const named = language ?? options.language ?? answer.language ?? "";
    const transcript = transcriptOf(answer, segments, languageCode(named, this.info.languages));
    switch (responseFormat) {
      case "text":
        return transcript.toText();
      case "srt":
        return transcript.toSrt();
      case "vtt":
        return transcript.toVtt();
      default:
        return transcript;
    }
  }

  /** Segments of a recording as soon as they are final. The transcription starts with the loop and is cancelled by leaving it. */
  async *segments(audio: AudioInput, options: TranscribeOptions = {}): AsyncGenerator<Segment, void, void> {
    const body = requestBody(options);
    const prepared = await prepareAudio(audio, options.signal);
    const all = events<"request", SpeechEvent>((onEvent) => this.#start(prepared, body, options, onEvent));
    for await (const event of all) {
      if (event.type === "segment") {
        const segment = segmentOf(event);
        options.onSegment?.(segment);
        yield segment;
      }
    }
  }

  /**
   * Starts to transcribe live speech. Text is first `partial`, which may change, then `committed`.
   *
   * @example
   * const live = asr.listen({ onCommitted: ({ text }) => print(text) });
   * const mic = await microphone(live);
   */
  listen(options: ListenOptions = {}): LiveTranscriber {
    return new LiveTranscriber(this.#connection, options, this.info.languages);
  }

  /** Frees the model, and ends its worker with all threads. Requests that run reject. */
  async close(): Promise<void> {
    await this.#connection.close();
  }

  #start(
    { audio, transfer }: PreparedAudio,
    body: string,
    { signal, onProgress }: TranscribeOptions,
    onEvent: (event: SpeechEvent) => void,
  ): Call<"request"> {
    return this.#connection.call("request", { method: "transcribe", body, audio }, {
      signal,
      transfer,
      onEvent(json: string) {
        const event = JSON.parse(json) as SpeechEvent;
        if (event.type === "progress") {
          onProgress?.(event.total > 0 ? event.done / event.total : 1);
        }
        onEvent(event);
      },
    });
  }
}

/** Options of live speech. */
export interface ListenOptions {
  /** Spoken language: code or English name. Default: detected. */
  language?: string | undefined;
  /** `translate` gives English text. */
  task?: "transcribe" | "translate" | undefined;
  /** Text before the speech, for style and spelling. */
  prompt?: string | undefined;
  /** Cancels the transcription. */
  signal?: AbortSignal | undefined;
  /** Called with text that may still change. */
  onPartial?: ((text: LiveText) => void) | undefined;
  /** Called with text that is final. */
  onCommitted?: ((text: LiveText) => void) | undefined;
}

/** Text of live speech with its times in seconds. */
export interface LiveText {
  text: string;
  start: number;
  end: number;
  /** Words of committed text. */
  words?: Word[];
}

/** Live speech that is being transcribed. */
export class LiveTranscriber {
  /** Transcript of all speech: settles after `end`, and rejects after `cancel` or an error. */
  readonly done: Promise<Transcript>;
  readonly #connection: Connection;
  readonly #call: Call<"listen">;
  readonly #stop = new AbortController();
  #waiting = 0;
  #isEnded = false;

  /** @internal */
  constructor(connection: Connection, options: ListenOptions, languages: string[] | undefined) {
    const { language, task, prompt, signal, onPartial, onCommitted, ...rest } = options;
    checkNames("listen", rest, ["language", "task", "prompt", "signal", "onPartial", "onCommitted"]);
    oneOf("task", task, ["transcribe", "translate"]);
    this.#connection = connection;
    const onAbort = () => this.#stop.abort(signal?.reason);
    if (signal?.aborted) {
      onAbort();
    }
    signal?.addEventListener("abort", onAbort, { once: true });
    const committed: Segment[] = [];
    this.#call = connection.call("listen", { options: JSON.stringify({ language, task, prompt }) }, {
      signal: this.#stop.signal,
      onEvent: (json: string) => {
        this.#call.ack(1);
        const { type, ...text } = JSON.parse(json) as LiveText & { type: string };
        if (type === "partial") {
          onPartial?.(text);
        } else if (type === "committed") {
          committed.push({ id: committed.length, ...text });
          onCommitted?.(text);
        }
      },
      onPushed: (seconds) => (this.#waiting -= seconds),
    });
    this.done = this.#call.done
      .then((json) => {
        // The answer has words alone; what was committed at once is a segment.
        const answer = JSON.parse(json) as VerboseAnswer;
        return transcriptOf(answer, committed, languageCode(answer.language ?? language ?? "", languages));
      })
      .finally(() => {
        this.#isEnded = true;
        signal?.removeEventListener("abort", onAbort);
      });
    // A caller that only uses callbacks need not watch the result.
    this.done.catch(() => undefined);
  }

  /** Adds mono samples, -1 to 1, at `rate` a second. Throws if the engine is a minute behind. */
  push(samples: Float32Array, rate: number): void {
    if (this.#isEnded) {
      throw invalid("push", "speech that has not ended", "samples after its end");
    }
    if (!(samples instanceof Float32Array) || !(Number.isFinite(rate) && rate > 0)) {
      throw invalid("push", "a Float32Array and a rate above 0", `${typeof samples} and ${rate}`);
    }
    const seconds = samples.length / rate;
    if (this.#waiting + seconds > MAX_WAITING) {
      const message = `expected at most ${MAX_WAITING} s of speech that waits, got ${(this.#waiting + seconds).toFixed(1)} s: the engine is too slow`;
      throw new StonechatError(message, { status: 429, type: "rate_limit_error" });
    }
    this.#waiting += seconds;
    const copy = new Float32Array(samples);
    this.#connection.send({ op: "push", id: this.#call.id, samples: copy, rate }, [copy.buffer]);
  }

  /** Ends the speech and gives the whole transcript. */
  async end(): Promise<Transcript> {
    if (!this.#isEnded) {
      this.#isEnded = true;
      this.#connection.send({ op: "end", id: this.#call.id });
    }
    return this.done;
  }

  /** Drops the speech; `done` rejects. */
  cancel(): void {
    this.#isEnded = true;
    this.#stop.abort();
  }
}

function requestBody(options: TranscribeOptions): string {
  checkNames("transcribe", options, [...Object.keys(FIELDS), ...CALL_OPTIONS]);
  oneOf("task", options.task, ["transcribe", "translate"]);
  oneOf("responseFormat", options.responseFormat, ["json", "text", "srt", "vtt"]);
  const granularities = options.wordTimestamps ? ["segment", "word"] : ["segment"];
  const body: Record<string, unknown> = { response_format: "verbose_json", timestamp_granularities: granularities };
  for (const [name, field] of Object.entries(FIELDS)) {
    const value = options[name as keyof typeof FIELDS];
    if (value !== undefined) {
      body[field] = value;
    }
  }
  return JSON.stringify(body);
}

function segmentOf(event: Extract<SpeechEvent, { type: "segment" }>): Segment {
  const { type: _, ...segment } = event;
  return segment;
}

/** Transcribes five seconds of a fixed sound, without the decisions that depend on what is heard. */
async function measure(connection: Connection, signal: AbortSignal | undefined): Promise<void> {
  const audio = new Float32Array(MEASURED_SAMPLES);
  audio.forEach((_, i) => (audio[i] = 0.1 * Math.sin(i * 0.07) * Math.sin(i * 0.0004)));
  const body = requestBody({ language: "en", vad: false, beamSize: 1, temperature: 0.01 });
  const call: Call<"request"> = connection.call("request", { method: "transcribe", body, audio }, {
    signal,
    onEvent: () => call.ack(1),
  });
  await call.done;
}

