//! Making texts comparable before they are scored, with the Python package of Whisper's normalizers.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use anyhow::{Context, Result};
use serde_json::json;

use crate::{shell, venv};

/// Without dependencies: those are for Indian languages, which the two normalizers used here do not import.
const ALONE: [&str; 1] = ["whisper-normalizer==0.1.15"];
const REQUIREMENTS: [&str; 2] = ["more-itertools==11.2.1", "regex==2026.11.19"];
const SCRIPT: &str = "xtask/tools/assets/normalize.py";

/// Unit of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    Word,
    Letter,
}

/// Splits a text into normalized units. Arguments: text, language (ISO 639-1; `None`: not English), unit.
pub(crate) type Normalize<'a> = dyn FnMut(&str, Option<&str>, Unit) -> Result<Vec<String>> + 'a;

/// A Python process that normalizes one text after the other.
#[derive(Debug)]
pub(crate) struct Normalizer {
    child: Child,
    requests: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl Normalizer {
    /// Installs the package, once, and starts the process.
    pub(crate) fn start() -> Result<Self> {
        let python = venv::programs("whisper-normalizer", &REQUIREMENTS, &ALONE)?.join("python");
        let mut command = shell::program(python);
        command.arg(SCRIPT).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("cannot start the Python of the environment")?;
        let requests = child.stdin.take().context("standard input is a pipe")?;
        let replies = child.stdout.take().context("standard output is a pipe")?;
        Ok(Self { child, requests, replies: BufReader::new(replies) })
    }

    /// The units of `text`; see [`Normalize`].
    pub(crate) fn units(
        &mut self,
        text: &str,
        language: Option<&str>,
        unit: Unit,
    ) -> Result<Vec<String>> {
        let kind = match (unit, language) {
            (Unit::Letter, _) => "letters",
            (Unit::Word, Some("en")) => "english",
            (Unit::Word, _) => "basic",
        };
        writeln!(self.requests, "{}", json!({"text": text, "kind": kind}))?;
        let mut reply = String::new();
        self.replies.read_line(&mut reply)?;
        let text: String = serde_json::from_str(&reply).context("the normalizer failed")?;
        Ok(text.split_whitespace().map(str::to_owned).collect())
    }
}

impl Drop for Normalizer {
    fn drop(&mut self) {
        // The process ends with its input; what it says then does not matter.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
