// One message with its actions, branches, reasoning, calls of tools and attachments.

import { useComputed } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";

import type { ChatSession } from "../chat_session";
import type { Attachment, Message, ToolCall } from "../conversation";
import { formatBytes, formatNumber, plural } from "../format";
import { copy } from "../notices";
import { splitReasoning } from "../reasoning";
import { Icon, IconButton } from "./icons";
import { MarkdownView } from "./markdown_view";

interface Props {
  session: ChatSession;
  message: Message;
  isLast: boolean;
}

export function MessageView({ session, message, isLast }: Props) {
  if (message.role === "user") return <UserMessage session={session} message={message} isLast={isLast} />;
  if (message.role === "tool") return <ToolResult message={message} />;
  return <AnswerMessage session={session} message={message} isLast={isLast} />;
}

function UserMessage({ session, message }: Props) {
  const [isEditing, setEditing] = useState(false);
  return (
    <article class="message user" aria-label="You">
      {message.attachments && <Attachments list={message.attachments} />}
      {isEditing ? (
        <EditForm
          text={message.content}
          onCancel={() => setEditing(false)}
          onSave={(text) => {
            setEditing(false);
            session.edit(message, text);
          }}
        />
      ) : (
        message.content && <div class="bubble" dir="auto">{message.content}</div>
      )}
      <div class="actions">
        <Branches session={session} message={message} />
        <IconButton icon="copy" label="Copy message" onClick={() => void copy(message.content)} />
        <IconButton icon="edit" label="Edit message" class="edit-message" onClick={() => setEditing(true)} />
        <IconButton icon="trash" label="Delete message and what follows" onClick={() => session.remove(message)} />
      </div>
    </article>
  );
}

function EditForm({ text, onCancel, onSave }: { text: string; onCancel: () => void; onSave: (text: string) => void }) {
  const [value, setValue] = useState(text);
  const ref = useRef<HTMLTextAreaElement>(null);
  useEffect(() => {
    const area = ref.current;
    area?.focus();
    area?.setSelectionRange(text.length, text.length);
  }, []);
  return (
    <form
      class="edit-form"
      onSubmit={(event) => {
        event.preventDefault();
        if (value.trim()) onSave(value);
      }}
    >
      <textarea
        ref={ref}
        dir="auto"
        aria-label="Message"
        rows={Math.min(12, value.split("\n").length + 1)}
        value={value}
        onInput={(event) => setValue(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Escape") {
            event.stopPropagation();
            onCancel();
          }
          if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) event.currentTarget.form?.requestSubmit();
        }}
      />
      <div class="dialog-actions">
        <span class="detail">The earlier text stays as a branch.</span>
        <button type="button" class="button" onClick={onCancel}>Cancel</button>
        <button type="submit" class="button primary" disabled={!value.trim()}>Send</button>
      </div>
    </form>
  );
}

export function Attachments({ list, onRemove }: { list: readonly Attachment[]; onRemove?: (index: number) => void }) {
  return (
    <ul class="attachments" aria-label="Files">
      {list.map(({ name, text }, i) => (
        <li key={i}>
          <Icon name="file" />
          <span class="name" dir="auto">{name}</span>
          <span class="detail">{formatBytes(text.length)}</span>
          {onRemove && <IconButton icon="close" label={`Remove ${name}`} onClick={() => onRemove(i)} />}
        </li>
      ))}
    </ul>
  );
}

function AnswerMessage({ session, message, isLast }: Props) {
  // Only the answer that is generated follows the draft.
  const draft = useComputed(() => (session.draft.value?.id === message.id ? session.draft.value : undefined)).value;
  const isGrowing = draft !== undefined;
  const { reasoning: ownReasoning, text, isClosed } = splitReasoning(draft?.content ?? message.content);
  const reasoning = draft?.reasoning || message.reasoning || ownReasoning;
  const toolCalls = draft?.toolCalls ?? message.toolCalls ?? [];
  const isThinking = isGrowing && text === "" && reasoning !== "" && (!isClosed || ownReasoning === "");
  const isEmpty = text === "" && reasoning === "" && toolCalls.length === 0;
  return (
    <article class="message answer" aria-label="Answer" aria-busy={isGrowing}>
      {reasoning && <Reasoning text={reasoning} isThinking={isThinking} isGrowing={isGrowing} />}
      {text && <MarkdownView text={text} isGrowing={isGrowing} />}
      {toolCalls.map((call, i) => <ToolCallView key={i} call={call} />)}
      {isGrowing && isEmpty && <div class="waiting" role="img" aria-label="Waiting for the answer"><i /><i /><i /></div>}
      {!isGrowing && <End session={session} message={message} isLast={isLast} />}
      {!isGrowing && isLast && message.finish === "tool_calls" && <ToolForm session={session} message={message} calls={toolCalls} />}
      {isGrowing ? (
        <div class="actions"><span class="detail">{speedOf(draft)}</span></div>
      ) : (
        <div class="actions">
          <Branches session={session} message={message} />
          <IconButton icon="copy" label="Copy answer" class="copy-answer" onClick={() => void copy(text)} />
          <IconButton icon="retry" label="Regenerate" class="regenerate" onClick={() => session.regenerate(message)} />
          <IconButton icon="trash" label="Delete answer and what follows" onClick={() => session.remove(message)} />
          <span class="detail" dir="ltr">{[message.model, timesOf(message)].filter(Boolean).join(" · ")}</span>
        </div>
      )}
    </article>
  );
}

