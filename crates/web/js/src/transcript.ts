/** Transcripts and their subtitles. */

import type { Segment, Word } from "./types.js";

/** Fields of a transcript; names are those of openai-whisper's JSON. */
export interface TranscriptFields {
  text: string;
  /** Code of the spoken language. */
  language: string;
  /** Length of the recording in seconds. */
  duration: number;
  segments: Segment[];
}

/** Transcript of one recording. `JSON.stringify` gives openai-whisper's JSON. */
export class Transcript implements TranscriptFields {
  readonly text: string;
  readonly language: string;
  readonly duration: number;
  readonly segments: Segment[];

  constructor(fields: TranscriptFields) {
    this.text = fields.text;
    this.language = fields.language;
    this.duration = fields.duration;
    this.segments = fields.segments;
  }

  /** One line for each segment. */
  toText(): string {
    return this.segments.map((segment) => `${segment.text.trim()}\n`).join("");
  }

  /** SubRip subtitles. */
  toSrt(): string {
    const cue = ({ start, end, text }: Segment, i: number) =>
      `${i + 1}\n${clock(start, true, ",")} --> ${clock(end, true, ",")}\n${cueText(text)}\n\n`;
    return this.segments.map(cue).join("");
  }

  /** WebVTT subtitles. */
  toVtt(): string {
    const cue = ({ start, end, text }: Segment) => `${clock(start, false, ".")} --> ${clock(end, false, ".")}\n${cueText(text)}\n\n`;
    return `WEBVTT\n\n${this.segments.map(cue).join("")}`;
  }
}

/** Text of a cue, which may not hold an arrow. */
function cueText(text: string): string {
  return text.trim().replaceAll("-->", "->");
}

function clock(seconds: number, hasHours: boolean, point: string): string {
  const total = Math.max(0, Math.round(seconds * 1000));
  const pad = (n: number, width = 2) => String(n).padStart(width, "0");
  const hours = Math.floor(total / 3_600_000);
  const rest = `${pad(Math.floor(total / 60_000) % 60)}:${pad(Math.floor(total / 1000) % 60)}${point}${pad(total % 1000, 3)}`;
  return hasHours || hours > 0 ? `${pad(hours)}:${rest}` : rest;
}

/** Answer `verbose_json` of the engine. @internal */
export interface VerboseAnswer {
  text: string;
  language?: string;
  duration?: number;
  segments?: Segment[];
  words?: Word[];
}

/** Transcript of an answer: its words go into the segments that say them. @internal */
export function transcriptOf(answer: VerboseAnswer, language: string | undefined): Transcript {
  const segments = (answer.segments ?? []).map((segment) => ({ ...segment }));
  if (answer.words && !segments.some((segment) => segment.words)) {
    segments.forEach((segment) => (segment.words = []));
    let i = 0;
    for (const word of answer.words) {
      while (i + 1 < segments.length && word.start >= (segments[i + 1] as Segment).start) {
        i += 1;
      }
      segments[i]?.words?.push(word);
    }
  }
  return new Transcript({
    text: answer.text,
    language: language ?? answer.language ?? "",
    duration: answer.duration ?? 0,
    segments,
  });
}
