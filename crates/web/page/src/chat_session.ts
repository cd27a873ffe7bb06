// An open chat: its tree of messages, and the answer that is being generated.

import { signal } from "@preact/signals";

import {
  requestMessages, titleOf, newId, Tree, type Attachment, type Chat, type Message, type ToolCall,
} from "./conversation";
import * as database from "./database";
import { ConnectionError, isAbort, messageOf, type ChatChunk, type ToolCallDelta } from "./engine";
import { saveItem } from "./history";
import type { Item } from "./history_file";
import { engineFor } from "./models";
import { announce } from "./notices";
import { splitReasoning } from "./reasoning";
import { recordText } from "./records";
import { requestFields, settings } from "./settings";

/** Interval at which an answer is written while it is generated. */
const SAVE_INTERVAL = 2000;
/** Characters of an answer that screen readers read out. */
const MAX_ANNOUNCED = 2000;

/** A message while it is generated. */
export interface Draft {
  id: string;
  content: string;
  reasoning: string;
  toolCalls: readonly ToolCall[];
  /** Tokens so far, and since when. */
  nTokens: number;
  since: number;
}

export class ChatSession {
  readonly chat;
  readonly tree;
  /** The answer that is being generated; changes once a frame. */
  readonly draft = signal<Draft | undefined>(undefined);
  /** Whether a request runs; changes at its start and end alone. */
  readonly isRunning = signal(false);
  private controller: AbortController | undefined;
  /** The child of each message that was shown last, so that a branch is found again as it was left. */
  private readonly visited = new Map<string, string>();

  constructor(item: Item) {
    this.chat = signal(item.chat);
    this.tree = signal(new Tree(item.messages));
  }

  get id(): string {
    return this.chat.peek().id;
  }

  private save(fields: Partial<Chat>, ...messages: Message[]): Promise<void> {
    if (fields.leaf !== undefined) {
      for (const { id, parent } of this.tree.peek().path(this.chat.peek().leaf)) if (parent !== null) this.visited.set(parent, id);
    }
    this.chat.value = { ...this.chat.peek(), ...fields };
    if (messages.length > 0) this.tree.value = this.tree.peek().with(...messages);
    return this.write(messages);
  }

  private write(messages: Message[]): Promise<void> {
    const chat = this.chat.peek();
    const item = { chat, messages: [...this.tree.peek().messages.values()] };
    return saveItem(item, () => database.putMessages(chat, messages));
  }

  change(fields: Pick<Partial<Chat>, "title" | "system">) {
    void this.save(fields);
  }

  /** Adds a message of the user and answers it. */
  send(text: string, attachments: Attachment[]) {
    const { leaf, title } = this.chat.peek();
    this.ask(leaf, text, attachments, leaf === null ? titleOf(text || (attachments[0]?.name ?? "")) : title);
  }

  /** Adds a sibling with another text, and answers it. */
  edit(message: Message, text: string) {
    this.stop();
    this.ask(message.parent, text, message.attachments ?? [], message.parent === null ? titleOf(text) : this.chat.peek().title);
  }

  private ask(parent: string | null, content: string, attachments: Attachment[], title: string) {
    const message: Message = { id: newId(), chat: this.id, parent, role: "user", content, created: Date.now(), finish: "stop" };
    if (attachments.length > 0) message.attachments = attachments;
    void this.save({ leaf: message.id, title, updated: message.created }, message);
    void this.answer(message.id);
  }

  /** Adds results of tools and continues the answer. */
  answerTools(message: Message, results: readonly { id: string; content: string }[]) {
    let parent = message.id;
    const messages = results.map(({ id, content }, i): Message => {
      const one: Message = { id: newId(), chat: this.id, parent, role: "tool", content, toolCallId: id, created: Date.now() + i, finish: "stop" };
      parent = one.id;
      return one;
    });
    void this.save({ leaf: parent, updated: Date.now() }, ...messages);
    void this.answer(parent);
  }

  /** Generates a sibling of an answer. */
  regenerate(message: Message) {
    this.stop();
    void this.answer(message.parent);
  }

  /** Generates what follows an answer that was cut off. */
  resume(message: Message) {
    void this.answer(message.parent, message);
  }

  stop() {
    this.controller?.abort(new DOMException("stopped", "AbortError"));
  }

  /** Shows another branch. */
  show(message: Message) {
    void this.save({ leaf: this.tree.peek().leafBelow(message.id, this.visited) });
  }

  /** Deletes a message and what follows it. */
  remove(message: Message) {
    this.stop();
    const tree = this.tree.peek();
    const ids = tree.below(message.id);
    const siblings = tree.siblingsOf(message).filter((one) => one.id !== message.id);
    const next = siblings.at(-1)?.id ?? message.parent;
    const rest = tree.without(ids);
    this.tree.value = rest;
    this.chat.value = { ...this.chat.peek(), leaf: next === null ? null : rest.leafBelow(next) };
    const chat = this.chat.peek();
    void saveItem({ chat, messages: [...rest.messages.values()] }, () => database.deleteMessages(chat, ids));
  }

