// Server-sent events of a response body.

import { ConnectionError } from "./engine";

/** Maximum characters of one event. */
const MAX_EVENT = 16 << 20;

/** Yields the `data` of each event. Comments and other fields are ignored. */
export async function* events(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let buffer = "";
  let data: string[] = [];
  try {
    for (;;) {
      const { value, done } = await read(reader);
      buffer += done ? decoder.decode() : decoder.decode(value, { stream: true });
      if (buffer.length > MAX_EVENT) throw new Error(`expected events of at most ${MAX_EVENT} characters`);
      const lines = buffer.split(/\r\n|\n|\r(?!$)/);
      buffer = lines.pop() ?? "";
      for (const line of lines) {
        if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
        if (line === "" && data.length > 0) {
          yield data.join("\n");
          data = [];
        }
      }
      if (done) return;
    }
  } finally {
    // A reader that is no longer needed ends the request.
    reader.cancel().catch(() => undefined);
  }
}

async function read(reader: ReadableStreamDefaultReader<Uint8Array>) {
  try {
    return await reader.read();
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ConnectionError("the connection was lost");
  }
}
