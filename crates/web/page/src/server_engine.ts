// The engine "this server": OpenAI's and llama-server's routes, relative to the address of the page.

import { apiKey, askApiKey } from "./api_key";
import {
  ConnectionError, EngineError, isAbort,
  type ChatBody, type ChatChunk, type Engine, type MachineState, type ModelEntry, type Segment,
  type SpeechEvent, type SpeechOptions, type Transcript, type Word,
} from "./engine";
import { formatCount } from "./format";
import { counters } from "./metrics";
import { events } from "./sse";

/** Milliseconds between two looks at a model that is loading. */
const LOAD_INTERVAL = 500;

interface ListedModel {
  id: string;
  task?: string;
  status?: { value?: string; error?: string };
  meta?: { n_ctx?: number; n_params?: number; size?: number; ftype?: string };
}

export class ServerEngine implements Engine {
  readonly kind = "server";
  readonly name = "This server";
  /** Whether `/metrics` answers; undefined until it was asked for. */
  private hasMetrics: boolean | undefined;

  /** Whether the page comes from a server of the API. */
  async isThere(): Promise<boolean> {
    try {
      const response = await fetch(url("health"), { signal: AbortSignal.timeout(10_000) });
      // A server that loads its first models answers 503 with JSON.
      return (response.headers.get("content-type") ?? "").includes("json");
    } catch {
      return false;
    }
  }

  async models(): Promise<ModelEntry[]> {
    const { data } = await this.json<{ data: ListedModel[] }>("v1/models");
    return data.map((model) => {
      const { n_params: nParams, ftype, size, n_ctx: nCtx } = model.meta ?? {};
      const parameters = nParams ? `${formatCount(nParams)} parameters` : "";
      const entry: ModelEntry = {
        id: model.id,
        kind: model.task === "automatic-speech-recognition" ? "speech" : "language",
        state: stateOf(model.status),
        detail: [parameters, ftype?.toUpperCase()].filter(Boolean).join(" · "),
      };
      if (size) entry.bytes = size;
      if (nCtx) entry.nCtx = nCtx;
      if (model.status?.error) entry.error = model.status.error;
      return entry;
    });
  }

  async load(model: ModelEntry, onProgress: (fraction: number | undefined) => void, signal: AbortSignal) {
    onProgress(undefined);
    try {
      await this.post("models/load", { model: model.id }, signal);
    } catch (error) {
      // The server answers 400 for a model that is loaded or loading.
      if (!(error instanceof EngineError && error.status === 400)) throw error;
    }
    for (;;) {
      const now = (await this.models()).find((one) => one.id === model.id);
      if (now === undefined) throw new EngineError(`the server has no model \`${model.id}\``, 404);
      if (now.state === "loaded") return;
      if (now.state === "failed") throw new EngineError(now.error ?? "the model cannot be loaded", 500);
      await sleep(LOAD_INTERVAL, signal);
    }
  }

  async unload(model: ModelEntry) {
    await this.post("models/unload", { model: model.id });
  }

  async *chat(body: ChatBody, signal: AbortSignal): AsyncGenerator<ChatChunk> {
    const response = await this.post("v1/chat/completions", { ...body, stream: true }, signal);
    for await (const data of bodyEvents(response)) {
      if (data === "[DONE]") return;
      yield parse<ChatChunk>(data);
    }
    throw new ConnectionError("the connection ended before the answer did");
  }

  async transcribe(
    audio: Blob,
    options: SpeechOptions,
    signal: AbortSignal,
    onEvent: (event: SpeechEvent) => void,
  ): Promise<Transcript> {
    const form = new FormData();
    form.append("model", options.model);
    form.append("response_format", "verbose_json");
    form.append("stream", "true");
    form.append("timestamp_granularities[]", "segment");
    if (options.wordTimes) form.append("timestamp_granularities[]", "word");
    if (options.language) form.append("language", options.language);
    if (options.prompt) form.append("prompt", options.prompt);
    form.append("vad_filter", String(options.vad));
    // The file comes last, so that the server knows the fields before it decodes.
    form.append("file", audio, audio instanceof File ? audio.name : "recording");
    const route = options.task === "translate" ? "translations" : "transcriptions";
    const response = await this.request(`v1/audio/${route}`, { method: "POST", body: form, signal });
    const segments: Segment[] = [];
    for await (const data of bodyEvents(response)) {
      const event = parse<SpeechStreamEvent>(data);
      if (event.type === "transcript.text.segment") {
        const segment: Segment = { id: segments.length, start: event.start, end: event.end, text: event.text };
        if (event.words) segment.words = event.words;
        segments.push(segment);
        onEvent({ type: "segment", segment });
      } else if (event.type === "transcript.text.done") {
        const { text, language, duration } = event;
        return { text, segments, ...(language && { language }), ...(duration && { duration }) };
      }
    }
    throw new ConnectionError("the connection ended before the transcript did");
  }

