/** From a `Source` to the files of a model: names, addresses, parts of split GGUF files, names on the hub. */

import { invalid } from "./errors.js";
import { isNode } from "./host.js";
import type { FileSpec } from "./protocol.js";
import type { Source } from "./types.js";

/** The Hugging Face hub, for names of models. */
const HUB = "https://huggingface.co/";

/** Parts of a split GGUF file. @internal */
export const SPLIT = /-(\d{5})-of-(\d{5})\.gguf$/;

/** Maximum parts of a split file, and files of a model. */
const MAX_FILES = 1000;

/** Options of `specsOf`. @internal */
export interface SourceOptions {
  hub?: string | URL | undefined;
  sha256?: string | Record<string, string> | undefined;
}

/** Files of a source, with absolute addresses. @internal */
export function specsOf(source: Source, options: SourceOptions = {}): FileSpec[] {
  const specs = withHashes(listSpecs(source, options), options.sha256);
  const names = specs.map((spec) => spec.name);
  const twice = names.find((name, i) => names.indexOf(name) !== i);
  if (twice !== undefined) {
    throw invalid("source", "files with different names", `\`${twice}\` twice`);
  }
  if (specs.length === 0 || specs.length > MAX_FILES) {
    throw invalid("source", `1 to ${MAX_FILES} files`, `${specs.length} files`);
  }
  return specs;
}

function listSpecs(source: Source, options: SourceOptions): FileSpec[] {
  if (typeof source === "string" || source instanceof URL) {
    return splitParts(addressSpec(source, options));
  }
  if (source instanceof Blob) {
    return [blobSpec(source, "model")];
  }
  if (Array.isArray(source)) {
    return source.map((blob, i) => {
      if (!(blob instanceof Blob)) {
        throw invalid("source", "an array of `Blob`s", blob);
      }
      return blobSpec(blob, `part-${i}`);
    });
  }
  if (typeof source === "object" && source !== null) {
    return Object.entries(source).map(([name, file]) => {
      if (file instanceof Blob) {
        return { name, blob: file };
      }
      if (typeof file !== "string" && !(file instanceof URL)) {
        throw invalid(`source.${name}`, "a `Blob`, string or `URL`", file);
      }
      return { ...addressSpec(file, options), name };
    });
  }
  throw invalid("source", "an address, a `Blob`, `Blob`s or an object of files", source);
}

function blobSpec(blob: Blob, fallback: string): FileSpec {
  const { name } = blob as Partial<File>;
  return { name: name || fallback, blob };
}

/** A string or URL as an address, a name on the hub, or a path of Node. */
function addressSpec(source: string | URL, options: SourceOptions): FileSpec {
  const text = String(source);
  if (text === "") {
    throw invalid("source", "an address", "an empty text");
  }
  if (typeof source === "string") {
    const name = hubName(source);
    if (name) {
      return { name: baseName(name), url: new URL(name, withSlash(options.hub ?? HUB)).href };
    }
    if (isNode && !/^[a-z][a-z0-9+.-]+:/i.test(source)) {
      return { name: baseName(source), path: source };
    }
  }
  let url: URL;
  try {
    url = new URL(text, isNode ? undefined : globalThis.location?.href);
  } catch {
    throw invalid("source", "an address or a name on the hub", text);
  }
  if (isNode && url.protocol === "file:") {
    return { name: baseName(decodeURIComponent(url.pathname)), path: decodeURIComponent(url.pathname) };
  }
  if (!/^(https?|blob|data|file):$/.test(url.protocol)) {
    throw invalid("source", "an address of http, https, blob or data", text);
  }
  if (url.origin === new URL(options.hub ?? HUB).origin) {
    // Address of the page of a file.
    url.pathname = url.pathname.replace(/^(\/[^/]+\/[^/]+)\/blob\//, "$1/resolve/");
  }
  return { name: baseName(decodeURIComponent(url.pathname)) || "model", url: url.href };
}

/**
 * Path below the hub of a name: `hf:owner/repo[/file]`, `owner/repo/file.ext`, `owner/repo:TYPE`. A repository keeps its type as a fragment:
 * the worker chooses its files.
 */
function hubName(text: string): string | undefined {
  const isMarked = text.startsWith("hf:");
  const name = isMarked ? text.slice(3).replace(/^\/+/, "") : text;
  const match = /^([\w.-]+\/[\w.-]+)(?:\/([^:?#]+\.[\w]+)|:([\w.-]+))?$/.exec(name);
  const [, repo, file, tag] = match ?? [];
  if (!repo || /^\.{1,2}\/|\/\.{1,2}$/.test(repo) || file?.split("/").includes("..")) {
    if (isMarked) {
      throw invalid("source", "hf:owner/repo, hf:owner/repo/file or hf:owner/repo:TYPE", text);
    }
    return undefined;
  }
  if (file || tag?.includes(".")) {
    return `${repo}/resolve/main/${file ?? tag}`;
  }
  return isMarked || tag ? `${repo}#repository=${tag ?? ""}` : undefined;
}

function withSlash(url: string | URL): string {
  const text = String(url);
  return text.endsWith("/") ? text : `${text}/`;
}

/** Last part of a path. @internal */
export function baseName(path: string): string {
  return path.split(/[/\\]/).at(-1) ?? path;
}

/** All parts of a file, which may be the first of several. */
function splitParts(spec: FileSpec): FileSpec[] {
  const [, , count] = SPLIT.exec(spec.name) ?? [];
  if (!count) {
    return [spec];
  }
  const n = Number(count);
  if (n < 1 || n > MAX_FILES) {
    throw invalid("source", `1 to ${MAX_FILES} parts`, spec.name);
  }
  return Array.from({ length: n }, (_, i) => {
    const part = `-${String(i + 1).padStart(5, "0")}-of-${count}.gguf`;
    const named = (text: string) => text.replace(/-\d{5}-of-\d{5}\.gguf/, part);
    return {
      name: named(spec.name),
      ...(spec.url && { url: named(spec.url) }),
      ...(spec.path && { path: spec.path.slice(0, -spec.name.length) + named(spec.name) }),
    };
  });
}

function withHashes(specs: FileSpec[], hashes: string | Record<string, string> | undefined): FileSpec[] {
  if (hashes === undefined) {
    return specs;
  }
  const table = typeof hashes === "string" ? { [specs[0]?.name ?? ""]: hashes } : hashes;
  if (typeof hashes === "string" && specs.length !== 1) {
    throw invalid("sha256", "one for each file, by name", "one text for several files");
  }
  for (const [name, hash] of Object.entries(table)) {
    if (!/^[0-9a-f]{64}$/i.test(hash)) {
      throw invalid("sha256", "64 hexadecimal digits", hash);
    }
    const spec = specs.find((one) => one.name === name);
    if (!spec?.url || isRepository(spec)) {
      throw invalid("sha256", "names of files that are downloaded", name);
    }
    spec.sha256 = hash;
  }
  return specs;
}

/** Whether a file stands for a repository of the hub. @internal */
export function isRepository(spec: FileSpec): boolean {
  return spec.url?.includes("#repository=") ?? false;
}
