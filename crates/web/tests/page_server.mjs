// Server of the page for its tests: below a path prefix, with an API whose answers the prompt chooses, or before a real server.

import { readFile } from "node:fs/promises";
import http from "node:http";
import { dirname, extname, join } from "node:path";
import { fileURLToPath } from "node:url";

const PAGE = join(dirname(fileURLToPath(import.meta.url)), "../../server/src/page");
const TYPES = {
  ".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
  ".wasm": "application/wasm", ".svg": "image/svg+xml", ".webmanifest": "application/manifest+json",
};
/** Headers of `routes/page.rs`. */
const HEADERS = {
  "content-security-policy":
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self' data: blob:; media-src 'self' blob:; " +
    "connect-src 'self'; worker-src 'self' blob:; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
  "cross-origin-opener-policy": "same-origin",
  "cross-origin-embedder-policy": "require-corp",
  "x-content-type-options": "nosniff",
  "cache-control": "no-cache",
};

export const MARKDOWN = `Here is **bold** text, \`code\` and a [link](https://example.org/).

\`\`\`rust
fn main() {
    println!("Hello {}", 42); // a comment
}
\`\`\`

| Format | Bits | Speed |
|:-------|-----:|------:|
| q4_1   |  5.0 |  257  |
| q8_0   |  8.5 |  190  |

1. First
2. Second
   - nested

> A quotation.`;

export const HOSTILE = `<img src=x onerror="window.hacked=1"><script>window.hacked=1</script> [a](javascript:window.hacked=1)
![tracker](https://tracker.example/pixel.png) <a href="javascript:window.hacked=1" onclick="window.hacked=1">b</a>
<style>body{display:none}</style><iframe src="https://tracker.example/"></iframe>

\`\`\`"><img/src=x/onerror=window.hacked=1>
</code></pre><img src=x onerror=window.hacked=1>
\`\`\`
`;

/**
 * Starts a server; `calls` are the requests that its API got. `upstream` is a real server of page and API, `api` one of the API
 * alone. `web` is the npm package: texts by file name, or the folder of its dist.
 */
export async function startServer({ prefix = "/", upstream, api: apiServer, key, web, models = ["test-chat", "test-speech"] } = {}) {
  const state = { calls: [], sockets: new Set(), isDown: false, key, models, loads: new Map() };
  const server = http.createServer((request, response) => {
    answer(request, response).catch((error) => {
      if (!response.headersSent) response.writeHead(500);
      response.end(String(error));
    });
  });
  server.on("connection", (socket) => {
    state.sockets.add(socket);
    socket.on("close", () => state.sockets.delete(socket));
  });

  async function answer(request, response) {
    if (state.isDown) return request.socket.destroy();
    const url = new URL(request.url, "http://localhost");
    if (!url.pathname.startsWith(prefix)) return void response.writeHead(404).end();
    const path = url.pathname.slice(prefix.length);
    if (upstream) return proxy(request, response, new URL(path + url.search, upstream));
    if (path.startsWith("web/")) return sendPackage(response, web, path.slice(4));
    const name = path || "index.html";
    if (request.method === "GET" && /^[\w-]+\.\w+$/.test(name) && TYPES[extname(name)]) {
      const bytes = await readFile(join(PAGE, name)).catch(() => undefined);
      if (!bytes) return void response.writeHead(404).end();
      return void response.writeHead(200, { ...HEADERS, "content-type": TYPES[extname(name)] }).end(bytes);
    }
    if (apiServer) return proxy(request, response, new URL(path + url.search, apiServer));
    const body = await readBody(request);
    state.calls.push({ path, method: request.method, body, headers: request.headers });
    await api(state, request, response, path, body);
  }

  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address();
  return {
    state,
    url: `http://127.0.0.1:${port}${prefix}`,
    close: () => new Promise((resolve) => {
      for (const socket of state.sockets) socket.destroy();
      server.close(resolve);
    }),
  };
}

async function readBody(request) {
  const parts = [];
  for await (const part of request) parts.push(part);
  return Buffer.concat(parts);
}

function proxy(request, response, target) {
  return new Promise((resolve) => {
    const headers = { ...request.headers, host: target.host };
    delete headers.origin;
    const out = http.request(target, { method: request.method, headers }, (answer) => {
      response.writeHead(answer.statusCode, answer.headers);
      answer.pipe(response);
      answer.on("close", resolve);
    });
    out.on("error", () => {
      response.destroy();
      resolve();
    });
    response.on("close", () => out.destroy());
    request.pipe(out);
  });
}

