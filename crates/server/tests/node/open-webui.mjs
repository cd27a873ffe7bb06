// Open WebUI in Chromium: a chat, a recording as the prompt, a question about a document.
//
// The program runs with an empty folder of its own. Chromium's microphone is a recording of test-data.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, openSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";

import { check, main, server } from "./harness.mjs";

const LIMIT = 180_000;
const RECORDING = join(server.audio, "quick_brown_fox.wav");
const folder = mkdtempSync(join(tmpdir(), "open-webui-"));

/** A port that was free a moment ago. */
async function freePort() {
  const listener = createServer().listen(0, "127.0.0.1");
  await new Promise((resolve) => listener.once("listening", resolve));
  const { port } = listener.address();
  await new Promise((resolve) => listener.close(resolve));
  return port;
}

const port = await freePort();
const url = `http://127.0.0.1:${port}`;
const api = `${server.base}/v1`;
const log = join(folder, "log");
const program = spawn(join(server.programs, "open-webui"), ["serve", "--host", "127.0.0.1", "--port", String(port)], {
  cwd: folder,
  stdio: ["ignore", openSync(log, "w"), openSync(log, "a")],
  env: {
    ...process.env,
    DATA_DIR: folder,
    WEBUI_AUTH: "False",
    WEBUI_SECRET_KEY: "key of the checks, longer than 32 bytes",
    OFFLINE_MODE: "1",
    HF_HUB_OFFLINE: "1",
    ANONYMIZED_TELEMETRY: "false",
    ENABLE_OLLAMA_API: "False",
    OPENAI_API_BASE_URL: api,
    OPENAI_API_KEY: server.key,
    DEFAULT_MODELS: server.scripted,
    AUDIO_STT_ENGINE: "openai",
    AUDIO_STT_OPENAI_API_BASE_URL: api,
    AUDIO_STT_OPENAI_API_KEY: server.key,
    AUDIO_STT_MODEL: server.audioModel,
    RAG_EMBEDDING_ENGINE: "openai",
    RAG_OPENAI_API_BASE_URL: api,
    RAG_OPENAI_API_KEY: server.key,
    RAG_EMBEDDING_MODEL: server.model,
  },
});
let browser;

/** End of the program's log, whose folder is removed with the others. */
function told() {
  return readFileSync(log, "utf8").slice(-500);
}

/** Waits for the program, opens the browser; returns a page with a chat of the scripted model. */
async function open() {
  const end = Date.now() + LIMIT;
  while (!(await fetch(`${url}/health`).catch(() => ({ ok: false }))).ok) {
    assert.equal(program.exitCode, null, `Open WebUI ended: ${told()}`);
    assert.ok(Date.now() < end, `Open WebUI does not answer: ${told()}`);
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
  browser ??= await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: [
      "--headless=new", "--no-sandbox", "--disable-gpu", "--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream",
      `--use-file-for-fake-audio-capture=${RECORDING}`,
    ],
  });
  const context = await browser.newContext({ permissions: ["microphone"] });
  const page = await context.newPage();
  page.setDefaultTimeout(LIMIT);
  // The news of the version cover the page.
  await page.addLocatorHandler(page.getByRole("button", { name: "Okay, Let's Go!" }), (button) => button.click());
  await page.goto(`${url}/?models=${server.scripted}`, { timeout: LIMIT });
  await page.waitForSelector("#chat-input");
  return page;
}

/** Sends a message and waits for the end of an answer with this text. */
async function ask(page, text, answer) {
  await page.locator("#chat-input").click();
  await page.keyboard.type(text);
  await page.keyboard.press("Enter");
  await page.getByText(answer).first().waitFor();
}

check("open_webui.chats", async () => {
  const page = await open();
  await ask(page, "Which stone is hard?", "Granite is a hard stone.");
  await ask(page, "Think of a stone.", "Granite is a hard stone.");
  await page.getByText(/Thought for|Thought/).first().waitFor();
});

check("open_webui.takes_a_recording", async () => {
  const page = await open();
  await page.locator("#voice-input-button").click();
  await page.locator("#confirm-recording-button").waitFor();
  // A recording of three seconds, from the start of the file.
  await page.waitForTimeout(5000);
  await page.locator("#confirm-recording-button").click();
  await page.getByText(/quick brown fox/i).first().waitFor();
});

check("open_webui.asks_a_document", async () => {
  const page = await open();
  const text = "The report on stones. The quarry that is mentioned in chapter seven is in Larvik, by the sea.\n".repeat(3);
  const file = { name: "report.txt", mimeType: "text/plain", buffer: Buffer.from(text) };
  // Both are awaited from before the upload, since a small file is done at once.
  const uploaded = page.waitForResponse((response) => response.request().method() === "POST" && /\/files\/\?/.test(response.url()));
  const processed = page.waitForEvent("requestfinished", (request) => request.url().includes("/process/status"));
  await page.locator("input[type=file]").first().setInputFiles(file);
  const { id } = await (await uploaded).json();
  await processed;
  const { status } = await page.evaluate(async (path) => {
    const headers = { authorization: `Bearer ${localStorage.token}` };
    return (await fetch(path, { headers })).json();
  }, `/api/v1/files/${id}/process/status`);
  assert.equal(status, "completed", `the document was not embedded: ${told()}`);
  await page.getByText("report.txt").first().waitFor();
  await ask(page, "Where is the quarry?", "The quarry of the document is in Larvik.");
});

await main(async () => {
  await browser?.close();
  program.kill();
  rmSync(folder, { recursive: true, force: true, maxRetries: 10 });
});
