// Short messages at the edge of the page.

import { signal } from "@preact/signals";

export interface Notice {
  id: number;
  text: string;
  kind: "info" | "error";
}

export const notices = signal<Notice[]>([]);
/** Text that screen readers read out. */
export const announcement = signal("");

const MAX_NOTICES = 4;
let next = 0;

export function notify(text: string, kind: Notice["kind"] = "info") {
  const notice = { id: next++, text, kind };
  const others = notices.peek().filter((one) => one.text !== text);
  notices.value = [...others, notice].slice(-MAX_NOTICES);
  if (kind === "info") setTimeout(() => dismiss(notice.id), 4000);
}

export function dismiss(id: number) {
  notices.value = notices.peek().filter((notice) => notice.id !== id);
}

export function announce(text: string) {
  announcement.value = text;
}

/** Copies a text; older browsers and pages without TLS have no clipboard API. */
export async function copy(text: string) {
  try {
    if (navigator.clipboard) {
      await navigator.clipboard.writeText(text);
    } else {
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      const isCopied = document.execCommand("copy");
      area.remove();
      if (!isCopied) throw new Error();
    }
    notify("Copied");
  } catch {
    notify("The browser did not allow to copy", "error");
  }
}

/** Saves a text as a file. */
export function download(name: string, text: string, type: string) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
