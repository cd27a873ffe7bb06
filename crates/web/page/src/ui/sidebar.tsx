// The history: search, chats by day, export and import.

import { signal, useComputed, useSignal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";

import type { Chat } from "../conversation";
import { search } from "../database";
import { messageOf } from "../engine";
import { formatDay } from "../format";
import { addItems, chats, readHistory, removeAll } from "../history";
import { exportHistory, importHistory, MAX_IMPORT_BYTES } from "../history_file";
import { download, notify } from "../notices";
import { deleteChat, go, running, session, view } from "../sessions";
import { Confirm, dialog, Popover } from "./dialog";
import { Icon, IconButton } from "./icons";

/** Whether the sidebar is shown on a phone. */
export const isSidebarOpen = signal(false);

const SEARCH_DELAY = 200;

export async function exportAll(id?: string) {
  try {
    const items = await readHistory(id);
    const day = new Date().toISOString().slice(0, 10);
    download(`stonechat-${day}.json`, exportHistory(items), "application/json");
  } catch (error) {
    notify(messageOf(error), "error");
  }
}

async function importFile(file: File | undefined) {
  if (!file) return;
  try {
    if (file.size > MAX_IMPORT_BYTES) throw new Error(`expected at most ${MAX_IMPORT_BYTES >> 20} MiB`);
    await addItems(importHistory(await file.text()));
  } catch (error) {
    notify(`${file.name}: ${messageOf(error)}`, "error");
  }
}

export function Sidebar() {
  const query = useSignal("");
  const found = useSignal<Set<string> | undefined>(undefined);
  const fileRef = useRef<HTMLInputElement>(null);
  const [isDeletingAll, setDeletingAll] = useState(false);
  const text = query.value.trim();
  useEffect(() => {
    const controller = new AbortController();
    if (text === "") {
      found.value = undefined;
      return;
    }
    const timer = setTimeout(() => {
      search(text, controller.signal)
        .then((ids) => {
          if (!controller.signal.aborted) found.value = ids;
        })
        .catch((error: unknown) => notify(messageOf(error), "error"));
    }, SEARCH_DELAY);
    return () => {
      clearTimeout(timer);
      controller.abort();
    };
  }, [text]);
  const shown = useComputed(() => {
    const wanted = query.value.trim().toLowerCase();
    if (wanted === "") return chats.value;
    return chats.value.filter((chat) => chat.title.toLowerCase().includes(wanted) || found.value?.has(chat.id));
  });
  const start = (kind: "chat" | "speech") => {
    isSidebarOpen.value = false;
    go(kind);
  };
  const { kind, id } = view.value;
  return (
    <nav class={`sidebar ${isSidebarOpen.value ? "open" : ""}`} aria-label="History">
      <div class="brand">
        <img src="icon.svg" alt="" width="26" height="26" />
        <span>stonechat</span>
        <IconButton icon="close" label="Close the history" class="phone-only" onClick={() => (isSidebarOpen.value = false)} />
      </div>
      <div class="starts">
        <button type="button" class="start" aria-current={kind === "chat" && !id ? "page" : undefined} onClick={() => start("chat")}>
          <Icon name="chat" />New chat
        </button>
        <button type="button" class="start" aria-current={kind === "speech" && !id ? "page" : undefined} onClick={() => start("speech")}>
          <Icon name="wave" />New transcript
        </button>
      </div>
      <label class="search">
        <Icon name="search" />
        <span class="hidden">Search the history</span>
        <input
          id="search"
          type="search"
          placeholder="Search"
          autocomplete="off"
          value={query.value}
          onInput={(event) => (query.value = event.currentTarget.value)}
        />
      </label>
      <ChatList list={shown.value} isSearch={text !== ""} />
      <div class="sidebar-foot">
        <IconButton icon="settings" label="Settings" keys="s" onClick={() => (dialog.value = "settings")} />
        <IconButton icon="gauge" label="Machine" keys="m" onClick={() => (dialog.value = "machine")} />
        <IconButton icon="help" label="Keyboard shortcuts" keys="?" onClick={() => (dialog.value = "help")} />
        <Popover label="Export and import" button={<Icon name="download" />} class="up">
          {(close) => (
            <>
              <button type="button" class="menu-item" disabled={chats.value.length === 0} onClick={() => (close(), void exportAll())}>
                <Icon name="download" />Export all chats
              </button>
              <button type="button" class="menu-item" onClick={() => (close(), fileRef.current?.click())}>
                <Icon name="upload" />Import chats
              </button>
              <button type="button" class="menu-item danger" disabled={chats.value.length === 0} onClick={() => (close(), setDeletingAll(true))}>
                <Icon name="trash" />Delete all chats
              </button>
            </>
          )}
        </Popover>
        <input
          ref={fileRef}
          id="import"
          type="file"
          hidden
          accept=".json,application/json"
          aria-label="File to import"
          onChange={(event) => {
            void importFile(event.currentTarget.files?.[0]);
            event.currentTarget.value = "";
          }}
        />
      </div>
      {isDeletingAll && (
        <Confirm
          title="Delete all chats?"
          text="Every chat and transcript of this browser is deleted. This cannot be undone."
          action="Delete all"
          onAnswer={(isYes) => {
            setDeletingAll(false);
            if (!isYes) return;
            session.peek()?.stop();
            go(view.peek().kind);
            void removeAll();
          }}
        />
      )}
    </nav>
  );
}

/** Chats that are drawn at once; a button draws more. */
const PAGE = 100;

function ChatList({ list, isSearch }: { list: Chat[]; isSearch: boolean }) {
  const [n, setN] = useState(PAGE);
  const now = Date.now();
  const groups: [string, Chat[]][] = [];
  for (const chat of list.slice(0, n)) {
    const day = formatDay(chat.updated, now);
    const last = groups.at(-1);
    if (last?.[0] === day) last[1].push(chat);
    else groups.push([day, [chat]]);
  }
  return (
    <div class="chats" tabindex={-1}>
      {list.length === 0 && <p class="empty">{isSearch ? "Nothing found" : "Chats and transcripts stay in this browser."}</p>}
      {groups.map(([day, group]) => (
        <section key={day}>
          <h2>{day}</h2>
          <ul>{group.map((chat) => <ChatItem key={chat.id} chat={chat} />)}</ul>
        </section>
      ))}
      {list.length > n && <button type="button" class="button" onClick={() => setN(n + PAGE)}>Show more</button>}
    </div>
  );
}

function ChatItem({ chat }: { chat: Chat }) {
  const [isDeleting, setDeleting] = useState(false);
  const isShown = view.value.id === chat.id;
  return (
    <li class={isShown ? "shown" : ""}>
      <a
        href={`#/${chat.kind}/${chat.id}`}
        aria-current={isShown ? "page" : undefined}
        dir="auto"
        title={chat.title}
        onClick={() => (isSidebarOpen.value = false)}
      >
        {chat.kind === "speech" && <Icon name="wave" />}
        <span>{chat.title}</span>
        {running.value.has(chat.id) && <span class="busy" role="img" aria-label="running" />}
      </a>
      <IconButton icon="trash" label={`Delete ${chat.title}`} onClick={() => setDeleting(true)} />
      {isDeleting && (
        <Confirm
          title="Delete this chat?"
          text={`“${chat.title}” is deleted with all its branches. This cannot be undone.`}
          action="Delete"
          onAnswer={(isYes) => {
            setDeleting(false);
            if (isYes) void deleteChat(chat.id);
          }}
        />
      )}
    </li>
  );
}
