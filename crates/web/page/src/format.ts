// Numbers, times and sizes as people read them.

const DECIMAL = new Intl.NumberFormat(undefined, { maximumSignificantDigits: 3 });

/** 134515008 as "135 M". */
export function formatCount(n: number): string {
  for (const [unit, size] of [["T", 1e12], ["B", 1e9], ["M", 1e6], ["k", 1e3]] as const) {
    if (n >= size) return `${DECIMAL.format(n / size)} ${unit}`;
  }
  return DECIMAL.format(n);
}

export function formatBytes(n: number): string {
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]] as const) {
    if (n >= size) return `${DECIMAL.format(n / size)} ${unit}`;
  }
  return `${n} B`;
}

export function formatNumber(n: number): string {
  return DECIMAL.format(n);
}

/** Seconds as "1:02" or "1:01:02". */
export function formatTime(seconds: number): string {
  const whole = Math.max(0, Math.floor(seconds));
  const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const two = (n: number) => String(n).padStart(2, "0");
  return h > 0 ? `${h}:${two(m)}:${two(s)}` : `${m}:${two(s)}`;
}

/** Heading of a day in the history. */
export function formatDay(time: number, now: number): string {
  const midnight = new Date(now).setHours(0, 0, 0, 0);
  const day = 24 * 3600 * 1000;
  if (time >= midnight) return "Today";
  if (time >= midnight - day) return "Yesterday";
  if (time >= midnight - 6 * day) return "Last 7 days";
  if (time >= midnight - 29 * day) return "Last 30 days";
  return new Date(time).toLocaleDateString(undefined, { month: "long", year: "numeric" });
}

export function plural(n: number, noun: string): string {
  return `${n.toLocaleString()} ${noun}${n === 1 ? "" : "s"}`;
}
