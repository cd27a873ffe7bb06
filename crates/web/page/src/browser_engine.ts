// The engine "this browser": the npm package, which lies beside the page in `web/` where it is deployed.

import {
  EngineError, type ChatBody, type ChatChunk, type Engine, type Live, type LiveEvent, type MachineState, type ModelEntry,
  type ModelKind, type Segment, type SpeechEvent, type SpeechOptions, type Transcript,
} from "./engine";
import { formatBytes } from "./format";

type Source = string | Blob | Blob[] | Record<string, Blob>;

interface Info {
  device: string;
  isa: string;
  threads: number;
  threadsReason: string;
  nCtx?: number;
  memoryBytes: number;
}

interface LoadProgress {
  status: "download" | "wait" | "open" | "measure";
  file: string;
  loaded: number;
  total: number;
}

interface LoadOptions {
  device: "auto";
  signal: AbortSignal;
  onProgress(progress: LoadProgress): void;
}

interface PackageTranscriber {
  info: Info;
  transcribe(audio: Blob, options: Record<string, unknown>): Promise<Transcript>;
  listen(options: Record<string, unknown>): Live;
  close(): Promise<void>;
}

interface PackageChat {
  info: Info;
  chat: { completions: { create(body: ChatBody, options: { signal: AbortSignal }): AsyncIterable<ChatChunk> } };
  close(): Promise<void>;
}

interface CachedFile {
  /** Address from which it was downloaded. */
  name: string;
  bytes: number;
  isComplete: boolean;
}

/** The parts of the package that the page uses. */
interface Package {
  Transcriber: { load(source: Source, options: LoadOptions): Promise<PackageTranscriber> };
  Chat: { load(source: Source, options: LoadOptions): Promise<PackageChat> };
  isSupported(): Promise<{ wasm: boolean; reasons: string[] }>;
  models: { list(): Promise<CachedFile[]>; remove(name: string): Promise<unknown> };
}

/** Small models that a phone can hold, offered for download. */
const OFFERED: { id: string; kind: ModelKind; bytes: number; detail: string; url: string }[] = [
  offer("tiny.en", "speech", 32e6, "English · Q5_1", "ggerganov/whisper.cpp", "ggml-tiny.en-q5_1.bin"),
  offer("base", "speech", 60e6, "99 languages · Q5_1", "ggerganov/whisper.cpp", "ggml-base-q5_1.bin"),
  offer("smollm2:135m", "language", 105e6, "135 M parameters · Q4_K_M", "bartowski/SmolLM2-135M-Instruct-GGUF", "SmolLM2-135M-Instruct-Q4_K_M.gguf"),
  offer("gemma3:270m", "language", 292e6, "270 M parameters · Q8_0", "ggml-org/gemma-3-270m-it-GGUF", "gemma-3-270m-it-Q8_0.gguf"),
  offer("qwen3:0.6b", "language", 397e6, "600 M parameters · Q4_K_M", "unsloth/Qwen3-0.6B-GGUF", "Qwen3-0.6B-Q4_K_M.gguf"),
];

function offer(id: string, kind: ModelKind, bytes: number, detail: string, repository: string, file: string) {
  return { id, kind, bytes, detail, url: `https://huggingface.co/${repository}/resolve/main/${file}` };
}

interface Known {
  entry: ModelEntry;
  source: Source;
}

export class BrowserEngine implements Engine {
  readonly kind = "browser";
  readonly name = "This browser";
  private readonly known = new Map<string, Known>();
  private speech: { id: string; model: PackageTranscriber } | undefined;
  private language: { id: string; model: PackageChat } | undefined;
  private reasons: string[] = [];

  private constructor(private readonly pkg: Package) {
    for (const { id, kind, bytes, detail, url } of OFFERED) {
      this.known.set(id, { entry: { id, kind, bytes, detail, state: "remote" }, source: url });
    }
  }

  /** Imports the package; undefined where it is not deployed. */
  static async find(): Promise<BrowserEngine | undefined> {
    const address = new URL("web/index.js", document.baseURI).href;
    try {
      const response = await fetch(address);
      if (!response.ok || !(response.headers.get("content-type") ?? "").includes("javascript")) return undefined;
      const pkg = (await import(address)) as Package;
      const supported = await pkg.isSupported();
      if (!supported.wasm) return undefined;
      const found = new BrowserEngine(pkg);
      found.reasons = supported.reasons;
      return found;
    } catch {
      return undefined;
    }
  }

  async models(): Promise<ModelEntry[]> {
    for (const { entry } of this.known.values()) entry.isCached = false;
    for (const { name: address, bytes, isComplete } of await this.pkg.models.list().catch(() => [])) {
      // A download that was interrupted is resumed by the next load.
      if (!isComplete || !URL.canParse(address)) continue;
      const known = [...this.known.values()].find((one) => one.source === address);
      if (known) known.entry.isCached = true;
      else this.addCached(address, bytes);
    }
    return [...this.known.values()].map(({ entry }) => ({ ...entry, state: this.stateOf(entry) }));
  }

  /** Adds a model of an earlier visit: a file that is a whole model, or the first of its parts. */
  private addCached(address: string, bytes: number) {
    const id = nameOf(address);
    const part = /-(\d{5})-of-\d{5}\.gguf$/.exec(id)?.[1];
    if (!/\.(gguf|bin)$/.test(id) || id === "model.bin" || (part !== undefined && part !== "00001")) return;
    const entry: ModelEntry = { id, kind: kindOf(id), detail: new URL(address).host, state: "unloaded", bytes, isCached: true };
    this.known.set(id, { entry, source: address });
  }

