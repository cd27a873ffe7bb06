// A chat: the branch that is shown, and the field below it.

import { useEffect, useRef, useState } from "preact/hooks";

import type { ChatSession } from "../chat_session";
import { languageModel, modelsError } from "../models";
import { startChat } from "../sessions";
import { change, settings } from "../settings";
import { Composer } from "./composer";
import { Icon } from "./icons";
import { MessageView } from "./message_view";

/** Distance to the end, in pixels, within which the view follows the answer. */
const FOLLOW = 80;

export function ChatView({ session }: { session: ChatSession | undefined }) {
  const scroller = useRef<HTMLDivElement>(null);
  const content = useRef<HTMLDivElement>(null);
  const isFollowing = useRef(true);
  const [isAway, setAway] = useState(false);
  const id = session?.id ?? "new";
  const path = session ? session.tree.value.path(session.chat.value.leaf) : [];
  const toEnd = () => {
    const element = scroller.current;
    if (element) element.scrollTop = element.scrollHeight;
  };
  useEffect(() => {
    isFollowing.current = true;
    toEnd();
    const observer = new ResizeObserver(() => {
      if (isFollowing.current) toEnd();
    });
    if (content.current) observer.observe(content.current);
    return () => observer.disconnect();
  }, [id]);
  const onScroll = () => {
    const element = scroller.current;
    if (!element) return;
    isFollowing.current = element.scrollHeight - element.scrollTop - element.clientHeight < FOLLOW;
    setAway(!isFollowing.current);
  };
  const send: Parameters<typeof Composer>[0]["onSend"] = (text, attachments) => {
    isFollowing.current = true;
    (session ?? startChat("")).send(text, attachments);
  };
  const editLast = () => {
    const edits = content.current?.querySelectorAll<HTMLButtonElement>(".edit-message");
    edits?.[edits.length - 1]?.click();
  };
  const isRunning = session?.isRunning.value ?? false;
  return (
    <>
      <div class="scroller" ref={scroller} onScroll={onScroll}>
        <div class="column" ref={content}>
          <SystemPrompt key={id} session={session} />
          {path.length === 0 && <Welcome />}
          {session && path.map((message, i) => <MessageView key={message.id} session={session} message={message} isLast={i === path.length - 1} />)}
        </div>
      </div>
      <div class="foot">
        {isAway && (
          <button type="button" class="to-end" aria-label="To the end" onClick={() => (toEnd(), setAway(false))}><Icon name="down" /></button>
        )}
        <Composer key={id} id={id} isRunning={isRunning} onSend={send} onStop={() => session?.stop()} onEditLast={editLast} />
      </div>
    </>
  );
}

function Welcome() {
  return (
    <div class="welcome">
      <img src="icon.svg" alt="" width="56" height="56" />
      <h1>How can I help?</h1>
      {modelsError.value ? (
        <p class="error" role="alert">{modelsError.value}</p>
      ) : (
        <p>{languageModel.value ? `${languageModel.value.id} answers. ` : ""}Chats stay in this browser.</p>
      )}
    </div>
  );
}

/** System prompt of a chat; of a new one, that of the settings. */
function SystemPrompt({ session }: { session: ChatSession | undefined }) {
  const text = session ? session.chat.value.system : settings.value.system;
  return (
    <details class="system">
      <summary><Icon name="settings" /><span>{text.trim() ? "System prompt" : "Add a system prompt"}</span></summary>
      <textarea
        rows={4}
        dir="auto"
        aria-label="System prompt"
        placeholder="Instructions that the model gets before the first message"
        value={text}
        onChange={(event) => {
          const system = event.currentTarget.value;
          if (session) session.change({ system });
          else change({ system });
        }}
      />
    </details>
  );
}
