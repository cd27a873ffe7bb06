//! Generation of a text in a session.

use std::ops::ControlFlow;

use web_time::Instant;

use crate::drafts::gate::DraftGate;
use crate::session::{NEGATIVE_PROMPT, Session, TEXT};
use crate::text::completion::{Completion, Finish, Timings};
use crate::text::generation::{Accepted, AcceptedToken, Generation};
use crate::text::options::{GenerateOptions, OnFull};
use crate::text::probabilities::TokenProbs;
use crate::{Error, OutputRequest, OutputRow, Ticket};

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

/// Callback of a generation; a break cancels it. `Send`, but on wasm32.
#[cfg(not(target_arch = "wasm32"))]
pub type OnEvent<'a> = dyn FnMut(Event<'_>) -> ControlFlow<()> + Send + 'a;

/// Callback of a generation; a break cancels it. `Send`, but on wasm32.
#[cfg(target_arch = "wasm32")]
pub type OnEvent<'a> = dyn FnMut(Event<'_>) -> ControlFlow<()> + 'a;

impl Session {
    /// Generates a continuation of `prompt`; its longest cached prefix is not run again. If `on_event`
    /// breaks, the text ends with [`Finish::Cancelled`] and the session stays usable.
    ///
    /// # Errors
    /// If the prompt is empty or longer than the context, an option is out of range, or the device fails.
    pub async fn generate(
        &mut self,
        prompt: &[u32],
        options: &GenerateOptions,
        on_event: &mut OnEvent<'_>,
    ) -> Result<Completion, Error> {
        let start = Instant::now();
        if options.guidance.is_some() && self.tokens.len() <= NEGATIVE_PROMPT.index() {
            let (expected, got) = ("a session of 2 sequences".to_owned(), "1".to_owned());
            return Err(Error::Option { option: "guidance", expected, got });
        }
        let mut generation = Generation::new(self.model.info(), prompt.to_vec(), options.clone())?;
        let n_ctx = self.n_ctx();
        for tokens in [generation.pending(), generation.pending_negative()] {
            if tokens.len() > n_ctx {
                return Err(Error::ContextFull { tokens: tokens.len(), n_ctx });
            }
        }
        let mut run =
            Run { text: String::new(), tokens: Vec::new(), probs: Vec::new(), prompt_end: None };
        let cached_tokens = self.common_prefix(TEXT, generation.pending());
        self.run(&mut generation, options.on_full, &mut run, on_event).await?;
        let prompt_end = run.prompt_end.unwrap_or_else(Instant::now);
        let timings = Timings {
            queue_ms: 0.0,
            prompt_ms: prompt_end.duration_since(start).as_secs_f64() * 1e3,
            decode_ms: prompt_end.elapsed().as_secs_f64() * 1e3,
        };
        let finish = generation.finish().unwrap_or(Finish::Cancelled);
        // A request that is cancelled before it begins has used nothing.
        let has_begun = run.prompt_end.is_some() || finish != Finish::Cancelled;
        let cached_tokens = if has_begun { cached_tokens } else { 0 };
        tracing::debug!(
            prompt_tokens = prompt.len(),
            cached_tokens,
            tokens = run.tokens.len(),
            prompt_ms = timings.prompt_ms,
            decode_ms = timings.decode_ms,
            seed = generation.seed(),
            ?finish,
            "generated"
        );
        Ok(Completion {
            text: run.text,
            tokens: run.tokens,
            probs: run.probs,
            finish,
            stop: generation.stop_string().map(str::to_owned),
            prompt_tokens: prompt.len(),
            cached_tokens,
            drafts: generation.drafts(),
            preemptions: 0,
            seed: generation.seed(),
            timings,
        })
    }

    /// Runs steps until the text ends.
    async fn run(
        &mut self,
        generation: &mut Generation,
        on_full: OnFull,
        run: &mut Run,
        on_event: &mut OnEvent<'_>,
    ) -> Result<(), Error> {
        let total = generation.pending().len();
        let [cached, cached_negative] =
            [(TEXT, generation.pending()), (NEGATIVE_PROMPT, generation.pending_negative())]
                .map(|(slot, tokens)| self.common_prefix(slot, tokens));
        generation.ran(cached);
        generation.ran_negative(cached_negative);
        let mut has_begun = false;
        let mut ahead = None;
        self.gate = DraftGate::default();
        while generation.finish().is_none() {
            let is_prompt = run.prompt_end.is_none();
            let done = generation.cached().len();
            if is_prompt && on_event(Event::Prompt { done, total }).is_break() {
                self.end(generation, Finish::Cancelled, run, on_event);
                break;
            }
            if !has_begun {
                // The caches are truncated at the start only, so that a request cancelled before leaves those of the others.
                generation.truncate(self.truncate(TEXT, cached));
                generation.truncate_negative(self.truncate(NEGATIVE_PROMPT, cached_negative));
                has_begun = true;
            }
            if generation.exceeds(self.n_ctx()) && !self.shift(generation, on_full) {
                self.end(generation, Finish::ContextFull, run, on_event);
                break;
            }
            let (started, n_draft) = (Instant::now(), generation.draft().len());
            let accepted = generation.drafts().accepted;
            if !self.step(generation, &mut ahead).await? {
                continue;
            }
            if run.prompt_end.is_some() {
                self.cost.record(1 + n_draft, n_draft, started.elapsed().as_secs_f64());
                let accepted = generation.drafts().accepted - accepted;
                self.gate.record((n_draft, accepted), 1, &self.cost);
            }
            run.prompt_end.get_or_insert_with(Instant::now);
            let is_cancelled = run.emit(&mut self.accepted, on_event);
            if generation.finish().is_some() {
                break;
            }
            if is_cancelled {
                self.end(generation, Finish::Cancelled, run, on_event);
            } else {
                self.propose(generation).await?;
            }
        }
        // A step that ran ahead ran a token too many.
        self.truncate(TEXT, self.tokens().len());
        Ok(())
    }

