//! Prompt of a window: hotwords, earlier text, start sequence, prefix.
//!
//! ```text
//! <|startofprev|> hotwords, earlier text | <|startoftranscript|> … | prefix | decoded text
//! ```
//!
//! Earlier text is cut to its last tokens, so that with hotwords and prefix it has at most
//! `n_text_ctx / 2 - 1`.
//!
//! Source: openai/whisper `transcribe.py`; faster-whisper `WhisperModel.get_prompt`.

use crate::error::Error;
use crate::languages::Language;
use crate::model::Model;
use crate::options::Options;
use crate::transcript::Segment;

/// Builds the prompts of the windows of one recording.
#[derive(Debug)]
pub(crate) struct PromptBuilder {
    sot_sequence: Vec<u32>,
    /// First sample of the recording's first window.
    first_window: usize,
    hotwords: Vec<u32>,
    /// Tokens that the text of the first window begins with, its timestamp included.
    prefix: Vec<u32>,
    initial_prompt: Vec<u32>,
    condition_on_previous_text: bool,
}

/// Earlier text of consecutive windows.
#[derive(Debug, Clone, Default)]
pub(crate) struct History {
    /// Tokens of the initial prompt and of the segments.
    tokens: Vec<u32>,
    /// Index of the first token that the next prompt may use.
    prompt_from: usize,
}

/// Tokens that precede the text of a window.
#[derive(Debug)]
pub(crate) struct Prompt {
    pub(crate) tokens: Vec<u32>,
    /// Tokens of the prefix, at the end of `tokens`.
    pub(crate) n_prefix: usize,
}

impl PromptBuilder {
    /// Tokenizes the texts of `options`; `first_window` is the first sample of the first window.
    pub(crate) fn new(
        model: &Model,
        sot_sequence: Vec<u32>,
        first_window: usize,
        options: &Options,
    ) -> Self {
        let encode = |text: &Option<String>| {
            let text = text.as_deref().unwrap_or_default().trim();
            let mut tokens = Vec::new();
            if !text.is_empty() {
                tokens = model.tokenizer().encode(&format!(" {text}"));
            }
            tokens
        };
        let limited = |mut tokens: Vec<u32>| {
            tokens.truncate(model.config().max_prompt_tokens());
            tokens
        };
        let mut prefix = limited(encode(&options.prefix));
        if !prefix.is_empty() && !options.without_timestamps {
            prefix.insert(0, model.special().timestamp_begin);
        }
        Self {
            sot_sequence,
            first_window,
            hotwords: limited(encode(&options.hotwords)),
            prefix,
            initial_prompt: encode(&options.initial_prompt),
            condition_on_previous_text: options.condition_on_previous_text,
        }
    }

    /// `<|startoftranscript|>` to `<|notimestamps|>`.
    pub(crate) fn sot_sequence(&self) -> &[u32] {
        &self.sot_sequence
    }

    /// History of a window without a window before it.
    pub(crate) fn initial_history(&self) -> History {
        History { tokens: self.initial_prompt.clone(), prompt_from: 0 }
    }

    /// Prompt of the window that starts at sample `start`.
    pub(crate) fn prompt(&self, model: &Model, history: &History, start: usize) -> Prompt {
        let prefix = if start == self.first_window { &self.prefix[..] } else { &[] };
        // As in faster-whisper, a prefix replaces hotwords.
        let hotwords = if prefix.is_empty() { &self.hotwords[..] } else { &[] };
        let earlier = &history.tokens[history.prompt_from..];
        // The last tokens of the earlier text that leave room for the text of the window.
        let room = model.config().max_prompt_tokens().saturating_sub(hotwords.len() + prefix.len());
        let earlier = &earlier[earlier.len().saturating_sub(room)..];
        let mut tokens = Vec::new();
        if !(earlier.is_empty() && hotwords.is_empty()) {
            tokens.push(model.special().start_of_prev);
        }
        for part in [hotwords, earlier, &self.sot_sequence, prefix] {
            tokens.extend_from_slice(part);
        }
        Prompt { tokens, n_prefix: prefix.len() }
    }

    /// Appends the segments of a window; `temperature` and `has_failed` are of its last attempt.
    pub(crate) fn extend(
        &self,
        history: &mut History,
        segments: &[Segment],
        temperature: f32,
        has_failed: bool,
    ) {
        segments.iter().for_each(|segment| history.tokens.extend_from_slice(&segment.tokens));
        // Text that failed or was sampled at a high temperature degrades the next window.
        let is_unreliable = temperature > 0.5 || has_failed;
        if !self.condition_on_previous_text || is_unreliable {
            history.prompt_from = history.tokens.len();
        }
    }
}

/// `<|startoftranscript|>`, language, task and, without timestamps, `<|notimestamps|>`
/// (openai/whisper `sot_sequence`).
pub(crate) fn sot_sequence(
    model: &Model,
    language: Language,
    options: &Options,
) -> Result<Vec<u32>, Error> {
    let special = model.special();
    let mut sequence = vec![special.sot];
    if special.multilingual {
        let token = special.language(language).ok_or_else(|| Error::Language {
            got: language.name.to_owned(),
            expected: "one of the model's 99 languages",
        })?;
        sequence.extend([token, special.task(options.task)]);
    }
    if options.without_timestamps {
        sequence.push(special.no_timestamps);
    }
    Ok(sequence)
}

#[cfg(test)]
mod tests {
    use stonechat_nn::Cpu;
    use stonechat_testkit::TinyWhisper;