function speedOf({ nTokens, since }: { nTokens: number; since: number }): string {
  const seconds = (performance.now() - since) / 1000;
  return nTokens > 1 && seconds > 0.2 ? `${plural(nTokens, "token")} · ${formatNumber(nTokens / seconds)} tok/s` : "";
}

function timesOf({ timings }: Message): string {
  if (!timings?.predicted_n) return "";
  const speed = timings.predicted_per_second ? `${formatNumber(timings.predicted_per_second)} tok/s` : "";
  const cached = timings.cache_n ? `${timings.cache_n} of ${timings.cache_n + (timings.prompt_n ?? 0)} prompt tokens cached` : "";
  return [plural(timings.predicted_n, "token"), speed, cached].filter(Boolean).join(" · ");
}

function Reasoning({ text, isThinking, isGrowing }: { text: string; isThinking: boolean; isGrowing: boolean }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <details class="reasoning" open={isOpen} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        <Icon name="bulb" />
        <span class={isThinking ? "shimmer" : ""}>{isThinking ? "Thinking…" : "Reasoning"}</span>
        <Icon name="down" />
      </summary>
      {isOpen && <MarkdownView text={text} isGrowing={isGrowing} />}
    </details>
  );
}

function ToolCallView({ call }: { call: ToolCall }) {
  let args = call.arguments;
  try {
    args = JSON.stringify(JSON.parse(args), null, 2);
  } catch {
    // Arguments are shown as they come.
  }
  return (
    <section class="tool" aria-label={`Call of ${call.name}`}>
      <header><Icon name="tool" /><code>{call.name || "…"}</code></header>
      <pre dir="ltr" tabIndex={0}>{args}</pre>
    </section>
  );
}

function ToolResult({ message }: { message: Message }) {
  return (
    <section class="tool result" aria-label="Result of a tool">
      <header><Icon name="check" />Result</header>
      <pre dir="auto" tabIndex={0}>{message.content}</pre>
    </section>
  );
}

/** Results of the called tools, which the user types in. */
function ToolForm({ session, message, calls }: { session: ChatSession; message: Message; calls: readonly ToolCall[] }) {
  const [results, setResults] = useState<string[]>(calls.map(() => ""));
  return (
    <form
      class="tool-form"
      onSubmit={(event) => {
        event.preventDefault();
        session.answerTools(message, calls.map(({ id }, i) => ({ id, content: results[i] ?? "" })));
      }}
    >
      {calls.map(({ id, name }, i) => (
        <label key={id}>
          Result of {name}
          <textarea
            rows={2}
            dir="auto"
            value={results[i]}
            onInput={(event) => setResults(results.map((one, j) => (i === j ? event.currentTarget.value : one)))}
          />
        </label>
      ))}
      <button type="submit" class="button primary">Send results</button>
    </form>
  );
}

/** Reason for the end of an answer that did not end by itself. */
function End({ session, message, isLast }: Props) {
  const { finish, error, content } = message;
  if (finish === "stop" || finish === "tool_calls") return null;
  const canResume = isLast && content !== "" && finish !== "failed";
  const resume = canResume && (
    <button type="button" class="button" onClick={() => session.resume(message)}><Icon name="forward" />Continue</button>
  );
  if (finish === "failed" || finish === "dropped") {
    const kept = content ? "What came is kept." : "";
    return (
      <div class="end error" role="alert">
        <p>{[`${capitalized(error ?? "the answer failed")}.`, kept].join(" ")}</p>
        {resume}
        {isLast && !canResume && (
          <button type="button" class="button" onClick={() => session.regenerate(message)}><Icon name="retry" />Try again</button>
        )}
      </div>
    );
  }
  const text = finish === "length" ? "The limit of tokens ended the answer." : finish === "stopped" ? "Stopped." : "The page was closed during the answer.";
  return <div class="end"><p>{text}</p>{resume}</div>;
}

function capitalized(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function Branches({ session, message }: { session: ChatSession; message: Message }) {
  const siblings = session.tree.value.siblingsOf(message);
  if (siblings.length < 2) return null;
  const i = siblings.findIndex((one) => one.id === message.id);
  const step = (by: number) => {
    const next = siblings[i + by];
    if (next) session.show(next);
  };
  return (
    <span class="branches" role="group" aria-label="Branches">
      <IconButton icon="left" label="Earlier branch" disabled={i === 0} onClick={() => step(-1)} />
      <span>{i + 1} / {siblings.length}</span>
      <IconButton icon="right" label="Later branch" disabled={i === siblings.length - 1} onClick={() => step(1)} />
    </span>
  );
}
