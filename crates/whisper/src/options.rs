//! Decoding options.

use crate::{Error, Language};

/// What to write down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Task {
    /// The words in the language they were spoken in.
    #[default]
    Transcribe,
    /// An English translation.
    Translate,
}

impl Task {
    /// `transcribe` or `translate`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Transcribe => "transcribe",
            Self::Translate => "translate",
        }
    }
}

/// Decoding options; the defaults are openai/whisper's, greedy.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Spoken language; detected from the first window when `None`.
    pub language: Option<Language>,
    /// Transcribe or translate.
    pub task: Task,
    /// Temperatures tried in turn until a window passes the thresholds below.
    pub temperatures: Vec<f32>,
    /// Candidates sampled at temperatures above zero; the most probable one is kept.
    pub best_of: usize,
    /// A window fails when its text compresses (zlib) better than this: it repeats itself.
    pub compression_ratio_threshold: Option<f64>,
    /// A window fails when its average log-probability is below this.
    pub logprob_threshold: Option<f64>,
    /// A window that fails the log-probability test is silent when the probability of
    /// `<|nospeech|>` is above this.
    pub no_speech_threshold: Option<f64>,
    /// Whether the text of earlier windows is the prompt of the next.
    pub condition_on_previous_text: bool,
    /// Prompt of the first window: names, spelling, style.
    pub initial_prompt: Option<String>,
    /// Whether blanks may not start a window.
    pub suppress_blank: bool,
    /// Whether symbols that are not speech are never chosen.
    pub suppress_non_speech: bool,
    /// Latest time of the first timestamp in a window, in seconds.
    pub max_initial_timestamp: f32,
    /// Whether to ask for plain text without timestamps; then each window is one segment.
    pub without_timestamps: bool,
    /// Seed of the sampler used at temperatures above zero.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            language: None,
            task: Task::Transcribe,
            temperatures: vec![0.0, 0.2, 0.4, 0.6, 0.8, 1.0],
            best_of: 5,
            compression_ratio_threshold: Some(2.4),
            logprob_threshold: Some(-1.0),
            no_speech_threshold: Some(0.6),
            condition_on_previous_text: true,
            initial_prompt: None,
            suppress_blank: true,
            suppress_non_speech: true,
            max_initial_timestamp: 1.0,
            without_timestamps: false,
            seed: 0,
        }
    }
}

impl Options {
    /// Most candidates that can be sampled side by side.
    pub const MAX_BEST_OF: usize = 16;

    /// Checks ranges.
    ///
    /// # Errors
    /// Names the option, the range and the value.
    pub fn validate(&self) -> Result<(), Error> {
        let wrong = |option, expected, got| Err(Error::Option { option, expected, got });
        if self.temperatures.is_empty() {
            return Err(no_temperature());
        }
        if let Some(t) = self.temperatures.iter().find(|t| !(0.0..=2.0).contains(*t)) {
            return wrong("temperature", "0 to 2", t.to_string());
        }
        if !(1..=Self::MAX_BEST_OF).contains(&self.best_of) {
            return wrong("best-of", "1 to 16", self.best_of.to_string());
        }
        if !(0.0..=30.0).contains(&self.max_initial_timestamp) {
            return wrong(
                "max initial timestamp",
                "0 to 30 s",
                self.max_initial_timestamp.to_string(),
            );
        }
        Ok(())
    }
}

pub(crate) fn no_temperature() -> Error {
    Error::Option { option: "temperatures", expected: "at least one", got: "none".to_owned() }
}
