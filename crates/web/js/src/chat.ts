/** Language models behind the shapes of OpenAI's client and llama-server. */

import { events, type Call, type Connection } from "./client.js";
import { invalid } from "./errors.js";
import { load, oneOf, type LoadKind } from "./load.js";
import type { ChatLoadOptions, ModelInfo, Source } from "./types.js";
import type {
  ChatCompletion,
  ChatCompletionChunk,
  ChatCompletionRequest,
  ChatMessage,
  Completion,
  CompletionRequest,
  EmbeddingAnswer,
  EmbeddingRequest,
} from "./openai.js";

/** Words of the prompt that compares devices. */
const MEASURED_WORDS = 128;

/** Options of one call. */
export interface RequestOptions {
  /** Cancels the request. */
  signal?: AbortSignal | undefined;
}

/** A request whose body says `stream: true`. */
export type Streaming<T> = T & { stream: true };

/** A request whose body does not. */
export type Whole<T> = T & { stream?: false | null | undefined };

/** `chat.completions` of OpenAI's client. */
export interface ChatCompletions {
  /**
   * Answers a chat. With `stream: true` the result is an async iterable of chunks: the request starts with the loop, runs at its pace, and is
   * cancelled by leaving it.
   */
  create(body: Streaming<ChatCompletionRequest>, options?: RequestOptions): AsyncIterableIterator<ChatCompletionChunk>;
  /** Answers a chat in one piece. */
  create(body: Whole<ChatCompletionRequest>, options?: RequestOptions): Promise<ChatCompletion>;
}

/** `completions` of OpenAI's client. */
export interface Completions {
  /** Continues a text. With `stream: true` the result is an async iterable of chunks. */
  create(body: Streaming<CompletionRequest>, options?: RequestOptions): AsyncIterableIterator<Completion>;
  /** Continues a text in one piece. */
  create(body: Whole<CompletionRequest>, options?: RequestOptions): Promise<Completion>;
}

/** `embeddings` of OpenAI's client. */
export interface Embeddings {
  /** Embeds one text or several. */
  create(body: EmbeddingRequest, options?: RequestOptions): Promise<EmbeddingAnswer>;
}

/** A loaded language model. */
export class Chat {
  /** Facts about the model and the engine. */
  readonly info: ModelInfo;
  /** `chat.completions.create` of OpenAI's client. */
  readonly chat: { completions: ChatCompletions };
  /** `completions.create` of OpenAI's client. */
  readonly completions: Completions;
  /** `embeddings.create` of OpenAI's client. */
  readonly embeddings: Embeddings;
  readonly #connection: Connection;

  private constructor(connection: Connection, info: ModelInfo) {
    this.#connection = connection;
    this.info = info;
    const create = (method: string) => (body: object, options?: RequestOptions) => this.#create(method, body, options);
    this.chat = { completions: { create: create("chat") as ChatCompletions["create"] } };
    this.completions = { create: create("completion") as Completions["create"] };
    this.embeddings = { create: create("embeddings") as Embeddings["create"] };
  }

  /**
   * Loads a language model: a GGUF file, its parts, or the files of a safetensors folder.
   *
   * @example
   * const llm = await Chat.load("hf:ggml-org/gemma-3-270m-GGUF", { nCtx: 4096 });
   * for await (const chunk of llm.chat.completions.create({ messages, stream: true })) {
   *   print(chunk.choices[0]?.delta.content ?? "");
   * }
   */
  static async load(source: Source, options: ChatLoadOptions = {}): Promise<Chat> {
    const { nCtx, cacheType, chatTemplate, parallel } = options;
    count("nCtx", nCtx, 2 ** 24);
    count("parallel", parallel, 64);
    oneOf("cacheType", cacheType, ["f16", "q8_0", "f32"]);
    const kind: LoadKind = {
      kind: "language",
      names: ["nCtx", "cacheType", "chatTemplate", "parallel"],
      options: { n_ctx: nCtx, cache_type: cacheType, chat_template: chatTemplate, n_parallel: parallel },
      measure,
    };
    const { connection, info } = await load(source, options, kind);
    return new Chat(connection, info);
  }

  /** Tokens of a text. */
  async tokenize(
    text: string,
    options: RequestOptions & { addSpecial?: boolean; parseSpecial?: boolean } = {},
  ): Promise<number[]> {
    const body = { content: text, add_special: options.addSpecial, parse_special: options.parseSpecial };
    const { tokens } = (await this.#whole("tokenize", body, options)) as { tokens: number[] };
    return tokens;
  }

  /** Text of tokens. */
  async detokenize(tokens: number[], options: RequestOptions = {}): Promise<string> {
    const { content } = (await this.#whole("detokenize", { tokens }, options)) as { content: string };
    return content;
  }

  /** Prompt that the model's chat template makes of messages. */
  async applyTemplate(messages: ChatMessage[], options: RequestOptions = {}): Promise<string> {
    const { prompt } = (await this.#whole("apply_template", { messages }, options)) as { prompt: string };
    return prompt;
  }

  /** Frees the model, and ends its worker with all threads. Requests that run reject. */
  async close(): Promise<void> {
    await this.#connection.close();
  }

  #create(method: string, body: object, options: RequestOptions = {}): unknown {
    if (typeof body !== "object" || body === null) {
      throw invalid("body", "an object", body);
    }
    const { signal: bodySignal, ...fields } = body as { signal?: AbortSignal; stream?: boolean };
    const signal = options.signal ?? bodySignal;
    return fields.stream ? this.#stream(method, fields, signal) : this.#whole(method, fields, { signal });
  }

  async #whole(method: string, body: object, { signal }: RequestOptions): Promise<unknown> {
    const call: Call<"request"> = this.#connection.call("request", { method, body: JSON.stringify(body) }, {
      signal,
      onEvent: () => call.ack(1),
    });
    return JSON.parse(await call.done);
  }

  async *#stream(method: string, body: object, signal: AbortSignal | undefined): AsyncGenerator<unknown, void, void> {
    const args = { method, body: JSON.stringify(body) };
    const chunks = events<"request", string>((onEvent) => this.#connection.call("request", args, { signal, onEvent }));
    for await (const chunk of chunks) {
      yield JSON.parse(chunk);
    }
  }
}

function count(name: string, value: number | undefined, maximum: number): void {
  if (value !== undefined && !(Number.isInteger(value) && value >= 1 && value <= maximum)) {
    throw invalid(name, `a whole number from 1 to ${maximum}`, value);
  }
}

/** Reads a prompt and writes eight tokens. */
async function measure(connection: Connection, signal: AbortSignal | undefined): Promise<void> {
  const prompt = Array.from({ length: MEASURED_WORDS }, (_, i) => `word${i % 7}`).join(" ");
  const body = JSON.stringify({ prompt, max_tokens: 8, temperature: 0, cache_prompt: false });
  await connection.call("request", { method: "completion", body }, { signal }).done;
}
