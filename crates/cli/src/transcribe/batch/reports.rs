//! Outcomes of the inputs of a batch, and what is printed on each.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use stonechat::whisper::Transcript;

use crate::console::Console;
use crate::transcribe::output::{StandardOutput, Written};
use crate::transcribe::plan::Plan;
use crate::transcribe::progress::Overall;
use crate::transcribe::remarks;
use crate::transcribe::results::Task;
use crate::transcribe::summary::{Outcome, Status};

/// Outcomes so far, shared by the threads.
pub(super) struct Reports<'a> {
    plan: &'a Plan<'a>,
    pub(super) console: &'a Console,
    pub(super) overall: Overall<'a>,
    /// By task; stopped until it is done or failed.
    outcomes: Mutex<Vec<Outcome>>,
    /// Whether results without a record were noted.
    has_noted_records: AtomicBool,
    /// Name of the model, if it is English-only and no language was given.
    english_only: Option<String>,
}

impl<'a> Reports<'a> {
    pub(super) fn new(
        plan: &'a Plan<'a>,
        console: &'a Console,
        overall: Overall<'a>,
        outcomes: Vec<Outcome>,
        english_only: Option<String>,
    ) -> Self {
        let (outcomes, has_noted_records) = (Mutex::new(outcomes), AtomicBool::new(false));
        Self { plan, console, overall, outcomes, has_noted_records, english_only }
    }

    /// Outcomes in the order of the tasks.
    pub(super) fn into_outcomes(self) -> Vec<Outcome> {
        self.outcomes.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Outcome>> {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Prints a note on an input.
    pub(super) fn note(&self, task: &Task, text: &str) {
        self.console.note(&format!("{}: {text}", task.input.name()));
    }

    /// Reports an input that is done.
    pub(super) fn succeed(
        &self,
        index: usize,
        transcript: &Transcript,
        written: Written,
        audio_s: f64,
        seconds: f64,
    ) {
        let task = &self.plan.tasks[index];
        let Written { paths, unrecorded } = written;
        let is_silent = remarks::is_silent(transcript);
        if let Some(model) = &self.english_only
            && let Some(note) = remarks::foreign(transcript, model)
        {
            self.note(task, &note);
        }
        if let Some(note) = remarks::done(task, &paths, is_silent, audio_s, seconds) {
            self.note(task, &note);
        }
        if let Some(error) = unrecorded
            && !self.has_noted_records.swap(true, Ordering::Relaxed)
        {
            self.console
                .note(&format!("results are not recorded, no run will skip them: {error:#}"));
        }
        let outputs = task.kept.iter().chain(&paths).map(|path| path.display().to_string());
        let language = Some(transcript.language.clone()).filter(|language| !language.is_empty());
        let done = Outcome::new(task, Status::Done);
        let outputs = outputs.collect();
        let measured =
            Outcome { outputs, audio_s, seconds, language, no_speech: is_silent, ..done };
        self.finish(index, measured);
    }

    /// Reports an input that was interrupted, if some of its text was written.
    pub(super) fn stop(&self, index: usize, transcript: &Transcript, written: &Written) {
        if written.paths.is_empty() {
            return;
        }
        let task = &self.plan.tasks[index];
        self.note(task, &remarks::stopped(transcript, &written.paths));
        let outputs = written.paths.iter().map(|path| path.display().to_string()).collect();
        self.finish(index, Outcome { outputs, ..Outcome::new(task, Status::Stopped) });
    }

    pub(super) fn fail(&self, index: usize, error: anyhow::Error, audio_s: f64, seconds: f64) {
        let task = &self.plan.tasks[index];
        let name = task.input.name();
        // Errors of opening a file name it already.
        let named = error.to_string().contains(&name) || error.is::<StandardOutput>();
        let message = self.console.error(&if named { error } else { error.context(name) });
        let outcome = Outcome::new(task, Status::Failed);
        self.finish(index, Outcome { audio_s, seconds, error: Some(message), ..outcome });
    }

    fn finish(&self, index: usize, outcome: Outcome) {
        self.overall.finish(index);
        self.lock()[index] = outcome;
    }
}
