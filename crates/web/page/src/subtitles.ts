// Transcripts as files, and texts of segments that the user edits.

import type { Segment, Transcript, Word } from "./engine";

export type TranscriptFormat = "srt" | "vtt" | "txt" | "json";

export function writeTranscript(transcript: Transcript, format: TranscriptFormat): string {
  switch (format) {
    case "srt": {
      const cue = (segment: Segment, i: number) =>
        `${i + 1}\n${stamp(segment.start, ",")} --> ${stamp(segment.end, ",")}\n${line(segment, `${segment.speaker}: `)}\n`;
      return transcript.segments.map(cue).join("\n");
    }
    case "vtt": {
      const cue = (segment: Segment) =>
        `${stamp(segment.start, ".")} --> ${stamp(segment.end, ".")}\n${line(segment, `<v ${segment.speaker}>`)}\n`;
      return `WEBVTT\n\n${transcript.segments.map(cue).join("\n")}`;
    }
    case "txt": return `${transcript.segments.map((segment) => line(segment, `${segment.speaker}: `)).join("\n")}\n`;
    case "json": return `${JSON.stringify(transcript, null, 2)}\n`;
  }
}

function line(segment: Segment, speaker: string): string {
  // An arrow or an empty line would end the cue.
  const text = segment.text.trim().replace(/-->/g, "->").replace(/\n+/g, "\n");
  return segment.speaker === undefined ? text : speaker + text;
}

/** Seconds as "00:00:01,500". */
function stamp(seconds: number, point: string): string {
  const ms = Math.max(0, Math.round(seconds * 1000));
  const part = (n: number, digits: number) => String(n).padStart(digits, "0");
  const [h, m, s] = [Math.floor(ms / 3_600_000), Math.floor(ms / 60_000) % 60, Math.floor(ms / 1000) % 60];
  return `${part(h, 2)}:${part(m, 2)}:${part(s, 2)}${point}${part(ms % 1000, 3)}`;
}

/** Text of all segments. */
export function textOf(segments: readonly Segment[]): string {
  return segments.map((segment) => segment.text.trim()).join(" ");
}

/**
 * A segment with another text. Words that are the same at both ends keep their times; those between share the time between
 * them by their lengths.
 */
export function withText(segment: Segment, text: string): Segment {
  const edited: Segment = { ...segment, text: ` ${text.trim()}` };
  const old = segment.words;
  if (!old) return edited;
  const words = text.split(/\s+/).filter(Boolean);
  const same = (a: Word | undefined, b: string | undefined) => a !== undefined && a.word.trim() === b;
  let head = 0;
  while (head < words.length && same(old[head], words[head])) head++;
  let tail = 0;
  while (tail < words.length - head && tail < old.length - head && same(old[old.length - 1 - tail], words[words.length - 1 - tail])) tail++;
  const start = old[head]?.start ?? old.at(-1)?.end ?? segment.start;
  const end = tail > 0 ? (old[old.length - tail]?.start ?? segment.end) : (old.at(-1)?.end ?? segment.end);
  const between = words.slice(head, words.length - tail);
  const letters = between.reduce((sum, word) => sum + word.length, 0);
  let at = start;
  const timed = between.map((word) => {
    const length = (Math.max(0, end - start) * word.length) / Math.max(1, letters);
    at += length;
    return { word, start: at - length, end: at };
  });
  edited.words = [...old.slice(0, head), ...timed, ...old.slice(old.length - tail)];
  return edited;
}

/** Index of the last word that starts at or before a time, -1 before the first. */
export function wordAt(starts: readonly number[], time: number): number {
  let [low, high] = [0, starts.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((starts[middle] ?? 0) <= time) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** Segments of several channels in the order of their times. */
export function mergeChannels(channels: readonly { speaker: string; segments: Segment[] }[]): Segment[] {
  const all = channels.flatMap(({ speaker, segments }) => segments.map((segment) => ({ ...segment, speaker })));
  all.sort((a, b) => a.start - b.start);
  return all.map((segment, id) => ({ ...segment, id }));
}
