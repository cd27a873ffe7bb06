/** What this browser can do. */

import { gpuAdapter } from "./device.js";
import { isIsolated, isNode } from "./host.js";
import { openOpfs } from "./opfs.js";
import type { Support } from "./types.js";
import { wasmFeatures } from "./wasm.js";

/** Probes this browser, or Node. Nothing is downloaded. */
export async function isSupported(): Promise<Support> {
  const features = wasmFeatures();
  const isolated = isIsolated();
  const [gpu, opfs] = await Promise.all([
    gpuAdapter().then((adapter) => adapter !== undefined),
    isNode ? false : openOpfs().then((storage) => storage !== undefined),
  ]);
  const lacks: [boolean, string][] = [
    [features.wasm, "no WebAssembly: nothing runs"],
    [features.simd, "no WebAssembly SIMD: the binary without it is many times slower"],
    [features.relaxed, "no relaxed SIMD: quantized weights are slower"],
    [features.threads, "no atomic operations in WebAssembly: only the GPU can be used"],
    [isolated, "the page is not cross-origin isolated: one thread is used"],
    [gpu, "no WebGPU adapter: the CPU is used"],
    [opfs || isNode, "no private file system: models are downloaded again each time"],
  ];
  const reasons = lacks.filter(([has]) => !has).map(([, reason]) => reason);
  return { ...features, threads: features.threads && isolated, isolated, gpu, opfs, reasons };
}