  /** Generates an answer below `parent`, or the rest of the answer `begun`. */
  private async answer(parent: string | null, begun?: Message) {
    this.controller?.abort(new DOMException("replaced", "AbortError"));
    const controller = (this.controller = new AbortController());
    const message: Message = begun
      ? { ...begun, finish: undefined, error: undefined }
      : { id: newId(), chat: this.id, parent, role: "assistant", content: "", created: Date.now() };
    const answer = new Answer(message, this.draft);
    this.isRunning.value = true;
    announce("Answering");
    let end: Partial<Message>;
    const saves = setInterval(() => void this.write([answer.message()]), SAVE_INTERVAL);
    try {
      await this.save({ leaf: message.id, updated: Date.now() }, message);
      const path = this.tree.peek().path(begun ? message.id : parent);
      const { engine, model } = await engineFor("language", this.chat.peek().model);
      message.model = model;
      const messages = requestMessages(this.chat.peek().system, path);
      const body = { ...requestFields(settings.peek()), model, messages };
      for await (const chunk of engine.chat(body, controller.signal)) answer.push(chunk);
      end = { finish: answer.finish ?? "stop" };
    } catch (error) {
      end = failure(error);
    } finally {
      clearInterval(saves);
    }
    answer.close();
    const done = { ...answer.message(), ...end };
    // A newer request of this chat has taken over.
    const isCurrent = this.controller === controller;
    await this.save({ updated: Date.now() }, done);
    if (!isCurrent) return;
    this.draft.value = undefined;
    this.isRunning.value = false;
    if (done.timings && done.model) recordText(done.model, done.timings);
    announce(done.error ? `Failed: ${done.error}` : `Answer: ${splitReasoning(done.content).text.slice(0, MAX_ANNOUNCED)}`);
  }
}

function failure(error: unknown): Partial<Message> {
  if (isAbort(error)) return { finish: "stopped" };
  return { finish: error instanceof ConnectionError ? "dropped" : "failed", error: messageOf(error) };
}

/** Gathers chunks, and shows them once a frame. */
class Answer {
  finish: Message["finish"];
  private readonly toolCalls: ToolCall[];
  private content: string;
  private reasoning: string;
  private nTokens = 0;
  private since = 0;
  private frame = 0;
  /** Time before which no frame is drawn: a long text takes longer to draw than a frame. */
  private notBefore = 0;

  constructor(
    private readonly begun: Message,
    private readonly draft: { value: Draft | undefined },
  ) {
    this.content = begun.content;
    this.reasoning = begun.reasoning ?? "";
    this.toolCalls = [...(begun.toolCalls ?? [])];
    this.show();
  }

  push({ choices, timings }: ChatChunk) {
    if (timings) this.begun.timings = timings;
    const choice = choices[0];
    if (!choice) return;
    const { content, reasoning_content: reasoning, tool_calls: calls } = choice.delta ?? {};
    if (content || reasoning || calls) {
      if (this.nTokens === 0) this.since = performance.now();
      this.nTokens++;
    }
    this.content += content ?? "";
    this.reasoning += reasoning ?? "";
    for (const call of calls ?? []) this.pushCall(call);
    if (choice.finish_reason) this.finish = finishOf(choice.finish_reason);
    this.frame ||= requestAnimationFrame(this.draw);
  }

  private pushCall({ index = 0, id, function: part }: ToolCallDelta) {
    // The index is a stranger's: a list has no holes.
    const at = Math.min(Math.max(0, index), this.toolCalls.length);
    const call = this.toolCalls[at] ?? { id: "", name: "", arguments: "" };
    this.toolCalls[at] = {
      id: id ?? (call.id || `call_${at}`),
      name: call.name + (part?.name ?? ""),
      arguments: call.arguments + (part?.arguments ?? ""),
    };
  }

  private readonly draw = () => {
    const start = performance.now();
    if (start < this.notBefore) {
      this.frame = requestAnimationFrame(this.draw);
      return;
    }
    this.frame = 0;
    this.show();
    // Signals render at once after a task: measured by the next one.
    setTimeout(() => (this.notBefore = performance.now() + Math.min(500, 2 * (performance.now() - start))));
  };

  private show() {
    const { content, reasoning, toolCalls, nTokens, since } = this;
    this.draft.value = { id: this.begun.id, content, reasoning, toolCalls: [...toolCalls], nTokens, since };
  }

  close() {
    cancelAnimationFrame(this.frame);
  }

  message(): Message {
    const message: Message = { ...this.begun, content: this.content };
    if (this.reasoning) message.reasoning = this.reasoning;
    if (this.toolCalls.length > 0) message.toolCalls = [...this.toolCalls];
    return message;
  }
}

function finishOf(reason: string): Message["finish"] {
  return reason === "length" || reason === "tool_calls" ? reason : "stop";
}
