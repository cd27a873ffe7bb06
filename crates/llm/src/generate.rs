//! Generating text: prompt, sampling, stopping.

use std::ops::ControlFlow;

use stonechat_nn::TopKEntry;
use stonechat_nn::sample::{
    DryBreakers, Grammar, GrammarSource, PrefixConstraint, Sampler, SamplingOptions,
};
use stonechat_text::{StreamDecoder, Tokenizer};
use web_time::Instant;

use crate::probabilities::{TokenProbs, guide, token_probs};
use crate::session::{Cancelled, RequiredOutput, Slot};
use crate::stop::StopFilter;
use crate::{Devices, Error, Model, Session};

/// How to continue a prompt.
#[derive(Debug, Clone, Default)]
pub struct GenerateOptions {
    /// Maximum tokens to generate; `None`: no limit.
    pub n_predict: Option<usize>,
    /// Sampling chain.
    pub sampling: SamplingOptions,
    /// Grammar that constrains the text.
    pub grammar: Option<GrammarSource>,
    /// Stop strings; the text ends before the first of them.
    pub stop: Vec<String>,
    /// Number of most probable tokens to report for each token.
    pub n_probs: usize,
    /// Never sample end-of-generation tokens.
    pub ignore_eos: bool,
    /// Emit special tokens as their text.
    pub show_special: bool,
    /// Token healing: the prompt's last token may be replaced by a longer one.
    pub heal: bool,
    /// Classifier-free guidance.
    pub guidance: Option<Guidance>,
    /// Action when the context is full.
    pub on_full: OnFull,
}

/// Classifier-free guidance (Sanchez et al. 2023): moves logits away from those after a negative prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct Guidance {
    /// Tokens of the negative prompt.
    pub negative: Vec<u32>,
    /// Guidance scale; 1 changes nothing.
    pub scale: f32,
}

/// Action when the context is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnFull {
    /// End the text.
    #[default]
    Stop,
    /// Context shift: keep the first `keep` tokens and the second half of the others. They are run
    /// again, so that their keys and values are those of the new positions.
    Shift {
        /// Number of tokens to keep at the start.
        keep: usize,
    },
}

/// Event during generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// Progress of the prompt.
    Prompt {
        /// Tokens cached or run.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// Generated text in whole code points: one event per token and one at the end. Empty for a token without text, and
    /// while a stop string or a code point is incomplete.
    Text(&'a str),
}

/// Result of a generation.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Completion {
    /// Text, without the stop string.
    pub text: String,
    /// Generated tokens, without the end token.
    pub tokens: Vec<u32>,
    /// Probabilities of each token, if `n_probs > 0`.
    pub probs: Vec<TokenProbs>,
    /// Reason of the end.
    pub finish: Finish,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the prompt found in the KV cache.
    pub cached_tokens: usize,
    /// Seed of the sampler.
    pub seed: u64,
    /// Durations.
    pub timings: Timings,
}

/// Reason of the end of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finish {
    /// An end-of-generation token was sampled.
    EndOfText,
    /// The text reached a stop string.
    StopString,
    /// The text has `n_predict` tokens.
    Length,
    /// The context is full.
    ContextFull,
    /// The grammar is complete and allows no more text.
    GrammarEnd,
    /// The caller cancelled.
    Cancelled,
}

