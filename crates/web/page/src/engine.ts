// Engines of the page: a server over HTTP, or this browser through WebAssembly.

export type ModelKind = "speech" | "language";

export type ModelState = "loaded" | "loading" | "unloaded" | "remote" | "failed";

export interface ModelEntry {
  id: string;
  kind: ModelKind;
  /** Size of the weights; undefined while unknown. */
  bytes?: number;
  state: ModelState;
  /** Architecture, weights, parameters. */
  detail: string;
  /** Context size in tokens. */
  nCtx?: number;
  /** Reason for the state "failed". */
  error?: string;
  /** Whether the model lies in the cache of the engine, from which it can be removed. */
  isCached?: boolean;
}

export interface ToolCallDelta {
  index?: number;
  id?: string;
  type?: string;
  function?: { name?: string; arguments?: string };
}

export interface ChatDelta {
  role?: string;
  content?: string | null;
  reasoning_content?: string | null;
  tool_calls?: ToolCallDelta[];
}

/** `timings` of llama-server. */
export interface Timings {
  cache_n?: number;
  prompt_n?: number;
  prompt_ms?: number;
  prompt_per_second?: number;
  predicted_n?: number;
  predicted_ms?: number;
  predicted_per_second?: number;
}

export interface ChatChunk {
  choices: { index?: number; delta?: ChatDelta; finish_reason?: string | null }[];
  timings?: Timings;
}

export interface ChatMessage {
  role: "system" | "user" | "assistant" | "tool";
  content: string;
  tool_calls?: { id: string; type: "function"; function: { name: string; arguments: string } }[];
  tool_call_id?: string;
}

export interface ChatBody {
  model: string;
  messages: ChatMessage[];
  [field: string]: unknown;
}

export interface Word {
  word: string;
  start: number;
  end: number;
}

export interface Segment {
  id: number;
  start: number;
  end: number;
  text: string;
  words?: Word[];
  /** Name of the speaker, if channels were transcribed apart. */
  speaker?: string;
}

export interface Transcript {
  text: string;
  language?: string;
  duration?: number;
  segments: Segment[];
}

export interface SpeechOptions {
  model: string;
  language: string;
  task: "transcribe" | "translate";
  wordTimes: boolean;
  vad: boolean;
  prompt: string;
}

export type SpeechEvent =
  | { type: "segment"; segment: Segment }
  | { type: "language"; language: string }
  | { type: "progress"; fraction: number };

/** Text of live speech: a committed part that stays, and a guess of what follows. */
export type LiveEvent = { type: "partial" | "committed"; text: string; start?: number; end?: number };

export interface Live {
  push(samples: Float32Array, rate: number): void;
  end(): Promise<Transcript>;
  cancel(): void;
}

/** Counters of a server at one time. */
export interface Counters {
  /** Milliseconds, of `performance.now()`. */
  time: number;
  promptTokens: number;
  cachedTokens: number;
  generatedTokens: number;
  running: number;
  waiting: number;
  /** Share of the KV pages in use, 0 to 1. */
  kvUse: number;
  audioSeconds: number;
  /** Seconds of audio per second of work: sum over recordings, and their number. */
  audioSpeedSum: number;
  audioSpeedCount: number;
}

export interface MachineState {
  facts: [label: string, value: string][];
  counters?: Counters;
  /** Reason for the absence of counters. */
  note?: string;
}

export interface Engine {
  readonly kind: "server" | "browser";
  readonly name: string;
  models(): Promise<ModelEntry[]>;
  /** Opens a model; resolves once it can be used. */
  load(model: ModelEntry, onProgress: (fraction: number | undefined) => void, signal: AbortSignal): Promise<void>;
  unload(model: ModelEntry): Promise<void>;
  /** Deletes a model from the cache. */
  remove?(model: ModelEntry): Promise<void>;
  /** Adds models of local files or of an address. */
  add?(kind: ModelKind, source: File[] | string): string;
  chat(body: ChatBody, signal: AbortSignal): AsyncIterable<ChatChunk>;
  transcribe(
    audio: Blob,
    options: SpeechOptions,
    signal: AbortSignal,
    onEvent: (event: SpeechEvent) => void,
  ): Promise<Transcript>;
  listen?(options: SpeechOptions, onEvent: (event: LiveEvent) => void): Promise<Live>;
  machine(model: string | undefined): Promise<MachineState>;
  /** Sampling settings of requests that do not set them. */
  defaults(model: string): Promise<Record<string, number>>;
}

/** Error of an engine, with the fields of OpenAI's errors. */
export class EngineError extends Error {
  constructor(
    message: string,
    readonly status: number,
    readonly type = "",
    readonly param = "",
  ) {
    super(message);
    this.name = "EngineError";
  }
}

/** The engine cannot be reached, or the connection ended before the answer did. */
export class ConnectionError extends Error {
  constructor(message: string) {
    super(message);
    this.name = "ConnectionError";
  }
}

export function isAbort(error: unknown): boolean {
  return error instanceof DOMException && error.name === "AbortError";
}

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
