// opencode without a terminal: reads a file with its tool, then answers.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

import { check, main, server } from "./harness.mjs";

const LIMIT = 300_000;
const home = mkdtempSync(join(tmpdir(), "opencode-"));
const modules = join(fileURLToPath(import.meta.url), "../node_modules");
const program = join(modules, `opencode-${process.platform}-${process.arch}`, "bin/opencode");

/** Events of a run on a prompt in a folder with a note. */
async function run(prompt, apiKey = server.key) {
  const model = server.scripted;
  const folder = mkdtempSync(join(home, "work-"));
  writeFileSync(join(folder, "note.txt"), "The wall is made of gneiss.\n");
  const limit = { context: 16384, output: 4096 };
  const config = {
    autoupdate: false,
    share: "disabled",
    model: `stonechat/${model}`,
    small_model: `stonechat/${model}`,
    enabled_providers: ["stonechat"],
    provider: {
      stonechat: {
        npm: "@ai-sdk/openai-compatible",
        options: { baseURL: `${server.base}/v1`, apiKey },
        models: { [model]: { tool_call: true, reasoning: true, limit } },
      },
    },
    // A byte of the prompt is a token of the scripted model.
    tools: { "*": false, read: true },
    agent: { build: { prompt: "You work in the folder of the user." }, title: { disable: true } },
  };
  writeFileSync(join(folder, "opencode.json"), JSON.stringify(config));
  const variable = (name) => {
    const path = join(home, name);
    mkdirSync(path, { recursive: true });
    return path;
  };
  const env = {
    ...process.env,
    HOME: home,
    // opencode takes the folder from here before its own.
    PWD: folder,
    XDG_DATA_HOME: variable("data"),
    XDG_CONFIG_HOME: variable("config"),
    XDG_STATE_HOME: variable("state"),
    XDG_CACHE_HOME: variable("cache"),
    OPENCODE_DISABLE_AUTOUPDATE: "1",
    OPENCODE_DISABLE_LSP_DOWNLOAD: "1",
    OPENCODE_DISABLE_MODELS_FETCH: "1",
    OPENCODE_DISABLE_DEFAULT_PLUGINS: "1",
  };
  const output = await new Promise((resolve) => {
    const options = { cwd: folder, env, timeout: LIMIT };
    const child = execFile(program, ["run", "--format", "json", prompt], options, (_, stdout) => resolve(stdout));
    child.stdin.end();
  });
  return output.split("\n").filter(Boolean).map((line) => JSON.parse(line));
}

check("opencode.reads_a_file_and_answers", async () => {
  const events = await run("Please read the note in this folder and tell what it says.");
  const used = events.filter(({ type }) => type === "tool_use").map(({ part }) => [part.tool, part.state.status]);
  assert.deepEqual(used, [["read", "completed"]], JSON.stringify(events).slice(0, 500));
  const text = events.filter(({ type }) => type === "text").map(({ part }) => part.text).join("");
  assert.equal(text, "The note says that the wall is of gneiss.");
});

check("opencode.shows_errors", async () => {
  const events = await run("Hello", "no-such-key");
  const errors = events.filter(({ type }) => type === "error");
  assert.ok(errors.length > 0, JSON.stringify(events).slice(0, 300));
  assert.match(JSON.stringify(errors), /api key/i);
});

await main(async () => rmSync(home, { recursive: true, force: true, maxRetries: 10 }));
