/** Types of the public interface. */

/** Binary of the engine: relaxed SIMD, SIMD, no SIMD, WebGPU. */
export type BinaryName = "relaxed" | "base" | "scalar" | "gpu";

/**
 * Model to load.
 *
 * - `string` or `URL`: address of one file. The first part of a split GGUF (`-00001-of-00005.gguf`) stands for all of them.
 *   A string that starts with `hf:`, and one of the forms `owner/repo/file.gguf` or `owner/repo:Q4_K_M`, is a name on the Hugging Face hub;
 *   `hf:owner/repo` chooses the weights of a repository. A relative address with two or more folders starts with `./` or `/`.
 *   In Node a string may also be the path of a file or a folder.
 * - `Blob` or `File`: a local file, which is read in place.
 * - `Blob[]`: parts of a split GGUF, or the files of a folder.
 * - an object: files by name, such as `{"model.bin": …, "config.json": …, "tokenizer.json": …}`.
 */
export type Source = string | URL | Blob | Blob[] | { [name: string]: Blob | string | URL };

/** Progress of a load. */
export interface LoadProgress {
  /**
   * `download`: bytes arrive or come from the cache. `wait`: another tab downloads the same file. `open`: the weights are repacked or uploaded
   * (`loaded` of `total` is a fraction of 1). `measure`: `device: "auto"` runs the model once on each device.
   */
  status: "download" | "wait" | "open" | "measure";
  /** Name of the file; empty for `open` and `measure`. */
  file: string;
  /** Bytes so far. */
  loaded: number;
  /** Bytes in total; 0 if the server does not tell. */
  total: number;
}

/** Options of every `load`. */
export interface LoadOptions {
  /** `cpu`, `gpu` (WebGPU) or `auto` (default): measured once for each model and adapter, then remembered. */
  device?: "auto" | "cpu" | "gpu" | undefined;
  /** Threads on the CPU, 1 to 64. Default: the processors, at most 8; one on a page that is not cross-origin isolated. */
  threads?: number | undefined;
  /** Binary of the engine instead of the one that fits this browser. */
  binary?: BinaryName | undefined;
  /** Where downloads are kept: `opfs` (default; memory if it is full or missing) or `memory`. */
  cache?: "opfs" | "memory" | undefined;
  /** Folder of downloads in Node; without one they are kept in memory. */
  cacheDir?: string | undefined;
  /** Called while the model is downloaded and opened, at most every 50 ms for each file. */
  onProgress?: ((progress: LoadProgress) => void) | undefined;
  /** Cancels the load. A download that was cancelled is resumed by the next load. */
  signal?: AbortSignal | undefined;
  /** URL of the folder that holds `worker.js` and the binaries. Default: beside the module. */
  assets?: string | URL | undefined;
  /** Worker that runs `stonechat/worker`, for pages whose policy forbids the default one. The model owns it, and `auto` is then the CPU. */
  worker?: Worker | undefined;
  /** Headers of downloads, such as `Authorization`. */
  headers?: Record<string, string> | undefined;
  /** SHA-256 of the file in hexadecimal, or of files by name. A file that differs is removed and refused. */
  sha256?: string | Record<string, string> | undefined;
  /** Address of the Hugging Face hub or a mirror. */
  hub?: string | URL | undefined;
}

/** Options of {@link Chat.load}. */
export interface ChatLoadOptions extends LoadOptions {
  /** Tokens of context. Default: the model's, as memory allows. */
  nCtx?: number | undefined;
  /** Type of the key-value cache. */
  cacheType?: "f16" | "q8_0" | "f32" | undefined;
  /** Jinja template, or the name of a built-in one, instead of the model's. */
  chatTemplate?: string | undefined;
  /** Requests that run side by side. */
  parallel?: number | undefined;
}

