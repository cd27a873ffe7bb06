// A server of static folders and of files whose downloads go wrong in a chosen way.

import { createHash } from "node:crypto";
import { createReadStream, existsSync, statSync } from "node:fs";
import { createServer } from "node:http";
import { extname, join, normalize } from "node:path";

const TYPES = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript",
  ".mjs": "text/javascript",
  ".wasm": "application/wasm",
  ".json": "application/json",
};

/** Headers of a page that is cross-origin isolated. */
export const ISOLATED = { "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp" };

/** Random bytes that are the same for the same seed. */
export function noise(size, seed = 1) {
  const bytes = Buffer.alloc(size);
  let state = seed >>> 0;
  for (let i = 0; i < size; i += 1) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    bytes[i] = state >>> 24;
  }
  return bytes;
}

export function sha256(bytes) {
  return createHash("sha256").update(bytes).digest("hex");
}

/**
 * Starts a server. `folders` maps prefixes to folders, `files` paths to `{bytes, fault, ...}`, `headers` are sent with every answer.
 *
 * Faults: `noRanges`, `breaks` (the first `n` answers end early), `shifted` and `long` (ranges that are not the asked ones), `changes` (another
 * `ETag` from answer `n` on), `short` (the first `n` answers have too few bytes), `stalls` (the first `n` answers stop), `status` (the first `n`
 * answers have that status), `hidden` (headers that other origins may not read), `slow` (`delay` ms for each `step` bytes; a new delay holds for
 * running answers too).
 */
export async function serve({ folders = {}, files = {}, headers = {} } = {}) {
  const log = [];
  const server = createServer((request, response) => {
    const { pathname, search } = new URL(request.url, "http://x");
    const path = decodeURIComponent(pathname);
    for (const [name, value] of Object.entries(headers)) {
      response.setHeader(name, value);
    }
    if (request.method === "OPTIONS") {
      response.writeHead(204, { "Access-Control-Allow-Headers": "*" }).end();
      return;
    }
    log.push({ path, range: request.headers.range, headers: request.headers });
    const file = files[path + search] ?? files[path];
    if (file) {
      file.count = (file.count ?? 0) + 1;
      answerFile(request, response, file);
      return;
    }
    const prefix = Object.keys(folders).find((one) => path.startsWith(one));
    const target = prefix && join(folders[prefix], normalize(path.slice(prefix.length)));
    if (!target || !existsSync(target) || !statSync(target).isFile()) {
      response.writeHead(404).end("not found");
      return;
    }
    const { size, mtimeMs } = statSync(target);
    const common = { "Content-Type": TYPES[extname(target)] ?? "application/octet-stream", ETag: `"${size}-${mtimeMs}"` };
    const range = /^bytes=(\d+)-(\d+)$/.exec(request.headers.range ?? "");
    const [start, end] = range ? [Number(range[1]), Math.min(Number(range[2]), size - 1)] : [0, size - 1];
    const shown = range ? { "Content-Range": `bytes ${start}-${end}/${size}` } : {};
    response.writeHead(range ? 206 : 200, { ...common, ...shown, "Content-Length": end - start + 1 });
    createReadStream(target, { start, end: Math.max(end, 0) }).pipe(response);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const url = `http://127.0.0.1:${server.address().port}`;
  const close = () => {
    server.closeAllConnections();
    return new Promise((resolve) => server.close(resolve));
  };
  return { url, files, log, close };
}

function answerFile(request, response, file) {
  const { fault, n = 1, count } = file;
  const isFirst = count <= n;
  if (fault === "status" && isFirst) {
    response.writeHead(file.status, file.retryAfter ? { "Retry-After": String(file.retryAfter) } : {}).end("fault");
    return;
  }
  const isChanged = fault === "changes" && count >= n;
  const bytes = isChanged ? (file.later ?? file.bytes) : file.bytes;
  const always = fault === "changesAlways" ? count : isChanged ? 2 : 1;
  const etag = `"v${always}"`;
  const range = /^bytes=(\d+)-(\d+)$/.exec(request.headers.range ?? "");
  if (!range || fault === "noRanges") {
    response.writeHead(200, { "Content-Length": bytes.length, ETag: etag, ...file.extra });
    send(response, bytes, file, isFirst);
    return;
  }
  let [from, to] = [Number(range[1]), Math.min(Number(range[2]) + 1, bytes.length)];
  if (from >= bytes.length) {
    response.writeHead(416, { "Content-Range": `bytes */${bytes.length}` }).end();
    return;
  }
  if (fault === "shifted" && from > 0) {
    from -= 10;
    to -= 10;
  }
  const shown = { "Content-Range": `bytes ${from}-${to - 1}/${bytes.length}`, ETag: etag };
  let part = bytes.subarray(from, to);
  if (fault === "long" && from > 0) {
    part = bytes.subarray(from - 10, to);
  }
  if (fault === "short" && isFirst) {
    part = part.subarray(0, Math.floor(part.length / 2));
  }
  response.writeHead(206, { "Content-Length": part.length, ...(fault === "hidden" ? {} : { "Access-Control-Expose-Headers": "*" }), ...shown });
  send(response, part, file, isFirst);
}

async function send(response, bytes, file, isFirst) {
  const { fault, step = 65536 } = file;
  const half = Math.floor(bytes.length / 2);
  if (fault === "breaks" && isFirst) {
    response.write(bytes.subarray(0, half), () => response.destroy());
    return;
  }
  if (fault === "stalls" && isFirst) {
    response.write(bytes.subarray(0, half));
    return;
  }
  if (fault !== "slow") {
    response.end(bytes);
    return;
  }
  for (let at = 0; at < bytes.length && !response.destroyed; at += step) {
    response.write(bytes.subarray(at, at + step));
    await new Promise((resolve) => setTimeout(resolve, file.delay ?? 0));
  }
  response.end();
}
