/** Names of cached files. */

/** Name of the folder of a URL: the first 32 digits of its SHA-256. Contexts with a cache are secure, and so have `crypto.subtle`. @internal */
export async function cacheKey(url: string): Promise<string> {
  const hash = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(url.replace(/#.*$/, "")));
  const digits = Array.from(new Uint8Array(hash), (byte) => byte.toString(16).padStart(2, "0"));
  return digits.join("").slice(0, 32);
}
