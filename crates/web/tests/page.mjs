// Drives the page in Chromium and Firefox, at the widths of a phone and of a desk, light and dark.
//
//   node tests/page.mjs [--browser chromium|firefox] [--width 390|1440] [--scheme light|dark] [--only TEXT] [--shots DIR]
//                       [--server URL] [--package DIST --speech-model FILE --language-model FILE]
//
// --server is a `stonechat serve` with a language model and a speech model, for the tests whose titles begin with "server".
// That server answers the API; with --served it also serves the page. --package is the npm package, for those that begin with "package".
// Without them these tests do not run, and the last line says so.
//
// CHROMIUM and FIREFOX are the programs. Playwright 1.62 is the last one that Firefox ESR 153 understands.

import assert from "node:assert/strict";
import { mkdir, readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";


import { PACKAGE } from "./page_package.mjs";
import { startServer } from "./page_server.mjs";
import { launch } from "./browsers.mjs";

const ROOT = join(dirname(fileURLToPath(import.meta.url)), "../../..");
const AUDIO = join(ROOT, "test-data/audio/quick_brown_fox.wav");
const AXE = createRequire(import.meta.url).resolve("axe-core/axe.min.js");
const PREFIX = "/some/prefix/";
const { values: args } = parseArgs({
  options: { browser: { type: "string" }, width: { type: "string" }, scheme: { type: "string" }, only: { type: "string" }, shots: { type: "string" },
    server: { type: "string" }, served: { type: "boolean" },
    package: { type: "string" }, "speech-model": { type: "string" }, "language-model": { type: "string" },
  },
});

/** Messages of the console that a test expects. */
const EXPECTED = [/Failed to load resource/, /web\/index\.js/, /NetworkError/, /net::ERR/, /autoplay/i, /play\(\)/, /Layout was forced/];

// --- What tests share

class Case {
  constructor(context, page, server, width, scheme, browser) {
    Object.assign(this, { context, page, server, width, scheme, browser });
    this.isPhone = width < 760;
    this.isSkipped = false;
  }

  /** Counts the test as skipped; returns the reason. */
  skip(reason) {
    this.isSkipped = true;
    return reason;
  }

  async open(hash = "") {
    await this.page.goto(this.server.url + hash);
    await this.page.waitForSelector(".model-picker");
    await this.page.waitForFunction(() => !document.querySelector(".model-picker .model-name").textContent.includes("…"));
  }

  async ask(text) {
    await this.page.fill("#message", text);
    await this.page.press("#message", "Enter");
  }

  /** Asks, and waits for the end of the answer. */
  async chat(text) {
    const before = await this.page.locator(".message.answer").count();
    await this.ask(text);
    await this.page.locator(".message.answer").nth(before).waitFor();
    await this.idle();
    return this.answer();
  }

  idle() {
    return this.page.waitForSelector(".send:not(.stop)", { timeout: 120_000 });
  }

  answer() {
    return this.page.locator(".message.answer").last().innerText();
  }

  /** Requests of the API that the server got. */
  calls(path) {
    return this.server.state.calls.filter((call) => call.path === path);
  }

  lastBody() {
    return JSON.parse(this.calls("v1/chat/completions").at(-1).body);
  }

  /** Replaces the text of a field by keys: `fill` and `insertText` make no change in Firefox. */
  async type(field, text) {
    await field.click();
    await field.press("Control+A");
    await this.page.keyboard.type(text);
    await field.blur();
  }

  /** Presses a button of a message, which is shown on hover. */
  async act(name, message = this.page.locator(".message").last()) {
    await message.hover();
    await message.getByRole("button", { name, exact: true }).click();
  }

  async openSidebar() {
    if (this.isPhone) await this.page.getByRole("button", { name: "History", exact: true }).click();
  }

  async closeSidebar() {
    if (this.isPhone) await this.page.getByRole("button", { name: "Close the history" }).click();
  }

  async openDialog(key) {
    await this.page.evaluate(() => document.activeElement?.blur());
    await this.page.keyboard.press(key);
    await this.page.waitForSelector("dialog[open]");
  }

  async closeDialog() {
    await this.page.keyboard.press("Escape");
    await this.page.waitForSelector("dialog[open]", { state: "detached" });
  }

  /** The text that the page gave to be saved since the last call, and its name. */
  async saved() {
    await this.page.waitForFunction(() => window.savedFiles.length > 0);
    return this.page.evaluate(() => window.savedFiles.splice(0).at(-1));
  }

  async shot(name) {
    if (!args.shots) return;
    await mkdir(args.shots, { recursive: true });
    await this.page.screenshot({ path: join(args.shots, `${name}-${this.browser}-${this.scheme}-${this.width}.png`) });
  }

  /** Fails on a finding of axe that is serious, and on a page that is wider than the window. */
  async check(name) {
    // Screenshots and axe add styles of their own, which the policy refuses.
    this.isChecking = true;
    await this.shot(name);
    await this.page.evaluate(await readFile(AXE, "utf8"));
    const findings = await this.page.evaluate(async () => {
      const { violations } = await window.axe.run(document, { resultTypes: ["violations"] });
      return violations
        .filter(({ impact }) => impact === "serious" || impact === "critical")
        .map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.slice(0, 3).map((node) => `${node.html.slice(0, 120)} ${node.any[0]?.message ?? ""}`).join(" | ")}`);
    });
    assert.deepEqual(findings, [], `axe in ${name}`);
    const overflow = await this.page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    this.isChecking = false;
    assert.ok(overflow <= 0, `${name} is ${overflow} pixels wider than the window`);
  }
}

// --- Tests

const tests = {
  async "chat with streaming, Markdown, code with copy"(t) {
    await t.open();
    await t.check("welcome");
    await t.chat("markdown");
    const { page } = t;
    assert.equal(await page.locator(".markdown strong").first().innerText(), "bold");
    assert.equal(await page.locator(".markdown th").count(), 3);
    assert.equal(await page.locator(".markdown ol > li").count(), 2);
    assert.ok((await page.locator(".hljs-keyword").first().innerText()).includes("fn"));
    const link = page.locator(".markdown a").first();
    assert.equal(await link.getAttribute("rel"), "noopener noreferrer nofollow");
    await page.evaluate(() => {
      window.copied = [];
      Object.defineProperty(navigator, "clipboard", { value: { writeText: async (text) => void window.copied.push(text) }, configurable: true });
    });
    await page.locator("[data-copy]").click();
    await page.waitForFunction(() => window.copied.length === 1);
    assert.match(await page.evaluate(() => window.copied[0]), /^fn main\(\) \{\n    println!/);
    assert.match(await page.locator(".message.answer .actions").innerText(), /51 tokens · 123 tok\/s · 12 of 42 prompt tokens cached/);
    await t.check("chat");
    assert.equal(await page.title(), "markdown – stonechat");
  },

  async "HTML of an answer is text, scripts and foreign images are not loaded"(t) {
    const asked = [];
    t.page.on("request", (request) => asked.push(request.url()));
    await t.open();
    const text = await t.chat("hostile");
    assert.match(text, /<script>window\.hacked=1<\/script>/);
    const { page } = t;
    assert.equal(await page.evaluate(() => window.hacked), undefined);
    assert.equal(await page.locator(".markdown :is(script, iframe, style, [onclick], [onerror])").count(), 0);
    const links = await page.locator(".markdown a").evaluateAll((list) => list.map((link) => link.href));
    assert.deepEqual(links, ["https://tracker.example/pixel.png"]);
    assert.equal(await page.locator(".markdown img").count(), 0);
    assert.deepEqual(asked.filter((url) => url.includes("tracker.example")), []);
  },

  async "an answer of delimiters, or nested without end, does not stop the page"(t) {
    await t.open();
    for (const part of ["_a*", "**a", "[", "> ", "- "]) {
      const start = Date.now();
      assert.match(await t.chat(`repeat ${part}`), /the end/);
      // Without a bound "_a*" takes minutes.
      assert.ok(Date.now() - start < 25_000, `${part}: ${Date.now() - start} ms`);
    }
  },

  async "stop keeps what came, continue and regenerate"(t) {
    await t.open();
    await t.ask("slow");
    await t.page.waitForFunction(() => document.querySelector(".message.answer .markdown")?.textContent.includes("word word"));
    await t.page.getByRole("button", { name: "Stop" }).click();
    await t.idle();
    assert.match(await t.answer(), /word word[\s\S]*Stopped\./);
    await t.page.getByRole("button", { name: "Continue" }).click();
    await t.page.waitForFunction(() => document.querySelector(".message.answer").textContent.includes("and this after the drop."));
    await t.idle();
    assert.equal(t.lastBody().messages.at(-1).role, "assistant");
    assert.match(t.lastBody().messages.at(-1).content, /^word word/);
    assert.equal(await t.page.locator(".branches").count(), 0);
  },

  async "regenerated answers and edited messages are branches"(t) {
    await t.open();
    assert.match(await t.chat("count"), /Answer 1/);
    const { page } = t;
    await t.act("Regenerate");
    await page.waitForSelector(".branches");
    await t.idle();
    assert.match(await t.answer(), /Answer 2/);
    assert.equal(await page.locator(".branches span").innerText(), "2 / 2");
    await t.act("Earlier branch");
    await page.waitForFunction(() => document.querySelector(".branches span").textContent === "1 / 2");
    assert.match(await t.answer(), /Answer 1/);
    await t.chat("echo below the first");
    await t.act("Edit message", page.locator(".message.user").first());
    await page.locator(".edit-form textarea").fill("echo edited");
    await page.locator(".edit-form").getByRole("button", { name: "Send" }).click();
    await page.waitForFunction(() => document.querySelectorAll(".message").length === 2);
    await page.waitForFunction(() => document.querySelector(".message.answer").textContent.includes("edited"));
    await t.idle();
    await t.act("Earlier branch", page.locator(".message.user").first());
    await page.waitForFunction(() => document.querySelectorAll(".message").length === 4);
    assert.match(await t.answer(), /below the first/);
    // A reload shows the same branch.
    await page.reload();
    await page.waitForSelector(".message.answer");
    assert.match(await t.answer(), /below the first/);
    assert.equal(await page.locator(".message.user .branches span").first().innerText(), "1 / 2");
  },

  async "an arrow edits the last message, Escape stops"(t) {
    await t.open();
    await t.chat("echo one");
    await t.page.press("#message", "ArrowUp");
    await t.page.waitForSelector(".edit-form textarea:focus");
    await t.page.keyboard.press("Escape");
    await t.page.waitForSelector(".edit-form", { state: "detached" });
    await t.ask("slow");
    await t.page.waitForSelector(".send.stop");
    await t.page.keyboard.press("Escape");
    await t.idle();
    assert.match(await t.answer(), /Stopped/);
  },

  async "system prompt, sampling, stop texts and schema are sent"(t) {
    await t.open();
    const { page } = t;
    await page.locator(".system summary").click();
    await t.type(page.getByLabel("System prompt", { exact: true }), "Be brief.");
    await t.openDialog("s");
    // The defaults of the server arrive after the page is shown.
    await page.waitForSelector('input[name=temperature][placeholder="default 0.8"]');
    await t.type(page.locator("input[name=temperature]"), "0.25");
    await t.type(page.locator("input[name=top_k]"), "7");
    await t.type(page.getByLabel("Stop texts"), "END\n###");
    const schema = page.getByLabel("JSON schema of answers");
    await t.type(schema, "{not json");
    await page.waitForSelector("dialog [role=alert]");
    await t.type(schema, '{"type":"object"}');
    await t.type(page.getByLabel("Further fields of requests"), '{"chat_template_kwargs":{"enable_thinking":false}}');
    await t.check("settings");
    await t.closeDialog();
    await t.chat("fields");
    const { messages, ...fields } = t.lastBody();
    assert.deepEqual(messages, [{ role: "system", content: "Be brief." }, { role: "user", content: "fields" }]);
    assert.deepEqual(fields, {
      temperature: 0.25, top_k: 7, stop: ["END", "###"], stream: true, model: "test-chat",
      response_format: { type: "json_schema", json_schema: { name: "answer", strict: true, schema: { type: "object" } } },
      chat_template_kwargs: { enable_thinking: false },
    });
    // A new chat has the same settings after a reload.
    await page.reload();
    await t.openDialog("s");
    assert.equal(await page.inputValue("input[name=temperature]"), "0.25");
    await page.getByRole("button", { name: "Reset to the defaults" }).click();
    assert.equal(await page.inputValue("input[name=temperature]"), "");
  },

  async "text files are attached, others refused"(t) {
    await t.open();
    const { page } = t;
    await page.setInputFiles("#attach", [{ name: "notes.md", mimeType: "text/markdown", buffer: Buffer.from("# Notes\n```\ncode\n```\n") }]);
    await page.waitForSelector(".attachments li");
    await page.setInputFiles("#attach", [{ name: "image.png", mimeType: "image/png", buffer: Buffer.from([0x89, 0x50, 0, 0xff]) }]);
    await page.waitForSelector(".notice.error >> text=image.png: expected a text file");
    await page.setInputFiles("#attach", [{ name: "large.txt", mimeType: "text/plain", buffer: Buffer.alloc(600_000, "a") }]);
    await page.waitForSelector(".notice.error >> text=large.txt: expected at most 524 kB");
    await t.chat("context please");
    const [{ content }] = t.lastBody().messages;
    assert.equal(content, "File `notes.md`:\n````\n# Notes\n```\ncode\n```\n\n````\n\ncontext please");
    assert.equal(await page.locator(".message.user .attachments li").count(), 1);
  },

  async "reasoning is folded, from the field and from tags"(t) {
    await t.open();
    const { page } = t;
    assert.match(await t.chat("think"), /The answer is 42/);
    assert.equal(await page.locator("text=First I think.").count(), 0);
    await page.locator(".reasoning summary").click();
    await page.waitForSelector("text=First I think.");
    const tagged = await t.chat("tags");
    assert.match(tagged, /Visible answer/);
    assert.doesNotMatch(tagged, /Hidden|<think>/);
    await page.locator(".reasoning summary").last().click();
    await page.waitForSelector("text=Hidden thoughts here");
    // Reasoning is not sent again.
    await t.chat("echo next");
    assert.ok(!JSON.stringify(t.lastBody().messages).includes("Hidden"));
  },

  async "calls of tools are shown as they come, and answered"(t) {
    await t.open();
    const { page } = t;
    await t.ask("tool");
    await page.waitForSelector("text=get_weather");
    await page.waitForFunction(() => document.querySelector(".tool pre")?.textContent.includes('"Oslo"'));
    await page.waitForSelector(".tool-form");
    await page.getByLabel("Result of get_weather").fill("echo sunny");
    await page.getByRole("button", { name: "Send results" }).click();
    await page.waitForFunction(() => [...document.querySelectorAll(".message.answer")].at(-1)?.textContent.includes("sunny"));
    const messages = t.lastBody().messages;
    assert.deepEqual(messages[1].tool_calls, [{ id: "call_a", type: "function", function: { name: "get_weather", arguments: '{"city": "Oslo"}' } }]);
    assert.deepEqual(messages[2], { role: "tool", content: "echo sunny", tool_call_id: "call_a" });
    await t.check("tools");
  },

  async "a dropped connection keeps what came and continues"(t) {
    await t.open();
    await t.ask("drop");
    await t.page.waitForSelector(".end.error");
    assert.match(await t.answer(), /This came before[\s\S]*connection[\s\S]*What came is kept/);
    await t.check("dropped");
    await t.page.reload();
    await t.page.waitForSelector(".end.error");
    await t.page.getByRole("button", { name: "Continue" }).click();
    await t.page.waitForFunction(() => document.querySelector(".message.answer").textContent.includes("This came before and this after the drop."));
    await t.idle();
    assert.equal(await t.page.locator(".end").count(), 0);
  },

  async "an error of the API is shown, and tried again"(t) {
    await t.open();
    await t.ask("fail");
    await t.page.waitForSelector("text=The prompt exceeds the context.");
    await t.page.getByRole("button", { name: "Try again" }).click();
    await t.page.waitForFunction(() => document.querySelector(".branches span")?.textContent === "2 / 2");
  },

  async "a server that is away, and offline after the first visit"(t) {
    await t.open();
    await t.chat("echo kept for later");
    const { page, server } = t;
    const scope = await page.evaluate(async () => {
      const registration = await navigator.serviceWorker.ready;
      return registration.scope;
    });
    assert.equal(scope, server.url);
    await page.reload();
    await page.waitForFunction(() => navigator.serviceWorker.controller !== null);
    const kept = await page.evaluate(async () => {
      const names = await caches.keys();
      const requests = await Promise.all(names.map(async (name) => (await caches.open(name)).keys()));
      return requests.flat().map((request) => new URL(request.url).pathname);
    });
    assert.ok(kept.length >= 5, kept.join());
    // Nothing of the API is kept.
    for (const path of kept) assert.match(path, /^\/some\/prefix\/([\w-]+\.(js|css|svg|webmanifest))?$/);
    server.state.isDown = true;
    await page.reload();
    await page.waitForSelector(".message.answer");
    assert.match(await t.answer(), /kept for later/);
    await t.ask("echo away");
    await page.waitForSelector(".end.error");
    assert.match(await t.answer(), /The server cannot be reached/);
    server.state.isDown = false;
    await page.getByRole("button", { name: "Try again" }).click();
    await page.waitForFunction(() => [...document.querySelectorAll(".message.answer")].at(-1)?.textContent.includes("away"));
  },

  async "the key is asked for, refused, kept for the tab or longer"(t) {
    t.server.state.key = "right key!".replace(" ", "-");
    const { page } = t;
    await page.goto(t.server.url);
    await page.waitForSelector("dialog[open]");
    await t.check("key");
    await page.getByLabel("Key", { exact: true }).fill("wrong");
    await page.getByRole("button", { name: "Use the key" }).click();
    await page.waitForSelector("text=The server refused the key.");
    await page.getByLabel("Key", { exact: true }).fill(t.server.state.key);
    await page.getByRole("button", { name: "Use the key" }).click();
    await page.waitForSelector("dialog[open]", { state: "detached" });
    await t.chat("echo authorized");
    const where = () => page.evaluate(() => [sessionStorage.getItem("stonechat-api-key"), localStorage.getItem("stonechat-api-key")]);
    assert.deepEqual(await where(), [t.server.state.key, null]);
    await t.openDialog("s");
    await page.getByRole("button", { name: "Forget the key" }).click();
    assert.deepEqual(await where(), [null, null]);
    await t.closeDialog();
    await t.ask("echo again");
    await page.waitForSelector("dialog[open]");
    await page.getByLabel("Key", { exact: true }).fill(t.server.state.key);
    await page.getByLabel("Keep it in this browser").check();
    await page.getByRole("button", { name: "Use the key" }).click();
    await t.idle();
    assert.deepEqual(await where(), [null, t.server.state.key]);
  },

  async "history: search, rename, export, import, delete"(t) {
    await t.open();
    const { page } = t;
    await t.chat("echo a needle in the text");
    await t.type(page.getByLabel("Title"), "First chat");
    await page.evaluate(() => (location.hash = "#/chat"));
    await page.waitForSelector(".welcome");
    await t.chat("echo other things");
    await t.openSidebar();
    assert.equal(await page.locator(".chats li").count(), 2);
    await page.fill("#search", "NEEDLE");
    await page.waitForFunction(() => document.querySelectorAll(".chats li").length === 1);
    assert.equal(await page.locator(".chats li a").innerText(), "First chat");
    await page.fill("#search", "no such thing");
    await page.waitForSelector("text=Nothing found");
    await page.fill("#search", "");
    await t.check("history");
    await page.getByRole("button", { name: "Export and import" }).click();
    await page.getByRole("button", { name: "Export all chats" }).click();
    const { name, text } = await t.saved();
    assert.match(name, /^stonechat-\d{4}-\d\d-\d\d\.json$/);
    const exported = JSON.parse(text);
    assert.deepEqual([exported.format, exported.items.length], ["stonechat-history", 2]);
    await page.getByRole("button", { name: "Export and import" }).click();
    await page.getByRole("button", { name: "Delete all chats" }).click();
    await page.getByRole("button", { name: "Delete all", exact: true }).click();
    await page.waitForSelector("text=Chats and transcripts stay in this browser.");
    const file = (name, text) => page.setInputFiles("#import", [{ name, mimeType: "application/json", buffer: Buffer.from(text) }]);
    for (const [damaged, message] of [
      ["{", "expected a JSON file of an export"],
      ['{"format":"other"}', "`format`: expected stonechat-history, got other"],
      [JSON.stringify({ ...exported, items: [{ chat: 1, messages: [] }] }), "items[0].chat: expected an object"],
      [text.replace('"role": "user"', '"role": "root"'), "role: expected user, assistant, tool"],
      [text.replace(/"leaf": "\w+"/, '"leaf": "none"'), "expected a message of the same chat"],
    ]) {
      await file("damaged.json", damaged);
      await page.waitForSelector(`.notice.error >> text=${message}`);
    }
    assert.equal(await page.locator(".chats li").count(), 0);
    await file("export.json", text);
    await page.waitForFunction(() => document.querySelectorAll(".chats li").length === 2);
    await page.locator(".chats li a", { hasText: "First chat" }).click();
    await page.waitForSelector(".message.answer");
    assert.match(await t.answer(), /needle/);
    await t.openSidebar();
    const item = page.locator(".chats li", { hasText: "First chat" });
    await item.hover();
    await item.getByRole("button", { name: "Delete First chat" }).click();
    await page.getByRole("button", { name: "Delete", exact: true }).click();
    await page.waitForFunction(() => document.querySelectorAll(".chats li").length === 1);
    await page.reload();
    await page.waitForSelector(".chats li", { state: "attached" });
    assert.equal(await page.locator(".chats li").count(), 1);
  },

  async "a full quota is a message, and nothing is lost in the tab"(t) {
    await t.open();
    const { page } = t;
    await page.evaluate(() => (window.isFull = true));
    assert.match(await t.chat("echo while it is full"), /while it is full/);
    await page.waitForSelector(".banner >> text=The storage of this browser is full");
    await t.check("full");
    // Another chat and back: the messages are still there.
    await page.evaluate(() => (location.hash = "#/chat"));
    await page.waitForSelector(".welcome");
    await page.evaluate(() => history.back());
    await page.waitForSelector(".message.answer");
    assert.match(await t.answer(), /while it is full/);
    await page.getByRole("button", { name: "Export", exact: true }).click();
    assert.match((await t.saved()).text, /while it is full/);
    // Once there is room, the next change writes everything.
    await page.evaluate(() => (window.isFull = false));
    await t.chat("echo room again");
    await page.waitForSelector(".banner", { state: "detached" });
    await page.reload();
    await page.waitForFunction(() => document.querySelectorAll(".message").length === 4);
  },

  async "models: sizes, states, unload and load"(t) {
    await t.open();
    const { page } = t;
    await page.locator(".model-picker .popover-button").click();
    await page.waitForSelector(".model-list");
    assert.match(await page.locator(".model-row").first().innerText(), /test-chat\s+98 MB · 135 M parameters · Q4_1 · 4,096 ctx\s+loaded/);
    await t.check("models");
    await page.getByRole("button", { name: "Unload" }).click();
    await page.waitForSelector(".model-row .state >> text=not loaded");
    t.server.state.isLoadHeld = true;
    await page.getByRole("button", { name: "Load", exact: true }).click();
    await page.waitForSelector(".model-list progress");
    t.server.state.isLoadHeld = false;
    await page.waitForSelector(".model-row .state >> text=/^loaded$/");
    await page.keyboard.press("Escape");
    await page.waitForSelector(".model-list", { state: "detached" });
  },

  async "machine: facts, charts of the server and of the page"(t) {
    await t.open();
    await t.chat("echo one");
    await t.openDialog("m");
    const { page } = t;
    await page.waitForFunction(() => document.querySelectorAll(".chart polyline").length >= 6);
    const text = await page.locator("dialog").innerText();
    for (const part of ["CPU (test)", "4,096 tokens", "Generated", "KV cache in use", "× real time", "Requests of this page", "12 of 42 prompt tokens"]) {
      assert.ok(text.includes(part), `${part} in ${text}`);
    }
    await t.check("machine");
  },

  async "keys, the sheet of shortcuts, and the switch that turns keys off"(t) {
    await t.open();
    const { page } = t;
    await t.openDialog("?");
    assert.match(await page.locator("dialog").innerText(), /Search the history[\s\S]*Regenerate the last answer/);
    await t.check("help");
    await t.closeDialog();
    await page.keyboard.press("t");
    await page.waitForSelector(".drop");
    await page.keyboard.press("n");
    await page.waitForSelector(".welcome");
    await page.evaluate(() => document.activeElement?.blur());
    await page.keyboard.press("/");
    assert.equal(await page.evaluate(() => document.activeElement.id), "message");
    // In a field a key is text.
    await page.keyboard.type("nst?");
    assert.equal(await page.inputValue("#message"), "nst?");
    await t.openDialog("s");
    await page.getByLabel("Single keys are shortcuts").uncheck();
    await t.closeDialog();
    await page.evaluate(() => document.activeElement?.blur());
    await page.keyboard.press("t");
    assert.equal(await page.locator(".drop").count(), 0);
  },

  async "speech: a file, words that light up, click to seek"(t) {
    await t.open("#/speech");
    const { page } = t;
    await t.check("speech-new");
    await page.setInputFiles("#audio-file", AUDIO);
    await page.waitForSelector(".toolbar");
    assert.equal(await page.locator(".word").count(), 9);
    const form = t.calls("v1/audio/transcriptions").at(-1).body.toString("latin1");
    assert.ok(form.includes("test-speech") && form.includes("verbose_json"), form.slice(0, 800));
    await page.locator(".word").nth(5).click();
    await page.waitForFunction(() => document.querySelector("audio").currentTime > 1);
    await page.waitForFunction(() => document.querySelector(".word.lit") !== null && document.querySelector(".segment.lit") !== null);
    // The player moves on: another word is lit, and one alone.
    await page.evaluate(() => {
      const player = document.querySelector("audio");
      player.pause();
      player.currentTime = 0.1;
    });
    await page.waitForFunction(() => document.querySelector(".word.lit")?.textContent === "The");
    assert.equal(await page.locator(".word.lit").count(), 1);
    await t.check("speech");
    assert.match(await page.locator(".recording .detail").first().innerText(), /english · 0:02 · test-speech · .* × real time/);
  },

  async "speech: editing, copies and files"(t) {
    await t.open("#/speech");
    const { page } = t;
    await page.setInputFiles("#audio-file", AUDIO);
    await page.waitForSelector(".toolbar");
    const segment = page.locator(".segment").nth(1);
    await segment.hover();
    await segment.getByRole("button", { name: "Edit segment at 0:01" }).click();
    await page.getByLabel("Text of the segment").fill("jumps over a very lazy dog.");
    await page.getByRole("button", { name: "Save" }).click();
    await page.waitForFunction(() => document.querySelectorAll(".word").length === 10);
    // Words that stay keep their times.
    const starts = await segment.locator(".word").evaluateAll((list) => list.map((word) => Number(word.dataset.start)));
    assert.deepEqual([starts[0], starts[1]], [1.2, 1.48]);
    assert.ok(starts.every((start, i) => i === 0 || start >= starts[i - 1]), starts.join());
    for (const [label, pattern] of [
      ["Subtitles (SRT)", /^1\n00:00:00,000 --> 00:00:01,200\nThe quick brown fox\n\n2\n00:00:01,200 --> 00:00:02,600\njumps over a very lazy dog\.\n$/],
      ["Subtitles (WebVTT)", /^WEBVTT\n\n00:00:00\.000 --> 00:00:01\.200\nThe/],
      ["Text", /^The quick brown fox\njumps over a very lazy dog\.\n$/],
      ["JSON", /"text": "The quick brown fox jumps over a very lazy dog\."/],
    ]) {
      await page.locator(".toolbar .popover-button").first().click();
      await page.getByRole("button", { name: label, exact: true }).click();
      assert.match((await t.saved()).text, pattern, label);
    }
    await page.reload();
    await page.waitForFunction(() => document.querySelectorAll(".word").length === 10);
    assert.equal(await page.locator("audio").count(), 1);
  },

  async "speech: speakers by channel of a stereo file"(t) {
    await t.open("#/speech");
    const { page } = t;
    await page.getByLabel("Speakers by channel").check();
    await page.setInputFiles("#audio-file", { name: "stereo.wav", mimeType: "audio/wav", buffer: stereo() });
    await page.waitForSelector(".toolbar");
    assert.equal(t.calls("v1/audio/transcriptions").length, 2);
    const names = page.locator(".speaker");
    assert.equal(await names.count(), 4);
    assert.deepEqual([await names.nth(0).inputValue(), await names.nth(1).inputValue()], ["Speaker 1", "Speaker 2"]);
    await t.type(names.nth(0), "Ada");
    await page.waitForFunction(() => document.querySelectorAll(".speaker")[2]?.value === "Ada");
    await page.locator(".toolbar .popover-button").first().click();
    await page.getByRole("button", { name: "Text", exact: true }).click();
    assert.match((await t.saved()).text, /^Ada: The quick brown fox\nSpeaker 2: The/);
    await t.check("speakers");
    // A file of one channel is refused by name.
    await page.evaluate(() => (location.hash = "#/speech"));
    await page.waitForSelector(".drop");
    await page.setInputFiles("#audio-file", AUDIO);
    await page.waitForSelector("text=expected a stereo file for speakers by channel, got 1 channel(s)");
  },

  async "speech: a dropped connection keeps the segments"(t) {
    await t.open("#/speech");
    const { page } = t;
    await t.type(page.getByLabel("Prompt"), "drop-the-connection");
    await page.setInputFiles("#audio-file", AUDIO);
    await page.waitForSelector("text=What came until then is kept.");
    assert.equal(await page.locator(".segment").count(), 1);
  },

  async "speech: recording from the microphone, and dictation"(t) {
    await t.open("#/speech");
    const { page } = t;
    await page.getByRole("button", { name: "Record" }).click();
    await page.waitForSelector(".record-dot.on");
    await page.waitForFunction(() => document.querySelector(".clock").textContent !== "0:00", undefined, { timeout: 60_000 });
    await t.check("record");
    await page.getByRole("button", { name: "Stop and transcribe" }).click();
    await page.waitForSelector(".toolbar", { timeout: 60_000 });
    const body = t.calls("v1/audio/transcriptions").at(-1).body;
    assert.ok(body.length > 2000 && /filename="recording\.(webm|ogg)"/.test(body.toString("latin1")), `${body.length} bytes`);
    assert.equal(await page.locator(".word").count(), 9);
    await page.evaluate(() => (location.hash = "#/chat"));
    await page.getByRole("button", { name: "Dictate" }).click();
    await page.getByRole("button", { name: "End dictation" }).click();
    await page.waitForFunction(() => document.querySelector("#message").value.startsWith("The quick brown fox"));
  },

  async "text from right to left"(t) {
    await t.open();
    await t.chat("echo שלום עולם");
    const { page } = t;
    const direction = (selector) => page.locator(selector).last().evaluate((element) => getComputedStyle(element).direction);
    assert.equal(await direction(".markdown > div"), "rtl");
    await t.chat("שלום");
    assert.equal(await direction(".bubble"), "rtl");
    await page.fill("#message", "مرحبا");
    assert.equal(await direction("#message"), "rtl");
    await t.check("rtl");
  },

  async "the theme is that of the system, or the chosen one"(t) {
    await t.open();
    const { page } = t;
    const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    await t.openDialog("s");
    const choose = (name) => page.getByRole("group", { name: "Colours" }).getByRole("button", { name }).click();
    await choose("Dark");
    assert.equal(await background(), "rgb(23, 25, 27)");
    await choose("Light");
    assert.equal(await background(), "rgb(251, 250, 248)");
    await page.reload();
    await page.waitForSelector(".header");
    assert.equal(await background(), "rgb(251, 250, 248)");
  },

  async "this browser: models are loaded, chat, speech and live speech"(t) {
    await t.server.close();
    t.server = await startServer({ prefix: PREFIX, web: { "index.js": PACKAGE } });
    const { page } = t;
    await t.open();
    await page.locator(".model-picker .popover-button").click();
    await page.getByRole("button", { name: "This browser" }).click();
    await page.waitForSelector("text=smollm2:135m");
    await t.check("browser-models");
    await page.evaluate(() => (window.isLoadHeld = true));
    await page.locator(".model-list li", { hasText: "smollm2:135m" }).getByRole("button", { name: "Load", exact: true }).click();
    await page.waitForSelector(".model-list progress");
    await page.evaluate(() => (window.isLoadHeld = false));
    await page.waitForFunction(() => document.querySelector(".model-list li .state")?.textContent === "loaded");
    await page.keyboard.press("Escape");
    assert.match(await t.chat("hello"), /Browser says: hello/);
    await t.openDialog("m");
    await page.waitForSelector("text=relaxed");
    assert.match(await page.locator("dialog").innerText(), /123 MB[\s\S]*No WebGPU/);
    await t.closeDialog();
    // A model of local files, and one that is none.
    await page.locator(".model-picker .popover-button").click();
    await page.setInputFiles(".add-model input[type=file]", { name: "broken.gguf", mimeType: "application/octet-stream", buffer: Buffer.from("x") });
    const broken = page.locator(".model-list li", { hasText: "broken.gguf" });
    await broken.getByRole("button", { name: "Load", exact: true }).click();
    await page.waitForSelector(".notice.error >> text=the file is no model");
    await page.locator(".model-list li", { hasText: "smollm2:135m" }).locator(".model-row").click();
    await page.evaluate(() => (location.hash = "#/speech"));
    await page.waitForSelector(".drop");
    // The model is loaded with the first request.
    await page.locator(".model-picker .popover-button").click();
    await page.locator(".model-list li", { hasText: "tiny.en" }).locator(".model-row").click();
    await page.setInputFiles("#audio-file", AUDIO);
    await page.waitForFunction(() => document.querySelectorAll(".word").length === 2);
    await page.evaluate(() => (location.hash = "#/speech"));
    await page.getByRole("button", { name: "Live" }).click();
    // Without an output device, as on a server, the audio of Firefox does not start.
    const noAudio = page.locator(".notice.error >> text=is there an output device?");
    await page.locator(".live-text >> text=hello").or(noAudio).first().waitFor({ timeout: 60_000 });
    const isSilent = (await noAudio.count()) > 0;
    assert.ok(!isSilent || t.browser === "firefox", "Chromium has audio without a device");
    if (!isSilent) {
      await page.getByRole("button", { name: "End" }).click();
      await page.waitForSelector(".segment >> text=hello there");
    }
    // Nothing was asked of the server.
    assert.deepEqual([t.calls("v1/chat/completions").length, t.calls("v1/audio/transcriptions").length], [0, 0]);
    return isSilent ? "live speech did not run: this machine has no audio device, which the page says" : "";
  },

  async "server: chat, its branches, and the machine"(t) {
    const { page } = t;
    await t.open();
    await t.openDialog("s");
    await t.type(page.locator("input[name=temperature]"), "0");
    await t.type(page.locator("input[name=max_tokens]"), "24");
    await t.closeDialog();
    const first = await t.chat("What is granite?");
    assert.match(first, /\w{3,}[\s\S]*tok\/s/);
    await t.act("Regenerate");
    await page.waitForSelector(".branches");
    await t.idle();
    // Greedy tokens are the same ones; the prompt is cached.
    const text = (answer) => answer.split("\n\n")[0];
    const second = await t.answer();
    assert.equal(text(second), text(first));
    assert.match(second, /\d+ of \d+ prompt tokens cached/);
    await t.openDialog("s");
    await t.type(page.getByLabel("JSON schema of answers"), '{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}');
    await t.closeDialog();
    const json = await t.chat("Give me a number as JSON.");
    assert.match(json, /^\s*\{\s*"n":/);
    await t.openDialog("m");
    await page.waitForFunction(() => document.querySelectorAll(".chart").length >= 2);
    assert.match(await page.locator("dialog").innerText(), /stonechat \d+\.\d+/);
    await t.check("server-machine");
  },

  async "server: speech with times of words"(t) {
    await t.open("#/speech");
    const { page } = t;
    await page.setInputFiles("#audio-file", AUDIO);
    await page.waitForSelector(".toolbar", { timeout: 120_000 });
    assert.match(await page.locator(".transcript").innerText(), /The quick brown fox jumps over the lazy dog\./);
    // A server of an earlier version streams no words.
    if (args.served) assert.equal(await page.locator(".word").count(), 9);
    await t.check("server-speech");
  },

  async "package: speech and chat of models in this browser"(t) {
    const { page } = t;
    await t.open();
    await page.locator(".model-picker .popover-button").click();
    await page.getByRole("button", { name: "This browser" }).click();
    const load = async (path) => {
      const name = basename(path);
      await page.setInputFiles(".add-model input[type=file]", path);
      const row = page.locator(".model-list li", { hasText: name });
      await row.getByRole("button", { name: "Load", exact: true }).click();
      await row.locator(".state >> text=/^loaded$/").or(page.locator(".notice.error")).first().waitFor({ timeout: 240_000 });
      assert.equal(await page.locator(".notice.error").count(), 0, await page.locator(".notices").innerText());
      await page.keyboard.press("Escape");
    };
    await load(args["language-model"]);
    await t.openDialog("s");
    await t.type(page.locator("input[name=temperature]"), "0");
    await t.type(page.locator("input[name=max_tokens]"), "16");
    await t.closeDialog();
    const answer = await t.chat("What is granite?");
    assert.match(answer, /granite[\s\S]*tok\/s/i);
    await page.evaluate(() => (location.hash = "#/speech"));
    await page.waitForSelector(".drop");
    await page.locator(".model-picker .popover-button").click();
    await load(args["speech-model"]);
    await page.setInputFiles("#audio-file", AUDIO);
    await page.waitForSelector(".toolbar", { timeout: 240_000 });
    assert.match(await page.locator(".transcript").innerText(), /The quick brown fox jumps over the lazy dog\./);
    await t.openDialog("m");
    await t.check("package-machine");
    return `${answer.replace(/\s+/g, " ").slice(0, 160)} | ${(await page.locator("dialog").innerText()).replace(/\s+/g, " ").slice(0, 300)}`;
  },

  async "an answer goes on while another chat is shown"(t) {
    await t.open();
    const { page } = t;
    await t.ask("long 4");
    await page.waitForFunction(() => document.querySelector(".message.answer .markdown"));
    await page.evaluate(() => (location.hash = "#/chat"));
    await page.waitForSelector(".welcome");
    assert.match(await t.chat("echo meanwhile"), /meanwhile/);
    await page.evaluate(() => history.go(-2));
    await page.waitForFunction(() => document.querySelector(".message.user")?.textContent.includes("long 4"));
    await t.idle();
    assert.match(await page.locator(".message.answer .actions").innerText(), /tokens/);
  },

  async "60 seconds of generation: memory is flat, and finished blocks stay"(t) {
    // One width is enough: it is about time.
    if (t.isPhone || t.scheme === "dark") return t.skip("runs at 1440 pixels, light");
    await t.open();
    const { page } = t;
    await t.chat("echo before");
    await t.ask("long 60");
    await page.waitForFunction(() => document.querySelectorAll(".message.answer")[1]?.querySelectorAll(".markdown > div").length > 3);
    await page.evaluate(() => {
      const answer = document.querySelectorAll(".message.answer")[1];
      window.first = answer.querySelector(".markdown > div > :first-child");
      window.changes = 0;
      const observer = new MutationObserver((records) => (window.changes += records.length));
      const options = { childList: true, subtree: true, characterData: true, attributes: true };
      observer.observe(document.querySelector(".message.answer"), options);
      observer.observe(document.querySelector(".composer"), options);
      observer.observe(document.querySelector(".header"), options);
    });
    const cdp = t.browser === "chromium" ? await t.context.newCDPSession(page) : undefined;
    const heap = async () => {
      if (!cdp) return 0;
      await cdp.send("HeapProfiler.collectGarbage");
      return (await cdp.send("Runtime.getHeapUsage")).usedSize;
    };
    await page.waitForTimeout(15_000);
    const before = await heap();
    await page.waitForTimeout(30_000);
    const after = await heap();
    await t.idle();
    const { isSame, changes, length } = await page.evaluate(() => ({
      isSame: window.first.isConnected && document.querySelectorAll(".message.answer")[1].contains(window.first),
      changes: window.changes, length: document.querySelectorAll(".message.answer")[1].textContent.length,
    }));
    assert.ok(length > 20_000, `${length} characters`);
    assert.ok(isSame, "a finished block was drawn again");
    // The end of the answer changes the field below it.
    assert.ok(changes < 40, `${changes} changes outside of the answer`);
    const growth = (after - before) / 1e6;
    assert.ok(growth < 6, `the heap grew by ${growth.toFixed(1)} MB in 30 s`);
    return cdp ? `heap ${(before / 1e6).toFixed(1)} MB, 30 s later ${(after / 1e6).toFixed(1)} MB; ${length} characters` : `${length} characters`;
  },
};

/** A stereo WAV file of a second. */
function stereo() {
  const n = 16_000;
  const bytes = Buffer.alloc(44 + 4 * n);
  bytes.write("RIFF", 0);
  bytes.writeUInt32LE(36 + 4 * n, 4);
  bytes.write("WAVEfmt ", 8);
  bytes.writeUInt32LE(16, 16);
  bytes.writeUInt16LE(1, 20);
  bytes.writeUInt16LE(2, 22);
  bytes.writeUInt32LE(16_000, 24);
  bytes.writeUInt32LE(64_000, 28);
  bytes.writeUInt16LE(4, 32);
  bytes.writeUInt16LE(16, 34);
  bytes.write("data", 36);
  bytes.writeUInt32LE(4 * n, 40);
  for (let i = 0; i < n; i++) {
    bytes.writeInt16LE(Math.round(8000 * Math.sin(i / 10)), 44 + 4 * i);
    bytes.writeInt16LE(Math.round(8000 * Math.sin(i / 25)), 46 + 4 * i);
  }
  return bytes;
}

// --- Browsers

const BROWSERS = ["chromium", "firefox"];

/** Runs before the page: files that it saves are gathered, and the storage can be full. */
function prepare({ scheme, isForced }) {
  // An empty document has no storage.
  if (!location.protocol.startsWith("http")) return;
  window.savedFiles = [];
  const create = URL.createObjectURL.bind(URL);
  URL.createObjectURL = (blob) => {
    const url = create(blob);
    const click = HTMLAnchorElement.prototype.click;
    HTMLAnchorElement.prototype.click = function () {
      HTMLAnchorElement.prototype.click = click;
      if (this.href === url) void blob.text().then((text) => window.savedFiles.push({ name: this.download, text }));
      else click.call(this);
    };
    setTimeout(() => (HTMLAnchorElement.prototype.click = click));
    return url;
  };
  const put = IDBObjectStore.prototype.put;
  IDBObjectStore.prototype.put = function (...values) {
    if (window.isFull) throw new DOMException("the quota has been exceeded", "QuotaExceededError");
    return put.apply(this, values);
  };
  // Playwright cannot set the scheme of this Firefox.
  if (isForced && !localStorage.getItem("stonechat-settings")) localStorage.setItem("stonechat-settings", JSON.stringify({ theme: scheme }));
}

const results = { passed: 0, skipped: 0, failed: [] };

async function runOne(browser, name, width, scheme, title) {
  const real = title.startsWith("server:") ? { [args.served ? "upstream" : "api"]: args.server } : {};
  const web = title.startsWith("package:") ? { web: args.package } : {};
  const server = await startServer({ prefix: PREFIX, ...real, ...web });
  const context = await browser.newContext({ viewport: { width, height: width < 760 ? 844 : 900 }, ...(name === "chromium" ? { colorScheme: scheme } : {}) });
  const page = await context.newPage();
  page.setDefaultTimeout(30_000);
  const complaints = [];
  const complain = (text) => {
    if (!t.isChecking && !EXPECTED.some((pattern) => pattern.test(text))) complaints.push(text);
  };
  page.on("console", (message) => {
    const isBad = message.type() === "error" || /Content Security Policy|Content-Security-Policy/.test(message.text());
    if (isBad) complain(message.text());
  });
  page.on("pageerror", (error) => complain(String(error.stack ?? error)));
  await page.addInitScript(prepare, { scheme, isForced: name === "firefox" });
  const t = new Case(context, page, server, width, scheme, name);
  const label = `${name} ${width} ${scheme}: ${title}`;
  const start = Date.now();
  try {
    const note = await tests[title](t);
    assert.deepEqual(complaints, [], "the console");
    results[t.isSkipped ? "skipped" : "passed"]++;
    console.log(`${t.isSkipped ? "skip" : "ok  "} ${label} (${((Date.now() - start) / 1000).toFixed(1)} s)${note ? ` ${note}` : ""}`);
  } catch (error) {
    results.failed.push(label);
    console.log(`FAIL ${label}\n     ${String(error.message ?? error).split("\n").slice(0, 30).join("\n     ")}\n     ${complaints.join("\n     ")}`);
    await page.screenshot({ path: `/tmp/page-failure-${results.failed.length}.png` }).catch(() => undefined);
  } finally {
    await context.close();
    await t.server.close();
    if (t.server !== server) await server.close();
  }
}

for (const name of BROWSERS.filter((one) => !args.browser || one === args.browser)) {
  const browser = await launch(name, { hasMedia: true });
  console.log(`${name} ${browser.version()}`);
  for (const width of [390, 1440].filter((one) => !args.width || one === Number(args.width))) {
    for (const scheme of ["light", "dark"].filter((one) => !args.scheme || one === args.scheme)) {
      for (const title of Object.keys(tests).filter((one) => !args.only || one.includes(args.only))) {
        if (title.startsWith("server:") && !args.server) continue;
        if (title.startsWith("package:") && !args.package) continue;
        await runOne(browser, name, width, scheme, title);
      }
    }
  }
  await browser.close();
}
if (!args.server) console.log("not run without --server: the tests of a real server");
if (!args.package) console.log("not run without --package: the test of the npm package");
console.log(`${results.passed} passed, ${results.skipped} skipped, ${results.failed.length} failed${results.failed.map((label) => `\n  ${label}`).join("")}`);
process.exit(results.failed.length === 0 && results.passed > 0 ? 0 : 1);
