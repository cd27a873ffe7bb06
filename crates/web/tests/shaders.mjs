// Compiles every shader of the wgpu backend in Chromium: Tint is stricter than naga, and no test without a browser sees what it refuses.
//
//   cargo run -p stonechat-testkit --example shaders -- FOLDER
//   node crates/web/tests/shaders.mjs FOLDER [--pipelines] [part of a name]
//
// With --pipelines, SwiftShader compiles them as well, which takes a second each. CHROMIUM names the browser (/usr/bin/chromium).
// Fails if a shader is refused, or if there is none.

import { mkdtemp, readFile, rm } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";

import { chromiumOptions } from "./browsers.mjs";

const withPipelines = process.argv.includes("--pipelines");
const [folder, part = ""] = process.argv.slice(2).filter((argument) => argument !== "--pipelines");
if (!folder) {
  console.error("expected a folder of shaders");
  process.exit(2);
}

// Size of the uniform binding, as in compute/src/wgpu/shader.rs.
const PARAM_BYTES = 128;

// Runs in a dedicated worker, as the engine does.
async function compileAll({ entries, withPipelines }) {
  const adapter = await navigator.gpu?.requestAdapter();
  if (!adapter) throw new Error("no WebGPU adapter");
  const hasSubgroups = adapter.features.has("subgroups");
  const maxBuffers = adapter.limits.maxStorageBuffersPerShaderStage;
  const device = await adapter.requestDevice({
    requiredFeatures: hasSubgroups ? ["subgroups"] : [],
    requiredLimits: {
      maxStorageBuffersPerShaderStage: maxBuffers,
      maxComputeWorkgroupStorageSize: adapter.limits.maxComputeWorkgroupStorageSize,
    },
  });
  const result = { adapter: adapter.info.description || adapter.info.vendor, maxBuffers, pipelines: 0, modules: 0, skipped: 0, refused: [] };
  for (const { name, file, text, needs_subgroups, buffers } of entries) {
    if (needs_subgroups && !hasSubgroups) {
      result.skipped += 1;
      continue;
    }
    const module = device.createShaderModule({ code: text });
    const { messages } = await module.getCompilationInfo();
    const errors = messages.filter((message) => message.type === "error");
    const lines = text.split("\n");
    if (errors.length > 0) {
      const where = errors.map(({ lineNum, message }) => `line ${lineNum} \`${(lines[lineNum - 1] ?? "").trim()}\`: ${message}`);
      result.refused.push(`${file} ${name}: ${where.join("; ")}`);
      continue;
    }
    // A kernel with more buffers is not used on this adapter.
    if (!withPipelines || buffers.length > maxBuffers) {
      result.modules += 1;
      continue;
    }
    const entry = (binding, buffer) => ({ binding, visibility: GPUShaderStage.COMPUTE, buffer });
    const layout = device.createBindGroupLayout({
      entries: [
        entry(0, { type: "uniform", hasDynamicOffset: true, minBindingSize: PARAM_BYTES_HERE }),
        ...buffers.map((type, i) => entry(i + 1, { type, minBindingSize: 16 })),
      ],
    });
    try {
      await device.createComputePipelineAsync({
        layout: device.createPipelineLayout({ bindGroupLayouts: [layout] }),
        compute: { module, entryPoint: "main" },
      });
      result.pipelines += 1;
    } catch (error) {
      result.refused.push(`${file} ${name}: ${error.message}`);
    }
  }
  return result;
}

const WORKER = `
${compileAll.toString().replace("PARAM_BYTES_HERE", PARAM_BYTES)}
onmessage = async ({ data }) => {
  try { postMessage(await compileAll(data)); } catch (error) { postMessage({ error: String(error) }); }
};`;

const server = createServer((request, response) => {
  const isWorker = request.url === "/worker.js";
  response.setHeader("content-type", isWorker ? "text/javascript" : "text/html");
  response.end(isWorker ? WORKER : "<!doctype html><title>Shaders</title>");
});
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
const profile = await mkdtemp(join(tmpdir(), "stonechat-shaders-"));
// The WGSL that Tint checks is the same with and without a GPU: SwiftShader offers subgroups.
const context = await chromium.launchPersistentContext(profile, chromiumOptions({ hasGpu: true }));
let failed = true;
try {
  const page = await context.newPage();
  await page.goto(`http://localhost:${server.address().port}/`);
  const all = JSON.parse(await readFile(join(folder, "shaders.json"), "utf8"));
  const entries = all.filter(({ name }) => name.includes(part));
  for (const entry of entries) entry.text = await readFile(join(folder, entry.file), "utf8");
  const totals = { pipelines: 0, modules: 0, skipped: 0, refused: [] };
  for (let at = 0; at < entries.length; at += 50) {
    const result = await page.evaluate(
      (message) =>
        new Promise((resolve, reject) => {
          const worker = new Worker("/worker.js");
          worker.onmessage = ({ data }) => (worker.terminate(), resolve(data));
          worker.onerror = (event) => reject(new Error(event.message));
          worker.postMessage(message);
        }),
      { entries: entries.slice(at, at + 50), withPipelines },
    );
    if (result.error) throw new Error(result.error);
    totals.adapter = result.adapter;
    totals.maxBuffers = result.maxBuffers;
    for (const key of ["pipelines", "modules", "skipped"]) totals[key] += result[key];
    totals.refused.push(...result.refused);
    result.refused.forEach((text) => console.error(`REFUSED ${text}`));
  }
  console.log(
    `${totals.adapter}: ${totals.modules} modules and ${totals.pipelines} pipelines of at most ${totals.maxBuffers} buffers compiled, ` +
      `${totals.skipped} skipped without subgroups, ${totals.refused.length} refused`,
  );
  failed = totals.refused.length > 0 || totals.pipelines + totals.modules === 0;
} finally {
  await context.close();
  server.close();
  await rm(profile, { recursive: true, force: true, maxRetries: 5, retryDelay: 200 });
}
process.exit(failed ? 1 : 0);
