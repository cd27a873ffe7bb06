/** The cache of models, for pages that show or empty it. */

import { listFiles, removeFile } from "./cache.js";
import { StonechatError } from "./errors.js";
import { openFolder } from "./folder.js";
import { isNode } from "./host.js";
import { openOpfs } from "./opfs.js";
import type { Storage } from "./storage.js";
import type { CachedFile } from "./types.js";

/** Place of the cache. */
export interface CacheOptions {
  /** Folder of downloads in Node, as in {@link LoadOptions.cacheDir}. */
  cacheDir?: string | undefined;
}

async function open(options: CacheOptions): Promise<Storage | undefined> {
  if (isNode) {
    return options.cacheDir ? openFolder(options.cacheDir) : undefined;
  }
  return openOpfs();
}

/** Downloaded models of this origin. */
export const models = {
  /** Files in the cache, whole ones and ones that the next load resumes. */
  async list(options: CacheOptions = {}): Promise<CachedFile[]> {
    const storage = await open(options);
    return storage ? listFiles(storage) : [];
  },

  /**
   * Removes a file by the `name` of `list`. A file that is missing is no error; one that is being loaded or downloaded, here or in another
   * tab, is refused with status 409.
   */
  async remove(name: string, options: CacheOptions = {}): Promise<void> {
    const storage = await open(options);
    if (storage && !(await removeFile(storage, name))) {
      throw new StonechatError(`${name}: expected a file that nobody loads, got one in use`, {
        status: 409,
        type: "conflict_error",
        param: "name",
      });
    }
  },

  /** Bytes of the cache, and of the whole origin as the browser estimates them. */
  async usage(options: CacheOptions = {}): Promise<{ models: number; used: number; quota: number }> {
    const files = await models.list(options);
    const estimate = isNode ? {} : await navigator.storage?.estimate?.();
    return {
      models: files.reduce((sum, file) => sum + file.bytes, 0),
      used: estimate?.usage ?? 0,
      quota: estimate?.quota ?? 0,
    };
  },
};
