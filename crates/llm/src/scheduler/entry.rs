//! A request in a [`Scheduler`](crate::Scheduler): a text, several continuations of one prompt, or an embedding.

use std::time::Duration;

use stonechat_nn::Slot;
use web_time::Instant;

use crate::drafts::gate::DraftGate;
use crate::text::generate::{Finish, Timings};
use crate::text::generation::{Accepted, GenerationScratch};
use crate::text::probabilities::TokenProbs;
use crate::{Completion, Embedding, Error, Generation, OutputRequest, OutputRow};

/// Text or embedding to make, with its place among other requests.
#[derive(Debug, Clone)]
pub struct Request {
    /// Text or embedding.
    pub work: Work,
    /// Number of texts after one prompt. The sampler of text `i` has the seed of the first plus `i`.
    pub n_choices: usize,
    /// Requests with a smaller value go first.
    pub priority: i32,
    /// Salt of the prefix cache: requests with another salt share no pages.
    pub salt: u64,
    /// Whether pages of earlier prompts are used.
    pub reads_cache: bool,
    /// Time at which it ends between two steps: with [`Error::DeadlinePassed`] before its first token, then with
    /// [`Finish::TimeLimit`].
    pub deadline: Option<Instant>,
    /// Time after its first token from which a text with a line break ends with [`Finish::TimeLimit`].
    pub max_decode: Option<Duration>,
}

impl Request {
    /// One text or embedding of priority 0 that uses the prefix cache.
    #[must_use]
    pub fn new(work: impl Into<Work>) -> Self {
        Self {
            work: work.into(),
            n_choices: 1,
            priority: 0,
            salt: 0,
            reads_cache: true,
            deadline: None,
            max_decode: None,
        }
    }
}

/// Text or embedding of a [`Request`].
#[derive(Debug, Clone)]
pub enum Work {
    /// A text.
    Text(Box<Generation>),
    /// An embedding.
    Embedding(Embedding),
}

impl From<Generation> for Work {
    fn from(text: Generation) -> Self {
        Self::Text(Box::new(text))
    }
}

impl From<Embedding> for Work {
    fn from(embedding: Embedding) -> Self {
        Self::Embedding(embedding)
    }
}

impl Work {
    /// Tokens that have not run.
    pub(crate) fn pending(&self) -> &[u32] {
        match self {
            Self::Text(text) => text.pending(),
            Self::Embedding(embedding) => embedding.pending(),
        }
    }

    /// Output of a step that runs the first `n` pending tokens, and the number of its rows.
    pub(crate) fn output(&self, n: usize) -> (OutputRequest, usize) {
        match self {
            Self::Text(text) => text.output(n),
            Self::Embedding(embedding) => (OutputRequest::Hidden, embedding.n_rows(n)),
        }
    }

    /// Records that the pages are lost.
    pub(crate) fn preempt(&mut self) {
        match self {
            Self::Text(text) => text.preempt(),
            Self::Embedding(embedding) => embedding.restart(),
        }
    }
}

/// Number of a request in its scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(crate) u64);

/// Event of a request.
#[derive(Debug)]
#[non_exhaustive]
pub enum RequestEvent<'a> {
    /// It has left the queue for the first time.
    Started {
        /// Tokens of its input that the prefix cache had.
        cached_tokens: usize,
    },
    /// A chunk of its input has run. The last one of an embedding has no event.
    Prompt {
        /// Tokens cached or run.
        done: usize,
        /// Tokens of the input.
        total: usize,
    },
    /// Tokens and text of a step.
    Text {
        /// Index of the text.
        choice: usize,
        /// Tokens and text.
        accepted: &'a Accepted,
    },
    /// A text has ended.
    Ended {
        /// Index of the text.
        choice: usize,
        /// The whole text.
        completion: Completion,
    },
    /// The embedding, `[D]`, or `[T, D]` without pooling.
    Embedded(Vec<f32>),
    /// It has failed.
    Failed(Error),
}

/// Progress of an [`Entry`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EntryState {
    /// No slot so far.
    Queued,
    /// The input runs.
    Prompt,
    /// The input has run in this step.
    PromptDone,
    /// Tokens are sampled; the text may have been preempted.
    Decoding,
    /// A text beside the first, before its first token.
    New,
    Ended,
}

