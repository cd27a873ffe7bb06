/** `device: "auto"`: the model is run once on the CPU and on the GPU, and the faster one is remembered. */

import type { Connection } from "./client.js";
import type { Loaded } from "./load.js";
import type { FileSpec } from "./protocol.js";

/** Prefix of the records in `localStorage`. */
const PREFIX = "stonechat:device:";

/** Milliseconds that the first run on the GPU may take longer than the one on the CPU: browsers compile programs in it. */
const COMPILE_TIME = 20_000;

/** Version of the package, which the build fills in. */
declare const VERSION: string;

/** Choices of contexts without `localStorage`, such as workers. */
const session = new Map<string, string>();

/** Parts of WebGPU in use, which the types of the DOM do not have everywhere. */
interface Adapter {
  isFallbackAdapter?: boolean;
  info?: { vendor?: string; architecture?: string; device?: string; description?: string; isFallbackAdapter?: boolean };
}

/** Adapter of WebGPU; `undefined` if there is none. @internal */
export async function gpuAdapter(): Promise<Adapter | undefined> {
  const { gpu } = (globalThis.navigator ?? {}) as { gpu?: { requestAdapter(): Promise<Adapter | null> } };
  try {
    return (await gpu?.requestAdapter()) ?? undefined;
  } catch {
    return undefined;
  }
}

/** Name of a model that is the same at its next load. @internal */
export function modelKey(kind: string, files: FileSpec[]): string {
  const parts = files.map(({ name, url, path, blob }) => url ?? path ?? `${name} ${blob?.size ?? 0}`);
  return JSON.stringify([kind, ...parts]);
}

interface Choice {
  key: string;
  open(device: "cpu" | "gpu"): Promise<Loaded>;
  measure(connection: Connection): Promise<void>;
  /** Whether an error is one of the model or the caller, and not of the device. */
  isFinal(error: unknown): boolean;
}

/** Opens a model on the faster device. @internal */
export async function chooseDevice({ key, open, measure, isFinal }: Choice): Promise<Loaded> {
  const adapter = await gpuAdapter();
  const { vendor, architecture, device, description, isFallbackAdapter } = adapter?.info ?? {};
  // An adapter in software is the CPU with more steps.
  if (!adapter || adapter.isFallbackAdapter || isFallbackAdapter) {
    return open("cpu");
  }
  const record =
    PREFIX + JSON.stringify([key, vendor, architecture, device, description, navigator.userAgent, VERSION]);
  const known = recall(record);
  if (known === "gpu") {
    try {
      return await open("gpu");
    } catch (error) {
      if (isFinal(error)) {
        throw error;
      }
      forget(record);
      return open("cpu");
    }
  }
  const cpu = await open("cpu").catch((error: unknown) => {
    if (isFinal(error)) {
      throw error;
    }
    return error as Error;
  });
  if (known === "cpu" && !(cpu instanceof Error)) {
    return cpu;
  }
  const gpu = await open("gpu").catch((error: unknown) => {
    if (isFinal(error) || cpu instanceof Error) {
      close(cpu);
      throw cpu instanceof Error ? cpu : error;
    }
    return undefined;
  });
  if (!gpu) {
    // A failure may pass, so that it is remembered for this page alone.
    session.set(record, "cpu");
    return cpu as Loaded;
  }
  if (cpu instanceof Error) {
    // The model fits the memory of the GPU alone.
    remember(record, "gpu");
    return gpu;
  }
  return compare({ cpu, gpu, record, measure, isFinal });
}

interface Comparison extends Pick<Choice, "measure" | "isFinal"> {
  cpu: Loaded;
  gpu: Loaded;
  record: string;
}

/** Runs the model on both, and closes the slower one. */
async function compare({ cpu, gpu, record, measure, isFinal }: Comparison): Promise<Loaded> {
  try {
    const first = await time(() => measure(cpu.connection));
    const cpuTime = await time(() => measure(cpu.connection));
    const limits: [number, number] = [first + COMPILE_TIME, cpuTime];
    const gpuTime = await gpuSecondTime(() => measure(gpu.connection), limits).catch((error: unknown) => {
      if (isFinal(error)) {
        throw error;
      }
      return undefined;
    });
    const isFaster = gpuTime !== undefined && gpuTime < cpuTime;
    const [winner, loser] = isFaster ? [gpu, cpu] : [cpu, gpu];
    if (gpuTime === undefined) {
      session.set(record, "cpu");
    } else {
      remember(record, isFaster ? "gpu" : "cpu");
    }
    close(loser);
    return winner;
  } catch (error) {
    close(cpu);
    close(gpu);
    throw error;
  }
}

/** Milliseconds of the second run on the GPU; `Infinity` once one of the two takes longer than its limit. */
async function gpuSecondTime(run: () => Promise<void>, limits: [number, number]): Promise<number> {
  const firstTime = await within(limits[0], time(run));
  return firstTime === Infinity ? Infinity : within(limits[1], time(run));
}

/** Milliseconds of a run. */
async function time(run: () => Promise<void>): Promise<number> {
  const start = performance.now();
  await run();
  return performance.now() - start;
}

/** A duration, or `Infinity` after `limit` milliseconds. A run that goes on ends with its worker. */
async function within(limit: number, duration: Promise<number>): Promise<number> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<number>((resolve) => (timer = setTimeout(() => resolve(Infinity), limit)));
  try {
    return await Promise.race([duration, late]);
  } finally {
    clearTimeout(timer);
  }
}

function close(loaded: Loaded | Error): void {
  if (!(loaded instanceof Error)) {
    void loaded.connection.close();
  }
}

function recall(key: string): string | undefined {
  try {
    return localStorage.getItem(key) ?? session.get(key);
  } catch {
    return session.get(key);
  }
}

function remember(key: string, value: string): void {
  session.set(key, value);
  try {
    localStorage.setItem(key, value);
  } catch {
    // Without storage the choice lasts as long as the page.
  }
}

function forget(key: string): void {
  session.delete(key);
  try {
    localStorage.removeItem(key);
  } catch {
    // As above.
  }
}
