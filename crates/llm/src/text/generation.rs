//! One text in the making, without a device: tokens to run, sampling, stopping.
//!
//! ```text
//! let mut text = Generation::new(model.info(), prompt, options)?;
//! loop {
//!     plan.add(slot, &text.pending()[..n], text.output(n)..)?;  text.ran(n);      several sequences are batched
//!     text.accept(rows of the step, scratch, out)?;                               out: tokens and text
//!     state.truncate(slot, out.kv_len);                                           drops refused drafts
//!     if out.finish.is_some() { break }
//!     text.propose(draft);                                                        optional
//! }
//!
//! context   prompt | accepted tokens | draft
//!           '--- in the KV cache ---'--- pending ---'
//! ```
//!
//! A draft is verified by sampling at each of its rows in order, with the sampler, grammar and stop strings of the text:
//! the first token that differs ends it. Tokens and draws are those of a text without drafts.

mod prompt_probs;

use std::ops::Range;
use std::sync::Arc;

use stonechat_sampling::{DryBreakers, PrefixConstraint, SampleScratch, Sampler};
use stonechat_text::{StreamDecoder, Tokenizer};

use crate::model::info::ModelInfo;
use crate::text::completion::{DraftCounts, Finish};
use crate::text::generation::prompt_probs::PromptProbs;
use crate::text::options::{GenerateOptions, OnFull};
use crate::text::probabilities::{TokenProbs, drawn_probs, guide, token_probs, top_k_probs};
use crate::text::rules::Rules;
use crate::text::stop::StopFilter;
use crate::{Error, OutputRequest, OutputRow};

/// A text that is being generated. It owns its state and holds no device; a clone costs kilobytes.
#[derive(Debug, Clone)]
pub struct Generation {
    info: Arc<ModelInfo>,
    options: Arc<GenerateOptions>,
    context: Context,
    /// Tokens of the negative prompt and of the text.
    negative: Option<Context>,
    /// Accepted tokens of `context`; a draft follows them.
    n_accepted: usize,
    n_generated: usize,
    /// Probabilities of the prompt's tokens so far, until the prompt has run.
    prompt_probs: Option<PromptProbs>,
    drafts: DraftCounts,
    sampler: Sampler,
    rules: Rules,
    healing: PrefixConstraint,
    /// Bytes of the text still to drop: they repeat the token that healing took from the prompt.
    repeated: usize,
    decoder: StreamDecoder<Arc<Tokenizer>>,
    filter: StopFilter,
    finish: Option<Finish>,
    /// End token that ended the text.
    end_token: Option<u32>,
}

/// Tokens of a sequence, of which the first `n_cached` are in the KV cache.
#[derive(Debug, Clone)]
struct Context {
    tokens: Vec<u32>,
    n_cached: usize,
}

/// Result of [`Generation::accept`], reused from step to step.
#[derive(Debug, Clone, Default)]
pub struct Accepted {
    /// Accepted tokens, without an end token.
    pub tokens: Vec<AcceptedToken>,
    /// Text that they complete, in whole code points, without stop strings.
    pub text: String,
    /// Probabilities of the end token that was sampled, if `n_probs > 0`.
    pub end: Option<TokenProbs>,
    /// Length to which the sequence must be cut.
    pub kv_len: usize,
    /// Reason of the end, if the text has ended.
    pub finish: Option<Finish>,
}

/// One token of [`Accepted`].
#[derive(Debug, Clone, PartialEq)]
pub struct AcceptedToken {
    /// The token.
    pub token: u32,
    /// The token's part of [`Accepted::text`]: empty while a code point or a stop string is incomplete.
    pub text: Range<usize>,
    /// Probabilities of the token and of the most probable tokens, if `n_probs > 0`.
    pub probs: Option<TokenProbs>,
}

impl Accepted {
    fn clear(&mut self) {
        self.tokens.clear();
        self.text.clear();
        (self.end, self.finish) = (None, None);
    }
}

/// Memory of vocabulary size for [`Generation::accept`]. All texts of a thread can share it.
#[derive(Debug)]
pub struct GenerationScratch {
    sample: SampleScratch,
    /// `[V]`: logits to mask.
    logits: Vec<f32>,
}

impl GenerationScratch {
    /// Memory for the vocabulary of a model.
    #[must_use]
    pub fn new(model: &ModelInfo) -> Self {
        let vocab_size = model.config().vocab_size;
        Self { sample: SampleScratch::new(vocab_size), logits: Vec::with_capacity(vocab_size) }
    }
}

