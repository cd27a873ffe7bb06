// Settings in localStorage. Values of another type than that of the default are dropped.

import { effect, signal } from "@preact/signals";

const NAME = "stonechat-settings";

export type Theme = "auto" | "light" | "dark";

/** Sampling fields of a request, by their names in the API; a missing one is the server's default. */
export const SAMPLING = [
  { name: "temperature", label: "Temperature", min: 0, max: 5, step: 0.05, hint: "0 is greedy" },
  { name: "top_p", label: "Top-p", min: 0, max: 1, step: 0.01, hint: "1 is off" },
  { name: "top_k", label: "Top-k", min: 0, max: 1000, step: 1, hint: "0 is off" },
  { name: "min_p", label: "Min-p", min: 0, max: 1, step: 0.01, hint: "0 is off" },
  { name: "repeat_penalty", label: "Repeat penalty", min: 0, max: 5, step: 0.05, hint: "1 is off" },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.1, hint: "0 is off" },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.1, hint: "0 is off" },
  { name: "max_tokens", label: "Maximum tokens", min: 1, max: 1_000_000, step: 1, hint: "empty: until the answer ends" },
  { name: "seed", label: "Seed", min: 0, max: 4_294_967_295, step: 1, hint: "empty: random" },
] as const;

export type SamplingName = (typeof SAMPLING)[number]["name"];

export interface Settings {
  theme: Theme;
  engine: "server" | "browser" | "";
  languageModel: string;
  speechModel: string;
  system: string;
  sampling: Partial<Record<SamplingName, number>>;
  /** Texts that end an answer, one a line. */
  stop: string;
  /** JSON schema of answers; empty: none. */
  schema: string;
  /** Further fields of requests, as a JSON object. */
  extra: string;
  sendsOnEnter: boolean;
  /** Whether single keys are shortcuts outside of fields. */
  hasKeys: boolean;
  speechLanguage: string;
  translates: boolean;
  wordTimes: boolean;
  vad: boolean;
  byChannel: boolean;
  speechPrompt: string;
}

const DEFAULTS: Settings = {
  theme: "auto",
  engine: "",
  languageModel: "",
  speechModel: "",
  system: "",
  sampling: {},
  stop: "",
  schema: "",
  extra: "",
  sendsOnEnter: true,
  hasKeys: true,
  speechLanguage: "",
  translates: false,
  wordTimes: true,
  vad: false,
  byChannel: false,
  speechPrompt: "",
};

function read(): Settings {
  let stored: Record<string, unknown> = {};
  try {
    const value: unknown = JSON.parse(localStorage.getItem(NAME) ?? "{}");
    if (typeof value === "object" && value !== null) stored = value as Record<string, unknown>;
  } catch {
    // A damaged entry is replaced by the next change.
  }
  const settings: Settings = { ...DEFAULTS };
  for (const [name, initial] of Object.entries(DEFAULTS)) {
    if (typeof stored[name] === typeof initial && stored[name] !== null) Object.assign(settings, { [name]: stored[name] });
  }
  const sampling = Object.entries(settings.sampling).filter(([name, value]) => SAMPLING.some((one) => one.name === name) && Number.isFinite(value));
  settings.sampling = Object.fromEntries(sampling);
  if (!["auto", "light", "dark"].includes(settings.theme)) settings.theme = "auto";
  return settings;
}

export const settings = signal<Settings>(read());

/** Reason for which settings are not kept. */
export const settingsError = signal("");

export function change(fields: Partial<Settings>) {
  settings.value = { ...settings.peek(), ...fields };
  try {
    localStorage.setItem(NAME, JSON.stringify(settings.peek()));
    settingsError.value = "";
  } catch {
    settingsError.value = "The storage of this browser is full: settings last until this tab is closed.";
  }
}

effect(() => {
  const { theme } = settings.value;
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
});

/** Fields of a chat request from the settings; throws for JSON that is none. */
export function requestFields({ sampling, stop, schema, extra }: Settings): Record<string, unknown> {
  const fields: Record<string, unknown> = { ...sampling };
  const stops = stop.split("\n").filter((line) => line !== "");
  if (stops.length > 0) fields.stop = stops;
  if (schema.trim() !== "") {
    const response = { name: "answer", strict: true, schema: parseObject(schema, "JSON schema") };
    fields.response_format = { type: "json_schema", json_schema: response };
  }
  if (extra.trim() !== "") Object.assign(fields, parseObject(extra, "Further fields"));
  return fields;
}

export function parseObject(text: string, name: string): Record<string, unknown> {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`${name}: ${error instanceof Error ? error.message : "expected JSON"}`);
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw new Error(`${name}: expected a JSON object`);
  return value as Record<string, unknown>;
}