impl Finish {
    /// Name, for example `end_of_text`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::EndOfText => "end_of_text",
            Self::StopString => "stop",
            Self::Length => "length",
            Self::ContextFull => "context_full",
            Self::GrammarEnd => "grammar_end",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Durations of a generation, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct Timings {
    /// Prompt processing.
    pub prompt_ms: f64,
    /// Decoding.
    pub decode_ms: f64,
}

impl<D: Devices> Session<'_, D> {
    /// Generates a continuation of `prompt`; its longest cached prefix is not run again. If `on_event`
    /// breaks, the text ends with [`Finish::Cancelled`] and the session stays usable.
    ///
    /// # Errors
    /// If the prompt is empty or longer than the context, an option is out of range, the grammar is
    /// invalid, or the device fails.
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
        let decode_ms = milliseconds(start);
        tracing::debug!(
            prompt_tokens = prompt.len(),
            cached_tokens,
            tokens = writer.tokens.len(),
            prompt_ms,
            decode_ms,
            seed = writer.sampler.seed(),
            ?finish,
            "generated"
        );
        Ok(Completion {
            text: writer.text,
            tokens: writer.tokens,
            probs: writer.probs,
            finish,
            prompt_tokens: prompt.len(),
            cached_tokens,
            seed: writer.sampler.seed(),
            timings: Timings { prompt_ms, decode_ms },
        })
    }

    /// Runs the negative prompt, if any, then the prompt; returns the cached tokens of the latter.
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
            if self.tokens.len() <= Slot::NEGATIVE_PROMPT.index() {
                return problem("guidance", "a session of 2 sequences", self.tokens.len());
            }
            if guidance.negative.is_empty() {
                return problem("negative prompt", "at least one token", 0);
            }
            let fed = self.feed(
                Slot::NEGATIVE_PROMPT,
                &guidance.negative,
                RequiredOutput::Logits,
                report,
            );
            if let Err(cancelled) = fed.await? {
                return Ok(Err(cancelled));
            }
            writer.negative.clone_from(&self.logits);
        }
        let required = writer.required_output(options, self.model.max_top_k());
        self.feed(Slot::TEXT, &writer.prompt, required, report).await
    }

    /// Samples and runs tokens until the text ends.
    async fn write(
        &mut self,
        writer: &mut Writer<'_>,
        options: &GenerateOptions,
        on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Finish, Error> {
        let max_top_k = self.model.max_top_k();
        // Output that the last pass has read.
        let mut required = writer.required_output(options, max_top_k);
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
            let token = match required {
                RequiredOutput::Logits => writer.draw(&mut self.logits)?,
                RequiredOutput::TopK(_) => writer.draw_top_k(&self.top_k),
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
                self.step(Slot::NEGATIVE_PROMPT, token, RequiredOutput::Logits).await?;
                writer.negative.clone_from(&self.logits);
            }
            required = writer.required_output(options, max_top_k);
            self.step(Slot::TEXT, token, required).await?;
        };
        writer.finish(finish, on_event);
        Ok(finish)
    }

    /// Shifts the context of full slots, if `on_full` says so; returns whether one more token fits.
    async fn make_room(&mut self, on_full: OnFull) -> Result<bool, Error> {
        let n_ctx = self.n_ctx();
        let longest = self.tokens.iter().map(Vec::len).max().unwrap_or(0);
        if longest < n_ctx {
            return Ok(true);
        }
        let OnFull::Shift { keep } = on_full else { return Ok(false) };
        for index in 0..self.tokens.len() {
            let old = &self.tokens[index];
            if old.len() < n_ctx {
                continue;
            }
            let keep = keep.min(n_ctx.saturating_sub(2));
            let left = (old.len() - keep) / 2;
            let mut tokens = old[..keep].to_vec();
            tokens.extend_from_slice(&old[old.len() - left..]);
            let never = &mut |_, _| ControlFlow::Continue(());
            if self.feed(Slot::new(index), &tokens, RequiredOutput::Logits, never).await?.is_err() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// State of a generation: sampler, constraints and text so far.
struct Writer<'a> {
    prompt: Vec<u32>,
    sampler: Sampler,
    grammar: Option<Grammar>,
    healing: PrefixConstraint,
    /// Bytes of the text still to drop: they repeat the token that healing took from the prompt.
    repeated: usize,
    tokenizer: &'a Tokenizer,
    decoder: StreamDecoder<'a>,
    filter: StopFilter<'a>,
    text: String,
    tokens: Vec<u32>,
    probs: Vec<TokenProbs>,
    /// Logits of the text before guidance and sampling, for `probs`.
    raw: Vec<f32>,
    /// Logits of the negative prompt, continued by the text.
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
            return Err(Error::EmptyPrompt);
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

    /// Output that the next sampling needs: top-k if the sampler starts with a truncation to few logits and neither
    /// probabilities, guidance, grammar nor healing need all of them.
    fn required_output(&self, options: &GenerateOptions, max_top_k: usize) -> RequiredOutput {
        let needs_all = options.n_probs > 0
            || options.guidance.is_some()
            || self.grammar.is_some()
            || !self.healing.is_satisfied();
        match self.sampler.required_top_k() {
            Some(n) if !needs_all && n <= max_top_k => RequiredOutput::TopK(n),
            _ => RequiredOutput::Logits,
        }
    }

    /// Samples the next token from the top-k logits.
    fn draw_top_k(&mut self, top_k: &[TopKEntry]) -> u32 {
        let token = self.sampler.sample_top_k(top_k);
        self.sampler.accept(token);
        token
    }

    /// Samples the next token under the constraints of healing and grammar.
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

    /// Adds a token to the text; returns why the text ended, if it did, and whether the caller cancelled.
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

    /// Appends text and passes it to the caller; returns whether the caller cancelled.
    fn show(&mut self, text: &str, on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>) -> bool {
        self.text.push_str(text);
        on_event(Event::Text(text)).is_break()
    }

    /// Emits what the decoder and the stop filter have buffered.
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
