// API key of the server: for this tab, or for this browser if the user says so.

import { signal } from "@preact/signals";

const NAME = "stonechat-api-key";

interface Question {
  /** Whether the server refused a key. */
  wasRefused: boolean;
  answer: (key: string | undefined) => void;
}

/** The question that the page shows, if any. */
export const question = signal<Question | undefined>(undefined);

let pending: Promise<string | undefined> | undefined;

export function apiKey(): string | undefined {
  return sessionStorage.getItem(NAME) ?? localStorage.getItem(NAME) ?? undefined;
}

export function isRemembered(): boolean {
  return localStorage.getItem(NAME) !== null;
}

export function setApiKey(key: string, remember: boolean) {
  forgetApiKey();
  (remember ? localStorage : sessionStorage).setItem(NAME, key);
}

export function forgetApiKey() {
  sessionStorage.removeItem(NAME);
  localStorage.removeItem(NAME);
}

/** Asks the user for a key; several requests share one question. */
export function askApiKey(wasRefused: boolean): Promise<string | undefined> {
  pending ??= new Promise((resolve) => {
    question.value = {
      wasRefused,
      answer(key) {
        question.value = undefined;
        pending = undefined;
        resolve(key);
      },
    };
  });
  return pending;
}
