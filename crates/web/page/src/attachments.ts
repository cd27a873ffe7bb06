// Text files that go along with a message.

import type { Attachment } from "./conversation";
import { formatBytes } from "./format";

const MAX_FILES = 8;
const MAX_FILE_BYTES = 512 << 10;
const MAX_TOTAL_BYTES = 1 << 20;

/** Reads files as UTF-8 text; throws with the name of the first that is no text, or too large. */
export async function readAttachments(files: readonly File[], already: readonly Attachment[]): Promise<Attachment[]> {
  if (files.length + already.length > MAX_FILES) {
    throw new Error(`expected at most ${MAX_FILES} files, got ${files.length + already.length}`);
  }
  let total = already.reduce((sum, { text }) => sum + text.length, 0);
  const attachments: Attachment[] = [];
  for (const file of files) {
    if (file.size > MAX_FILE_BYTES) {
      throw new Error(`${file.name}: expected at most ${formatBytes(MAX_FILE_BYTES)}, got ${formatBytes(file.size)}`);
    }
    total += file.size;
    if (total > MAX_TOTAL_BYTES) throw new Error(`expected at most ${formatBytes(MAX_TOTAL_BYTES)} of files`);
    attachments.push({ name: file.name, text: decode(file.name, await file.arrayBuffer()) });
  }
  return attachments;
}

function decode(name: string, bytes: ArrayBuffer): string {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    if (!text.includes("\0")) return text;
  } catch {
    // The error below names the file.
  }
  throw new Error(`${name}: expected a text file`);
}