impl Context {
    fn new(tokens: Vec<u32>) -> Self {
        Self { tokens, n_cached: 0 }
    }

    /// Keeps the first `keep` of `n_ctx` tokens, the second half of the other ones, and those after them. How many are
    /// cached does not matter: a preempted text must go on like one that was not.
    fn shift(&mut self, keep: usize, n_ctx: usize) {
        let keep = keep.min(n_ctx.saturating_sub(2));
        let dropped = (n_ctx - keep).div_ceil(2);
        self.tokens.drain(keep..keep + dropped);
        self.n_cached = self.n_cached.min(keep);
    }
}

impl Generation {
    /// Starts a text after `prompt`.
    ///
    /// # Errors
    /// If the prompt or the negative prompt is empty, or an option is out of range.
    pub fn new(
        model: &Arc<ModelInfo>,
        mut prompt: Vec<u32>,
        options: impl Into<Arc<GenerateOptions>>,
    ) -> Result<Self, Error> {
        let options = options.into();
        let tokenizer = model.tokenizer();
        let vocab_size = model.config().vocab_size;
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
        let negative = options.guidance.as_ref().map(|guidance| guidance.negative.clone());
        if negative.as_ref().is_some_and(Vec::is_empty) {
            let expected = "at least one token".to_owned();
            return Err(Error::Option { option: "negative prompt", expected, got: "0".to_owned() });
        }
        let rules = Rules::new(model, &options)?;
        let prompt_probs = PromptProbs::new(&options)?;
        let mut sampling = options.sampling.clone();
        if options.ignore_eos {
            let ends = rules.ends().iter();
            sampling.logit_bias.extend(ends.map(|&token| (token, f32::NEG_INFINITY)));
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
        let decoder = StreamDecoder::continuing(Arc::clone(tokenizer))
            .with_visible(options.visible_special.as_slice());
        Ok(Self {
            info: Arc::clone(model),
            n_accepted: prompt.len(),
            n_generated: 0,
            prompt_probs,
            drafts: DraftCounts::default(),
            context: Context::new(prompt),
            negative: negative.map(Context::new),
            sampler,
            rules,
            healing,
            repeated,
            decoder: if options.show_special { decoder.with_special() } else { decoder },
            filter: StopFilter::new(options.stop.clone().into()),
            finish: None,
            end_token: None,
            options,
        })
    }

    /// Tokens that the KV cache lacks: of the prompt, the last accepted one, the draft.
    #[must_use]
    pub fn pending(&self) -> &[u32] {
        &self.context.tokens[self.context.n_cached..]
    }

    /// Tokens that the KV cache holds.
    #[must_use]
    pub fn cached(&self) -> &[u32] {
        &self.context.tokens[..self.context.n_cached]
    }

    /// Prompt and accepted tokens, without those that a shift has dropped.
    #[must_use]
    pub fn context(&self) -> &[u32] {
        &self.context.tokens[..self.n_accepted]
    }

    /// Tokens of the current draft.
    #[must_use]
    pub fn draft(&self) -> &[u32] {
        &self.context.tokens[self.n_accepted..]
    }

    /// Tokens up to the limit of the text, if it has one.
    #[must_use]
    pub fn tokens_left(&self) -> Option<usize> {
        self.options.n_predict.map(|n| n.saturating_sub(self.n_generated))
    }

    /// Number of generated tokens.
    #[must_use]
    pub fn n_generated(&self) -> usize {
        self.n_generated
    }

    /// Tokens of all drafts so far.
    #[must_use]
    pub fn drafts(&self) -> DraftCounts {
        self.drafts
    }

    /// Reason of the end, if the text has ended.
    #[must_use]
    pub fn finish(&self) -> Option<Finish> {
        self.finish
    }

    /// End token that ended the text.
    #[must_use]
    pub fn end_token(&self) -> Option<u32> {
        self.end_token
    }

    /// Stop string that ended the text.
    #[must_use]
    pub fn stop_string(&self) -> Option<&str> {
        self.filter.found()
    }

    /// Seed of the draws.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.sampler.seed()
    }

