// Service worker: the static files of the page, so that it opens without its server. Answers of the API are never kept.

/// <reference lib="webworker" />
declare const self: ServiceWorkerGlobalScope;
/** Names with their content hashes, which the build fills in. */
declare const FILES: string[];
declare const VERSION: string;

const SCOPE = new URL("./", self.location.href);
/** Caches of this page alone: several may share an origin, each below its prefix. */
const PREFIX = `stonechat-page ${SCOPE.pathname} `;
const CACHE = PREFIX + VERSION;
/** Files of the package for the engine "this browser". */
const PACKAGE = "web/";

self.addEventListener("install", (event) => {
  const fill = async () => {
    const cache = await caches.open(CACHE);
    const requests = FILES.map((file) => new Request(new URL(file, SCOPE), { cache: "reload" }));
    await cache.addAll(requests);
    await self.skipWaiting();
  };
  event.waitUntil(fill());
});

self.addEventListener("activate", (event) => {
  const clean = async () => {
    const names = await caches.keys();
    await Promise.all(names.filter((name) => name.startsWith(PREFIX) && name !== CACHE).map((name) => caches.delete(name)));
    await self.clients.claim();
  };
  event.waitUntil(clean());
});

self.addEventListener("fetch", (event) => {
  const { request } = event;
  const url = new URL(request.url);
  if (request.method !== "GET" || url.origin !== SCOPE.origin || !url.pathname.startsWith(SCOPE.pathname)) return;
  const path = url.pathname.slice(SCOPE.pathname.length) + url.search;
  if (path === "" || path.startsWith(PACKAGE)) event.respondWith(networkFirst(request));
  else if (FILES.includes(path)) event.respondWith(cacheFirst(request));
});

/** The newest file; the kept one without a connection. */
async function networkFirst(request: Request): Promise<Response> {
  const cache = await caches.open(CACHE);
  try {
    const response = await fetch(request);
    if (response.ok && response.status === 200) await cache.put(request, response.clone()).catch(() => undefined);
    return response;
  } catch (error) {
    const kept = await cache.match(request, { ignoreSearch: true });
    if (kept) return kept;
    throw error;
  }
}

async function cacheFirst(request: Request): Promise<Response> {
  const cache = await caches.open(CACHE);
  return (await cache.match(request)) ?? fetch(request);
}
