// Export and import of the history as JSON. An import is checked field by field: the file may be anything.

import { newId, type Attachment, type Chat, type Message, type Recording, type ToolCall } from "./conversation";
import type { Segment, Transcript, Word } from "./engine";

const FORMAT = "stonechat-history";
const VERSION = 1;
export const MAX_IMPORT_BYTES = 64 << 20;
const MAX_ITEMS = 100_000;
const MAX_TEXT = 8 << 20;

export interface Item {
  chat: Chat;
  messages: Message[];
  recording?: Recording;
}

/** Everything but the audio of recordings. */
export function exportHistory(items: readonly Item[]): string {
  const plain = items.map(({ chat, messages, recording }) => {
    if (!recording) return { chat, messages };
    const { audio: _, ...rest } = recording;
    return { chat, messages, recording: rest };
  });
  return `${JSON.stringify({ format: FORMAT, version: VERSION, items: plain }, null, 1)}\n`;
}

/** Reads a file of `exportHistory`. Chats get new names, so that nothing is overwritten. */
export function importHistory(text: string): Item[] {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Error("expected a JSON file of an export");
  }
  const file = object(value, "the file");
  if (file.format !== FORMAT) throw new Error(`\`format\`: expected ${FORMAT}, got ${String(file.format).slice(0, 40)}`);
  if (file.version !== VERSION) throw new Error(`\`version\`: expected ${VERSION}, got ${String(file.version).slice(0, 40)}`);
  return list(file.items, "items").map(item);
}

function item(value: unknown, i: number): Item {
  const name = `items[${i}]`;
  const fields = object(value, name);
  const source = object(fields.chat, `${name}.chat`);
  const chat: Chat = {
    id: newId(),
    kind: oneOf(source.kind, ["chat", "speech"] as const, `${name}.chat.kind`),
    title: text(source.title, `${name}.chat.title`).slice(0, 200),
    created: number(source.created, `${name}.chat.created`),
    updated: number(source.updated, `${name}.chat.updated`),
    model: text(source.model, `${name}.chat.model`),
    system: text(source.system, `${name}.chat.system`),
    leaf: null,
  };
  const values = list(fields.messages, `${name}.messages`).map((one, j) => object(one, `${name}.messages[${j}]`));
  const ids = new Map<string, string>();
  values.forEach((one, j) => {
    const id = text(one.id, `${name}.messages[${j}].id`);
    if (ids.has(id)) throw new Error(`${name}.messages[${j}].id: expected a name of its own`);
    ids.set(id, newId());
  });
  const known = (value: unknown, where: string): string | null => {
    if (value === null) return null;
    const id = ids.get(text(value, where));
    if (id === undefined) throw new Error(`${where}: expected a message of the same chat`);
    return id;
  };
  const messages = values.map((one, j) => message(one, chat.id, known, `${name}.messages[${j}]`));
  chat.leaf = known(source.leaf, `${name}.chat.leaf`);
  const imported: Item = { chat, messages };
  if (fields.recording !== undefined) imported.recording = recording(fields.recording, chat.id, `${name}.recording`);
  return imported;
}

type Known = (value: unknown, where: string) => string | null;

function message(fields: Fields, chat: string, known: Known, where: string): Message {
  const message: Message = {
    id: known(fields.id, `${where}.id`) ?? newId(),
    chat,
    parent: known(fields.parent, `${where}.parent`),
    role: oneOf(fields.role, ["user", "assistant", "tool"] as const, `${where}.role`),
    content: text(fields.content, `${where}.content`),
    created: number(fields.created, `${where}.created`),
  };
  for (const name of ["reasoning", "toolCallId", "model", "error"] as const) {
    if (fields[name] !== undefined) message[name] = text(fields[name], `${where}.${name}`);
  }
  if (fields.finish !== undefined) {
    const ends = ["stop", "length", "tool_calls", "stopped", "dropped", "failed"] as const;
    message.finish = oneOf(fields.finish, ends, `${where}.finish`);
  }
  if (fields.attachments !== undefined) message.attachments = records(fields.attachments, ["name", "text"], `${where}.attachments`) as unknown as Attachment[];
  if (fields.toolCalls !== undefined) message.toolCalls = records(fields.toolCalls, ["id", "name", "arguments"], `${where}.toolCalls`) as unknown as ToolCall[];
  if (fields.timings !== undefined) {
    const timings = object(fields.timings, `${where}.timings`);
    message.timings = Object.fromEntries(Object.entries(timings).map(([key, value]) => [key, number(value, `${where}.timings.${key}`)]));
  }
  return message;
}

function recording(value: unknown, chat: string, where: string): Recording {
  const fields = object(value, where);
  const recording: Recording = { chat, name: text(fields.name, `${where}.name`) };
  if (fields.seconds !== undefined) recording.seconds = number(fields.seconds, `${where}.seconds`);
  if (fields.transcript !== undefined) recording.transcript = transcript(fields.transcript, `${where}.transcript`);
  return recording;
}

function transcript(value: unknown, where: string): Transcript {
  const fields = object(value, where);
  const segments = list(fields.segments, `${where}.segments`).map((one, id): Segment => {
    const name = `${where}.segments[${id}]`;
    const source = object(one, name);
    const segment: Segment = { id, ...span(source, name), text: text(source.text, `${name}.text`) };
    if (source.speaker !== undefined) segment.speaker = text(source.speaker, `${name}.speaker`);
    if (source.words !== undefined) {
      segment.words = list(source.words, `${name}.words`).map((word, i): Word => {
        const fields = object(word, `${name}.words[${i}]`);
        return { word: text(fields.word, `${name}.words[${i}].word`), ...span(fields, `${name}.words[${i}]`) };
      });
    }
    return segment;
  });
  const transcript: Transcript = { text: text(fields.text, `${where}.text`), segments };
  if (fields.language !== undefined) transcript.language = text(fields.language, `${where}.language`);
  if (fields.duration !== undefined) transcript.duration = number(fields.duration, `${where}.duration`);
  return transcript;
}

type Fields = Record<string, unknown>;

function span(fields: Fields, where: string): { start: number; end: number } {
  return { start: number(fields.start, `${where}.start`), end: number(fields.end, `${where}.end`) };
}

function records(value: unknown, names: string[], where: string): Record<string, string>[] {
  return list(value, where).map((one, i) => {
    const fields = object(one, `${where}[${i}]`);
    return Object.fromEntries(names.map((name) => [name, text(fields[name], `${where}[${i}].${name}`)]));
  });
}

function object(value: unknown, where: string): Fields {
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw new Error(`${where}: expected an object`);
  return value as Fields;
}

function list(value: unknown, where: string): unknown[] {
  if (!Array.isArray(value)) throw new Error(`${where}: expected a list`);
  if (value.length > MAX_ITEMS) throw new Error(`${where}: expected at most ${MAX_ITEMS} items, got ${value.length}`);
  return value;
}

function text(value: unknown, where: string): string {
  if (typeof value !== "string") throw new Error(`${where}: expected a string`);
  if (value.length > MAX_TEXT) throw new Error(`${where}: expected at most ${MAX_TEXT} characters`);
  return value;
}

function number(value: unknown, where: string): number {
  if (typeof value !== "number" || !Number.isFinite(value)) throw new Error(`${where}: expected a number`);
  return value;
}

function oneOf<const T extends string>(value: unknown, allowed: readonly T[], where: string): T {
  const found = allowed.find((one) => one === value);
  if (found === undefined) throw new Error(`${where}: expected ${allowed.join(", ")}`);
  return found;
}
