// The chat that the address names, and those with a running request.

import { computed, effect, signal, untracked } from "@preact/signals";

import { ChatSession } from "./chat_session";
import { newChat } from "./conversation";
import { chats, readItem, removeChat } from "./history";
import { messageOf } from "./engine";
import { notify } from "./notices";
import { settings } from "./settings";
import { SpeechSession } from "./speech_session";

export type View = { kind: "chat" | "speech"; id: string | undefined };

export type Session = ChatSession | SpeechSession;

function viewOf(hash: string): View {
  const [, kind, id] = hash.split("/");
  return { kind: kind === "speech" ? "speech" : "chat", id: id || undefined };
}

export const view = signal<View>(viewOf(location.hash));
/** The open chat; undefined for a new one. */
export const session = signal<Session | undefined>(undefined);

const open = new Map<string, Session>();

addEventListener("hashchange", () => (view.value = viewOf(location.hash)));

/** Shows a chat, or a new one. */
export function go(kind: View["kind"], id?: string) {
  const hash = id ? `#/${kind}/${id}` : `#/${kind}`;
  if (location.hash === hash) view.value = { kind, id };
  else location.hash = hash;
}

/** Whether a request of a chat runs. */
function isBusy(one: Session): boolean {
  return one instanceof ChatSession ? one.isRunning.value : one.progress.value !== undefined;
}

export const running = computed(() => {
  void session.value;
  void chats.value;
  return new Set([...open.values()].filter(isBusy).map((one) => one.id));
});

/** Opens the chat of the address, once the list of chats is there. */
export function startSessions() {
  effect(() => {
    const { kind, id } = view.value;
    void untracked(() => show(kind, id));
  });
}

async function show(kind: View["kind"], id: string | undefined) {
  // A chat without a running request is read again when it is shown.
  for (const [key, one] of open) if (key !== id && !isBusy(one)) open.delete(key);
  if (id === undefined) {
    session.value = undefined;
    return;
  }
  const known = open.get(id);
  if (known) {
    session.value = known;
    return;
  }
  try {
    const item = await readItem(id);
    if (view.peek().id !== id) return;
    if (!item) {
      notify("This chat is not in the history of this browser", "error");
      go(kind);
      return;
    }
    session.value = keep(item.chat.kind === "speech" ? new SpeechSession(item) : new ChatSession(item));
  } catch (error) {
    notify(messageOf(error), "error");
    go(kind);
  }
}

function keep<T extends Session>(one: T): T {
  open.set(one.id, one);
  return one;
}

/** Starts a chat and shows it. */
export function startChat(model: string): ChatSession {
  const one = keep(new ChatSession({ chat: newChat("chat", model, settings.peek().system), messages: [] }));
  session.value = one;
  go("chat", one.id);
  return one;
}

/** Keeps a recording and shows it. */
export function startSpeech(name: string, audio: Blob | undefined): SpeechSession {
  const chat = { ...newChat("speech", "", ""), title: name };
  const one = keep(new SpeechSession({ chat, messages: [], recording: audio ? { chat: chat.id, name, audio } : { chat: chat.id, name } }));
  session.value = one;
  go("speech", one.id);
  return one;
}

export async function deleteChat(id: string) {
  open.get(id)?.stop();
  open.delete(id);
  const { kind, id: shown } = view.peek();
  if (shown === id) go(kind);
  await removeChat(id);
}
