//! What a window is told before it is decoded: hotwords, earlier text, a prefix.
//!
//! Source: openai/whisper `transcribe.py`; faster-whisper `WhisperModel.get_prompt`.

use stonechat_nn::Backend;

use crate::{Model, Options, Segment};

/// What windows are told before they are decoded.
#[derive(Debug)]
pub(crate) struct Context {
    start: Vec<u32>,
    /// The sample that the recording's first window begins at.
    first_window: usize,
    hotwords: Vec<u32>,
    /// What the text of the recording's first window begins with, its timestamp included.
    prefix: Vec<u32>,
    initial_prompt: Vec<u32>,
    condition_on_previous_text: bool,
}

/// What was said before a window, as far as windows that follow each other know.
#[derive(Debug, Clone, Default)]
pub(crate) struct History {
    /// The initial prompt and the segments.
    tokens: Vec<u32>,
    /// Where in them the prompt of the next window may begin.
    prompt_from: usize,
}

/// The tokens that a window's text follows.
#[derive(Debug)]
pub(crate) struct Prompt {
    pub(crate) tokens: Vec<u32>,
    /// Tokens of the prefix at its end.
    pub(crate) n_given: usize,
}

impl Context {
    /// `start` is the start sequence, `first_window` the sample that the first window begins at.
    pub(crate) fn new<B: Backend>(
        model: &Model<B>,
        start: Vec<u32>,
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
            start,
            first_window,
            hotwords: limited(encode(&options.hotwords)),
            prefix,
            initial_prompt: encode(&options.initial_prompt),
            condition_on_previous_text: options.condition_on_previous_text,
        }
    }

    /// The start sequence.
    pub(crate) fn start(&self) -> &[u32] {
        &self.start
    }

    /// What a window knows that no other one comes before.
    pub(crate) fn history(&self) -> History {
        History { tokens: self.initial_prompt.clone(), prompt_from: 0 }
    }

    /// The prompt of the window that begins at sample `start`, after `history`.
    pub(crate) fn prompt<B: Backend>(
        &self,
        model: &Model<B>,
        history: &History,
        start: usize,
    ) -> Prompt {
        let prefix = if start == self.first_window { &self.prefix[..] } else { &[] };
        // faster-whisper's rule: a prefix takes the place of hotwords.
        let hotwords = if prefix.is_empty() { &self.hotwords[..] } else { &[] };
        let earlier = &history.tokens[history.prompt_from..];
        // Together they leave room for as much text as a window may hold.
        let room = model.config().max_prompt_tokens().saturating_sub(hotwords.len() + prefix.len());
        let earlier = &earlier[earlier.len().saturating_sub(room)..];
        let mut tokens = Vec::new();
        if !(earlier.is_empty() && hotwords.is_empty()) {
            tokens.push(model.special().start_of_prev);
        }
        for part in [hotwords, earlier, &self.start, prefix] {
            tokens.extend_from_slice(part);
        }
        Prompt { tokens, n_given: prefix.len() }
    }

    /// Adds the segments of a window to its history; `temperature` and `has_failed` are its last attempt's.
    pub(crate) fn extend(
        &self,
        history: &mut History,
        segments: &[Segment],
        temperature: f32,
        has_failed: bool,
    ) {
        segments.iter().for_each(|segment| history.tokens.extend_from_slice(&segment.tokens));
        // Text that failed, or is the work of chance, would lead the next window astray.
        let is_doubtful = temperature > 0.5 || has_failed;
        if !self.condition_on_previous_text || is_doubtful {
            history.prompt_from = history.tokens.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use stonechat_nn::Cpu;
    use stonechat_testkit::TinyWhisper;

    use super::{Context, History};
    use crate::{Model, Options, Segment};

    fn model() -> Model<Cpu> {
        Model::load(Cpu::new(1).unwrap(), &TinyWhisper::default().file(), |_| {}).unwrap()
    }

    fn context(model: &Model<Cpu>, options: &Options) -> Context {
        Context::new(model, vec![model.special().sot], 0, options)
    }

    fn segment(tokens: Vec<u32>) -> Segment {
        Segment { tokens, ..Segment::default() }
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
        let context = context(&model, &options);
        let mut history = context.history();
        let prompt = |history: &History| context.prompt(&model, history, 16_000).tokens;
        let before = |earlier: &[u32]| {
            [&[special.start_of_prev][..], &encode(" ab"), earlier, &[special.sot]].concat()
        };
        assert_eq!(prompt(&history), before(&encode(" cd")));
        context.extend(&mut history, &[segment(vec![7, 8])], 0.0, false);
        assert_eq!(prompt(&history), before(&[&encode(" cd")[..], &[7, 8]].concat()));
        // A window that is doubtful or failed is not what the next one begins with.
        context.extend(&mut history, &[segment(vec![9])], 0.6, false);
        assert_eq!(prompt(&history), before(&[]));
        context.extend(&mut history, &[segment(vec![10])], 0.0, false);
        assert_eq!(prompt(&history), before(&[10]));
        context.extend(&mut history, &[segment(vec![11])], 0.0, true);
        assert_eq!(prompt(&history), before(&[]));
        // Much text: the last of it, so that the window's own has room.
        context.extend(&mut history, &[segment((0..500).collect())], 0.0, false);
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
            let context = context(&model, options);
            context.prompt(&model, &context.history(), start)
        };
        let first = prompt(&options, 0);
        assert_eq!(first.tokens, [&[special.sot][..], &prefix].concat());
        assert_eq!(first.n_given, prefix.len());
        let later = prompt(&options, 16_000);
        assert_eq!((later.tokens[0], later.n_given), (special.start_of_prev, 0));
        let options = Options { without_timestamps: true, ..options };
        assert_eq!(prompt(&options, 0).tokens[1..], prefix[1..]);
    }
}
