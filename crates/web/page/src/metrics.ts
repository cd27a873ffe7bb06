// Prometheus text of a server, and rates between two readings of it.

import type { Counters } from "./engine";

/** Sums of each metric over its labels. */
export function sums(text: string): Map<string, number> {
  const sums = new Map<string, number>();
  for (const line of text.split("\n")) {
    if (line === "" || line.startsWith("#")) continue;
    const match = /^([A-Za-z_:][\w:]*)(?:\{.*\})?\s+(\S+)/.exec(line);
    const value = Number(match?.[2]);
    const name = match?.[1];
    if (name === undefined || !Number.isFinite(value)) continue;
    sums.set(name, (sums.get(name) ?? 0) + value);
  }
  return sums;
}

export function counters(text: string, time: number): Counters {
  const all = sums(text);
  const sum = (name: string) => all.get(`stonechat:${name}`) ?? 0;
  const pages = sum("kv_cache_pages");
  return {
    time,
    promptTokens: sum("prompt_tokens_total"),
    cachedTokens: sum("prompt_tokens_cached_total"),
    generatedTokens: sum("generation_tokens_total"),
    running: sum("num_requests_running"),
    waiting: sum("num_requests_waiting"),
    kvUse: pages > 0 ? sum("kv_cache_pages_used") / pages : 0,
    audioSeconds: sum("audio_seconds_total"),
    audioSpeedSum: sum("audio_speed_sum"),
    audioSpeedCount: sum("audio_speed_count"),
  };
}

/** Increase of a counter per second between two readings; 0 after a restart of the server. */
export function rate(before: Counters, after: Counters, name: "promptTokens" | "generatedTokens" | "audioSeconds"): number {
  const seconds = (after.time - before.time) / 1000;
  return seconds > 0 ? Math.max(0, after[name] - before[name]) / seconds : 0;
}
