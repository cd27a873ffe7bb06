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
    /// Tokens of the initial prompt and, where windows follow each other, of all segments.
    history: Vec<u32>,
    /// Where in `history` the prompt of the next window may begin.
    prompt_from: usize,
    /// Windows do not know of each other: each gets the initial prompt.
    side_by_side: bool,
    condition_on_previous_text: bool,
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
            history: encode(&options.initial_prompt),
            prompt_from: 0,
            side_by_side: options.batch_size.is_some(),
            condition_on_previous_text: options.condition_on_previous_text,
        }
    }

    /// The start sequence.
    pub(crate) fn start(&self) -> &[u32] {
        &self.start
    }

    /// The prompt of the window that begins at sample `start`.
    pub(crate) fn prompt<B: Backend>(&self, model: &Model<B>, start: usize) -> Prompt {
        let prefix = if start == self.first_window { &self.prefix[..] } else { &[] };
        // faster-whisper's rule: a prefix takes the place of hotwords.
        let hotwords = if prefix.is_empty() { &self.hotwords[..] } else { &[] };
        let earlier = &self.history[self.prompt_from..];
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

    /// Takes note of the segments of a window and of its last attempt.
    pub(crate) fn add(&mut self, segments: &[Segment], temperature: f32, has_failed: bool) {
        if self.side_by_side {
            return;
        }
        segments.iter().for_each(|segment| self.history.extend_from_slice(&segment.tokens));
        // Text that failed, or is the work of chance, would lead the next window astray.
        let is_doubtful = temperature > 0.5 || has_failed;
        if !self.condition_on_previous_text || is_doubtful {
            self.prompt_from = self.history.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use stonechat_nn::Cpu;
    use stonechat_testkit::TinyWhisper;

    use super::Context;
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
        let mut context = context(&model, &options);
        let prompt = |context: &Context| context.prompt(&model, 16_000).tokens;
        let before = |earlier: &[u32]| {
            [&[special.start_of_prev][..], &encode(" ab"), earlier, &[special.sot]].concat()
        };
        assert_eq!(prompt(&context), before(&encode(" cd")));
        context.add(&[segment(vec![7, 8])], 0.0, false);
        assert_eq!(prompt(&context), before(&[&encode(" cd")[..], &[7, 8]].concat()));
        // A window that is doubtful or failed is not what the next one begins with.
        context.add(&[segment(vec![9])], 0.6, false);
        assert_eq!(prompt(&context), before(&[]));
        context.add(&[segment(vec![10])], 0.0, false);
        assert_eq!(prompt(&context), before(&[10]));
        context.add(&[segment(vec![11])], 0.0, true);
        assert_eq!(prompt(&context), before(&[]));
        // Much text: the last of it, so that the window's own has room.
        context.add(&[segment((0..500).collect())], 0.0, false);
        let n = model.config().max_prompt_tokens();
        let kept = 500 - (n - encode(" ab").len()) as u32;
        assert_eq!(prompt(&context), before(&(kept..500).collect::<Vec<_>>()));
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
        let first = context(&model, &options).prompt(&model, 0);
        assert_eq!(first.tokens, [&[special.sot][..], &prefix].concat());
        assert_eq!(first.n_given, prefix.len());
        let later = context(&model, &options).prompt(&model, 16_000);
        assert_eq!((later.tokens[0], later.n_given), (special.start_of_prev, 0));
        let options = Options { without_timestamps: true, ..options };
        assert_eq!(context(&model, &options).prompt(&model, 0).tokens[1..], prefix[1..]);
    }

    #[test]
    fn side_by_side_every_window_gets_the_initial_prompt() {
        let model = model();
        let options = Options {
            batch_size: Some(2),
            initial_prompt: Some("cd".to_owned()),
            ..Options::default()
        };
        let mut context = context(&model, &options);
        let before = context.prompt(&model, 0).tokens;
        context.add(&[segment(vec![7, 8])], 0.0, false);
        assert_eq!(context.prompt(&model, 480_000).tokens, before);
        assert!(before.len() > 2);
    }
}
