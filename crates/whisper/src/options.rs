//! Decoding options.

use stonechat_audio::VadOptions;

use crate::{Config, Error, Language};

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

/// When what is not speech is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum VadMode {
    /// Everything is listened to.
    #[default]
    Off,
    /// Only speech.
    On,
    /// Only speech, in recordings longer than a window.
    Auto,
}

/// Beyond the longest recordings, in seconds.
const MAX_CLIP_S: f64 = 1e7;

/// Decoding options; the defaults are those of openai/whisper's command line and faster-whisper.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Spoken language; detected from the first window when `None`.
    pub language: Option<Language>,
    /// Transcribe or translate.
    pub task: Task,
    /// Temperatures tried in turn until a window passes the thresholds below.
    pub temperatures: Vec<f32>,
    /// Texts that are followed side by side at temperature zero; 1 is greedy.
    pub beam_size: usize,
    /// A search ends when `beam_size * patience` texts have ended.
    pub patience: f32,
    /// Texts are compared by log-probability over `((5 + tokens) / 6)` to this power (Wu et al.
    /// 2016); over the number of tokens when `None`.
    pub length_penalty: Option<f32>,
    /// Candidates sampled at temperatures above zero; the most probable one is kept.
    pub best_of: usize,
    /// Windows that are decoded side by side: a longer recording is cut where it is quiet into pieces of a
    /// window, or of up to four where there are more, and none knows the text of another. One after the
    /// other when `None`.
    pub batch_size: Option<usize>,
    /// A window fails when its text compresses (zlib) better than this: it repeats itself.
    pub compression_ratio_threshold: Option<f64>,
    /// A window fails when its average log-probability is below this.
    pub logprob_threshold: Option<f64>,
    /// A window that fails the log-probability test is silent when the probability of
    /// `<|nospeech|>` is above this.
    pub no_speech_threshold: Option<f64>,
    /// Whether the text of earlier windows is the prompt of the next, unless they failed.
    pub condition_on_previous_text: bool,
    /// Prompt of the first window, or of each where they are decoded side by side: names,
    /// spelling, style.
    pub initial_prompt: Option<String>,
    /// Words to expect, in the prompt of every window.
    pub hotwords: Option<String>,
    /// What the text of the first window begins with.
    pub prefix: Option<String>,
    /// Whether blanks may not start a window.
    pub suppress_blank: bool,
    /// Whether symbols that are not speech are never chosen.
    pub suppress_non_speech: bool,
    /// Tokens that are never chosen either.
    pub suppress_tokens: Vec<u32>,
    /// Runs of so many text tokens occur once in a window; 0 lets all repeat.
    pub no_repeat_ngram_size: usize,
    /// Most tokens of a window; half of the decoder's context when `None`.
    pub max_new_tokens: Option<usize>,
    /// Latest time of the first timestamp in a window, in seconds.
    pub max_initial_timestamp: f32,
    /// Whether to ask for plain text without timestamps; then each window is one segment.
    pub without_timestamps: bool,
    /// Seed of the sampler used at temperatures above zero.
    pub seed: u64,
    /// Whether to leave out what is not speech before anything else.
    pub vad: VadMode,
    /// What speech is.
    pub vad_options: VadOptions,
    /// Only these stretches are heard, and all of them: where each begins and ends, in seconds; the last
    /// one may have no end. Everything when empty.
    pub clip_timestamps: Vec<f64>,
    /// Whether to find the time of each word.
    pub word_timestamps: bool,
    /// Characters that belong to the word after them.
    pub prepend_punctuations: String,
    /// Characters that belong to the word before them.
    pub append_punctuations: String,
    /// With word times: text that looks made up is left out between silences longer than this, in
    /// seconds.
    pub hallucination_silence_threshold: Option<f64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            language: None,
            task: Task::Transcribe,
            temperatures: vec![0.0, 0.2, 0.4, 0.6, 0.8, 1.0],
            beam_size: 5,
            patience: 1.0,
            length_penalty: None,
            best_of: 5,
            batch_size: None,
            compression_ratio_threshold: Some(2.4),
            logprob_threshold: Some(-1.0),
            no_speech_threshold: Some(0.6),
            condition_on_previous_text: true,
            initial_prompt: None,
            hotwords: None,
            prefix: None,
            suppress_blank: true,
            suppress_non_speech: true,
            suppress_tokens: Vec::new(),
            no_repeat_ngram_size: 0,
            max_new_tokens: None,
            max_initial_timestamp: 1.0,
            without_timestamps: false,
            seed: 0,
            vad: VadMode::Off,
            vad_options: VadOptions::default(),
            clip_timestamps: Vec::new(),
            word_timestamps: false,
            prepend_punctuations: Self::PREPEND_PUNCTUATIONS.to_owned(),
            append_punctuations: Self::APPEND_PUNCTUATIONS.to_owned(),
            hallucination_silence_threshold: None,
        }
    }
}