  async machine(model: string | undefined): Promise<MachineState> {
    const props = await this.props(model);
    const facts: [string, string][] = [["Engine", String(props.build_info ?? "unknown")]];
    if (props.device) facts.push(["Device", String(props.device)]);
    if (props.threads) facts.push(["Threads", String(props.threads)]);
    if (props.total_slots) facts.push(["Parallel requests", String(props.total_slots)]);
    const nCtx = props.default_generation_settings?.n_ctx;
    if (nCtx) facts.push(["Context", `${nCtx.toLocaleString()} tokens`]);
    if (this.hasMetrics === false || props.endpoint_metrics === false) {
      this.hasMetrics = false;
      return { facts, note: "The server was started without --metrics: charts show requests of this page alone." };
    }
    const response = await this.request("metrics", {});
    return { facts, counters: counters(await response.text(), performance.now()) };
  }

  async defaults(model: string): Promise<Record<string, number>> {
    const props = await this.props(model);
    const params = props.default_generation_settings?.params ?? {};
    return Object.fromEntries(Object.entries(params).filter((pair): pair is [string, number] => typeof pair[1] === "number"));
  }

  private async props(model: string | undefined): Promise<Props> {
    return this.json<Props>(model ? `props?model=${encodeURIComponent(model)}` : "props");
  }

  private async json<T>(path: string): Promise<T> {
    return (await (await this.request(path, {})).json()) as T;
  }

  private post(path: string, body: unknown, signal?: AbortSignal): Promise<Response> {
    const headers = { "content-type": "application/json" };
    return this.request(path, { method: "POST", headers, body: JSON.stringify(body), ...(signal && { signal }) });
  }

  /** Sends a request; asks for the API key when the server wants one. */
  private async request(path: string, init: RequestInit): Promise<Response> {
    for (;;) {
      const key = apiKey();
      const headers = new Headers(init.headers);
      if (key) headers.set("authorization", `Bearer ${key}`);
      const response = await send(url(path), { ...init, headers, cache: "no-store" });
      if (response.ok) return response;
      // Another request may have got a key in the meantime.
      if (response.status === 401 && (apiKey() !== key || (await askApiKey(key !== undefined)) !== undefined)) continue;
      throw await errorOf(response);
    }
  }
}

interface Props {
  build_info?: string;
  device?: string;
  threads?: number;
  total_slots?: number;
  endpoint_metrics?: boolean;
  default_generation_settings?: { n_ctx?: number; params?: Record<string, unknown> };
}

type SpeechStreamEvent =
  | { type: "transcript.text.segment"; start: number; end: number; text: string; words?: Word[] }
  | { type: "transcript.text.delta"; delta: string }
  | { type: "transcript.text.done"; text: string; language?: string; duration?: number };

function url(path: string): URL {
  return new URL(path, document.baseURI);
}

function stateOf(status: ListedModel["status"]): ModelEntry["state"] {
  switch (status?.value) {
    case undefined:
    case "loaded": return "loaded";
    case "loading": return "loading";
    case "failed": return "failed";
    default: return status?.error ? "failed" : "unloaded";
  }
}

async function send(target: URL, init: RequestInit): Promise<Response> {
  try {
    return await fetch(target, init);
  } catch (error) {
    if (isAbort(error)) throw error;
    throw new ConnectionError("the server cannot be reached");
  }
}

async function* bodyEvents(response: Response): AsyncGenerator<string> {
  if (response.body === null) throw new ConnectionError("the answer has no body");
  yield* events(response.body);
}

/** Parses an event; an event with an error throws it. */
function parse<T>(data: string): T {
  const value = JSON.parse(data) as T & { error?: ApiError };
  if (value.error) throw new EngineError(value.error.message ?? "unknown error", value.error.code ?? 500, value.error.type);
  return value;
}

interface ApiError {
  message?: string;
  code?: number;
  type?: string;
  param?: string;
}

async function errorOf(response: Response): Promise<EngineError> {
  const text = await response.text().catch(() => "");
  let error: ApiError = {};
  try {
    error = (JSON.parse(text) as { error?: ApiError }).error ?? {};
  } catch {
    // A proxy answers in HTML.
  }
  const message = error.message ?? `the server answered ${response.status} ${response.statusText}`.trim();
  return new EngineError(message, response.status, error.type, error.param);
}

function sleep(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const abort = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal.removeEventListener("abort", abort);
      resolve();
    }, ms);
    if (signal.aborted) abort();
    else signal.addEventListener("abort", abort, { once: true });
  });
}