    use super::{History, PromptBuilder, sot_sequence};
    use crate::languages::Language;
    use crate::model::Model;
    use crate::options::{Options, Task};
    use crate::transcript::Segment;

    fn model() -> Model {
        Model::load(Cpu::new(1).unwrap(), &TinyWhisper::default().file(), |_| {}).unwrap()
    }

    fn builder(model: &Model, options: &Options) -> PromptBuilder {
        PromptBuilder::new(model, vec![model.special().sot], 0, options)
    }

    fn segment(tokens: Vec<u32>) -> Segment {
        Segment { tokens, ..Segment::default() }
    }

    #[test]
    fn a_text_starts_with_language_and_task() {
        let german = Language::find("de").unwrap();
        let english = model();
        let sot = english.special().sot;
        assert_eq!(sot_sequence(&english, german, &Options::default()).unwrap(), [sot]);
        let file = TinyWhisper { vocab_size: 51865, ..TinyWhisper::default() }.file();
        let model = Model::load(Cpu::new(1).unwrap(), &file, |_| {}).unwrap();
        let special = *model.special();
        let sequence = |options: &Options| sot_sequence(&model, german, options).unwrap();
        let language = special.language(german).unwrap();
        let transcribe = special.task(Task::Transcribe);
        assert_eq!(sequence(&Options::default()), [special.sot, language, transcribe]);
        let options =
            Options { task: Task::Translate, without_timestamps: true, ..Options::default() };
        let translate = special.task(Task::Translate);
        let expected = [special.sot, language, translate, special.no_timestamps];
        assert_eq!(sequence(&options), expected);
    }

    #[test]
    fn hotwords_and_earlier_text_come_before_the_start() {
        let model = model();
        let (special, encode) = (*model.special(), |text: &str| model.tokenizer().encode(text));
        let options = Options {
            hotwords: Some("ab ".to_owned()),
            initial_prompt: Some(" cd".to_owned()),
            ..Options::default()
        };
        let builder = builder(&model, &options);
        let mut history = builder.initial_history();
        let prompt = |history: &History| builder.prompt(&model, history, 16_000).tokens;
        let before = |earlier: &[u32]| {
            [&[special.start_of_prev][..], &encode(" ab"), earlier, &[special.sot]].concat()
        };
        assert_eq!(prompt(&history), before(&encode(" cd")));
        builder.extend(&mut history, &[segment(vec![7, 8])], 0.0, false);
        assert_eq!(prompt(&history), before(&[&encode(" cd")[..], &[7, 8]].concat()));
        // A window that is unreliable or failed leaves the prompt of the next one empty.
        builder.extend(&mut history, &[segment(vec![9])], 0.6, false);
        assert_eq!(prompt(&history), before(&[]));
        builder.extend(&mut history, &[segment(vec![10])], 0.0, false);
        assert_eq!(prompt(&history), before(&[10]));
        builder.extend(&mut history, &[segment(vec![11])], 0.0, true);
        assert_eq!(prompt(&history), before(&[]));
        // Long text: the last tokens, to leave room for the text of the window.
        builder.extend(&mut history, &[segment((0..500).collect())], 0.0, false);
        let n = model.config().max_prompt_tokens();
        let kept = 500 - (n - encode(" ab").len()) as u32;
        assert_eq!(prompt(&history), before(&(kept..500).collect::<Vec<_>>()));
    }

    #[test]
    fn a_prefix_is_for_the_first_window_and_without_hotwords() {
        let model = model();
        let special = *model.special();
        let options = Options {
            hotwords: Some("ab".to_owned()),
            prefix: Some("cd".to_owned()),
            ..Options::default()
        };
        let prefix = [&[special.timestamp_begin][..], &model.tokenizer().encode(" cd")].concat();
        let prompt = |options: &Options, start| {
            let builder = builder(&model, options);
            builder.prompt(&model, &builder.initial_history(), start)
        };
        let first = prompt(&options, 0);
        assert_eq!(first.tokens, [&[special.sot][..], &prefix].concat());
        assert_eq!(first.n_prefix, prefix.len());
        let later = prompt(&options, 16_000);
        assert_eq!((later.tokens[0], later.n_prefix), (special.start_of_prev, 0));
        let options = Options { without_timestamps: true, ..options };
        assert_eq!(prompt(&options, 0).tokens[1..], prefix[1..]);
    }

    #[test]
    fn earlier_text_needs_no_hotwords_and_may_be_off() {
        let model = model();
        let special = *model.special();
        let prompt_after = |options: &Options, temperature| {
            let builder = builder(&model, options);
            assert_eq!(builder.sot_sequence(), [special.sot]);
            let mut history = builder.initial_history();
            let first = builder.prompt(&model, &history, 0).tokens;
            assert_eq!(first, [special.sot], "nothing comes before the first window");
            builder.extend(&mut history, &[segment(vec![7, 8])], temperature, false);
            builder.prompt(&model, &history, 16_000).tokens
        };
        let on = Options::default();
        let conditioned = [special.start_of_prev, 7, 8, special.sot];
        assert_eq!(prompt_after(&on, 0.0), conditioned);
        assert_eq!(prompt_after(&on, 0.5), conditioned, "0.5 is not above the limit");
        assert_eq!(prompt_after(&on, 0.51), [special.sot]);
        let off = Options { condition_on_previous_text: false, ..on };
        assert_eq!(prompt_after(&off, 0.0), [special.sot]);
    }
}
