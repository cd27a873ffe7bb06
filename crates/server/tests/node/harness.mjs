// Registry of checks, the arguments of their scripts, and the closing line that `client-test` reads.

import assert from "node:assert/strict";
import { parseArgs } from "node:util";

const checks = [];

/** Registers a check. */
export function check(name, run) {
  checks.push({ name, run });
}

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    "api-key": { type: "string" },
    model: { type: "string" },
    "audio-model": { type: "string" },
    "scripted-model": { type: "string" },
    wyoming: { type: "string" },
    stonechat: { type: "string" },
    programs: { type: "string" },
    audio: { type: "string" },
    only: { type: "string", multiple: true, default: [] },
    verbose: { type: "boolean", default: false },
  },
});

/** Server under test. */
export const server = {
  base: positionals[0],
  key: values["api-key"],
  model: values.model,
  audioModel: values["audio-model"],
  scripted: values["scripted-model"],
  programs: values.programs,
  audio: values.audio,
};

/** The JSON of a route. */
export async function get(path) {
  const response = await fetch(server.base + path, { headers: { authorization: `Bearer ${server.key}` } });
  assert.equal(response.status, 200, `status of ${path}`);
  return response.json();
}

/** Waits until no slot of the scripted model works. */
export async function idle() {
  const end = Date.now() + 60_000;
  for (;;) {
    const slots = await get(`/slots?model=${server.scripted}`);
    if (slots.every((slot) => !slot.is_processing)) {
      return;
    }
    assert.ok(Date.now() < end, "a slot still works for a client that has gone");
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

/** Runs the checks one after the other, then `clean`. */
export async function main(clean = async () => {}) {
  const counts = { passed: 0, failed: 0 };
  for (const { name, run } of checks) {
    if (values.only.length > 0 && !values.only.some((text) => name.includes(text))) {
      continue;
    }
    const start = Date.now();
    try {
      await run();
      counts.passed += 1;
      if (values.verbose) {
        console.log(`ok ${name} (${((Date.now() - start) / 1000).toFixed(2)} s)`);
      }
    } catch (error) {
      counts.failed += 1;
      console.log(`FAILED ${name}: ${String(error?.message ?? error).split(/\s+/).join(" ").slice(0, 600)}`);
      if (values.verbose) {
        console.log(error?.stack);
      }
    }
  }
  await clean();
  console.log(`${counts.passed} passed, ${counts.failed} failed, 0 skipped`);
  process.exit(counts.failed > 0 || counts.passed === 0 ? 1 : 0);
}