/// A text or embedding in a scheduler.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: RequestId,
    pub(crate) choice: usize,
    pub(crate) priority: i32,
    pub(crate) salt: u64,
    reads_cache: bool,
    deadline: Option<Instant>,
    max_decode: Option<Duration>,
    pub(crate) work: Work,
    pub(crate) state: EntryState,
    pub(crate) slot: Option<Slot>,
    /// Slots for the other texts of the prompt.
    pub(crate) spare: Vec<Slot>,
    /// Other texts that begin when the prompt has run.
    n_forks: usize,
    n_input: usize,
    cached_tokens: usize,
    pub(crate) n_preemptions: usize,
    pub(crate) gate: DraftGate,
    text: String,
    tokens: Vec<u32>,
    probs: Vec<TokenProbs>,
    finish: Option<Finish>,
    error: Option<Error>,
    queued_at: Instant,
    started_at: Option<Instant>,
    prompt_end: Option<Instant>,
}

impl Entry {
    pub(crate) fn new(id: RequestId, request: Request) -> Self {
        let Request { work, n_choices, priority, salt, reads_cache, deadline, max_decode } =
            request;
        Self {
            id,
            choice: 0,
            priority,
            salt,
            reads_cache,
            deadline,
            max_decode,
            n_input: work.pending().len(),
            work,
            state: EntryState::Queued,
            slot: None,
            spare: Vec::new(),
            n_forks: n_choices - 1,
            cached_tokens: 0,
            n_preemptions: 0,
            gate: DraftGate::default(),
            text: String::new(),
            tokens: Vec::new(),
            probs: Vec::new(),
            finish: None,
            error: None,
            queued_at: Instant::now(),
            started_at: None,
            prompt_end: None,
        }
    }

    /// Order of service.
    pub(crate) fn rank(&self) -> (i32, RequestId, usize) {
        (self.priority, self.id, self.choice)
    }

    /// Tokens of the input.
    pub(crate) fn n_input(&self) -> usize {
        self.n_input
    }

    /// Tokens of the current draft, and those of all drafts that were accepted.
    pub(crate) fn drafts(&self) -> (usize, usize) {
        match &self.work {
            Work::Text(text) => (text.draft().len(), text.drafts().accepted),
            Work::Embedding(_) => (0, 0),
        }
    }

    /// Number of slots that it needs to start.
    pub(crate) fn n_slots(&self) -> usize {
        1 + self.n_forks
    }

    pub(crate) fn reads_cache(&self) -> bool {
        self.reads_cache && matches!(self.work, Work::Text(_))
    }

    /// Whether the next step samples a token after the last one.
    pub(crate) fn is_decoding(&self) -> bool {
        match &self.work {
            Work::Text(text) => {
                self.slot.is_some()
                    && self.state == EntryState::Decoding
                    && text.pending().len() == 1 + text.draft().len()
            }
            Work::Embedding(_) => false,
        }
    }

    /// Whether its deadline has passed, or the time of a text that may end at a line break.
    pub(crate) fn has_expired(&self, now: Instant) -> bool {
        let has_decoded =
            |limit| self.prompt_end.is_some_and(|end| now.duration_since(end) > limit);
        self.deadline.is_some_and(|deadline| deadline <= now)
            || self.max_decode.is_some_and(has_decoded) && self.text.contains('\n')
    }

    /// Whether it has a token.
    pub(crate) fn has_begun(&self) -> bool {
        self.prompt_end.is_some()
    }

    pub(crate) fn is_new(&self) -> bool {
        self.state == EntryState::New
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.state == EntryState::Ended
    }

    /// Gives it its slots; `n_cached` pending tokens are in its pages.
    pub(crate) fn start(&mut self, slot: Slot, spare: Vec<Slot>, n_cached: usize) {
        (self.slot, self.spare) = (Some(slot), spare);
        if let Work::Text(text) = &mut self.work {
            text.ran(n_cached);
        }
        if self.state == EntryState::Queued {
            self.state = EntryState::Prompt;
            self.started_at = Some(Instant::now());
            self.cached_tokens = n_cached;
        }
    }

    /// Starts the other texts, with the slots that it keeps for them.
    pub(crate) fn fork(&mut self) -> Vec<Self> {
        let Work::Text(text) = &self.work else { return Vec::new() };
        let seed = text.seed();
        let fork = |(index, slot)| {
            let choice = index + 1;
            Self {
                choice,
                work: text.fork(seed.wrapping_add(choice as u64)).into(),
                state: EntryState::New,
                slot: Some(slot),
                spare: Vec::new(),
                n_forks: 0,
                text: String::new(),
                tokens: Vec::new(),
                probs: Vec::new(),
                finish: None,
                error: None,
                ..*self
            }
        };
        let forks = std::mem::take(&mut self.spare).into_iter().enumerate().map(fork).collect();
        self.n_forks = 0;
        forks
    }