    /// Ends a text between two steps, and emits what was held back.
    fn end(
        &mut self,
        generation: &mut Generation,
        finish: Finish,
        run: &mut Run,
        on_event: &mut OnEvent<'_>,
    ) {
        generation.end(finish, &mut self.accepted);
        if run.prompt_end.is_some() {
            run.emit(&mut self.accepted, on_event);
        }
    }

    /// Runs the next pending tokens, at most a batch, or takes the step that runs `ahead`; returns whether tokens were sampled,
    /// into `accepted`. The next step is enqueued before the outputs are read, if the device can run it without the host.
    async fn step(
        &mut self,
        generation: &mut Generation,
        ahead: &mut Option<Ticket>,
    ) -> Result<bool, Error> {
        let can_run_ahead = self.async_scheduling() && generation.can_run_ahead(self.n_ctx());
        let Self { state, tokens, scratch, accepted, .. } = self;
        let n_batch = state.options().n_batch;
        let (text, negative) = (generation.pending(), generation.pending_negative());
        // The negative sequence runs first, up to its last token, which shares a step with that of the text.
        let (n_negative, n_text) = match negative.len() {
            n @ (0 | 1) => (n, text.len().min(n_batch - n)),
            n => ((n - 1).min(n_batch), 0),
        };
        let ends = n_text == text.len();
        let n_negative = if n_text > 0 && !ends { 0 } else { n_negative };
        let (request, n_rows) = generation.output(n_text);
        let ticket = match ahead.take() {
            Some(ticket) => ticket,
            None => {
                let mut plan = state.plan();
                if n_negative > 0 {
                    let chunk = &negative[..n_negative];
                    plan.add(NEGATIVE_PROMPT, chunk, OutputRequest::Logits, usize::from(ends))?;
                }
                if n_text > 0 {
                    plan.add(TEXT, &text[..n_text], request, n_rows)?;
                }
                plan.run()?
            }
        };
        if ends && can_run_ahead {
            let mut plan = state.plan();
            plan.add_next(TEXT, 0, request)?;
            *ahead = Some(plan.run()?);
        }
        let outputs = state.outputs(ticket).await?;
        tokens[TEXT.index()].extend_from_slice(&text[..n_text]);
        if n_negative > 0 {
            tokens[NEGATIVE_PROMPT.index()].extend_from_slice(&negative[..n_negative]);
        }
        generation.ran(n_text);
        generation.ran_negative(n_negative);
        if !ends {
            return Ok(false);
        }
        if n_negative == 0 {
            generation.accept(outputs.rows(0..outputs.len()), scratch, accepted)?;
        } else {
            let (OutputRow::Logits(negative), OutputRow::Logits(logits)) =
                (outputs.row(0), outputs.row(1))
            else {
                unreachable!("guidance needs all logits");
            };
            generation.accept_guided(logits, negative, scratch, accepted)?;
        }
        if ahead.is_none() {
            generation.truncate(self.truncate(TEXT, self.accepted.kv_len));
        }
        Ok(true)
    }

    /// Shifts the context of full sequences, if `on_full` says so.
    fn shift(&mut self, generation: &mut Generation, on_full: OnFull) -> bool {
        let OnFull::Shift { keep } = on_full else { return false };
        let [text, negative] = generation.shift(keep, self.n_ctx());
        generation.truncate(self.truncate(TEXT, text));
        generation.truncate_negative(self.truncate(NEGATIVE_PROMPT, negative));
        true
    }
}

/// Results of a generation so far.
struct Run {
    text: String,
    tokens: Vec<u32>,
    probs: Vec<TokenProbs>,
    /// Time after the first tokens were sampled.
    prompt_end: Option<Instant>,
}

impl Run {
    /// Appends tokens and text, and passes the text to the caller: one event per token, one at the end. Returns whether the
    /// caller cancelled; tokens after that one are dropped.
    fn emit(&mut self, accepted: &mut Accepted, on_event: &mut OnEvent<'_>) -> bool {
        let mut shown = 0;
        for AcceptedToken { token, text, probs } in accepted.tokens.drain(..) {
            shown = text.end;
            self.tokens.push(token);
            self.probs.extend(probs);
            let text = &accepted.text[text];
            self.text.push_str(text);
            if on_event(Event::Text(text)).is_break() {
                return true;
            }
        }
        if accepted.finish.is_some_and(|finish| finish != Finish::StopString) {
            let rest = &accepted.text[shown..];
            self.text.push_str(rest);
            return on_event(Event::Text(rest)).is_break();
        }
        false
    }
}