    /// Output of a step that runs the first `n` pending tokens, and the number of its rows: none before the last token
    /// of the prompt (unless the probabilities of its tokens are asked for), else one and one for each token of the
    /// draft. A draft runs in one step: one that does not fit is dropped with [`propose(&[])`](Self::propose).
    ///
    /// Top-k suffices if the sampler starts with a truncation to few logits and neither guidance, grammar nor healing need
    /// all of them. A row that lacks logits, since a token of its step has started the grammar, is not used.
    #[must_use]
    pub fn output(&self, n: usize) -> (OutputRequest, usize) {
        let n_draft = self.context.tokens.len() - self.n_accepted;
        let n_rows = if n == self.pending().len() { 1 + n_draft } else { 0 };
        let n_prompt_rows = self.prompt_rows(n);
        if n_prompt_rows > 0 {
            return (OutputRequest::Logits, n_prompt_rows + n_rows);
        }
        let (max, n_probs) = (self.info.max_top_k(), self.options.n_probs);
        let request = match self.sampler.required_top_k().filter(|_| !self.is_constrained()) {
            Some(k) if n_probs == 0 && k <= max => OutputRequest::TopK(k),
            Some(k) if k.max(n_probs) <= max => OutputRequest::LogProbs(k.max(n_probs)),
            _ => OutputRequest::Logits,
        };
        (request, n_rows)
    }

    /// Whether guidance, grammar, a required trigger or healing change the logits.
    fn is_constrained(&self) -> bool {
        self.negative.is_some() || self.rules.needs_logits() || !self.healing.is_satisfied()
    }

    /// Whether a step can run the next token before it is known: it is the most probable one, and not the last one by the
    /// limit of the text or a context of `n_ctx` tokens, nor one that ends reasoning. The text may still end with it, and the
    /// grammar may start with it: the step then runs again.
    #[must_use]
    pub fn can_run_ahead(&self, n_ctx: usize) -> bool {
        self.sampler.required_top_k() == Some(1)
            && matches!(self.output(0).0, OutputRequest::TopK(_) | OutputRequest::LogProbs(_))
            && self.draft().is_empty()
            && self.rules.forced().is_none()
            && self.tokens_left().is_none_or(|left| left > 1)
            && self.n_accepted < n_ctx
    }

