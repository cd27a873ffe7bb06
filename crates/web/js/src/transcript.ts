/** Transcripts and their subtitles. */

import type { Segment } from "./types.js";

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
  language?: string | null;
  duration?: number;
  segments?: Segment[];
}

/** Transcript of an answer. The segments that came as events have their words, with probabilities; those of the answer do not. @internal */
export function transcriptOf(answer: VerboseAnswer, reported: Segment[], language: string): Transcript {
  const { text, duration = 0, segments = reported } = answer;
  return new Transcript({ text, language, duration, segments: reported.length === segments.length ? reported : segments });
}

/** Code of a language by its code or English name, among the codes of a model. @internal */
export function languageCode(name: string, codes: string[] = []): string {
  const wanted = name.toLowerCase();
  if (codes.includes(wanted)) {
    return wanted;
  }
  const names = new Intl.DisplayNames("en", { type: "language" });
  return codes.find((code) => names.of(code)?.toLowerCase() === wanted) ?? wanted;
}
