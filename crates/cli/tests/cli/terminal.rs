//! A conversation on a terminal.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::thread::{self, sleep};
use std::time::Duration;

use nix::pty::openpty;
use nix::sys::termios::{LocalFlags, tcgetattr};

use crate::run::{Folder, workspace};

/// Text that no model of random weights writes.
const TYPED: &str = "qzqzqzqz";

#[test]
fn what_is_typed_while_an_answer_runs_waits_for_the_prompt() {
    let folder = Folder::new("chat-terminal");
    fs::copy(workspace().join("test-data/golden/llm/llama.gguf"), folder.path("llama.gguf"))
        .unwrap();
    let terminal = openpty(None, None).unwrap();
    let end = || Stdio::from(terminal.slave.try_clone().unwrap());
    let mut command =
        folder.command(&["chat", "llama.gguf", "--ignore-eos", "-n", "2000", "-c", "4096"]);
    command.stdin(end()).stdout(end()).stderr(end());
    command.env("TERM", "xterm").env("XDG_STATE_HOME", folder.path("state"));
    let mut child = command.spawn().unwrap();
    drop(command);
    drop(terminal.slave);
    let keyboard = File::from(terminal.master);
    let screen = Arc::new(Mutex::new(Vec::new()));
    let (mut output, shared) = (keyboard.try_clone().unwrap(), Arc::clone(&screen));
    let reader = thread::spawn(move || {
        let mut bytes = [0; 4096];
        // Reads fail when the program has ended.
        while let Ok(n @ 1..) = output.read(&mut bytes) {
            shared.lock().unwrap().extend_from_slice(&bytes[..n]);
        }
    });
    let shown = || String::from_utf8_lossy(&screen.lock().unwrap()).into_owned();
    let mut wait = |what: &dyn Fn() -> bool| {
        while !what() {
            assert_eq!(child.try_wait().unwrap(), None, "{}", shown());
            sleep(Duration::from_millis(1));
        }
    };
    // The editor's mode has neither; that of an answer has extended input, and no echo.
    let is_answering = || {
        let flags = tcgetattr(&keyboard).unwrap().local_flags;
        flags.contains(LocalFlags::IEXTEN) && !flags.contains(LocalFlags::ECHO)
    };
    let is_editing = || !tcgetattr(&keyboard).unwrap().local_flags.contains(LocalFlags::IEXTEN);
    let type_in = |text: &str| (&keyboard).write_all(text.as_bytes()).unwrap();
    wait(&|| is_editing() && shown().contains("> "));
    let before = shown().len();
    type_in("hello\r");
    wait(&is_answering);
    type_in(TYPED);
    wait(&|| is_editing() && shown().contains(TYPED));
    let text = shown()[before..].to_owned();
    let typed = text.find(TYPED).unwrap();
    // The prompt alone is before it.
    assert!(without_escapes(&text[..typed]).ends_with("> "), "{text}");
    type_in("\u{15}/bye\r");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    drop(keyboard);
    reader.join().unwrap();
}

/// Text without carriage returns and the sequences that move the cursor or set a mode.
fn without_escapes(text: &str) -> String {
    let text = text.replace('\r', "");
    let mut parts = text.split("\u{1b}[");
    let first = parts.next().unwrap_or_default().to_owned();
    let rest = |part: &str| {
        part.trim_start_matches(|c: char| !c.is_ascii_alphabetic()).get(1..).map(str::to_owned)
    };
    first + &parts.filter_map(rest).collect::<String>()
}
