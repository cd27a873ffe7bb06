//! Generating text: prompt, sampling, stopping.

use std::ops::ControlFlow;

use stonechat_nn::TopKEntry;
use stonechat_nn::sample::{
    DryBreakers, Grammar, GrammarSource, PrefixConstraint, Sampler, SamplingOptions,
};
use stonechat_text::{StreamDecoder, Tokenizer};
use web_time::Instant;

use crate::probabilities::{TokenProbs, guide, token_probs};
use crate::session::{Cancelled, MAIN, Wanted};
use crate::stop::StopFilter;
use crate::{Devices, Error, Model, Session};

/// The sequence that a negative prompt is held in.
const NEGATIVE: usize = 1;

/// How to continue a prompt.
#[derive(Debug, Clone, Default)]
pub struct GenerateOptions {
    /// Most tokens to generate; none goes on until something else ends the text.
    pub n_predict: Option<usize>,
    /// The sampling chain.
    pub sampling: SamplingOptions,
    /// What the text must match.
    pub grammar: Option<GrammarSource>,
    /// Strings that end the text; they are not part of it.
    pub stop: Vec<String>,
    /// Most probable tokens to report at each step.
    pub n_probs: usize,
    /// Never end at an end token: none is drawn.
    pub ignore_eos: bool,
    /// Show special tokens as their text.
    pub show_special: bool,
    /// Token healing: the prompt's last token may be replaced by a longer one.
    pub heal: bool,
    /// Classifier-free guidance.
    pub guidance: Option<Guidance>,
    /// What happens when the context is full.
    pub on_full: OnFull,
}

/// Classifier-free guidance (Sanchez et al. 2023): away from what a negative prompt leads to.
#[derive(Debug, Clone, PartialEq)]
pub struct Guidance {
    /// Tokens of the negative prompt.
    pub negative: Vec<u32>,
    /// 1 leaves the logits as they are; more moves further away.
    pub scale: f32,
}

/// What happens when the context is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnFull {
    /// The text ends.
    #[default]
    Stop,
    /// The first `keep` tokens and the later half of the others stay; they are run again, so that
    /// their keys and values are those of their new positions.
    Shift {
        /// Tokens at the start that always stay.
        keep: usize,
    },
}

/// What happens while a text is generated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event<'a> {
    /// Tokens of the prompt that are done.
    Prompt {
        /// Done.
        done: usize,
        /// All.
        total: usize,
    },
    /// More text, in whole code points.
    Text(&'a str),
}

/// A generated text.
#[derive(Debug, Clone)]
pub struct Completion {
    /// The text, without the stop string.
    pub text: String,
    /// The generated tokens, without the end token.
    pub tokens: Vec<u32>,
    /// One entry a token where `n_probs` asked for them.
    pub probs: Vec<TokenProbs>,
    /// Why it ended.
    pub finish: Finish,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them that were held already.
    pub cached_tokens: usize,
    /// The seed of the draws.
    pub seed: u64,
    /// Times.
    pub timings: Timings,
}

/// Why a text ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// The model drew an end token.
    EndOfText,
    /// A stop string came.
    StopString,
    /// `n_predict` tokens.
    Length,
    /// The context is full.
    ContextFull,
    /// The grammar allows nothing more.
    GrammarEnd,
    /// The caller broke off.
    Cancelled,
}

/// Times of a generation.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Timings {
    /// Running the prompt.
    pub prompt_ms: f64,
    /// Everything after it.
    pub decode_ms: f64,
}

