// Engines that are there, their models, and the ones that are chosen.

import { batch, computed, signal } from "@preact/signals";

import { BrowserEngine } from "./browser_engine";
import { isAbort, messageOf, type Engine, type ModelEntry, type ModelKind } from "./engine";
import { notify } from "./notices";
import { ServerEngine } from "./server_engine";
import { change, settings } from "./settings";

export const engines = signal<Engine[]>([]);
export const engine = signal<Engine | undefined>(undefined);
export const models = signal<ModelEntry[]>([]);
/** Reason for which there is no list of models. */
export const modelsError = signal("");
/** Whether the engines and the first list of models are known. */
export const isReady = signal(false);
/** Models that are opened, with the share that is done; undefined: unknown. */
export const loading = signal<ReadonlyMap<string, number | undefined>>(new Map());

const loads = new Map<string, AbortController>();

/** Looks for engines, and chooses the one of the settings, else the first. */
export async function findEngines() {
  const server = new ServerEngine();
  const [hasServer, browser] = await Promise.all([server.isThere(), BrowserEngine.find()]);
  const found: Engine[] = [];
  // Without any engine the page shows that the server cannot be reached.
  if (hasServer || !browser) found.push(server);
  if (browser) found.push(browser);
  engines.value = found;
  const wanted = found.find((one) => one.kind === settings.peek().engine) ?? found[0];
  engine.value = wanted;
  await refreshModels();
  isReady.value = true;
}

export async function chooseEngine(kind: Engine["kind"]) {
  const chosen = engines.peek().find((one) => one.kind === kind);
  if (!chosen || chosen === engine.peek()) return;
  batch(() => {
    engine.value = chosen;
    models.value = [];
  });
  change({ engine: kind });
  await refreshModels();
}

export async function refreshModels() {
  const current = engine.peek();
  if (!current) return;
  try {
    const list = await current.models();
    if (engine.peek() !== current) return;
    models.value = list;
    modelsError.value = "";
  } catch (error) {
    if (engine.peek() === current) modelsError.value = messageOf(error);
  }
}

/** The chosen model of a kind: that of the settings, else one that is open, else the first. */
function chosen(kind: ModelKind, wanted: string): ModelEntry | undefined {
  const list = models.value.filter((model) => model.kind === kind);
  return list.find((model) => model.id === wanted) ?? list.find((model) => model.state === "loaded") ?? list.find((model) => model.state !== "remote");
}

export const languageModel = computed(() => chosen("language", settings.value.languageModel));
export const speechModel = computed(() => chosen("speech", settings.value.speechModel));

export function chooseModel(model: ModelEntry) {
  change(model.kind === "language" ? { languageModel: model.id } : { speechModel: model.id });
}

function setLoading(id: string, progress: number | undefined | null) {
  const map = new Map(loading.peek());
  if (progress === null) map.delete(id);
  else map.set(id, progress);
  loading.value = map;
}

/** Opens a model; an error is shown, and thrown. */
export async function loadModel(model: ModelEntry) {
  const current = engine.peek();
  if (!current || loads.has(model.id)) return;
  const controller = new AbortController();
  loads.set(model.id, controller);
  setLoading(model.id, undefined);
  try {
    await current.load(model, (fraction) => setLoading(model.id, fraction), controller.signal);
  } catch (error) {
    if (!isAbort(error)) notify(`${model.id}: ${messageOf(error)}`, "error");
    throw error;
  } finally {
    loads.delete(model.id);
    setLoading(model.id, null);
    await refreshModels();
  }
}

export function cancelLoad(model: ModelEntry) {
  loads.get(model.id)?.abort();
}

export async function unloadModel(model: ModelEntry) {
  try {
    await engine.peek()?.unload(model);
  } catch (error) {
    notify(`${model.id}: ${messageOf(error)}`, "error");
  }
  await refreshModels();
}

export async function removeModel(model: ModelEntry) {
  try {
    await engine.peek()?.remove?.(model);
  } catch (error) {
    notify(`${model.id}: ${messageOf(error)}`, "error");
  }
  await refreshModels();
}

/** The engine and an open model of a kind, for a request. A server opens models by itself. */
export async function engineFor(kind: ModelKind, wanted: string): Promise<{ engine: Engine; model: string }> {
  const current = engine.peek();
  if (!current) throw new Error("no engine is there yet");
  if (models.peek().length === 0) await refreshModels();
  const list = models.peek().filter((model) => model.kind === kind);
  const model = list.find((one) => one.id === wanted) ?? (kind === "language" ? languageModel : speechModel).peek();
  if (!model) {
    if (modelsError.peek()) throw new Error(modelsError.peek());
    throw new Error(kind === "language" ? "no language model is there" : "no speech model is there");
  }
  if (current.kind === "browser" && model.state !== "loaded") await loadModel(model);
  return { engine: current, model: model.id };
}
