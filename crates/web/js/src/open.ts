/** Files of a model in the worker: repositories and folders are listed, addresses are downloaded, all are opened. */

import { fetchFile, type CacheContext } from "./cache.js";
import { StonechatError, failedDownload, invalid } from "./errors.js";
import { SPLIT, baseName, isRepository } from "./files.js";
import { isNode, nodeModule } from "./host.js";
import type { FileSpec } from "./protocol.js";
import { BlobFile, PathFile, PiecesFile, type OpenFile } from "./sources.js";

/** Maximum bytes of the list of a repository. */
const MAX_LISTING = 32 * 2 ** 20;

/** Files that hold all weights; the first that exists is read. */
const WEIGHTS = ["model.safetensors", "model.bin", "model.gguf"];

/** List of the parts of split safetensors. */
const SHARD_INDEX = "model.safetensors.index.json";

/** Small files beside the weights. */
const COMPANIONS = [
  "config.json",
  "tokenizer.json",
  "vocabulary.txt",
  "vocabulary.json",
  "preprocessor_config.json",
  "generation_config.json",
  "tokenizer_config.json",
  "chat_template.jinja",
];

/** Types of weights in a repository with several GGUF files, in order of preference. */
const PREFERRED = ["Q4_K_M", "Q4_K_S", "Q4_0", "Q4_1", "Q5_K_M", "Q5_0", "Q8_0", "MXFP4", "F16"];

/** Opens all files of a model. @internal */
export async function openFiles(specs: FileSpec[], context: CacheContext): Promise<OpenFile[]> {
  const opened: OpenFile[] = [];
  try {
    for (const spec of await expand(specs, context)) {
      context.signal.throwIfAborted();
      opened.push(await openOne(spec, context));
    }
  } catch (error) {
    opened.forEach((file) => file.close());
    throw error;
  }
  return opened;
}

async function openOne(spec: FileSpec, context: CacheContext): Promise<OpenFile> {
  const { name, blob, path, url, sha256 } = spec;
  if (blob) {
    context.reserve(blob.size);
    return isNode ? piecesOf(name, blob) : new BlobFile(name, blob);
  }
  if (path) {
    const file = new PathFile(name, path, await nodeModule("fs"));
    context.reserve(file.size);
    return file;
  }
  return fetchFile({ name, url: url as string, sha256 }, context);
}

/** Content of a `Blob` of Node, which has no synchronous reader. */
async function piecesOf(name: string, blob: Blob): Promise<OpenFile> {
  const piece = 4 * 2 ** 20;
  const pieces: Uint8Array[] = [];
  for (let at = 0; at < blob.size; at += piece) {
    pieces.push(new Uint8Array(await blob.slice(at, at + piece).arrayBuffer()));
  }
  return new PiecesFile(name, blob.size, pieces, piece);
}

/** Replaces repositories and folders by their files. */
async function expand(specs: FileSpec[], context: CacheContext): Promise<FileSpec[]> {
  const lists = await Promise.all(
    specs.map(async (spec) => {
      if (isRepository(spec)) {
        return repositoryFiles(new URL(spec.url as string), context);
      }
      return spec.path ? folderFiles(spec) : [spec];
    }),
  );
  return lists.flat();
}

/** Files of a model in a folder of Node, or the file itself. */
async function folderFiles(spec: FileSpec): Promise<FileSpec[]> {
  const path = spec.path as string;
  const [fs, { join }] = await Promise.all([nodeModule("fs"), nodeModule("path")]);
  if (!fs.existsSync(path)) {
    throw invalid("source", "a file or folder that exists", path);
  }
  if (!fs.statSync(path).isDirectory()) {
    return [spec];
  }
  const names = fs.readdirSync(path);
  const chosen = await chooseFiles(names, undefined, async () =>
    new TextDecoder().decode(fs.readFileSync(join(path, SHARD_INDEX))),
  );
  return required(chosen, path, names).map((name) => ({ name, path: join(path, name) }));
}

/** Entry of a repository's list. */
interface Sibling {
  rfilename: string;
  lfs?: { sha256?: string };
}