impl<D: Devices> Session<'_, D> {
    /// Continues `prompt`, of which the longest part that the session already holds is not run
    /// again. When `on_event` breaks, the text ends with [`Finish::Cancelled`] and the session
    /// stays usable.
    ///
    /// # Errors
    /// If the prompt is empty or does not fit the context, an option is out of range, the grammar
    /// is wrong, or the device fails.
    pub async fn generate(
        &mut self,
        prompt: &[u32],
        options: &GenerateOptions,
        on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Completion, Error> {
        let start = Instant::now();
        let mut writer = Writer::new(self.model, prompt, options)?;
        let mut report = |done, total| on_event(Event::Prompt { done, total });
        let fed = self.feed_all(&mut writer, options, &mut report).await?;
        let cached_tokens = fed.unwrap_or(0);
        let prompt_ms = milliseconds(start);
        let start = Instant::now();
        let finish = match fed {
            Ok(_) => self.write(&mut writer, options, on_event).await?,
            Err(Cancelled) => Finish::Cancelled,
        };
        Ok(Completion {
            text: writer.text,
            tokens: writer.tokens,
            probs: writer.probs,
            finish,
            prompt_tokens: prompt.len(),
            cached_tokens,
            seed: writer.sampler.seed(),
            timings: Timings { prompt_ms, decode_ms: milliseconds(start) },
        })
    }

    /// Runs the prompt, and before it the negative prompt, whose logits go to the writer.
    async fn feed_all(
        &mut self,
        writer: &mut Writer<'_>,
        options: &GenerateOptions,
        report: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Result<usize, Cancelled>, Error> {
        if let Some(guidance) = &options.guidance {
            let problem = |option, expected: &str, got: usize| {
                Err(Error::Option { option, expected: expected.to_owned(), got: got.to_string() })
            };
            if self.tokens.len() <= NEGATIVE {
                return problem("guidance", "a session of 2 sequences", self.tokens.len());
            }
            if guidance.negative.is_empty() {
                return problem("negative prompt", "at least one token", 0);
            }
            let fed = self.feed(NEGATIVE, &guidance.negative, Wanted::Logits, report);
            if let Err(cancelled) = fed.await? {
                return Ok(Err(cancelled));
            }
            writer.negative.clone_from(&self.logits);
        }
        let wanted = writer.wanted(options, self.model.max_greatest());
        self.feed(MAIN, &writer.prompt, wanted, report).await
    }

    /// Draws tokens until something ends the text.
    async fn write(
        &mut self,
        writer: &mut Writer<'_>,
        options: &GenerateOptions,
        on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Finish, Error> {
        let max_greatest = self.model.max_greatest();
        // What the pass before has read.
        let mut wanted = writer.wanted(options, max_greatest);
        let finish = loop {
            if options.n_predict.is_some_and(|n| writer.tokens.len() >= n) {
                break Finish::Length;
            }
            if options.n_probs > 0 {
                writer.raw.clone_from(&self.logits);
            }
            if let Some(guidance) = &options.guidance {
                guide(&mut self.logits, &writer.negative, guidance.scale);
            }
            let token = match wanted {
                Wanted::Logits => writer.draw(&mut self.logits)?,
                Wanted::Greatest(_) => writer.draw_greatest(&self.greatest),
            };
            if self.model.tokenizer().is_end_of_generation(token) && !options.ignore_eos {
                break Finish::EndOfText;
            }
            if options.n_probs > 0 {
                writer.probs.push(token_probs(&writer.raw, token, options.n_probs));
            }
            let (ended, is_break) = writer.push(token, on_event);
            if let Some(finish) = ended {
                break finish;
            }
            if is_break {
                break Finish::Cancelled;
            }
            if options.n_predict.is_some_and(|n| writer.tokens.len() >= n) {
                break Finish::Length;
            }
            if !self.make_room(options.on_full).await? {
                break Finish::ContextFull;
            }
            if options.guidance.is_some() {
                self.step(NEGATIVE, token, Wanted::Logits).await?;
                writer.negative.clone_from(&self.logits);
            }
            wanted = writer.wanted(options, max_greatest);
            self.step(MAIN, token, wanted).await?;
        };
        writer.finish(finish, on_event);
        Ok(finish)
    }

    /// Makes sure that one more token fits each sequence; says whether it does.
    async fn make_room(&mut self, on_full: OnFull) -> Result<bool, Error> {
        let n_ctx = self.n_ctx();
        let longest = self.tokens.iter().map(Vec::len).max().unwrap_or(0);
        if longest < n_ctx {
            return Ok(true);
        }
        let OnFull::Shift { keep } = on_full else { return Ok(false) };
        for sequence in 0..self.tokens.len() {
            let held = &self.tokens[sequence];
            if held.len() < n_ctx {
                continue;
            }
            let keep = keep.min(n_ctx.saturating_sub(2));
            let left = (held.len() - keep) / 2;
            let mut tokens = held[..keep].to_vec();
            tokens.extend_from_slice(&held[held.len() - left..]);
            let never = &mut |_, _| ControlFlow::Continue(());
            if self.feed(sequence, &tokens, Wanted::Logits, never).await?.is_err() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The text being written.
struct Writer<'a> {
    prompt: Vec<u32>,
    sampler: Sampler,
    grammar: Option<Grammar>,
    healing: PrefixConstraint,
    /// Bytes of the text to come that repeat the healed end of the prompt.
    repeated: usize,
    tokenizer: &'a Tokenizer,
    decoder: StreamDecoder<'a>,
    filter: StopFilter<'a>,
    text: String,
    tokens: Vec<u32>,
    probs: Vec<TokenProbs>,
    /// Logits before anything was done to them.
    raw: Vec<f32>,
    /// Logits after the negative prompt and the text.
    negative: Vec<f32>,
}

impl<'a> Writer<'a> {
    fn new<D: Devices>(
        model: &'a Model<D>,
        prompt: &[u32],
        options: &'a GenerateOptions,
    ) -> Result<Self, Error> {
        let tokenizer = model.tokenizer();
        let vocab_size = model.config().vocab_size;
        let mut prompt = prompt.to_vec();
        let (mut healing, mut repeated) = (PrefixConstraint::default(), 0);
        if options.heal && prompt.len() > 1 {
            let last = prompt[prompt.len() - 1];
            let bytes = tokenizer.token_piece(last, false);
            if !bytes.is_empty() {
                (healing, repeated) = (PrefixConstraint::new(bytes), bytes.len());
                prompt.pop();
            }
        }
        if prompt.is_empty() {
            let expected = "at least one token".to_owned();
            return Err(Error::Option { option: "prompt", expected, got: "none".to_owned() });
        }
        let mut sampling = options.sampling.clone();
        if options.ignore_eos {
            let ends = tokenizer.ends_of_generation();
            sampling.logit_bias.extend(ends.map(|token| (token, f32::NEG_INFINITY)));
        }
        let breakers = if sampling.uses_dry() {
            DryBreakers::new(
                &sampling.dry_sequence_breakers,
                vocab_size,
                |token, buffer| buffer.extend_from_slice(tokenizer.token_piece(token, true)),
                |rest| tokenizer.tokenize(&String::from_utf8_lossy(rest), false, false),
            )
        } else {
            DryBreakers::default()
        };
        let mut sampler = Sampler::new(&sampling, vocab_size, breakers)?;
        prompt.iter().for_each(|&token| sampler.accept(token));
        let grammar = match &options.grammar {
            Some(source) => Some(Grammar::new(source, model.token_table()?)?),
            None => None,
        };
        let decoder = StreamDecoder::continuing(tokenizer);
        Ok(Self {
            prompt,
            sampler,
            grammar,
            healing,
            repeated,
            tokenizer,
            decoder: if options.show_special { decoder.with_special() } else { decoder },
            filter: StopFilter::new(&options.stop),
            text: String::new(),
            tokens: Vec::new(),
            probs: Vec::new(),
            raw: Vec::new(),
            negative: Vec::new(),
        })
    }

    /// What the next draw needs: few logits where the sampler needs no more and nothing else looks at them.
    fn wanted(&self, options: &GenerateOptions, max_greatest: usize) -> Wanted {
        let needs_all = options.n_probs > 0
            || options.guidance.is_some()
            || self.grammar.is_some()
            || !self.healing.is_satisfied();
        match self.sampler.required_top_k() {
            Some(n) if !needs_all && n <= max_greatest => Wanted::Greatest(n),
            _ => Wanted::Logits,
        }
    }

    /// Draws the next token from the greatest logits, which decide.
    fn draw_greatest(&mut self, greatest: &[TopKEntry]) -> u32 {
        let token = self.sampler.sample_top_k(greatest);
        self.sampler.accept(token);
        token
    }

    /// Draws the next token under every constraint.
    fn draw(&mut self, logits: &mut [f32]) -> Result<u32, Error> {
        if !self.healing.is_satisfied() {
            let tokenizer = self.tokenizer;
            self.healing.mask(logits, |token| tokenizer.token_piece(token, false));
        }
        let token = match &mut self.grammar {
            Some(grammar) => grammar.sample(&mut self.sampler, logits)?,
            None => self.sampler.sample(logits),
        };
        self.sampler.accept(token);
        self.healing.accept(self.tokenizer.token_piece(token, false));
        if let Some(grammar) = &mut self.grammar {
            grammar.accept(token)?;
        }
        Ok(token)
    }

    /// Adds a token to the text; returns what ended it, and whether the caller broke off.
    fn push(
        &mut self,
        token: u32,
        on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> (Option<Finish>, bool) {
        self.tokens.push(token);
        let mut text = self.decoder.push(token).unwrap_or_default();
        let repeats = text.floor_char_boundary(self.repeated);
        text.drain(..repeats);
        self.repeated -= repeats;
        let (shown, stopped) = self.filter.push(&text);
        let is_break = self.show(&shown, on_event);
        if stopped {
            return (Some(Finish::StopString), is_break);
        }
        let done = self.grammar.as_ref().is_some_and(Grammar::is_finished);
        (done.then_some(Finish::GrammarEnd), is_break)
    }

    fn show(&mut self, text: &str, on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>) -> bool {
        self.text.push_str(text);
        !text.is_empty() && on_event(Event::Text(text)).is_break()
    }

    fn finish(&mut self, finish: Finish, on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>) {
        if finish != Finish::StopString {
            let rest = self.decoder.flush().unwrap_or_default();
            let (mut text, stopped) = self.filter.push(&rest);
            if !stopped {
                text += &self.filter.finish();
            }
            self.show(&text, on_event);
        }
    }
}

fn milliseconds(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}
