// The list of chats, and what could not be written: that stays in memory until it can.

import { signal } from "@preact/signals";

import type { Chat } from "./conversation";
import * as database from "./database";
import { StorageError } from "./database";
import type { Item } from "./history_file";
import { notify } from "./notices";

export const chats = signal<Chat[]>([]);
/** Reason for which the history is in memory alone. */
export const historyError = signal("");

/** Chats that could not be written, whole. */
const unsaved = new Map<string, Item>();

export async function loadChats() {
  try {
    const stored = await database.allChats();
    const others = stored.filter((chat) => !unsaved.has(chat.id));
    setChats([...others, ...[...unsaved.values()].map(({ chat }) => chat)]);
  } catch (error) {
    report(error);
  }
}

function setChats(list: Chat[]) {
  chats.value = list.sort((a, b) => b.updated - a.updated);
}

function showChat(chat: Chat) {
  setChats([...chats.peek().filter((one) => one.id !== chat.id), chat]);
}

function report(error: unknown) {
  const storage = error instanceof StorageError ? error : new StorageError(String(error), false);
  historyError.value = storage.isFull
    ? "The storage of this browser is full. What is new stays in this tab alone: export it, or delete old chats."
    : `What is new stays in this tab alone: ${storage.message}.`;
}

export async function readItem(id: string): Promise<Item | undefined> {
  const kept = unsaved.get(id);
  if (kept) return kept;
  const chat = chats.peek().find((one) => one.id === id);
  if (!chat) return undefined;
  const [messages, recording] = await Promise.all([database.messagesOf(id), database.recordingOf(id)]);
  return recording ? { chat, messages, recording } : { chat, messages };
}

/** Writes a change of a chat; `whole` gives all of it, to keep it in memory if the change cannot be written. */
async function write(chat: Chat, change: () => Promise<void>, whole: () => Item) {
  showChat(chat);
  // A chat that is kept in memory is written as a whole, or stays there.
  const isKept = unsaved.has(chat.id);
  try {
    await (isKept ? writeItem(whole()) : change());
    unsaved.delete(chat.id);
    if (unsaved.size === 0) historyError.value = "";
  } catch (error) {
    unsaved.set(chat.id, whole());
    report(error);
  }
}

async function writeItem({ chat, messages, recording }: Item) {
  await database.putMessages(chat, messages);
  if (recording) await database.putRecording(chat, recording);
}

export function saveItem(item: Item, change: () => Promise<void>): Promise<void> {
  return write(item.chat, change, () => item);
}

export async function removeChat(id: string) {
  unsaved.delete(id);
  chats.value = chats.peek().filter((chat) => chat.id !== id);
  await remove(() => database.deleteChat(id));
}

export async function removeAll() {
  unsaved.clear();
  chats.value = [];
  await remove(database.deleteAll);
}

async function remove(run: () => Promise<void>) {
  try {
    await run();
    // There may be room now.
    for (const item of unsaved.values()) await write(item.chat, () => writeItem(item), () => item);
    if (unsaved.size === 0) historyError.value = "";
  } catch (error) {
    report(error);
  }
}

/** Everything of the history, or one chat of it. */
export async function readHistory(id?: string): Promise<Item[]> {
  const wanted = chats.peek().filter((chat) => id === undefined || chat.id === id);
  const items: Item[] = [];
  for (const chat of wanted) {
    const item = await readItem(chat.id);
    if (item) items.push(item);
  }
  return items;
}

export async function addItems(items: readonly Item[]) {
  for (const item of items) await saveItem(item, () => writeItem(item));
  notify(`Imported ${items.length} ${items.length === 1 ? "chat" : "chats"}`);
}