    /// Records that the first `n` pending tokens are in the KV cache: they run in the current step, or were found there.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn ran(&mut self, n: usize) {
        assert!(n <= self.pending().len(), "{n} tokens of {}", self.pending().len());
        self.context.n_cached += n;
    }

    /// [`truncate`](Self::truncate) of the negative sequence.
    pub fn truncate_negative(&mut self, len: usize) {
        if let Some(negative) = &mut self.negative {
            negative.n_cached = negative.n_cached.min(len);
        }
    }

    /// Tokens of the negative sequence that its KV cache lacks; empty without guidance.
    #[must_use]
    pub fn pending_negative(&self) -> &[u32] {
        self.negative.as_ref().map_or(&[], |negative| &negative.tokens[negative.n_cached..])
    }

    /// Records that the first `n` pending tokens of the negative sequence are in its KV cache.
    pub fn ran_negative(&mut self, n: usize) {
        if let Some(negative) = &mut self.negative {
            negative.n_cached += n;
        }
    }

    /// Samples at each row of [`output`](Self::output) in order, and stops after the first token that differs from the
    /// draft. With guidance, the first row is that of the last token of the negative sequence. `out` is replaced.
    ///
    /// # Errors
    /// If the grammar exceeds its limits.
    ///
    /// # Panics
    /// If a pending token was not [`ran`](Self::ran).
    pub fn accept<'a>(
        &mut self,
        rows: impl IntoIterator<Item = OutputRow<'a>>,
        scratch: &mut GenerationScratch,
        out: &mut Accepted,
    ) -> Result<(), Error> {
        self.begin(out);
        let mut rows = rows.into_iter();
        let negative = if self.negative.is_some() { rows.next() } else { None };
        for row in rows {
            let lacks_logits = self.is_constrained() && !matches!(row, OutputRow::Logits(_));
            if self.finish.is_some() || lacks_logits {
                break;
            }
            let forced = self.rules.forced();
            let (token, probs) = match row {
                _ if let Some(token) = forced => {
                    (token, (self.options.n_probs > 0).then(|| TokenProbs::certain(token)))
                }
                OutputRow::TopK(top_k) => {
                    (self.sampler.sample_top_k(top_k, &mut scratch.sample), None)
                }
                OutputRow::LogProbs { top_k, log_sum_exp } => {
                    let n = self.sampler.required_top_k().expect("as `output` found");
                    let token = self.sampler.sample_top_k(&top_k[..n], &mut scratch.sample);
                    let n_probs = self.options.n_probs;
                    let probs = match self.options.post_sampling_probs {
                        true => drawn_probs(scratch.sample.candidates(), token, n_probs),
                        false => top_k_probs(top_k, log_sum_exp, token, n_probs),
                    };
                    (token, Some(probs))
                }
                OutputRow::Logits(logits) => {
                    let token = self.draw(logits, negative, scratch)?;
                    (token, self.probs(logits, token, &scratch.sample))
                }
                OutputRow::Hidden(_) => unreachable!("`output` asks for logits"),
            };
            if !self.take(token, probs, out)? {
                break;
            }
        }
        self.end_step(out);
        Ok(())
    }

    fn begin(&mut self, out: &mut Accepted) {
        assert!(self.pending().is_empty(), "all pending tokens were run");
        out.clear();
        if self.is_full_length() {
            self.finish = Some(Finish::Length);
        }
    }

    /// Drops what is left of the draft, and completes `out`. The last token runs again if its row was not used.
    fn end_step(&mut self, out: &mut Accepted) {
        self.context.tokens.truncate(self.n_accepted);
        let n_run = self.n_accepted - usize::from(self.finish.is_none());
        self.context.n_cached = self.context.n_cached.min(n_run);
        self.rules.end_step(self.decoder.is_whole());
        out.kv_len = self.context.n_cached;
        self.flush(out);
    }

    fn is_full_length(&self) -> bool {
        self.options.n_predict.is_some_and(|n| self.n_generated >= n)
    }

    fn probs(&self, logits: &[f32], token: u32, drawn: &SampleScratch) -> Option<TokenProbs> {
        let n = self.options.n_probs;
        (n > 0).then(|| match self.options.post_sampling_probs {
            true => drawn_probs(drawn.candidates(), token, n),
            false => token_probs(logits, token, n),
        })
    }

    /// Samples the next token under the constraints of guidance, healing and grammar.
    fn draw(
        &mut self,
        logits: &[f32],
        negative: Option<OutputRow<'_>>,
        scratch: &mut GenerationScratch,
    ) -> Result<u32, Error> {
        if !self.is_constrained() {
            return Ok(self.sampler.sample(logits, &mut scratch.sample));
        }
        scratch.logits.clear();
        scratch.logits.extend_from_slice(logits);
        if let (Some(OutputRow::Logits(negative)), Some(guidance)) =
            (negative, &self.options.guidance)
        {
            guide(&mut scratch.logits, negative, guidance.scale);
        }
        self.draw_masked(&mut scratch.logits, &mut scratch.sample)
    }

    fn draw_masked(
        &mut self,
        logits: &mut [f32],
        scratch: &mut SampleScratch,
    ) -> Result<u32, Error> {
        if !self.healing.is_satisfied() {
            let tokenizer = self.info.tokenizer();
            self.healing.mask(logits, |token| tokenizer.token_piece(token, false));
        }
        self.rules.sample(&mut self.sampler, logits, scratch)
    }

    /// Appends a sampled token; returns whether it was the next token of the draft and the text has not ended.
    fn take(
        &mut self,
        token: u32,
        probs: Option<TokenProbs>,
        out: &mut Accepted,
    ) -> Result<bool, Error> {
        self.sampler.accept(token);
        self.healing.accept(self.info.tokenizer().token_piece(token, false));
        if self.rules.ends().contains(&token) && !self.options.ignore_eos {
            (self.finish, self.end_token) = (Some(Finish::EndOfText), Some(token));
            out.end = probs;
            return Ok(false);
        }
        let is_drafted = self.context.tokens.get(self.n_accepted) == Some(&token);
        if is_drafted {
            self.drafts.accepted += 1;
        } else {
            self.context.tokens.truncate(self.n_accepted);
            self.context.n_cached = self.context.n_cached.min(self.n_accepted);
            self.context.tokens.push(token);
        }
        if let Some(negative) = &mut self.negative {
            negative.tokens.push(token);
        }
        self.n_accepted += 1;
        self.n_generated += 1;
        let from = out.text.len();
        let mut text = self.decoder.push(token).unwrap_or_default();
        let bytes = self.info.tokenizer().token_piece(token, true);
        self.rules.accept(token, bytes, self.decoder.is_whole())?;
        let repeats = text.floor_char_boundary(self.repeated);
        text.drain(..repeats);
        self.repeated -= repeats;
        let (shown, stopped) = self.filter.push(&text);
        out.text.push_str(&shown);
        out.tokens.push(AcceptedToken { token, text: from..out.text.len(), probs });
        if stopped {
            self.finish = Some(Finish::StopString);
        } else if self.rules.is_finished() {
            self.finish = Some(Finish::GrammarEnd);
        } else if self.is_full_length() {
            self.finish = Some(Finish::Length);
        }
        Ok(is_drafted && self.finish.is_none())
    }

    /// Appends the text that decoder and stop filter hold back, if the text has ended.
    fn flush(&mut self, out: &mut Accepted) {
        out.finish = self.finish;
        if self.finish.is_some_and(|finish| finish != Finish::StopString) {
            let rest = self.decoder.flush().unwrap_or_default();
            let (text, stopped) = self.filter.push(&rest);
            out.text += &text;
            if !stopped {
                out.text += &self.filter.finish();
            }
        }
    }

    /// Ends the text between two steps, for example with [`Finish::Cancelled`]. `out` gets the text that was held back.
    pub fn end(&mut self, finish: Finish, out: &mut Accepted) {
        out.clear();
        if self.finish.is_none() {
            self.finish = Some(finish);
            self.drop_draft();
            out.kv_len = self.context.n_cached;
            self.flush(out);
        }
    }

    /// Proposes tokens after the last accepted one. Replaces an earlier draft; ignored while the prompt is pending, with
    /// guidance, while the end of reasoning is forced, and at the end.
    pub fn propose(&mut self, draft: &[u32]) {
        self.drop_draft();
        let is_free = self.negative.is_none() && self.rules.forced().is_none();
        if self.pending().len() == 1 && is_free && self.finish.is_none() {
            self.context.tokens.extend_from_slice(draft);
            self.drafts.drafts += usize::from(!draft.is_empty());
            self.drafts.proposed += draft.len();
        }
    }

    fn drop_draft(&mut self) {
        self.context.tokens.truncate(self.n_accepted);
        self.context.n_cached = self.context.n_cached.min(self.n_accepted);
    }

    /// Records that the KV cache holds no more than the first `len` tokens; the others run again.
    pub fn truncate(&mut self, len: usize) {
        self.context.n_cached = self.context.n_cached.min(len);
    }

    /// Records that the KV cache holds nothing of the text any more: all tokens are pending.
    pub fn preempt(&mut self) {
        self.drop_draft();
        self.context.n_cached = 0;
        if let Some(negative) = &mut self.negative {
            negative.n_cached = 0;
        }
    }

    /// Another continuation from here on, with a seed of its own. Its sequence is a fork of this one's.
    #[must_use]
    pub fn fork(&self, seed: u64) -> Self {
        let mut fork = self.clone();
        fork.drop_draft();
        fork.sampler.reseed(seed);
        fork
    }

    /// Shifts each sequence of more than `n_ctx` tokens: keeps the first `keep` tokens and the second half of the others
    /// that fit `n_ctx`, which must run again. Returns the lengths to which the sequences, the negative one last, must be cut.
    pub fn shift(&mut self, keep: usize, n_ctx: usize) -> [usize; 2] {
        self.drop_draft();
        let mut lengths = [0; 2];
        let contexts = [Some(&mut self.context), self.negative.as_mut()];
        for (context, length) in contexts.into_iter().zip(&mut lengths) {
            if let Some(context) = context {
                if context.tokens.len() > n_ctx {
                    context.shift(keep, n_ctx);
                }
                *length = context.n_cached;
            }
        }
        self.n_accepted = self.context.tokens.len();
        lengths
    }

    /// [`shift`](Self::shift) of a full context, if the options ask for it.
    pub fn shift_full(&mut self, n_ctx: usize) -> Option<[usize; 2]> {
        match self.options.on_full {
            OnFull::Stop => None,
            OnFull::Shift { keep } => Some(self.shift(keep, n_ctx)),
        }
    }

    /// Whether the pending tokens exceed a context of `n_ctx` tokens.
    #[must_use]
    pub fn exceeds(&self, n_ctx: usize) -> bool {
        let negative = self.negative.as_ref().map_or(0, |negative| negative.tokens.len());
        self.n_accepted.max(negative) > n_ctx
    }
}
