// The field for a message: text, files, dictation, send and stop.

import { useSignal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";

import { readAttachments } from "../attachments";
import { startCapture, type Capture } from "../audio";
import type { Attachment } from "../conversation";
import { messageOf } from "../engine";
import { engineFor, speechModel } from "../models";
import { notify } from "../notices";
import { settings } from "../settings";
import { Icon, IconButton } from "./icons";
import { Attachments } from "./message_view";

/** Maximum characters of a message. */
const MAX_TEXT = 1_000_000;

interface Props {
  /** Names the draft: the text stays while other chats are shown. */
  id: string;
  isRunning: boolean;
  onSend: (text: string, attachments: Attachment[]) => void;
  onStop: () => void;
  onEditLast: () => void;
}

/** Texts that were not sent, by chat. */
const drafts = new Map<string, { text: string; attachments: Attachment[] }>();

export function Composer({ id, isRunning, onSend, onStop, onEditLast }: Props) {
  const text = useSignal(drafts.get(id)?.text ?? "");
  const [attachments, setAttachments] = useState<Attachment[]>(drafts.get(id)?.attachments ?? []);
  const [isOver, setOver] = useState(false);
  const area = useRef<HTMLTextAreaElement>(null);
  const file = useRef<HTMLInputElement>(null);
  useEffect(() => {
    if (matchMedia("(pointer: fine)").matches) area.current?.focus();
  }, [id]);
  useEffect(() => {
    drafts.set(id, { text: text.value, attachments });
    const element = area.current;
    if (!element) return;
    element.style.height = "auto";
    element.style.height = `${element.scrollHeight}px`;
  }, [id, text.value, attachments]);
  const canSend = !isRunning && (text.value.trim() !== "" || attachments.length > 0);
  const send = () => {
    if (!canSend) return;
    onSend(text.value.trim(), attachments);
    text.value = "";
    setAttachments([]);
    drafts.delete(id);
  };
  const attach = async (files: File[]) => {
    try {
      setAttachments([...attachments, ...(await readAttachments(files, attachments))]);
    } catch (error) {
      notify(messageOf(error), "error");
    }
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.isComposing) return;
    const isEnter = event.key === "Enter" && !event.shiftKey;
    const sends = isEnter && (settings.value.sendsOnEnter || event.ctrlKey || event.metaKey);
    if (sends) {
      event.preventDefault();
      send();
    } else if (event.key === "ArrowUp" && text.value === "") {
      event.preventDefault();
      onEditLast();
    }
  };
  return (
    <form
      class={`composer ${isOver ? "over" : ""}`}
      aria-label="Message"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
      onDragOver={(event) => {
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave={() => setOver(false)}
      onDrop={(event) => {
        event.preventDefault();
        setOver(false);
        void attach([...(event.dataTransfer?.files ?? [])]);
      }}
    >
      {attachments.length > 0 && (
        <Attachments list={attachments} onRemove={(i) => setAttachments(attachments.filter((_, j) => j !== i))} />
      )}
      <textarea
        ref={area}
        id="message"
        rows={1}
        dir="auto"
        aria-label="Message"
        placeholder="Write a message"
        maxLength={MAX_TEXT}
        value={text.value}
        onInput={(event) => (text.value = event.currentTarget.value)}
        onKeyDown={onKeyDown}
        onPaste={(event) => {
          const files = [...(event.clipboardData?.files ?? [])];
          if (files.length === 0) return;
          event.preventDefault();
          void attach(files);
        }}
      />
      <div class="composer-row">
        <IconButton icon="clip" label="Attach text files" onClick={() => file.current?.click()} />
        <input
          ref={file}
          id="attach"
          type="file"
          multiple
          hidden
          aria-label="Text files"
          onChange={(event) => {
            void attach([...(event.currentTarget.files ?? [])]);
            event.currentTarget.value = "";
          }}
        />
        {speechModel.value && (
          <Dictation
            onText={(spoken) => {
              text.value = [text.value.trimEnd(), spoken].filter(Boolean).join(" ");
              area.current?.focus();
            }}
          />
        )}
        <span class="spacer" />
        {isRunning ? (
          <button type="button" class="send stop" aria-label="Stop" title="Stop (Esc)" onClick={onStop}><Icon name="stop" /></button>
        ) : (
          <button type="submit" class="send" aria-label="Send" title="Send" disabled={!canSend}><Icon name="send" /></button>
        )}
      </div>
    </form>
  );
}

/** Speech as text of the message. */
function Dictation({ onText }: { onText: (text: string) => void }) {
  const [state, setState] = useState<"idle" | "recording" | "busy">("idle");
  const capture = useRef<Capture | undefined>(undefined);
  useEffect(() => () => capture.current?.cancel(), []);
  const fail = (error: unknown) => {
    capture.current = undefined;
    setState("idle");
    notify(messageOf(error), "error");
  };
  const start = async () => {
    setState("busy");
    try {
      capture.current = await startCapture();
      setState("recording");
    } catch (error) {
      fail(error);
    }
  };
  const finish = async () => {
    setState("busy");
    try {
      const audio = await capture.current?.stop();
      capture.current = undefined;
      if (!audio) return;
      const { engine, model } = await engineFor("speech", settings.value.speechModel);
      const options = { model, language: settings.value.speechLanguage, task: "transcribe" as const, wordTimes: false, vad: false, prompt: "" };
      const { text } = await engine.transcribe(audio, options, AbortSignal.timeout(600_000), () => undefined);
      onText(text.trim());
      setState("idle");
    } catch (error) {
      fail(error);
    }
  };
  const isRecording = state === "recording";
  return (
    <IconButton
      icon={isRecording ? "stop" : "mic"}
      label={isRecording ? "End dictation" : "Dictate"}
      class={isRecording ? "recording" : ""}
      disabled={state === "busy"}
      pressed={isRecording}
      onClick={() => void (isRecording ? finish() : start())}
    />
  );
}
