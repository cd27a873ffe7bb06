// The page: sidebar, header, the open chat or recording, dialogs, notices.

import { useEffect, useState } from "preact/hooks";

import { question, setApiKey } from "../api_key";
import { ChatSession } from "../chat_session";
import { historyError } from "../history";
import { announcement, dismiss, notices } from "../notices";
import { session, view } from "../sessions";
import { SpeechSession } from "../speech_session";
import { ChatView } from "./chat_view";
import { Dialog, dialog } from "./dialog";
import { HelpDialog } from "./help_dialog";
import { IconButton } from "./icons";
import { MachinePanel } from "./machine_panel";
import { ModelPicker } from "./model_picker";
import { SettingsDialog } from "./settings_dialog";
import { exportAll, isSidebarOpen, Sidebar } from "./sidebar";
import { SpeechView } from "./speech_view";

export function App() {
  const { kind, id } = view.value;
  const shown = session.value;
  const isMatching = id === undefined ? shown === undefined : shown?.id === id;
  const close = () => (dialog.value = undefined);
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), document.getElementById("main")?.focus())}>Skip to the content</a>
      <Sidebar />
      {isSidebarOpen.value && <div class="shade" onClick={() => (isSidebarOpen.value = false)} />}
      <main id="main" tabIndex={-1}>
        <Header />
        {historyError.value && (
          <div class="banner" role="alert">
            <span>{historyError.value}</span>
            <button type="button" class="button" onClick={() => void exportAll()}>Export</button>
          </div>
        )}
        {isMatching && kind === "chat" && <ChatView session={shown instanceof ChatSession ? shown : undefined} />}
        {isMatching && kind === "speech" && <SpeechView session={shown instanceof SpeechSession ? shown : undefined} />}
      </main>
      {dialog.value === "settings" && <SettingsDialog onClose={close} />}
      {dialog.value === "machine" && <MachinePanel onClose={close} />}
      {dialog.value === "help" && <HelpDialog onClose={close} />}
      {question.value && <KeyDialog />}
      <div class="notices" aria-live="polite">
        {notices.value.map((notice) => (
          <div key={notice.id} class={`notice ${notice.kind}`} role={notice.kind === "error" ? "alert" : undefined}>
            <span dir="auto">{notice.text}</span>
            <IconButton icon="close" label="Dismiss" onClick={() => dismiss(notice.id)} />
          </div>
        ))}
      </div>
      <div class="hidden" role="status">{announcement.value}</div>
    </>
  );
}

function Header() {
  const { kind } = view.value;
  const shown = session.value;
  const title = shown?.chat.value.title ?? "";
  useEffect(() => {
    document.title = title ? `${title} – stonechat` : "stonechat";
  }, [title]);
  return (
    <header class="header">
      <IconButton icon="menu" label="History" class="phone-only" onClick={() => (isSidebarOpen.value = true)} />
      <ModelPicker key={kind} kind={kind === "speech" ? "speech" : "language"} />
      {shown ? <Title key={shown.id} title={title} onChange={(title) => shown.change({ title })} /> : <span class="spacer" />}
      <IconButton icon="gauge" label="Machine" onClick={() => (dialog.value = "machine")} />
      {shown && <IconButton icon="download" label="Export this chat" class="wide-only" onClick={() => void exportAll(shown.id)} />}
    </header>
  );
}

function Title({ title, onChange }: { title: string; onChange: (title: string) => void }) {
  return (
    <input
      class="title"
      dir="auto"
      aria-label="Title"
      maxLength={200}
      value={title}
      onChange={(event) => {
        const next = event.currentTarget.value.trim();
        if (next) onChange(next);
        else event.currentTarget.value = title;
      }}
      onKeyDown={(event) => {
        if (event.key === "Enter") event.currentTarget.blur();
      }}
    />
  );
}

/** Asks for the API key of the server. */
function KeyDialog() {
  const [key, setKey] = useState("");
  const [isRemembered, setRemembered] = useState(false);
  const asked = question.value;
  if (!asked) return null;
  return (
    <Dialog title="API key" class="small" onClose={() => asked.answer(undefined)}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          setApiKey(key.trim(), isRemembered);
          asked.answer(key.trim());
        }}
      >
        <p>{asked.wasRefused ? "The server refused the key." : "The server wants an API key."}</p>
        <label class="field">
          Key
          {/* A header has no other characters. */}
          <input type="password" autocomplete="off" required pattern="[!-~]+" value={key} onInput={(event) => setKey(event.currentTarget.value)} />
        </label>
        <label class="check">
          <input type="checkbox" checked={isRemembered} onChange={(event) => setRemembered(event.currentTarget.checked)} />
          <span>Keep it in this browser<small>otherwise until this tab is closed</small></span>
        </label>
        <div class="dialog-actions">
          <button type="button" class="button" onClick={() => asked.answer(undefined)}>Cancel</button>
          <button type="submit" class="button primary" disabled={!key.trim()}>Use the key</button>
        </div>
      </form>
    </Dialog>
  );
}
