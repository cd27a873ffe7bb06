// Segments of a transcript: words that light up with the player, editing, speakers.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import type { Segment } from "../engine";
import { formatTime } from "../format";
import type { SpeechSession } from "../speech_session";
import { wordAt } from "../subtitles";
import { IconButton } from "./icons";

interface Props {
  session: SpeechSession;
  segments: readonly Segment[];
  canEdit: boolean;
  player: HTMLMediaElement | null;
}

export function TranscriptView({ session, segments, canEdit, player }: Props) {
  const list = useRef<HTMLOListElement>(null);
  const [edited, setEdited] = useState<number | undefined>(undefined);
  useHighlight(list, segments, player);
  const seek = (time: number) => {
    if (!player) return;
    player.currentTime = time;
    void player.play().catch(() => undefined);
  };
  return (
    <ol class="transcript" ref={list} onClick={(event) => {
      const start = (event.target as HTMLElement).dataset.start;
      if (start !== undefined) seek(Number(start));
    }}>
      {segments.map((segment, i) => (
        <li key={i} class="segment">
          <button type="button" class="time" disabled={!player} aria-label={`Play from ${formatTime(segment.start)}`} onClick={() => seek(segment.start)}>
            {formatTime(segment.start)}
          </button>
          <div class="segment-body">
            {segment.speaker !== undefined && segment.speaker !== segments[i - 1]?.speaker && (
              <SpeakerName name={segment.speaker} onChange={(name) => session.renameSpeaker(segment.speaker ?? "", name)} />
            )}
            {edited === i ? (
              <SegmentForm
                text={segment.text.trim()}
                onCancel={() => setEdited(undefined)}
                onSave={(text) => {
                  setEdited(undefined);
                  if (text.trim()) session.editSegment(i, text);
                  else session.removeSegment(i);
                }}
              />
            ) : (
              <SegmentText segment={segment} />
            )}
          </div>
          {canEdit && edited !== i && (
            <IconButton icon="edit" label={`Edit segment at ${formatTime(segment.start)}`} onClick={() => setEdited(i)} />
          )}
        </li>
      ))}
    </ol>
  );
}

function SegmentText({ segment }: { segment: Segment }) {
  return useMemo(
    () => (
      <p dir="auto" data-segment="">
        {segment.words?.length
          ? segment.words.map(({ word, start }, i) => (
              // A click seeks; the button of the segment does it by keyboard.
              <span key={i}>{i > 0 && " "}<span class="word" data-start={start}>{word.trim()}</span></span>
            ))
          : segment.text.trim()}
      </p>
    ),
    [segment],
  );
}

/** Marks the word and the segment at the time of the player, without rendering anything anew. */
function useHighlight(list: { current: HTMLElement | null }, segments: readonly Segment[], player: HTMLMediaElement | null) {
  useEffect(() => {
    if (!player) return;
    const starts = segments.map((segment) => segment.start);
    let frame = 0;
    let marked: Element[] = [];
    const mark = () => {
      const time = player.currentTime;
      const i = wordAt(starts, time);
      const segment = segments[i];
      const item = i >= 0 ? list.current?.children[i] : undefined;
      const now: Element[] = [];
      if (segment && item && time <= segment.end + 0.3) {
        now.push(item);
        const word = wordAt((segment.words ?? []).map((one) => one.start), time);
        const span = word >= 0 ? item.querySelectorAll(".word")[word] : undefined;
        if (span) now.push(span);
      }
      for (const one of marked) if (!now.includes(one)) one.classList.remove("lit");
      for (const one of now) one.classList.add("lit");
      if (item && now.length > 0 && !marked.includes(item) && !player.paused) item.scrollIntoView({ block: "nearest" });
      marked = now;
    };
    const run = () => {
      mark();
      frame = player.paused ? 0 : requestAnimationFrame(run);
    };
    const start = () => {
      if (frame === 0) run();
    };
    player.addEventListener("play", start);
    player.addEventListener("seeked", mark);
    mark();
    start();
    return () => {
      cancelAnimationFrame(frame);
      player.removeEventListener("play", start);
      player.removeEventListener("seeked", mark);
      for (const one of marked) one.classList.remove("lit");
    };
  }, [segments, player]);
}

function SegmentForm({ text, onCancel, onSave }: { text: string; onCancel: () => void; onSave: (text: string) => void }) {
  const [value, setValue] = useState(text);
  const ref = useRef<HTMLTextAreaElement>(null);
  useEffect(() => ref.current?.focus(), []);
  return (
    <form
      class="edit-form"
      onSubmit={(event) => {
        event.preventDefault();
        onSave(value);
      }}
    >
      <textarea
        ref={ref}
        dir="auto"
        rows={2}
        aria-label="Text of the segment"
        value={value}
        onInput={(event) => setValue(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Escape") {
            event.stopPropagation();
            onCancel();
          }
          if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
            event.preventDefault();
            onSave(value);
          }
        }}
      />
      <div class="dialog-actions">
        <button type="button" class="button" onClick={onCancel}>Cancel</button>
        <button type="submit" class="button primary">Save</button>
      </div>
    </form>
  );
}

function SpeakerName({ name, onChange }: { name: string; onChange: (name: string) => void }) {
  return (
    <input
      class="speaker"
      dir="auto"
      aria-label={`Name of ${name}`}
      value={name}
      maxLength={60}
      onChange={(event) => {
        const next = event.currentTarget.value.trim();
        if (next) onChange(next);
        else event.currentTarget.value = name;
      }}
    />
  );
}