/** Facts about a loaded model. */
export interface ModelInfo {
  kind: "speech" | "language";
  name: string;
  /** Architecture, if the file names one. */
  architecture?: string;
  /** Type of the weights, such as `Q4_K`. */
  weights: string;
  device: string;
  /** Binary in use. */
  binary: BinaryName;
  /** Instruction set in use: `relaxed`, `simd128` or `scalar`. */
  isa: string;
  /** Version of the binary. */
  version: string;
  /** Threads in use. */
  threads: number;
  /** Reason for the number of threads. */
  threadsReason: string;
  /** Whether the page is cross-origin isolated. */
  isolated: boolean;
  /** Bytes that the model occupies. */
  memoryBytes: number;
  /** Greatest size of the memory of the engine in bytes; 0 if it is not limited by the page. */
  memoryMaximum: number;
  /** Tokens of context of a language model. */
  nCtx?: number;
  /** Requests that run side by side. */
  nParallel?: number;
  /** Number of tokens of the vocabulary. */
  vocab?: number;
  /** Whether a speech model knows languages other than English. */
  isMultilingual?: boolean;
  /** Codes of the languages of a speech model. */
  languages?: string[];
  /** Further fields of the engine. */
  [name: string]: unknown;
}

/** Recording: a file in any container, its address, samples at 16 kHz, or samples with their rate. */
export type AudioInput =
  | string
  | URL
  | Blob
  | ArrayBuffer
  | Uint8Array
  | Float32Array
  | AudioBuffer
  | { samples: Float32Array | Float32Array[]; sampleRate: number };

/** One word with its times in seconds. */
export interface Word {
  word: string;
  start: number;
  end: number;
  probability?: number;
}

/** One segment; field names are those of openai-whisper. */
export interface Segment {
  id: number;
  seek?: number;
  /** Start in seconds. */
  start: number;
  /** End in seconds. */
  end: number;
  text: string;
  tokens?: number[];
  temperature?: number;
  avg_logprob?: number;
  compression_ratio?: number;
  no_speech_prob?: number;
  words?: Word[];
}

/** Options of a transcription. */
export interface TranscribeOptions {
  /** Spoken language: code or English name. Default: detected. */
  language?: string | undefined;
  /** `translate` gives English text. */
  task?: "transcribe" | "translate" | undefined;
  /** Finds the times of words. */
  wordTimestamps?: boolean | undefined;
  /** Whether silence is removed by voice activity detection. Default: the engine decides. */
  vad?: boolean | undefined;
  /** Temperature. 0, the default, is raised where a text fails; another one is the only one. */
  temperature?: number | undefined;
  /** Text before the recording, for style and spelling. */
  prompt?: string | undefined;
  /** Words to expect. */
  hotwords?: string | undefined;
  /** Beams at temperature 0, 1 to 16. */
  beamSize?: number | undefined;
  /** Whether the text before a window is its prompt. */
  conditionOnPreviousText?: boolean | undefined;
  /** Windows of this recording that are decoded side by side, 1 to 64. */
  batchSize?: number | undefined;
  /** Cancels the transcription. */
  signal?: AbortSignal | undefined;
  /** Called with each segment as soon as it is final. */
  onSegment?: ((segment: Segment) => void) | undefined;
  /** Called with the fraction of the recording that is done, 0 to 1. */
  onProgress?: ((fraction: number) => void) | undefined;
  /** `text`, `srt` or `vtt`: the result is that text instead of a transcript. */
  responseFormat?: "json" | "text" | "srt" | "vtt" | undefined;
}

/** What this browser can do. */
export interface Support {
  /** WebAssembly. */
  wasm: boolean;
  /** 128-bit SIMD. */
  simd: boolean;
  /** Relaxed SIMD. */
  relaxed: boolean;
  /** WebAssembly threads, on a page that may use them. */
  threads: boolean;
  /** Whether the page is cross-origin isolated. */
  isolated: boolean;
  /** WebGPU with an adapter. */
  gpu: boolean;
  /** Origin private file system, for the cache of models. */
  opfs: boolean;
  /** One sentence for each thing that is missing and its consequence. */
  reasons: string[];
}

/** File in the cache. */
export interface CachedFile {
  /** Address it was downloaded from; the name for `models.remove`. */
  name: string;
  /** Bytes in the cache. */
  bytes: number;
  /** Bytes of the whole file; 0 if not known. */
  total: number;
  /** Whether the file is whole. One that is not is resumed by the next load. */
  isComplete: boolean;
  /** Time of the download in milliseconds since 1970. */
  time: number;
}
