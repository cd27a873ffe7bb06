//! Task of a scheduler: one text or embedding, its progress and results.

use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use stonechat_nn::Slot;
use web_time::Instant;

use crate::drafts::gate::DraftGate;
use crate::scheduler::event::{RequestEvent, RequestId};
use crate::text::completion::{Completion, Finish, Timings};
use crate::text::generation::{Accepted, GenerationScratch};
use crate::{Embedding, Error, Generation, OutputRequest, OutputRow};

/// Output of a [`Task`].
#[derive(Debug)]
pub(crate) enum Kind {
    Text(Box<Generation>),
    Embedding(Embedding),
}

impl Kind {
    /// Tokens that have not run.
    pub(crate) fn pending(&self) -> &[u32] {
        match self {
            Self::Text(text) => text.pending(),
            Self::Embedding(embedding) => embedding.pending(),
        }
    }

    /// Tokens of the negative sequence that have not run; none without guidance.
    pub(crate) fn pending_negative(&self) -> &[u32] {
        match self {
            Self::Text(text) => text.pending_negative(),
            Self::Embedding(_) => &[],
        }
    }

    /// Output of a step that runs the first `n` pending tokens, and the number of its rows.
    pub(crate) fn output(&self, n: usize) -> (OutputRequest, usize) {
        match self {
            Self::Text(text) => text.output(n),
            Self::Embedding(embedding) => (OutputRequest::Hidden, embedding.n_rows(n)),
        }
    }
}

/// Progress of a [`Task`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TaskState {
    /// The task waits for its first slot.
    Queued,
    /// The input runs.
    Prompt,
    /// The input has run in this step.
    PromptDone,
    /// Tokens are sampled; the text may have been preempted.
    Decoding,
    /// A fork of the first text, before its first token.
    Forked,
    Ended,
}

/// Request and choice: the order of service.
pub(crate) type TaskKey = (RequestId, usize);

/// Tokens of a task in a step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Planned {
    pub(crate) key: TaskKey,
    pub(crate) slot: Slot,
    pub(crate) n: usize,
    pub(crate) output: OutputRequest,
    pub(crate) n_rows: usize,
}

/// A text or an embedding for a [`Scheduler`](crate::Scheduler): made by [`Request::prepare`](crate::Request::prepare), or from
/// an [`Embedding`].
#[derive(Debug)]
pub struct Task {
    pub(crate) id: RequestId,
    pub(crate) choice: usize,
    pub(crate) cache_salt: u64,
    pub(crate) reads_cache: bool,
    pub(crate) deadline: Option<Instant>,
    pub(crate) max_decode: Option<Duration>,
    pub(crate) kind: Kind,
    pub(crate) state: TaskState,
    pub(crate) slot: Option<Slot>,
    /// Slot of the negative sequence of guidance.
    pub(crate) negative_slot: Option<Slot>,
    /// Slots for the other texts of the prompt.
    pub(crate) spare: Vec<Slot>,
    /// Texts that begin when the prompt has run.
    pub(crate) n_choices: usize,
    /// Whether the planned step has tokens of it.
    pub(crate) is_planned: bool,
    pub(crate) gate: DraftGate,
    /// Result so far.
    completion: Completion,
    error: Option<Error>,
    queued_at: Instant,
    started_at: Option<Instant>,
    prompt_end: Option<Instant>,
}

impl From<Embedding> for Task {
    /// An embedding of priority 0.
    fn from(embedding: Embedding) -> Self {
        Self::new(Kind::Embedding(embedding), 1)
    }
}

impl Task {
    pub(crate) fn new(kind: Kind, n_choices: usize) -> Self {
        Self {
            id: RequestId { priority: 0, number: 0 },
            choice: 0,
            cache_salt: 0,
            reads_cache: true,
            deadline: None,
            max_decode: None,
            completion: Completion { prompt_tokens: kind.pending().len(), ..Completion::default() },
            kind,
            state: TaskState::Queued,
            slot: None,
            negative_slot: None,
            spare: Vec::new(),
            n_choices,
            is_planned: false,
            gate: DraftGate::default(),
            error: None,
            queued_at: Instant::now(),
            started_at: None,
            prompt_end: None,
        }
    }

