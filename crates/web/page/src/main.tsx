// Start of the page.

import { render } from "preact";

import { loadChats } from "./history";
import { findEngines } from "./models";
import { messageOf } from "./engine";
import { notify } from "./notices";
import { startSessions } from "./sessions";
import { App } from "./ui/app";
import { listenForShortcuts } from "./ui/help_dialog";

const root = document.getElementById("app");
if (root) render(<App />, root);
listenForShortcuts();
void loadChats().then(startSessions);
findEngines().catch((error: unknown) => notify(messageOf(error), "error"));
// A page without TLS, other than of this machine, has no service worker.
if ("serviceWorker" in navigator) {
  navigator.serviceWorker.register(new URL("sw.js", document.baseURI)).catch(() => undefined);
}
