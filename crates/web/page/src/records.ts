// Speeds of the last requests of this page, for the machine panel.

import { signal } from "@preact/signals";

import type { Timings } from "./engine";

export interface TextRecord {
  model: string;
  tokensPerSecond: number;
  promptPerSecond: number;
  promptTokens: number;
  cachedTokens: number;
}

export interface SpeechRecord {
  model: string;
  audioSeconds: number;
  seconds: number;
}

const MAX_RECORDS = 60;

export const textRecords = signal<TextRecord[]>([]);
export const speechRecords = signal<SpeechRecord[]>([]);

export function recordText(model: string, timings: Timings) {
  const record = {
    model,
    tokensPerSecond: timings.predicted_per_second ?? 0,
    promptPerSecond: timings.prompt_per_second ?? 0,
    promptTokens: (timings.prompt_n ?? 0) + (timings.cache_n ?? 0),
    cachedTokens: timings.cache_n ?? 0,
  };
  textRecords.value = [...textRecords.peek(), record].slice(-MAX_RECORDS);
}

export function recordSpeech(record: SpeechRecord) {
  speechRecords.value = [...speechRecords.peek(), record].slice(-MAX_RECORDS);
}