    /// Puts it into the queue.
    pub(crate) fn queue(&mut self, number: u64) {
        (self.id.number, self.queued_at) = (number, Instant::now());
    }

    /// Order of service.
    pub(crate) fn key(&self) -> TaskKey {
        (self.id, self.choice)
    }

    /// Tokens that have not run.
    pub(crate) fn pending(&self) -> &[u32] {
        self.kind.pending()
    }

    /// Number of slots: one a choice, and one for the negative sequence of guidance.
    pub(crate) fn n_slots(&self) -> usize {
        self.n_choices + usize::from(!self.kind.pending_negative().is_empty())
    }

    /// Slots of its sequences, each with the number of tokens that have not run.
    pub(crate) fn sequences(&self) -> impl Iterator<Item = (Slot, usize)> {
        let text = self.slot.map(|slot| (slot, self.pending().len()));
        let n_negative = self.kind.pending_negative().len();
        text.into_iter().chain(self.negative_slot.map(|slot| (slot, n_negative)))
    }

    /// Tokens in a step that has place for `tokens` tokens and `rows` rows of logits. The negative sequence of guidance runs
    /// first, up to its last token, which shares a step with that of the text.
    pub(crate) fn plan(&self, tokens: usize, rows: usize) -> [Option<Planned>; 2] {
        let Some(slot) = self.slot else { return [None; 2] };
        let key = self.key();
        let planned = |slot, n, (output, n_rows)| Planned { key, slot, n, output, n_rows };
        let negative = |slot, n, n_rows| planned(slot, n, (OutputRequest::Logits, n_rows));
        let n_negative = self.kind.pending_negative().len();
        if let (Some(slot), 2..) = (self.negative_slot, n_negative) {
            return [Some(negative(slot, (n_negative - 1).min(tokens), 0)), None];
        }
        let n_pending = self.pending().len();
        let mut n = n_pending.min(tokens.saturating_sub(n_negative));
        let (mut output, mut n_rows) = self.kind.output(n);
        let lacks_rows =
            output != OutputRequest::Hidden && n_rows > 0 && n_rows + n_negative > rows;
        if self.is_decoding() && (n < n_pending || lacks_rows) {
            return [None; 2];
        }
        if lacks_rows {
            // The last token of the prompt, or each token whose row is asked for, waits for a step with a row.
            n -= if self.prompt_rows(n) > 0 { n_rows - rows } else { 1 };
            (output, n_rows) = self.kind.output(n);
        }
        let guides = self.negative_slot.filter(|_| n_rows > 0);
        [guides.map(|slot| negative(slot, 1, 1)), Some(planned(slot, n, (output, n_rows)))]
    }

    /// Whether the probabilities of its prompt's tokens are asked for, and not all known.
    pub(crate) fn scores_prompt(&self) -> bool {
        matches!(&self.kind, Kind::Text(text) if text.scores_prompt())
    }

    /// Rows of a step with its first `n` pending tokens that are for the probabilities of its prompt's tokens. They precede
    /// the others.
    pub(crate) fn prompt_rows(&self, n: usize) -> usize {
        match &self.kind {
            Kind::Text(text) => text.prompt_rows(n),
            Kind::Embedding(_) => 0,
        }
    }

