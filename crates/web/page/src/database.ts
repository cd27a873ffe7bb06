// History in IndexedDB: chats, their messages, recordings with their transcripts.

import type { Chat, Message, Recording } from "./conversation";

const NAME = "stonechat";
const VERSION = 1;
/** Chats that a search returns. */
const MAX_FOUND = 200;

/** The history cannot be written or read; what the page shows is in memory alone. */
export class StorageError extends Error {
  constructor(
    message: string,
    /** Whether the quota of the browser is used up. */
    readonly isFull: boolean,
  ) {
    super(message);
    this.name = "StorageError";
  }
}

let opened: Promise<IDBDatabase> | undefined;

function open(): Promise<IDBDatabase> {
  opened ??= new Promise<IDBDatabase>((resolve, reject) => {
    const request = indexedDB.open(NAME, VERSION);
    request.onupgradeneeded = () => {
      request.result.createObjectStore("chats", { keyPath: "id" });
      request.result.createObjectStore("messages", { keyPath: "id" }).createIndex("chat", "chat");
      request.result.createObjectStore("recordings", { keyPath: "chat" });
    };
    request.onerror = () => reject(storageError(request.error));
    request.onblocked = () => reject(new StorageError("another tab holds an older version of the history", false));
    request.onsuccess = () => {
      const database = request.result;
      // A newer version of the page in another tab upgrades the database.
      database.onversionchange = () => {
        database.close();
        opened = undefined;
      };
      database.onclose = () => (opened = undefined);
      resolve(database);
    };
  }).catch((error: unknown) => {
    opened = undefined;
    throw error instanceof StorageError ? error : storageError(error);
  });
  return opened;
}

function storageError(error: unknown): StorageError {
  const isFull = error instanceof DOMException && error.name === "QuotaExceededError";
  const reason = error instanceof Error ? error.message : "";
  return new StorageError(isFull ? "the storage of this browser is full" : `the history cannot be used: ${reason}`, isFull);
}

type Store = "chats" | "messages" | "recordings";

/** Runs a transaction; resolves with the result of its request once everything is written. */
async function transact<T>(
  stores: Store[],
  mode: IDBTransactionMode,
  run: (store: (name: Store) => IDBObjectStore) => IDBRequest<T> | void,
): Promise<T> {
  const database = await open();
  return new Promise<T>((resolve, reject) => {
    const transaction = database.transaction(stores, mode);
    let request: IDBRequest<T> | void;
    transaction.oncomplete = () => resolve(request ? request.result : (undefined as T));
    transaction.onabort = () => reject(storageError(transaction.error));
    transaction.onerror = () => undefined;
    try {
      request = run((name) => transaction.objectStore(name));
    } catch (error) {
      transaction.onabort = null;
      transaction.abort();
      reject(storageError(error));
    }
  });
}

export function allChats(): Promise<Chat[]> {
  return transact(["chats"], "readonly", (store) => store("chats").getAll() as IDBRequest<Chat[]>);
}

export function messagesOf(chat: string): Promise<Message[]> {
  return transact(["messages"], "readonly", (store) => store("messages").index("chat").getAll(chat) as IDBRequest<Message[]>);
}

export function recordingOf(chat: string): Promise<Recording | undefined> {
  return transact(["recordings"], "readonly", (store) => store("recordings").get(chat) as IDBRequest<Recording | undefined>);
}

export function putChat(chat: Chat): Promise<void> {
  return transact(["chats"], "readwrite", (store) => void store("chats").put(chat));
}

/** Writes messages together with their chat, so that neither is there alone. */
export function putMessages(chat: Chat, messages: Message[]): Promise<void> {
  return transact(["chats", "messages"], "readwrite", (store) => {
    store("chats").put(chat);
    for (const message of messages) store("messages").put(message);
  });
}

export function putRecording(chat: Chat, recording: Recording): Promise<void> {
  return transact(["chats", "recordings"], "readwrite", (store) => {
    store("chats").put(chat);
    store("recordings").put(recording);
  });
}

export function deleteMessages(chat: Chat, ids: string[]): Promise<void> {
  return transact(["chats", "messages"], "readwrite", (store) => {
    store("chats").put(chat);
    for (const id of ids) store("messages").delete(id);
  });
}

export function deleteChat(id: string): Promise<void> {
  return transact(["chats", "messages", "recordings"], "readwrite", (store) => {
    store("chats").delete(id);
    store("recordings").delete(id);
    const cursor = store("messages").index("chat").openKeyCursor(IDBKeyRange.only(id));
    cursor.onsuccess = () => {
      if (!cursor.result) return;
      store("messages").delete(cursor.result.primaryKey);
      cursor.result.continue();
    };
  });
}

export function deleteAll(): Promise<void> {
  return transact(["chats", "messages", "recordings"], "readwrite", (store) => {
    for (const name of ["chats", "messages", "recordings"] as const) store(name).clear();
  });
}

/** Chats whose messages or transcripts contain a text, in any case. */
export async function search(text: string, signal: AbortSignal): Promise<Set<string>> {
  const wanted = text.toLowerCase();
  const found = new Set<string>();
  const visit = <T extends { chat: string }>(source: IDBObjectStore, contains: (value: T) => boolean) => {
    const cursor = source.openCursor();
    cursor.onsuccess = () => {
      if (!cursor.result || signal.aborted || found.size >= MAX_FOUND) return;
      const value = cursor.result.value as T;
      if (!found.has(value.chat) && contains(value)) found.add(value.chat);
      cursor.result.continue();
    };
  };
  await transact(["messages", "recordings"], "readonly", (store) => {
    visit<Message>(store("messages"), (message) => message.content.toLowerCase().includes(wanted));
    visit<Recording>(store("recordings"), ({ transcript }) => !!transcript?.text.toLowerCase().includes(wanted));
  });
  return found;
}
