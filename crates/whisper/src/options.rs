//! Decoding options.

use stonechat_audio::VadOptions;

use crate::config::Config;
use crate::error::Error;
use crate::languages::Language;

/// Task of the decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Task {
    /// Text in the spoken language.
    #[default]
    Transcribe,
    /// English translation.
    Translate,
}

impl Task {
    /// Name: `transcribe` or `translate`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Transcribe => "transcribe",
            Self::Translate => "translate",
        }
    }
}

/// When voice activity detection removes everything but speech.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum VadMode {
    /// Never.
    Off,
    /// Always.
    On,
    /// In recordings longer than one window (30 s); a shorter one is transcribed whole unless it has no speech.
    /// Clips are transcribed whole.
    #[default]
    Auto,
}

/// Upper limit of clip timestamps, in seconds; longer than any recording.
const MAX_CLIP_S: f64 = 1e7;

/// Decoding options. Defaults are those of openai/whisper's command line, which faster-whisper shares.
///
/// Each option names the flag or parameter it follows: "openai" is a flag of openai/whisper's
/// command line, "faster-whisper" a parameter of `WhisperModel.transcribe`.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Spoken language; `None` (default) detects it from the first 30 s with speech. openai `--language`.
    pub language: Option<Language>,
    /// Languages that detection chooses from; empty (default) is all of the model's. OpenAI's API `languages`.
    pub languages: Vec<Language>,
    /// Transcribe (default) or translate to English. openai `--task`.
    pub task: Task,
    /// Temperatures, 0 to 2, tried in order until a window passes the thresholds below; default 0.0,
    /// 0.2, … 1.0. openai `--temperature` and `--temperature_increment_on_fallback`.
    pub temperatures: Vec<f32>,
    /// Beams at temperature 0, 1 to 16; default 5, 1 is greedy. openai `--beam_size`.
    pub beam_size: usize,
    /// Beam search ends when `beam_size * patience` beams have finished; default 1.0.
    /// openai `--patience`.
    pub patience: f32,
    /// Exponent α, 0 to 1, of the length penalty `((5 + tokens) / 6)^α` that divides log-probabilities
    /// (Wu et al. 2016); `None` (default) divides by the number of tokens. openai `--length_penalty`.
    pub length_penalty: Option<f32>,
    /// Candidates sampled at temperatures above 0, 1 to 16; the most probable is kept; default 5.
    /// openai `--best_of`.
    pub best_of: usize,
    /// Windows decoded in one batch, 1 to 64; `None` (default) decodes one after the other.
    /// faster-whisper `BatchedInferencePipeline`, `batch_size`.
    ///
    /// Longer recordings and clips are cut at quiet places into chunks of one window, or of up to four
    /// if there were more chunks than `batch_size`. A prompt holds only text of the same chunk.
    pub batch_size: Option<usize>,
    /// A window fails if the zlib compression ratio of its text is higher: it repeats itself; default
    /// 2.4. openai `--compression_ratio_threshold`.
    pub compression_ratio_threshold: Option<f64>,
    /// A window fails if its mean log-probability is lower; default -1.0. openai
    /// `--logprob_threshold`.
    pub logprob_threshold: Option<f64>,
    /// A window is silent if the probability of `<|nospeech|>` is higher and its mean log-probability
    /// is not above `logprob_threshold`; default 0.6. openai `--no_speech_threshold`.
    pub no_speech_threshold: Option<f64>,
    /// Whether the text before a window is its prompt, unless that failed or had a temperature above
    /// 0.5; default true. openai `--condition_on_previous_text`.
    pub condition_on_previous_text: bool,
    /// Prompt of the first window, with `batch_size` of the first window of each chunk; default none.
    /// openai `--initial_prompt`.
    pub initial_prompt: Option<String>,
    /// Words to expect, in the prompt of every window; default none. faster-whisper `hotwords`.
    pub hotwords: Option<String>,
    /// Start of the text of the first window; default none. faster-whisper `prefix`.
    pub prefix: Option<String>,
    /// Suppress blanks at the start of a window; default true. faster-whisper `suppress_blank`.
    pub suppress_blank: bool,
    /// Suppress tokens of symbols that are not speech; default true. The `-1` of openai
    /// `--suppress_tokens`.
    pub suppress_non_speech: bool,
    /// Further token ids to suppress; default none. openai `--suppress_tokens`.
    pub suppress_tokens: Vec<u32>,
    /// Length of text n-grams that may occur only once in a window; default 0 for no limit.
    /// faster-whisper `no_repeat_ngram_size`.
    pub no_repeat_ngram_size: usize,
    /// Maximum new tokens of a window; `None` (default) is half of the decoder's context (224).
    /// faster-whisper `max_new_tokens`.
    pub max_new_tokens: Option<usize>,
    /// Maximum first timestamp of a window in seconds, 0 to 30; default 1.0. faster-whisper
    /// `max_initial_timestamp`.
    pub max_initial_timestamp: f32,
    /// Decode text without timestamps, one segment per window; default false. faster-whisper
    /// `without_timestamps`.
    pub without_timestamps: bool,
    /// Seed of the sampler at temperatures above 0; default 0.
    pub seed: u64,
    /// Voice activity detection; default [`VadMode::Auto`]. faster-whisper `vad_filter`.
    pub vad: VadMode,
    /// Options of voice activity detection. faster-whisper `vad_parameters`.
    pub vad_options: VadOptions,
    /// Start and end of each clip to transcribe, ascending seconds; the last end may be absent. Empty
    /// (default) transcribes everything. Clips are transcribed with their silence, unless `vad` is `On`.
    /// openai `--clip_timestamps`.
    pub clip_timestamps: Vec<f64>,
    /// Find the times of words; default false. openai `--word_timestamps`.
    pub word_timestamps: bool,
    /// Punctuation to merge with the next word. openai `--prepend_punctuations`.
    pub prepend_punctuations: String,
    /// Punctuation to merge with the previous word. openai `--append_punctuations`.
    pub append_punctuations: String,
    /// Skip silence longer than this many seconds around text that is possibly hallucinated; needs
    /// word timestamps; default none. openai `--hallucination_silence_threshold`.
    pub hallucination_silence_threshold: Option<f64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            language: None,
            languages: Vec::new(),
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
            vad: VadMode::Auto,
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
    /// Largest `beam_size` and `best_of`.
    pub const MAX_WIDTH: usize = 16;
    /// Largest `batch_size`.
    pub const MAX_BATCH_SIZE: usize = 64;

    /// Windows of a batch.
    pub(crate) fn n_windows(&self) -> usize {
        self.batch_size.unwrap_or(1)
    }

    /// Whether words are aligned with the audio: for their times, or to find the end of a text without timestamps.
    #[must_use]
    pub fn needs_alignment(&self) -> bool {
        self.word_timestamps || self.without_timestamps
    }

    /// Decoder sequences of a window.
    #[must_use]
    pub fn n_sequences(&self) -> usize {
        self.beam_size.max(self.best_of)
    }

    /// Default of [`prepend_punctuations`](Self::prepend_punctuations).
    pub const PREPEND_PUNCTUATIONS: &'static str = "\"'“¿([{-";
    /// Default of [`append_punctuations`](Self::append_punctuations).
    pub const APPEND_PUNCTUATIONS: &'static str = "\"'.。,，!！?？:：”)]}、";

    /// Checks all ranges.
    ///
    /// # Errors
    /// If an option is out of its range; names option, range and value.
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
            let expected = "0 to 16, and beam size times patience at least 0.5";
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
            let expected = "ascending START,END pairs in seconds, such as 0,30,60,90";
            return wrong("clip-timestamps", expected, format!("{clips:?}"));
        }
        self.vad_options.validate()?;
        Ok(())
    }

    /// Checks the options that depend on the model.
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