  private stateOf(entry: ModelEntry): ModelEntry["state"] {
    if (this.speech?.id === entry.id || this.language?.id === entry.id) return "loaded";
    if (entry.error) return "failed";
    return entry.isCached || typeof this.known.get(entry.id)?.source !== "string" ? "unloaded" : "remote";
  }

  add(kind: ModelKind, source: File[] | string): string {
    const isAddress = typeof source === "string";
    const name = isAddress ? nameOf(source) : (source[0]?.name ?? "model");
    const entry: ModelEntry = { id: name, kind, detail: isAddress ? new URL(source).host : "local file", state: "unloaded" };
    if (!isAddress) entry.bytes = source.reduce((sum, file) => sum + file.size, 0);
    this.known.set(name, { entry, source: isAddress ? source : filesOf(source) });
    return name;
  }

  async load(model: ModelEntry, onProgress: (fraction: number | undefined) => void, signal: AbortSignal) {
    const known = this.known.get(model.id);
    if (!known) throw new EngineError(`unknown model \`${model.id}\``, 404);
    const options: LoadOptions = {
      device: "auto",
      signal,
      onProgress: ({ loaded, total }) => onProgress(total > 0 ? loaded / total : undefined),
    };
    delete known.entry.error;
    try {
      // The memory of a tab holds one model of a kind.
      await this.close(model.kind);
      if (model.kind === "speech") this.speech = { id: model.id, model: await this.pkg.Transcriber.load(known.source, options) };
      else this.language = { id: model.id, model: await this.pkg.Chat.load(known.source, options) };
    } catch (error) {
      if (!signal.aborted) known.entry.error = error instanceof Error ? error.message : String(error);
      throw error;
    }
  }

  private async close(kind: ModelKind) {
    const open = kind === "speech" ? this.speech : this.language;
    if (kind === "speech") this.speech = undefined;
    else this.language = undefined;
    await open?.model.close();
  }

  async unload(model: ModelEntry) {
    await this.close(model.kind);
  }

  async remove(model: ModelEntry) {
    const { id } = model;
    if (this.speech?.id === id || this.language?.id === id) await this.close(model.kind);
    const known = this.known.get(id);
    if (typeof known?.source === "string") await this.pkg.models.remove(known.source);
    if (!OFFERED.some((one) => one.id === id)) this.known.delete(id);
  }

  async *chat(body: ChatBody, signal: AbortSignal): AsyncGenerator<ChatChunk> {
    const open = this.language;
    if (!open) throw new EngineError("no language model is open in this browser", 503);
    yield* open.model.chat.completions.create({ ...body, stream: true }, { signal });
  }

  async transcribe(
    audio: Blob,
    options: SpeechOptions,
    signal: AbortSignal,
    onEvent: (event: SpeechEvent) => void,
  ): Promise<Transcript> {
    const { text, language, duration, segments } = await this.openSpeech().transcribe(audio, {
      ...fieldsOf(options),
      task: options.task,
      wordTimestamps: options.wordTimes,
      vad: options.vad,
      signal,
      onSegment: (segment: Segment) => onEvent({ type: "segment", segment }),
      onProgress: (fraction: number) => onEvent({ type: "progress", fraction }),
    });
    // A plain object, which the database keeps.
    const plain = ({ id, start, end, text, words }: Segment): Segment => ({ id, start, end, text, ...(words && { words }) });
    return { text, segments: segments.map(plain), ...(language && { language }), ...(duration && { duration }) };
  }

  async listen(options: SpeechOptions, onEvent: (event: LiveEvent) => void): Promise<Live> {
    const event = (type: LiveEvent["type"]) => ({ text, start, end }: { text: string; start: number; end: number }) =>
      onEvent({ type, text, start, end });
    return this.openSpeech().listen({ ...fieldsOf(options), onPartial: event("partial"), onCommitted: event("committed") });
  }

  private openSpeech(): PackageTranscriber {
    if (!this.speech) throw new EngineError("no speech model is open in this browser", 503);
    return this.speech.model;
  }

  async machine(): Promise<MachineState> {
    const facts: MachineState["facts"] = [["Engine", "WebAssembly in this browser"]];
    for (const open of [this.language, this.speech]) {
      if (!open) continue;
      const { device, isa, threads, threadsReason, nCtx, memoryBytes } = open.model.info;
      facts.push(["Model", open.id], ["Device", device], ["Tier", isa], ["Threads", `${threads}${threadsReason ? `: ${threadsReason}` : ""}`]);
      if (nCtx) facts.push(["Context", `${nCtx.toLocaleString()} tokens`]);
      facts.push(["Memory", formatBytes(memoryBytes)]);
    }
    facts.push(["Isolated", crossOriginIsolated ? "yes" : "no"]);
    const note = this.reasons.join(" ");
    return note ? { facts, note } : { facts };
  }

  async defaults(): Promise<Record<string, number>> {
    return {};
  }
}

function kindOf(name: string): ModelKind {
  return /whisper|ggml-|\.bin$/i.test(name) ? "speech" : "language";
}

function nameOf(address: string): string {
  return new URL(address).pathname.split("/").at(-1) || address;
}

/** One file, parts of a GGUF file, or a folder by its names. */
function filesOf(files: File[]): Source {
  const [first] = files;
  if (first && files.length === 1) return first;
  if (files.every((file) => file.name.endsWith(".gguf"))) return [...files].sort((a, b) => (a.name < b.name ? -1 : 1));
  return Object.fromEntries(files.map((file) => [file.name, file]));
}

function fieldsOf(options: SpeechOptions): Record<string, unknown> {
  return { ...(options.language && { language: options.language }), ...(options.prompt && { prompt: options.prompt }) };
}