/** Files of a model in a repository of the hub, with the checksums that the hub knows. */
async function repositoryFiles(url: URL, context: CacheContext): Promise<FileSpec[]> {
  const type = url.hash.slice("#repository=".length) || undefined;
  const [repo, owner] = url.pathname.split("/").reverse();
  const hub = url.href.slice(0, url.href.indexOf(`${owner}/${repo}`));
  const { signal, headers } = context;
  const get = async (address: string): Promise<string> => {
    const response = await fetch(address, { headers, signal });
    if (!response.ok) {
      throw failedDownload(`${address}: expected status 200, got ${response.status}`, response.status);
    }
    return boundedText(response, address);
  };
  const address = `${hub}api/models/${owner}/${repo}?blobs=true`;
  let siblings: Sibling[];
  try {
    siblings = (JSON.parse(await get(address)) as { siblings: Sibling[] }).siblings.filter(
      (one) => typeof one.rfilename === "string",
    );
  } catch (error) {
    if (error instanceof StonechatError || signal.aborted) {
      throw error;
    }
    throw failedDownload(`${address}: expected the list of a repository, got something else`, 502, error);
  }
  const names = siblings.map((one) => one.rfilename);
  const file = (name: string) => `${hub}${owner}/${repo}/resolve/main/${name}`;
  const chosen = await chooseFiles(names, type, () => get(file(SHARD_INDEX)));
  return required(chosen, `${owner}/${repo}`, names, type).map((name) => {
    const sha256 = siblings.find((one) => one.rfilename === name)?.lfs?.sha256;
    const isHash = typeof sha256 === "string" && /^[0-9a-f]{64}$/.test(sha256);
    return { name: baseName(name), url: file(name), ...(isHash && { sha256 }) };
  });
}

async function boundedText(response: Response, address: string): Promise<string> {
  const decoder = new TextDecoder();
  let text = "";
  let size = 0;
  const reader = response.body?.getReader();
  for (let part = await reader?.read(); part && !part.done; part = await reader?.read()) {
    size += part.value.length;
    if (size > MAX_LISTING) {
      await reader?.cancel();
      throw failedDownload(`${address}: expected at most ${MAX_LISTING} bytes, got more`);
    }
    text += decoder.decode(part.value, { stream: true });
  }
  return text + decoder.decode();
}

/** Names of the files that make a model. */
async function chooseFiles(
  names: string[],
  type: string | undefined,
  readIndex: () => Promise<string>,
): Promise<string[]> {
  const companions = COMPANIONS.filter((name) => names.includes(name));
  const whole = type ? undefined : WEIGHTS.find((name) => names.includes(name));
  if (whole) {
    return [...companions, whole];
  }
  if (!type && names.includes(SHARD_INDEX)) {
    const { weight_map } = JSON.parse(await readIndex()) as { weight_map?: Record<string, string> };
    const shards = new Set(Object.values(weight_map ?? {}));
    return [...companions, SHARD_INDEX, ...names.filter((name) => shards.has(name))];
  }
  // Projectors of images are no models.
  const models = names.filter((name) => name.endsWith(".gguf") && !/mmproj/i.test(name)).sort();
  const firsts = models.filter((name) => !SPLIT.test(name) || name.includes("-00001-of-"));
  const stemOf = (name: string) => name.replace(SPLIT, "").replace(/\.gguf$/, "");
  const ofType = (wanted: string) =>
    firsts.find((name) => new RegExp(`(^|[-._])${wanted.replace(/\W/g, "\\$&")}$`, "i").test(stemOf(name)));
  const first = type
    ? ofType(type)
    : (PREFERRED.map(ofType).find((name) => name !== undefined) ?? firsts[0]);
  if (!first) {
    return [];
  }
  return SPLIT.test(first) ? models.filter((name) => SPLIT.test(name) && stemOf(name) === stemOf(first)) : [first];
}

function required(chosen: string[], where: string, names: string[], type?: string): string[] {
  if (chosen.length === 0) {
    const wanted = type ? `a GGUF file of the type ${type}` : `${WEIGHTS.join(", ")}, ${SHARD_INDEX} or *.gguf`;
    const some = names.slice(0, 8).join(", ");
    throw invalid("source", `${wanted} in ${where}`, some ? `${some}${names.length > 8 ? ", …" : ""}` : "no file");
  }
  return chosen;
}
