/** The interface of transformers.js for speech recognition. */

import { invalid } from "./errors.js";
import { Transcriber } from "./transcriber.js";
import type { AudioInput, LoadOptions, LoadProgress, Source, TranscribeOptions, Word } from "./types.js";

/** Devices of transformers.js and what they are here. */
const DEVICES: Record<string, "auto" | "cpu" | "gpu"> = {
  auto: "auto",
  cpu: "cpu",
  wasm: "cpu",
  gpu: "gpu",
  webgpu: "gpu",
};

/** Longest window of the model in seconds. */
const WINDOW_SECONDS = 30;

const CALL_OPTIONS = [
  "return_timestamps",
  "chunk_length_s",
  "stride_length_s",
  "language",
  "task",
  "temperature",
  "num_beams",
  "signal",
];

/** Options of {@link pipeline}. */
export interface PipelineOptions extends Omit<LoadOptions, "device" | "onProgress"> {
  /** `wasm` or `cpu`, `webgpu` or `gpu`, `auto` (default). */
  device?: "auto" | "cpu" | "wasm" | "gpu" | "webgpu" | undefined;
  /** Without effect, since a file has the types of its own weights: a console warning says so. */
  dtype?: string | Record<string, string> | undefined;
  /** Called with the progress of downloads: `{status, file, loaded, total, progress}`, `progress` in percent. */
  progress_callback?: ((progress: LoadProgress | PipelineProgress) => void) | undefined;
}

/** Progress in the form of transformers.js. */
export interface PipelineProgress {
  status: "progress" | "ready";
  file: string;
  loaded: number;
  total: number;
  /** Percent. */
  progress: number;
}

/** Options of a call. */
export interface PipelineCallOptions {
  /** `true` for the times of segments, `"word"` for those of words. */
  return_timestamps?: boolean | "word" | undefined;
  /**
   * 0 to 30, without effect: the whole recording is transcribed window by window, each with the text before it. transformers.js cuts recordings into
   * chunks instead, and without this option reads the first 30 s alone.
   */
  chunk_length_s?: number | undefined;
  /** Without effect, as `chunk_length_s`. */
  stride_length_s?: number | [number, number] | undefined;
  /** Code or English name. Default: detected. */
  language?: string | undefined;
  task?: "transcribe" | "translate" | undefined;
  temperature?: number | undefined;
  /** Beams at temperature 0. */
  num_beams?: number | undefined;
  /** Cancels the call. */
  signal?: AbortSignal | undefined;
}

/** Result of a call. */
export interface PipelineResult {
  text: string;
  /** Segments or words, with `return_timestamps`. */
  chunks?: { text: string; timestamp: [number, number] }[];
}

/** Speech recognition of {@link pipeline}. */
export interface SpeechPipeline {
  (audio: AudioInput, options?: PipelineCallOptions): Promise<PipelineResult>;
  (audio: AudioInput[], options?: PipelineCallOptions): Promise<PipelineResult[]>;
  /** Frees the model. */
  dispose(): Promise<void>;
  /** The model behind the function. */
  readonly transcriber: Transcriber;
}

/**
 * Loads a speech model behind the interface of transformers.js.
 *
 * @example
 * const asr = await pipeline("automatic-speech-recognition", "hf:Systran/faster-whisper-tiny", { device: "auto" });
 * const { text, chunks } = await asr(url, { return_timestamps: "word" });
 */
export async function pipeline(
  task: "automatic-speech-recognition",
  source: Source,
  options: PipelineOptions = {},
): Promise<SpeechPipeline> {
  if (task !== "automatic-speech-recognition") {
    throw invalid("task", "`automatic-speech-recognition` (language models: `Chat.load`)", task);
  }
  const { device, dtype, progress_callback, ...rest } = options;
  const name = device ?? "auto";
  if (!Object.hasOwn(DEVICES, name)) {
    throw invalid("device", Object.keys(DEVICES).join(", "), name);
  }
  if (dtype !== undefined) {
    console.warn("stonechat: `dtype` has no effect: the file has the types of its own weights");
  }
  const onProgress = progress_callback && ((progress: LoadProgress) => progress_callback(percent(progress)));
  const transcriber = await Transcriber.load(source, { ...rest, device: DEVICES[name], onProgress });
  progress_callback?.({ status: "ready", file: "", loaded: 1, total: 1, progress: 100 });
  const one = (audio: AudioInput, call: PipelineCallOptions) => transcribe(transcriber, audio, call);
  const run = async (audio: AudioInput | AudioInput[], call: PipelineCallOptions = {}) => {
    if (!Array.isArray(audio)) {
      return one(audio, call);
    }
    const results: PipelineResult[] = [];
    for (const item of audio) {
      results.push(await one(item, call));
    }
    return results;
  };
  return Object.assign(run, { dispose: () => transcriber.close(), transcriber }) as SpeechPipeline;
}

function percent(progress: LoadProgress): LoadProgress | PipelineProgress {
  const { status, file, loaded, total } = progress;
  return status === "download"
    ? { status: "progress", file, loaded, total, progress: total ? (100 * loaded) / total : 0 }
    : progress;
}

async function transcribe(
  transcriber: Transcriber,
  audio: AudioInput,
  options: PipelineCallOptions,
): Promise<PipelineResult> {
  const { return_timestamps, num_beams, language, task, temperature, signal } = checked(options);
  const wordTimestamps = return_timestamps === "word";
  const call: TranscribeOptions = { language, task, temperature, signal, beamSize: num_beams, wordTimestamps };
  const { text, segments } = await transcriber.transcribe(audio, call);
  if (!return_timestamps) {
    return { text };
  }
  const chunk = (part: string, { start, end }: { start: number; end: number }) =>
    ({ text: part, timestamp: [start, end] as [number, number] });
  const words = (all: Word[] = []) => all.map((word) => chunk(word.word, word));
  const chunks = wordTimestamps
    ? segments.flatMap((segment) => words(segment.words))
    : segments.map((segment) => chunk(segment.text, segment));
  return { text, chunks };
}

function checked(options: PipelineCallOptions): PipelineCallOptions {
  for (const [name, value] of Object.entries(options)) {
    if (value !== undefined && !CALL_OPTIONS.includes(name)) {
      throw invalid(name, `one of the options ${CALL_OPTIONS.join(", ")}`, "an option without an equivalent here");
    }
  }
  const { return_timestamps, chunk_length_s = 0, stride_length_s = 0 } = options;
  if (![undefined, true, false, "word"].includes(return_timestamps)) {
    throw invalid("return_timestamps", "true, false or `word`", return_timestamps);
  }
  const strides = Array.isArray(stride_length_s) ? stride_length_s : [stride_length_s];
  const isLength = (seconds: unknown) => typeof seconds === "number" && seconds >= 0 && seconds <= WINDOW_SECONDS;
  if (!isLength(chunk_length_s)) {
    throw invalid("chunk_length_s", `0 to ${WINDOW_SECONDS}, the window of the model`, chunk_length_s);
  }
  if (!strides.every(isLength)) {
    throw invalid("stride_length_s", `0 to ${WINDOW_SECONDS}`, stride_length_s);
  }
  return options;
}