async function sendPackage(response, web, name) {
  const found = typeof web === "string" && /^[\w-]+\.\w+$/.test(name) ? await readFile(join(web, name)).catch(() => undefined) : web?.[name];
  if (found === undefined) return void response.writeHead(404).end();
  response.writeHead(200, { ...HEADERS, "content-type": TYPES[extname(name)] ?? "application/octet-stream" }).end(found);
}

function sendJson(response, value, status = 200) {
  response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(value));
}

function sendError(response, status, message, type = "invalid_request_error") {
  sendJson(response, { error: { code: status, message, type } }, status);
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function api(state, request, response, path, body) {
  if (path === "health") return sendJson(response, { status: "ok" });
  if (state.key && request.headers.authorization !== `Bearer ${state.key}`) return sendError(response, 401, "Invalid API Key", "authentication_error");
  switch (path) {
    case "v1/models": return sendJson(response, { object: "list", data: state.models.map((id) => model(state, id)) });
    case "props": return sendJson(response, {
      build_info: "stonechat test", device: "CPU (test)", threads: 2, total_slots: 4, endpoint_metrics: true,
      default_generation_settings: { n_ctx: 4096, params: { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, repeat_penalty: 1, seed: 4294967295 } },
    });
    case "metrics": return void response.writeHead(200, { "content-type": "text/plain" }).end(metrics(state));
    case "models/load": {
      const { model } = JSON.parse(body);
      state.loads.set(model, Date.now() + 300);
      return sendJson(response, { success: true });
    }
    case "models/unload": {
      state.loads.set(JSON.parse(body).model, Infinity);
      return sendJson(response, { success: true });
    }
    case "v1/chat/completions": return chat(state, response, JSON.parse(body));
    case "v1/audio/transcriptions":
    case "v1/audio/translations": return transcribe(state, response, body.toString("latin1"));
    default: return sendError(response, 404, `no route ${path}`);
  }
}

function model(state, id) {
  const until = state.loads.get(id);
  const isLoading = until > Date.now() || (until !== undefined && state.isLoadHeld);
  const value = until === Infinity ? "unloaded" : isLoading ? "loading" : "loaded";
  const isSpeech = id.includes("speech");
  return {
    id, task: isSpeech ? "automatic-speech-recognition" : "text-generation", status: { value },
    meta: { size: isSpeech ? 78e6 : 98e6, n_params: isSpeech ? 38e6 : 135e6, ftype: "q4_1", ...(!isSpeech && { n_ctx: 4096 }) },
  };
}

function metrics(state) {
  const n = state.calls.filter(({ path }) => path === "v1/chat/completions").length;
  const t = Math.floor(performance.now() / 100);
  return [
    "# HELP stonechat:generation_tokens_total x", `stonechat:generation_tokens_total{model_name="a"} ${t + 40 * n}`,
    `stonechat:generation_tokens_total{model_name="b"} 2`, `stonechat:prompt_tokens_total{model_name="a"} ${200 + 3 * t}`,
    `stonechat:prompt_tokens_cached_total{model_name="a"} ${100 + t}`, `stonechat:num_requests_running{model_name="a"} ${t % 4}`,
    'stonechat:num_requests_waiting{model_name="a"} 0', 'stonechat:kv_cache_pages{model_name="a"} 128',
    `stonechat:kv_cache_pages_used{model_name="a"} ${32 + (t % 32)}`, 'stonechat:audio_seconds_total{model_name="s"} 12.5',
    'stonechat:audio_speed_sum{model_name="s"} 24', 'stonechat:audio_speed_count{model_name="s"} 2', "# EOF", "",
  ].join("\n");
}

async function chat(state, response, body) {
  const messages = body.messages;
  const last = messages.at(-1);
  const prompt = last.role === "assistant" ? "resume" : last.content;
  const words = prompt.split(" ");
  const send = (delta, finish = null, more = {}) =>
    response.write(`data: ${JSON.stringify({ choices: [{ index: 0, delta, finish_reason: finish }], ...more })}\n\n`);
  const timings = (n) => ({ timings: { cache_n: 12, prompt_n: 30, prompt_ms: 50, prompt_per_second: 600, predicted_n: n, predicted_ms: 100, predicted_per_second: 123 } });
  const say = async (text, delay = 2) => {
    const pieces = text.match(/\s*\S+|\s+$/g) ?? [];
    for (const piece of pieces) {
      if (response.destroyed) return;
      send({ content: piece });
      if (delay) await sleep(delay);
    }
    send({}, "stop", timings(pieces.length));
    response.end("data: [DONE]\n\n");
  };
  if (words[0] === "fail") return sendError(response, 400, "the prompt exceeds the context");
  response.writeHead(200, { "content-type": "text/event-stream" });
  send({ role: "assistant", content: null });
  switch (words[0]) {
    case "markdown": return say(MARKDOWN);
    case "hostile": return say(HOSTILE);
    case "repeat": return say(`${words[1].repeat(20_000)} the end`, 0);
    case "echo": return say(words.slice(1).join(" "));
    case "count": return say(`Answer ${state.calls.filter(({ path }) => path === "v1/chat/completions").length}`);
    case "fields": {
      const { messages: _, ...fields } = body;
      return say(`\`\`\`json\n${JSON.stringify(fields, null, 1)}\n\`\`\``);
    }
    case "context": return say(`\`\`\`json\n${JSON.stringify(messages, null, 1)}\n\`\`\``);
    case "slow": return say("word ".repeat(2000), 20);
    case "drop":
      for (const piece of ["This ", "came ", "before "]) {
        send({ content: piece });
        await sleep(30);
      }
      return void response.destroy();
    case "resume": return say("and this after the drop.");
    case "think":
      for (const piece of ["First ", "I ", "think."]) send({ reasoning_content: piece });
      await sleep(200);
      return say("The answer is 42.");
    case "tags": return say("<think>Hidden thoughts here</think>\n\nVisible answer.");
    case "tool":
      send({ tool_calls: [{ index: 0, id: "call_a", type: "function", function: { name: "get_weather", arguments: "" } }] });
      for (const part of ['{"city": ', '"Oslo"}']) {
        send({ tool_calls: [{ index: 0, function: { arguments: part } }] });
        await sleep(100);
      }
      send({}, "tool_calls", timings(9));
      return void response.end("data: [DONE]\n\n");
    case "long": return long(response, send, Number(words[1]), timings);
    default: return say(`You wrote: ${prompt}`);
  }
}

/** Tokens for as many seconds, 200 in each, in paragraphs, lists and code. */
async function long(response, send, seconds, timings) {
  const start = Date.now();
  let n = 0;
  while (n < 200 * seconds && !response.destroyed) {
    // A busy machine sends what is due in larger parts.
    while (n < (Date.now() - start) / 5 && n < 200 * seconds) {
      n++;
      const piece = n % 400 === 0 ? "\n\n```python\nprint(1)\n```\n\n" : n % 100 === 0 ? "\n\n" : n % 250 === 0 ? "\n- item " : `word${n % 97} `;
      send({ content: piece });
    }
    await sleep(20);
  }
  send({}, "stop", timings(n));
  response.end("data: [DONE]\n\n");
}

const SEGMENTS = [
  { start: 0, end: 1.2, text: " The quick brown fox", words: ["The", "quick", "brown", "fox"] },
  { start: 1.2, end: 2.6, text: " jumps over the lazy dog.", words: ["jumps", "over", "the", "lazy", "dog."] },
];

async function transcribe(state, response, form) {
  const hasWords = form.includes("\r\n\r\nword\r\n");
  response.writeHead(200, { "content-type": "text/event-stream" });
  const send = (value) => response.write(`data: ${JSON.stringify(value)}\n\n`);
  for (const [i, { start, end, text, words }] of SEGMENTS.entries()) {
    const step = (end - start) / words.length;
    const timed = words.map((word, j) => ({ word, start: start + j * step, end: start + (j + 1) * step }));
    if (form.includes("drop-the-connection") && i === 1) return void response.destroy();
    send({ type: "transcript.text.segment", id: `seg_${i}`, start, end, text, ...(hasWords && { words: timed }) });
    send({ type: "transcript.text.delta", delta: text });
    await sleep(50);
  }
  const text = SEGMENTS.map((segment) => segment.text).join("").trim();
  send({ type: "transcript.text.done", text, language: "english", duration: 2.8, usage: { type: "duration", seconds: 3 } });
  response.end();
}