impl Options {
    /// Most beams or candidates of a window.
    pub const MAX_WIDTH: usize = 16;
    /// Most windows that can be decoded side by side.
    pub const MAX_BATCH_SIZE: usize = 64;

    /// Windows side by side.
    pub(crate) fn n_windows(&self) -> usize {
        self.batch_size.unwrap_or(1)
    }

    /// Sequences that a window takes.
    pub(crate) fn n_sequences(&self) -> usize {
        self.beam_size.max(self.best_of)
    }

    /// What opens a word, as openai/whisper has it.
    pub const PREPEND_PUNCTUATIONS: &'static str = "\"'“¿([{-";
    /// What closes a word, as openai/whisper has it.
    pub const APPEND_PUNCTUATIONS: &'static str = "\"'.。,，!！?？:：”)]}、";

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
        for (option, width) in [("beam-size", self.beam_size), ("best-of", self.best_of)] {
            if !(1..=Self::MAX_WIDTH).contains(&width) {
                return wrong(option, "1 to 16", width.to_string());
            }
        }
        if !(0.0..=16.0).contains(&self.patience)
            || (self.beam_size as f32 * self.patience).round() < 1.0
        {
            let expected = "up to 16, and at least half a text with the beam size";
            return wrong("patience", expected, self.patience.to_string());
        }
        if let Some(penalty) = self.length_penalty.filter(|p| !(0.0..=1.0).contains(p)) {
            return wrong("length-penalty", "0 to 1", penalty.to_string());
        }
        if let Some(size) = self.batch_size.filter(|n| !(1..=Self::MAX_BATCH_SIZE).contains(n)) {
            return wrong("batch-size", "1 to 64", size.to_string());
        }
        if self.max_new_tokens == Some(0) {
            return wrong("max-new-tokens", "at least 1", "0".to_owned());
        }
        if !(0.0..=30.0).contains(&self.max_initial_timestamp) {
            return wrong(
                "max initial timestamp",
                "0 to 30 s",
                self.max_initial_timestamp.to_string(),
            );
        }
        if let Some(threshold) = self.hallucination_silence_threshold {
            let option = "hallucination silence threshold";
            if !self.word_timestamps {
                return wrong(option, "word timestamps", "none".to_owned());
            }
            if !(threshold >= 0.0 && threshold.is_finite()) {
                return wrong(option, "0 s or more", threshold.to_string());
            }
        }
        let clips = &self.clip_timestamps;
        let is_time = |t: &f64| (0.0..=MAX_CLIP_S).contains(t);
        if !clips.iter().all(is_time) || clips.windows(2).any(|pair| pair[0] >= pair[1]) {
            let expected =
                "ascending seconds where clips begin and end in turns, such as 0,30,60,90";
            return wrong("clip-timestamps", expected, format!("{clips:?}"));
        }
        self.vad_options.validate()?;
        Ok(())
    }

    /// Checks what depends on the model.
    pub(crate) fn validate_for(&self, config: &Config) -> Result<(), Error> {
        let wrong = |option, expected, got: String| Err(Error::Option { option, expected, got });
        let vocab_size = config.vocab_size;
        if let Some(id) = self.suppress_tokens.iter().find(|&&id| id as usize >= vocab_size) {
            let got = format!("{id} of {vocab_size}");
            return wrong("suppress-tokens", "tokens of the model's vocabulary", got);
        }
        if let Some(n) = self.max_new_tokens.filter(|&n| n > config.n_text_ctx) {
            let got = format!("{n} of {}", config.n_text_ctx);
            return wrong("max-new-tokens", "no more than the decoder's context", got);
        }
        Ok(())
    }
}

pub(crate) fn no_temperature() -> Error {
    Error::Option { option: "temperatures", expected: "at least one", got: "none".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::Options;

    #[test]
    fn the_defaults_are_valid_and_other_values_are_named() {
        Options::default().validate().unwrap();
        let default = Options::default;
        for (options, expected) in [
            (Options { beam_size: 0, ..default() }, "beam-size: expected 1 to 16, got 0"),
            (Options { best_of: 17, ..default() }, "best-of: expected 1 to 16, got 17"),
            (Options { patience: 0.09, ..default() }, "patience: expected "),
            (Options { patience: f32::NAN, ..default() }, "patience: expected "),
            (Options { length_penalty: Some(1.5), ..default() }, "length-penalty: expected 0 to 1"),
            (Options { batch_size: Some(0), ..default() }, "batch-size: expected 1 to 64, got 0"),
            (Options { max_new_tokens: Some(0), ..default() }, "max-new-tokens: expected"),
            (Options { temperatures: vec![], ..default() }, "temperatures: expected"),
            (Options { temperatures: vec![f32::NAN], ..default() }, "temperature: expected"),
        ] {
            let error = options.validate().unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
        let patient = Options { beam_size: 1, patience: 0.5, ..default() };
        patient.validate().unwrap();
    }
}
