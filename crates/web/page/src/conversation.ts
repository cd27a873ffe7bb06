// A conversation is a tree: an edited or regenerated message is a sibling of the earlier one. The chat names the leaf of the
// branch that is shown.

import type { ChatMessage, Timings, Transcript } from "./engine";
import { splitReasoning } from "./reasoning";

export interface Chat {
  id: string;
  kind: "chat" | "speech";
  title: string;
  created: number;
  updated: number;
  /** Model that answers; empty: the one that is chosen. */
  model: string;
  /** System prompt. */
  system: string;
  /** Last message of the branch that is shown. */
  leaf: string | null;
}

export interface ToolCall {
  id: string;
  name: string;
  arguments: string;
}

export interface Attachment {
  name: string;
  text: string;
}

/** End of an answer: that of the API, or "stopped" by the user, "dropped" with the connection, "failed" with an error. */
export type Finish = "stop" | "length" | "tool_calls" | "stopped" | "dropped" | "failed";

export interface Message {
  id: string;
  chat: string;
  parent: string | null;
  role: "user" | "assistant" | "tool";
  content: string;
  created: number;
  reasoning?: string;
  toolCalls?: ToolCall[];
  /** Call that a message of the role "tool" answers. */
  toolCallId?: string;
  attachments?: Attachment[];
  model?: string;
  timings?: Timings;
  /** Undefined while the answer is generated. */
  finish?: Finish;
  error?: string;
}

export interface Recording {
  chat: string;
  name: string;
  /** Undefined for an imported transcript. */
  audio?: Blob;
  transcript?: Transcript;
  /** Seconds that the transcription took. */
  seconds?: number;
}

export function newId(): string {
  // `crypto.randomUUID` is missing on pages without TLS.
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function newChat(kind: Chat["kind"], model: string, system: string): Chat {
  const now = Date.now();
  return { id: newId(), kind, title: kind === "chat" ? "New chat" : "New transcript", created: now, updated: now, model, system, leaf: null };
}

/** The messages of a chat, with the order of the children of each. */
export class Tree {
  readonly messages: ReadonlyMap<string, Message>;
  private readonly children = new Map<string | null, Message[]>();

  constructor(messages: Iterable<Message>) {
    const sorted = [...messages].sort((a, b) => a.created - b.created || (a.id < b.id ? -1 : 1));
    this.messages = new Map(sorted.map((message) => [message.id, message]));
    for (const message of sorted) {
      const siblings = this.children.get(message.parent);
      if (siblings) siblings.push(message);
      else this.children.set(message.parent, [message]);
    }
  }

  with(...messages: Message[]): Tree {
    const all = new Map(this.messages);
    for (const message of messages) all.set(message.id, message);
    return new Tree(all.values());
  }

  without(ids: Iterable<string>): Tree {
    const all = new Map(this.messages);
    for (const id of ids) all.delete(id);
    return new Tree(all.values());
  }

  childrenOf(id: string | null): readonly Message[] {
    return this.children.get(id) ?? [];
  }

  siblingsOf(message: Message): readonly Message[] {
    return this.childrenOf(message.parent);
  }

  /** Messages from the root to a leaf. A cycle, which only a damaged database has, ends the path. */
  path(leaf: string | null): Message[] {
    const path: Message[] = [];
    const seen = new Set<string>();
    let message = leaf === null ? undefined : this.messages.get(leaf);
    while (message && !seen.has(message.id)) {
      seen.add(message.id);
      path.push(message);
      message = message.parent === null ? undefined : this.messages.get(message.parent);
    }
    return path.reverse();
  }

  /** The leaf below a message: by the children that `visited` names, else by the newest ones. */
  leafBelow(id: string, visited?: ReadonlyMap<string, string>): string {
    const seen = new Set<string>();
    let leaf = id;
    for (;;) {
      const children = this.childrenOf(leaf);
      const next = children.find((child) => child.id === visited?.get(leaf)) ?? children.at(-1);
      if (!next || seen.has(next.id)) return leaf;
      seen.add(next.id);
      leaf = next.id;
    }
  }

  /** A message and all that follow it, in every branch. */
  below(id: string): string[] {
    const ids = new Set([id]);
    // A set visits the elements that are added while it is visited.
    for (const one of ids) for (const child of this.childrenOf(one)) ids.add(child.id);
    return [...ids];
  }
}

/**
 * Messages of a request. Reasoning of earlier answers is left out, as templates of models do; an answer at the end, which the
 * model continues, is sent as it is.
 */
export function requestMessages(system: string, path: readonly Message[]): ChatMessage[] {
  const messages: ChatMessage[] = system.trim() === "" ? [] : [{ role: "system", content: system }];
  for (const message of path) {
    const isAnswer = message.role === "assistant";
    const isContinued = isAnswer && message === path.at(-1);
    const content = isContinued ? message.content : isAnswer ? splitReasoning(message.content).text : withAttachments(message);
    const one: ChatMessage = { role: message.role, content };
    if (message.toolCalls?.length) {
      one.tool_calls = message.toolCalls.map(({ id, name, arguments: args }) => ({ id, type: "function", function: { name, arguments: args } }));
    }
    if (message.toolCallId) one.tool_call_id = message.toolCallId;
    // An answer that failed before its first token says nothing.
    if (message.role === "assistant" && content === "" && !one.tool_calls) continue;
    messages.push(one);
  }
  return messages;
}

function withAttachments(message: Message): string {
  const files = (message.attachments ?? []).map(({ name, text }) => {
    // The fence is longer than each one in the file.
    const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length));
    const fence = "`".repeat(longest + 1);
    return `File \`${name}\`:\n${fence}\n${text}\n${fence}`;
  });
  return [...files, message.content].filter(Boolean).join("\n\n");
}

/** Title of a chat: the start of its first message. */
export function titleOf(text: string): string {
  const line = text.trim().split("\n")[0]?.trim() ?? "";
  const letters = [...line];
  return letters.length > 60 ? `${letters.slice(0, 59).join("").trimEnd()}…` : line || "New chat";
}