    /// Takes the [`prompt_rows`](Self::prompt_rows) of a step, before its other rows.
    pub(crate) fn take_prompt_rows<'a>(
        &mut self,
        rows: impl Iterator<Item = OutputRow<'a>>,
        on_event: &mut (impl FnMut(RequestId, RequestEvent) + ?Sized),
    ) {
        let Kind::Text(text) = &mut self.kind else { return };
        if let Some(probs) = text.accept_prompt(rows) {
            self.completion.prompt_probs = probs.into();
            let probs = Arc::clone(&self.completion.prompt_probs);
            on_event(self.id, RequestEvent::PromptProbs(probs));
        }
    }

    /// Records that `n` tokens of the negative sequence run in the current step.
    pub(crate) fn ran_negative(&mut self, n: usize) {
        if let Kind::Text(text) = &mut self.kind {
            text.ran_negative(n);
        }
    }

    /// Records that its pages are lost.
    pub(crate) fn preempt(&mut self) {
        self.completion.preemptions += 1;
        match &mut self.kind {
            Kind::Text(text) => text.preempt(),
            Kind::Embedding(embedding) => embedding.restart(),
        }
    }

    /// Tokens of the input.
    pub(crate) fn n_input(&self) -> usize {
        self.completion.prompt_tokens
    }

    /// Tokens of the current draft, and those of all drafts that were accepted.
    pub(crate) fn drafts(&self) -> (usize, usize) {
        match &self.kind {
            Kind::Text(text) => (text.draft().len(), text.drafts().accepted),
            Kind::Embedding(_) => (0, 0),
        }
    }

    pub(crate) fn reads_cache(&self) -> bool {
        self.reads_cache && matches!(self.kind, Kind::Text(_))
    }

    /// Whether the next step samples a token after the last one.
    pub(crate) fn is_decoding(&self) -> bool {
        match &self.kind {
            Kind::Text(text) => {
                self.slot.is_some()
                    && self.state == TaskState::Decoding
                    && text.pending().len() == 1 + text.draft().len()
            }
            Kind::Embedding(_) => false,
        }
    }

    /// Whether its deadline has passed, or the time of a text that may end at a line break.
    pub(crate) fn has_expired(&self, now: Instant) -> bool {
        let has_decoded =
            |limit| self.prompt_end.is_some_and(|end| now.duration_since(end) > limit);
        self.deadline.is_some_and(|deadline| deadline <= now)
            || self.max_decode.is_some_and(has_decoded) && self.completion.text.contains('\n')
    }

    /// Whether it has a token.
    pub(crate) fn has_begun(&self) -> bool {
        self.prompt_end.is_some()
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.state == TaskState::Ended
    }

    /// Gives it its slots; `n_cached` pending tokens are in its pages.
    pub(crate) fn start(&mut self, slot: Slot, mut spare: Vec<Slot>, n_cached: usize) {
        if !self.kind.pending_negative().is_empty() {
            self.negative_slot = spare.pop();
        }
        (self.slot, self.spare) = (Some(slot), spare);
        if let Kind::Text(text) = &mut self.kind {
            text.ran(n_cached);
        }
        if self.state == TaskState::Queued {
            self.state = TaskState::Prompt;
            self.started_at = Some(Instant::now());
            self.completion.cached_tokens = n_cached;
        }
    }

    /// Starts the other texts, with the slots that it keeps for them.
    pub(crate) fn fork(&mut self) -> Vec<Self> {
        let Kind::Text(text) = &self.kind else { return Vec::new() };
        let seed = text.seed();
        let fork = |(index, slot)| {
            let choice = index + 1;
            Self {
                choice,
                kind: Kind::Text(Box::new(text.fork(seed.wrapping_add(choice as u64)))),
                state: TaskState::Forked,
                slot: Some(slot),
                spare: Vec::new(),
                n_choices: 1,
                completion: self.completion.clone(),
                error: None,
                ..*self
            }
        };
        let forks = take(&mut self.spare).into_iter().enumerate().map(fork).collect();
        self.n_choices = 1;
        forks
    }

    /// Takes the rows of a step that ran its first `n` pending tokens.
    pub(crate) fn take_rows<'a, R>(
        &mut self,
        n: usize,
        rows: impl Fn() -> R,
        (scratch, accepted): (&mut GenerationScratch, &mut Accepted),
        on_event: &mut (impl FnMut(RequestId, RequestEvent) + ?Sized),
    ) where
        R: Iterator<Item = OutputRow<'a>>,
    {
        let total = self.n_input();
        match &mut self.kind {
            Kind::Embedding(embedding) => {
                embedding.accept(n, rows());
                let left = embedding.pending().len();
                if left == 0 {
                    self.state = TaskState::Ended;
                } else {
                    on_event(self.id, RequestEvent::Prompt { done: total - left, total });
                }
            }
            Kind::Text(text) => {
                text.ran(n);
                if !text.pending().is_empty() {
                    let done = text.cached().len();
                    if self.state == TaskState::Prompt {
                        on_event(self.id, RequestEvent::Prompt { done, total });
                    }
                    return;
                }
                if self.state == TaskState::Prompt {
                    on_event(self.id, RequestEvent::Prompt { done: total, total });
                }
                let result = text.accept(rows(), scratch, accepted);
                if matches!(self.state, TaskState::Prompt | TaskState::Forked) {
                    self.prompt_end = Some(Instant::now());
                    let is_first = self.state == TaskState::Prompt;
                    self.state = if is_first { TaskState::PromptDone } else { TaskState::Decoding };
                }
                if let Err(error) = result {
                    self.fail(error);
                } else {
                    let event = self.record(accepted);
                    on_event(self.id, event);
                }
            }
        }
    }

    /// Appends the tokens and the text of a step; returns their event.
    fn record(&mut self, accepted: &mut Accepted) -> RequestEvent {
        let completion = &mut self.completion;
        completion.text += &accepted.text;
        for token in &accepted.tokens {
            completion.tokens.push(token.token);
            completion.probs.extend(token.probs.clone());
        }
        completion.end_probs = accepted.end.take();
        if let Some(finish) = accepted.finish {
            (completion.finish, self.state) = (finish, TaskState::Ended);
        }
        let (tokens, text) = (take(&mut accepted.tokens), take(&mut accepted.text));
        RequestEvent::Text { choice: self.choice, tokens, text }
    }

    /// Ends it with an error.
    pub(crate) fn fail(&mut self, error: Error) {
        (self.error, self.state) = (Some(error), TaskState::Ended);
    }

    /// Ends it between two steps.
    pub(crate) fn end(
        &mut self,
        finish: Finish,
        accepted: &mut Accepted,
        on_event: &mut (impl FnMut(RequestId, RequestEvent) + ?Sized),
    ) {
        self.completion.finish = finish;
        if let Kind::Text(text) = &mut self.kind {
            text.end(finish, accepted);
            if self.prompt_end.is_some() {
                let event = self.record(accepted);
                on_event(self.id, event);
            }
        }
        self.state = TaskState::Ended;
    }

    /// Reports its result after its end.
    pub(crate) fn finish(self, on_event: &mut (impl FnMut(RequestId, RequestEvent) + ?Sized)) {
        if let Some(error) = self.error {
            on_event(self.id, RequestEvent::Failed(error));
            return;
        }
        let text = match self.kind {
            Kind::Text(text) => text,
            Kind::Embedding(embedding) => {
                if embedding.pending().is_empty() {
                    on_event(self.id, RequestEvent::Embedded(embedding.into_values()));
                }
                return;
            }
        };
        let ms = |from: Instant, to: Instant| to.duration_since(from).as_secs_f64() * 1e3;
        let now = Instant::now();
        let started_at = self.started_at.unwrap_or(now);
        let prompt_end = self.prompt_end.unwrap_or(now);
        let completion = Completion {
            end_token: text.end_token(),
            stop: text.stop_string().map(str::to_owned),
            drafts: text.drafts(),
            seed: text.seed(),
            timings: Timings {
                queue_ms: ms(self.queued_at, started_at),
                prompt_ms: ms(started_at, prompt_end),
                decode_ms: ms(prompt_end, now),
            },
            ..self.completion
        };
        on_event(self.id, RequestEvent::Ended { choice: self.choice, completion });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pooling;

    #[test]
    fn a_text_with_a_line_break_ends_after_the_time_of_decoding() {
        let (second, now) = (Duration::from_secs(1), Instant::now());
        let embedding = Embedding::new(vec![3], Pooling::Mean).unwrap();
        let mut task = Task { max_decode: Some(second), ..embedding.into() };
        task.completion.text = "a\nb".to_owned();
        assert!(!task.has_expired(now + 9 * second), "the time begins with the first token");
        task.prompt_end = Some(now);
        assert!(!task.has_expired(now + second));
        assert!(task.has_expired(now + 2 * second));
        task.completion.text = "ab".to_owned();
        assert!(!task.has_expired(now + 9 * second));
    }
}
