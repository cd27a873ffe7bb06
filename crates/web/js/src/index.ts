/**
 * Whisper and language models in the browser and in Node.
 *
 * Everything runs in a dedicated worker, which is started by `load` and ended by `close`.
 *
 * @packageDocumentation
 */

export { Chat } from "./chat.js";
export type { ChatCompletions, Completions, Embeddings, RequestOptions, Streaming, Whole } from "./chat.js";
export { StonechatError } from "./errors.js";
export type { ErrorFields } from "./errors.js";
export { microphone } from "./microphone.js";
export type { Microphone, MicrophoneOptions, SampleSink } from "./microphone.js";
export { models } from "./models.js";
export type { CacheOptions } from "./models.js";
export type * from "./openai.js";
export { pipeline } from "./pipeline.js";
export type {
  PipelineCallOptions,
  PipelineOptions,
  PipelineProgress,
  PipelineResult,
  SpeechPipeline,
} from "./pipeline.js";
export { isSupported } from "./support.js";
export { LiveTranscriber, Transcriber } from "./transcriber.js";
export type { ListenOptions, LiveText } from "./transcriber.js";
export { Transcript } from "./transcript.js";
export type { TranscriptFields } from "./transcript.js";
export type {
  AudioInput,
  BinaryName,
  CachedFile,
  ChatLoadOptions,
  LoadOptions,
  LoadProgress,
  ModelInfo,
  Segment,
  Source,
  Support,
  TranscribeOptions,
  Word,
} from "./types.js";
