// Keyboard shortcuts: the table, and what they do.

import { ChatSession } from "../chat_session";
import { go, session } from "../sessions";
import { settings } from "../settings";
import { Dialog, dialog } from "./dialog";

interface Shortcut {
  keys: string;
  text: string;
}

const SINGLE: (Shortcut & { run: () => void })[] = [
  { keys: "n", text: "New chat", run: () => go("chat") },
  { keys: "t", text: "New transcript", run: () => go("speech") },
  { keys: "/", text: "Write a message", run: () => document.getElementById("message")?.focus() },
  { keys: "r", text: "Regenerate the last answer", run: () => clickLast(".regenerate") },
  { keys: "e", text: "Edit the last message", run: () => clickLast(".edit-message") },
  { keys: "c", text: "Copy the last answer", run: () => clickLast(".copy-answer") },
  { keys: "s", text: "Settings", run: () => (dialog.value = "settings") },
  { keys: "m", text: "Machine", run: () => (dialog.value = "machine") },
  { keys: "?", text: "Keyboard shortcuts", run: () => (dialog.value = "help") },
];

const OTHERS: Shortcut[] = [
  { keys: "Ctrl+K", text: "Search the history" },
  { keys: "Esc", text: "Stop the answer, close a dialog" },
  { keys: "Enter", text: "Send the message" },
  { keys: "Shift+Enter", text: "New line" },
  { keys: "Ctrl+Enter", text: "Send the message, save an edit" },
  { keys: "↑", text: "Edit the last message, in an empty field" },
];

function clickLast(selector: string) {
  const buttons = document.querySelectorAll<HTMLButtonElement>(selector);
  buttons[buttons.length - 1]?.click();
}

function isField(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT|AUDIO)$/.test(target.tagName));
}

export function listenForShortcuts() {
  addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.isComposing) return;
    const hasModifier = event.ctrlKey || event.metaKey;
    if (hasModifier && !event.altKey && event.key.toLowerCase() === "k") {
      event.preventDefault();
      document.getElementById("search")?.focus();
      return;
    }
    // Dialogs close by themselves.
    if (document.querySelector("dialog[open]")) return;
    if (event.key === "Escape") {
      const shown = session.peek();
      if (shown instanceof ChatSession) shown.stop();
      return;
    }
    if (hasModifier || event.altKey || isField(event.target) || !settings.peek().hasKeys) return;
    const shortcut = SINGLE.find(({ keys }) => keys === event.key);
    if (!shortcut) return;
    event.preventDefault();
    shortcut.run();
  });
}

export function HelpDialog({ onClose }: { onClose: () => void }) {
  const table = (title: string, list: Shortcut[]) => (
    <section>
      <h3>{title}</h3>
      <dl class="shortcuts">
        {list.map(({ keys, text }) => <div key={keys}><dt><kbd>{keys}</kbd></dt><dd>{text}</dd></div>)}
      </dl>
    </section>
  );
  return (
    <Dialog title="Keyboard shortcuts" class="help" onClose={onClose}>
      {table("Anywhere", OTHERS)}
      {settings.value.hasKeys && table("Outside of fields", SINGLE)}
    </Dialog>
  );
}