    /// Takes the rows of a step that ran its first `n` pending tokens.
    pub(crate) fn take_rows<'a, R>(
        &mut self,
        n: usize,
        rows: impl Fn() -> R,
        (scratch, accepted): (&mut GenerationScratch, &mut Accepted),
        on_event: &mut (impl FnMut(RequestId, RequestEvent<'_>) + ?Sized),
    ) where
        R: Iterator<Item = OutputRow<'a>>,
    {
        match &mut self.work {
            Work::Embedding(embedding) => {
                embedding.accept(n, rows());
                let left = embedding.pending().len();
                if left == 0 {
                    self.state = EntryState::Ended;
                } else {
                    let done = self.n_input - left;
                    on_event(self.id, RequestEvent::Prompt { done, total: self.n_input });
                }
            }
            Work::Text(text) => {
                text.ran(n);
                if !text.pending().is_empty() {
                    let done = text.cached().len();
                    if self.state == EntryState::Prompt {
                        on_event(self.id, RequestEvent::Prompt { done, total: self.n_input });
                    }
                    return;
                }
                if self.state == EntryState::Prompt {
                    let total = self.n_input;
                    on_event(self.id, RequestEvent::Prompt { done: total, total });
                }
                let result = text.accept(rows(), scratch, accepted);
                if matches!(self.state, EntryState::Prompt | EntryState::New) {
                    self.prompt_end = Some(Instant::now());
                    let is_first = self.state == EntryState::Prompt;
                    self.state =
                        if is_first { EntryState::PromptDone } else { EntryState::Decoding };
                }
                if let Err(error) = result {
                    self.fail(error);
                } else {
                    self.emit(accepted, on_event);
                }
            }
        }
    }

    /// Appends the tokens and the text of a step.
    fn emit(
        &mut self,
        accepted: &Accepted,
        on_event: &mut (impl FnMut(RequestId, RequestEvent<'_>) + ?Sized),
    ) {
        self.text += &accepted.text;
        for token in &accepted.tokens {
            self.tokens.push(token.token);
            self.probs.extend(token.probs.clone());
        }
        if accepted.finish.is_some() {
            (self.finish, self.state) = (accepted.finish, EntryState::Ended);
        }
        on_event(self.id, RequestEvent::Text { choice: self.choice, accepted });
    }

    /// Ends it with an error.
    pub(crate) fn fail(&mut self, error: Error) {
        (self.error, self.state) = (Some(error), EntryState::Ended);
    }

    /// Ends it between two steps.
    pub(crate) fn end(
        &mut self,
        finish: Finish,
        accepted: &mut Accepted,
        on_event: &mut (impl FnMut(RequestId, RequestEvent<'_>) + ?Sized),
    ) {
        self.finish = Some(finish);
        if let Work::Text(text) = &mut self.work {
            text.end(finish, accepted);
            if self.prompt_end.is_some() {
                self.emit(accepted, on_event);
            }
        }
        self.state = EntryState::Ended;
    }

    /// Reports the result of an ended entry.
    pub(crate) fn finish(self, on_event: &mut (impl FnMut(RequestId, RequestEvent<'_>) + ?Sized)) {
        if let Some(error) = self.error {
            on_event(self.id, RequestEvent::Failed(error));
            return;
        }
        let text = match self.work {
            Work::Text(text) => text,
            Work::Embedding(embedding) => {
                if self.finish.is_none() {
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
            text: self.text,
            tokens: self.tokens,
            probs: self.probs,
            finish: self.finish.unwrap_or(Finish::Cancelled),
            stop: text.stop_string().map(str::to_owned),
            prompt_tokens: self.n_input,
            cached_tokens: self.cached_tokens,
            drafts: text.drafts(),
            preemptions: self.n_preemptions,
            seed: text.seed(),
            timings: Timings {
                queue_ms: ms(self.queued_at, started_at),
                prompt_ms: ms(started_at, prompt_end),
                decode_ms: ms(prompt_end, now),
            },
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
        let request = Request { max_decode: Some(second), ..Request::new(embedding) };
        let mut entry = Entry::new(RequestId(0), request);
        entry.text = "a\nb".to_owned();
        assert!(!entry.has_expired(now + 9 * second), "the time begins with the first token");
        entry.prompt_end = Some(now);
        assert!(!entry.has_expired(now + second));
        assert!(entry.has_expired(now + 2 * second));
        entry.text = "ab".to_owned();
        assert!(!entry.has_expired(now + 9 * second));
    }
}
