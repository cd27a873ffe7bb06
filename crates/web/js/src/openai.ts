/** Requests and answers of OpenAI's interface, as far as they have types here; further fields pass through. */

/** Part of a message. */
export type ContentPart = { type: "text"; text: string } | { type: string; [field: string]: unknown };

/** Call of a tool by the model. */
export interface ToolCall {
  id: string;
  type: "function";
  function: { name: string; arguments: string };
}

/** Message of a chat. */
export interface ChatMessage {
  role: "system" | "developer" | "user" | "assistant" | "tool";
  content?: string | ContentPart[] | null;
  /** Text before the answer of a model that reasons. */
  reasoning_content?: string | null;
  tool_calls?: ToolCall[];
  tool_call_id?: string;
  name?: string;
}

/** Sampling, which both kinds of requests have. */
export interface SamplingFields {
  max_tokens?: number | null;
  temperature?: number | null;
  top_p?: number | null;
  top_k?: number | null;
  min_p?: number | null;
  seed?: number | null;
  stop?: string | string[] | null;
  presence_penalty?: number | null;
  frequency_penalty?: number | null;
  repeat_penalty?: number | null;
  logit_bias?: Record<string, number> | null;
  n?: number | null;
  /** GBNF grammar that the answer follows. */
  grammar?: string;
  stream?: boolean | null | undefined;
  stream_options?: { include_usage?: boolean } | null;
  /** Cancels the request. */
  signal?: AbortSignal | undefined;
  [field: string]: unknown;
}

/** Request of `chat.completions.create`. */
export interface ChatCompletionRequest extends SamplingFields {
  messages: ChatMessage[];
  model?: string;
  max_completion_tokens?: number | null;
  logprobs?: boolean | null;
  top_logprobs?: number | null;
  response_format?:
    | { type: "text" }
    | { type: "json_object" }
    | { type: "json_schema"; json_schema: { name?: string; schema?: object; strict?: boolean } };
  tools?: { type: "function"; function: { name: string; description?: string; parameters?: object } }[];
  tool_choice?: "none" | "auto" | "required" | { type: "function"; function: { name: string } };
}

/** Tokens of a request. */
export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
}

/** End of an answer. */
export type FinishReason = "stop" | "length" | "tool_calls" | "content_filter" | (string & {});

/** Answer of `chat.completions.create`. */
export interface ChatCompletion {
  id: string;
  object: "chat.completion";
  created: number;
  model: string;
  choices: { index: number; message: ChatMessage; finish_reason: FinishReason; logprobs?: unknown }[];
  usage?: Usage;
  [field: string]: unknown;
}

/** Chunk of a streamed answer. */
export interface ChatCompletionChunk {
  id: string;
  object: "chat.completion.chunk";
  created: number;
  model: string;
  choices: {
    index: number;
    delta: {
      role?: string;
      content?: string | null;
      reasoning_content?: string | null;
      tool_calls?: { index: number; id?: string; type?: string; function?: { name?: string; arguments?: string } }[];
    };
    finish_reason: FinishReason | null;
    logprobs?: unknown;
  }[];
  usage?: Usage | null;
  [field: string]: unknown;
}

/** Request of `completions.create`. */
export interface CompletionRequest extends SamplingFields {
  prompt: string | string[] | number[];
  model?: string;
  suffix?: string | null;
  echo?: boolean | null;
  logprobs?: number | null;
}

/** Answer or chunk of `completions.create`. */
export interface Completion {
  id: string;
  object: "text_completion";
  created: number;
  model: string;
  choices: { index: number; text: string; finish_reason: FinishReason | null; logprobs?: unknown }[];
  usage?: Usage | null;
  [field: string]: unknown;
}

/** Request of `embeddings.create`. */
export interface EmbeddingRequest {
  input: string | string[] | number[] | number[][];
  model?: string;
  encoding_format?: "float" | "base64";
  dimensions?: number;
  [field: string]: unknown;
}

/** Answer of `embeddings.create`. */
export interface EmbeddingAnswer {
  object: "list";
  data: { object: "embedding"; index: number; embedding: number[] | string }[];
  model: string;
  usage: { prompt_tokens: number; total_tokens: number };
  [field: string]: unknown;
}
