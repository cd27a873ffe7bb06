//! JSON report of `--summary`.

use std::io::Write;
use std::path::Path;

use stonechat::formats::AtomicFile;

use super::results::Task;
use crate::json::rounded;

/// Status of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Status {
    Done,
    /// The results of the input were up to date.
    Skipped,
    Failed,
    /// Interrupted by Ctrl-C.
    Stopped,
}

/// Report on one input.
#[derive(Debug, Clone, serde::Serialize)]
pub(super) struct Outcome {
    pub(super) input: String,
    pub(super) status: Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    /// Result files, written or up to date.
    pub(super) outputs: Vec<String>,
    /// Seconds of audio transcribed.
    pub(super) audio_s: f64,
    /// Seconds of reading and transcribing.
    pub(super) seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) language: Option<String>,
    /// Whether it has no text.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) no_speech: bool,
}

impl Outcome {
    /// Report on an input without measurements.
    pub(super) fn new(task: &Task, status: Status) -> Self {
        let kept = task.kept.iter().filter(|_| status == Status::Skipped);
        Self {
            input: task.input.name(),
            status,
            error: None,
            outputs: kept.map(|path| path.display().to_string()).collect(),
            audio_s: 0.0,
            seconds: 0.0,
            language: None,
            no_speech: false,
        }
    }
}

/// Report on all inputs.
#[derive(Debug, serde::Serialize)]
pub(super) struct Summary {
    files: Vec<Outcome>,
    pub(super) totals: Totals,
}

/// Sums over the inputs; `seconds` is wall time.
#[derive(Debug, serde::Serialize)]
pub(super) struct Totals {
    files: usize,
    done: usize,
    skipped: usize,
    pub(super) failed: usize,
    pub(super) stopped: usize,
    audio_s: f64,
    seconds: f64,
}

impl Summary {
    pub(super) fn new(files: Vec<Outcome>, seconds: f64) -> Self {
        let count = |status| files.iter().filter(|file| file.status == status).count();
        let totals = Totals {
            files: files.len(),
            done: count(Status::Done),
            skipped: count(Status::Skipped),
            failed: count(Status::Failed),
            stopped: count(Status::Stopped),
            audio_s: files.iter().map(|file| file.audio_s).sum(),
            seconds,
        };
        Self { files, totals }
    }

    /// Writes the JSON to `path`, or to standard output for `-`.
    pub(super) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(&rounded(self)?)? + "\n";
        if path.as_os_str() == "-" {
            return Ok(crate::print(&text)?);
        }
        let mut file = AtomicFile::create(path)?;
        file.write_all(text.as_bytes())?;
        Ok(file.commit()?)
    }

    /// Formats the totals as one line.
    pub(super) fn line(&self) -> String {
        let Totals { done, skipped, failed, stopped, audio_s, seconds, .. } = &self.totals;
        let counts =
            [(done, "done"), (skipped, "skipped"), (failed, "failed"), (stopped, "stopped")];
        let counts = counts.iter().filter(|(n, what)| **n > 0 || *what == "done");
        let counts: Vec<_> = counts.map(|(n, what)| format!("{n} {what}")).collect();
        format!("{}; {audio_s:.1} s of audio in {seconds:.1} s", counts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::{Outcome, Status, Summary};
    use crate::transcribe::inputs::Input;
    use crate::transcribe::results::Task;

    #[test]
    fn totals_are_sums() {
        let task = Task::new(Input::StandardInput, Vec::new());
        let one = |status, audio_s| Outcome { audio_s, ..Outcome::new(&task, status) };
        let files = vec![one(Status::Done, 1.5), one(Status::Failed, 0.0), one(Status::Done, 2.0)];
        let summary = Summary::new(files, 0.75);
        assert_eq!(summary.line(), "2 done, 1 failed; 3.5 s of audio in 0.8 s");
        let json = serde_json::to_value(&summary).unwrap();
        assert_eq!((&json["totals"]["files"], &json["totals"]["skipped"]), (&3.into(), &0.into()));
        assert_eq!(json["files"][1]["status"], "failed");
    }
}
