//! Requests that share a batch: admission, order of a step, KV pages, preemption.
//!
//! ```text
//! add ──► waiting ──admit──► prompt ──► decoding ──► ended
//!            ▲                  │           │
//!            └──── preempted ───┴───────────┘      its pages went to an older request; its tokens run again
//!
//! step:  decoding requests, one token and a draft each; then prompts in chunks, in order of rank
//! rank:  priority, then arrival
//! ```
//!
//! A request is admitted if a slot is free and the KV pages of its whole input are; none overtakes an older one of its
//! priority. A request that lacks a page takes one from the prefix cache, else from the newest request; so the oldest one
//! always goes on, and none fails because others use the pool.
//!
//! On a device that runs ahead, a step whose texts all take the most probable token is enqueued before the outputs of the step
//! before are read. A text that ends with these has run one token too many, which is cut off.
//!
//! While texts are decoding, the chunk of prompts is as long as [`SchedulerOptions::max_gap`] allows, by the measured time of
//! a token.

pub(crate) mod ends;
pub(crate) mod entry;
pub(crate) mod slots;
pub(crate) mod steps;

use std::sync::Arc;
use std::time::Duration;

use stonechat_nn::{PAGE_LEN, Slot};
use web_time::Instant;

use crate::drafts::drafter::DraftText;
use crate::drafts::gate::StepCost;
use crate::scheduler::entry::{Entry, EntryState, Work};
use crate::text::generation::{Accepted, GenerationScratch};
use crate::{
    Drafter, Error, Model, ModelInfo, OutputRequest, PageStore, PrefixCache, Request, RequestEvent,
    RequestId, State, StateOptions, Ticket,
};

/// Options of a [`Scheduler`].
#[derive(Debug)]
pub struct SchedulerOptions {
    /// Sizes of the state.
    pub state: StateOptions,
    /// Time that the chunks of prompts may add to a step while texts are decoding.
    pub max_gap: Duration,
    /// Source of drafts for all texts.
    pub drafter: Option<Drafter>,
    /// Stores for KV pages that the prefix cache drops, fastest first.
    pub stores: Vec<Box<dyn PageStore>>,
}

/// Requests in a running batch over one [`State`].
#[derive(Debug)]
pub struct Scheduler {
    pub(crate) info: Arc<ModelInfo>,
    pub(crate) state: State,
    pub(crate) cache: PrefixCache,
    pub(crate) max_gap: Duration,
    pub(crate) drafter: Option<Drafter>,
    /// In order of rank.
    pub(crate) entries: Vec<Entry>,
    pub(crate) free_slots: Vec<Slot>,
    /// Tokens and salt of the text that each slot held last.
    pub(crate) last_texts: Vec<(Vec<u32>, u64)>,
    next_id: u64,
    /// Seconds of a prompt's token; falls smoothly. 0 before the first prompt.
    token_seconds: f64,
    pub(crate) cost: StepCost,
    n_preempted: usize,
    pub(crate) scratch: GenerationScratch,
    pub(crate) accepted: Accepted,
    pub(crate) planned: Vec<Planned>,
    /// Step that runs behind the current one, with its plan.
    pub(crate) ahead: Option<(Ticket, Vec<Planned>)>,
}

/// Tokens of a request in a step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Planned {
    id: RequestId,
    choice: usize,
    pub(crate) slot: Slot,
    pub(crate) n: usize,
    pub(crate) output: OutputRequest,
    pub(crate) n_rows: usize,
}

/// Tokens, rows and pages that a step has left while it is planned.
#[derive(Debug)]
struct Room {
    tokens: usize,
    /// Rows of logits and top-k.
    rows: usize,
    /// Free pages that the plan takes.
    pages: usize,
}

/// Counts of a step, and of the scheduler after it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct StepReport {
    /// Tokens of prompts.
    pub prompt_tokens: usize,
    /// Tokens of texts, with those of drafts.
    pub text_tokens: usize,
    /// Texts that decoded.
    pub n_decoding: usize,
    /// Requests with a slot.
    pub n_running: usize,
    /// Requests without a slot.
    pub n_waiting: usize,
    /// Requests that lost their pages to an older one.
    pub n_preempted: usize,
    /// KV pages in use, with those of the prefix cache.
    pub used_pages: usize,
    /// KV pages of the prefix cache.
    pub cached_pages: usize,
    /// KV pages.
    pub n_pages: usize,
    /// Duration.
    pub seconds: f64,
}

/// Callback for the events of all requests. `Send`, but on wasm32.
#[cfg(not(target_arch = "wasm32"))]
pub type OnRequestEvent<'a> = dyn FnMut(RequestId, RequestEvent<'_>) + Send + 'a;

/// Callback for the events of all requests. `Send`, but on wasm32.
#[cfg(target_arch = "wasm32")]
pub type OnRequestEvent<'a> = dyn FnMut(RequestId, RequestEvent<'_>) + 'a;

/// Shortest chunk of a prompt, in tokens: enough rows for the products.
const MIN_CHUNK: usize = 2 * PAGE_LEN;
/// Tokens of a prompt behind which attention takes most of the time. It gains nothing from many rows.
const LONG_PROMPT: usize = 2048;
/// Shortest chunk behind [`LONG_PROMPT`].
const MIN_LATE_CHUNK: usize = PAGE_LEN;

impl Planned {
    pub(crate) fn is_of(&self, entry: &Entry) -> bool {
        (self.id, self.choice) == (entry.id, entry.choice)
    }
}

impl Scheduler {
    /// Allocates and warms up the state.
    ///
    /// # Errors
    /// If a size is out of range or a device is out of memory.
    pub fn new(model: &Model, options: SchedulerOptions) -> Result<Self, Error> {
        let SchedulerOptions { state, max_gap, drafter, stores } = options;
        let state = model.state(state)?;
        Ok(Self {
            info: model.info().clone(),
            free_slots: (0..state.options().n_sequences).rev().map(Slot::new).collect(),
            last_texts: vec![Default::default(); state.options().n_sequences],
            cache: PrefixCache::with_stores(model, state.options(), stores),
            state,
            max_gap,
            drafter,
            entries: Vec::new(),
            next_id: 0,
            token_seconds: 0.0,
            cost: StepCost::default(),
            n_preempted: 0,
            scratch: GenerationScratch::new(model),
            accepted: Accepted::default(),
            planned: Vec::new(),
            ahead: None,
        })
    }

    /// Sizes of the state.
    #[must_use]
    pub fn options(&self) -> StateOptions {
        self.state.options()
    }

    /// Properties of the model.
    #[must_use]
    pub fn model(&self) -> &Arc<ModelInfo> {
        &self.info
    }

    /// Number of KV pages.
    #[must_use]
    pub fn n_pages(&self) -> usize {
        self.state.n_pages()
    }

    /// Empties the prefix cache; returns the number of free pages.
    pub fn clear_cache(&mut self) -> usize {
        self.cache.clear(&mut self.state);
        self.state.free_pages()
    }

    /// Whether there is no request.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.entries.is_empty()
    }

    /// Longest text in tokens: that of the context, or of the whole pool.
    #[must_use]
    pub fn max_tokens(&self) -> usize {
        self.state.options().max_positions()
    }

    /// Appends a request to the queue.
    ///
    /// # Errors
    /// If the input is longer than [`max_tokens`](Self::max_tokens), there are more choices than slots, a text has guidance,
    /// or hidden states do not fit a step.
    pub fn add(&mut self, request: Request) -> Result<RequestId, Error> {
        let options = self.state.options();
        let (tokens, n_ctx) = (request.work.pending().len(), self.max_tokens());
        if tokens > n_ctx {
            return Err(Error::ContextFull { tokens, n_ctx });
        }
        let invalid =
            |option, expected: String, got: String| Err(Error::Option { option, expected, got });
        if !(1..=options.n_sequences).contains(&request.n_choices) {
            let expected = format!("1 to {}", options.n_sequences);
            return invalid("choices", expected, request.n_choices.to_string());
        }
        match &request.work {
            Work::Text(text) if !text.pending_negative().is_empty() => {
                return invalid(
                    "guidance",
                    "none in a batch of requests".to_owned(),
                    "some".to_owned(),
                );
            }
            Work::Embedding(_) if options.n_hidden < options.n_batch => {
                let expected = format!("{} for embeddings", options.n_batch);
                return invalid("hidden states", expected, options.n_hidden.to_string());
            }
            Work::Text(_) | Work::Embedding(_) => {}
        }
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let entry = Entry::new(id, request);
        let at = self.entries.partition_point(|other| other.rank() <= entry.rank());
        self.entries.insert(at, entry);
        Ok(id)
    }

    /// Runs one step of the requests whose turn it is.
    ///
    /// # Errors
    /// If a device fails. The requests are as before the step; see [`fail_all`](Self::fail_all).
    pub async fn step(&mut self, on_event: &mut OnRequestEvent<'_>) -> Result<StepReport, Error> {
        let started = Instant::now();
        self.n_preempted = 0;
        self.end_expired(started, on_event);
        let mut planned_at = started;
        let ticket = match self.take_ahead() {
            Some(ticket) => Some(ticket),
            None => {
                self.end_full(on_event);
                self.admit(on_event).await?;
                self.propose().await?;
                planned_at = Instant::now();
                self.plan().await?;
                self.enqueue()?
            }
        };
        let mut report = StepReport::default();
        for planned in &self.planned {
            let Some(entry) = self.entries.iter().find(|entry| planned.is_of(entry)) else {
                continue;
            };
            if entry.is_decoding() {
                report.text_tokens += planned.n;
                report.n_decoding += 1;
            } else {
                report.prompt_tokens += planned.n;
            }
        }
        if let Some(ticket) = ticket {
            self.plan_ahead()?;
            self.take_outputs(ticket, on_event).await?;
        }
        report.seconds = started.elapsed().as_secs_f64();
        self.measure(&report, planned_at.elapsed().as_secs_f64());
        let StepReport { prompt_tokens, text_tokens, n_decoding, seconds, .. } = report;
        let (n_preempted, counts) = (self.n_preempted, self.counts());
        Ok(StepReport { prompt_tokens, text_tokens, n_decoding, n_preempted, seconds, ..counts })
    }

    /// Requests and pages between two steps.
    #[must_use]
    pub fn counts(&self) -> StepReport {
        let n_running = self.entries.iter().filter(|entry| entry.slot.is_some()).count();
        StepReport {
            n_running,
            n_waiting: self.entries.len() - n_running,
            n_pages: self.n_pages(),
            used_pages: self.n_pages() - self.state.free_pages(),
            cached_pages: self.cache.n_pages(),
            ..StepReport::default()
        }
    }

    /// Updates the time of a prompt's token, and records that of a step without prompts; `seconds` are those of the model.
    fn measure(&mut self, report: &StepReport, seconds: f64) {
        if report.prompt_tokens == 0 && report.text_tokens > 0 {
            let n_drafted = report.text_tokens - report.n_decoding;
            self.cost.record(report.text_tokens, n_drafted, seconds);
        }
        if report.prompt_tokens >= MIN_LATE_CHUNK {
            let seconds = seconds / (report.prompt_tokens + report.text_tokens) as f64;
            // Each chunk of a long prompt takes longer than the one before: an average would lag behind.
            self.token_seconds = seconds.max(0.75 * self.token_seconds + 0.25 * seconds);
        }
    }

    /// Gives slots to waiting requests in order, as long as the pages of their whole inputs are there.
    async fn admit(&mut self, on_event: &mut OnRequestEvent<'_>) -> Result<(), Error> {
        let reserved = |entry: &Entry, state: &State| {
            entry.slot.map_or(0, |slot| state.pages_needed(slot, entry.work.pending().len()))
        };
        let mut n_reserved: usize =
            self.entries.iter().map(|entry| reserved(entry, &self.state)).sum();
        let mut is_running = self.entries.iter().any(|entry| entry.slot.is_some());
        for index in 0..self.entries.len() {
            let entry = &mut self.entries[index];
            if entry.slot.is_some() {
                continue;
            }
            let n_slots = entry.n_slots();
            if n_slots > self.free_slots.len() {
                return Ok(());
            }
            let (tokens, salt) = (entry.work.pending(), entry.salt);
            if entry.reads_cache()
                && let Some(&slot) = self.free_slots.last()
            {
                self.cache.load(&mut self.state, slot, tokens, salt).await?;
            }
            let n_cached =
                if entry.reads_cache() { self.cache.cached_len(tokens, salt) } else { 0 };
            // The first token of the text needs a place, too. A page that is shared in part is copied.
            let n_needed = (tokens.len() + 1).div_ceil(PAGE_LEN) - n_cached / PAGE_LEN;
            let n_free = self.state.free_pages() + self.cache.n_evictable(&self.state);
            if is_running && n_needed + n_reserved > n_free {
                return Ok(());
            }
            let slot = self.free_slots.pop().expect("a free slot was counted");
            let mut n_found = 0;
            if entry.reads_cache() {
                n_found = self.cache.attach(&mut self.state, slot, tokens, salt);
            }
            let spare = self.free_slots.split_off(self.free_slots.len() + 1 - n_slots);
            entry.start(slot, spare, n_found);
            n_reserved += reserved(entry, &self.state);
            is_running = true;
            if entry.state == EntryState::Prompt {
                on_event(entry.id, RequestEvent::Started { cached_tokens: n_found });
            }
        }
        Ok(())
    }

    /// Drafts for the texts that decode, in one batch.
    async fn propose(&mut self) -> Result<(), Error> {
        let max_new = self.chunk();
        let Self { drafter: Some(drafter), entries, state, cost, .. } = self else {
            return Ok(());
        };
        let StateOptions { n_outputs, n_batch, n_ctx, .. } = state.options();
        let n_decoding = entries.iter().filter(|entry| entry.is_decoding()).count();
        let room = n_outputs.min(n_batch).saturating_sub(n_decoding);
        let needs_plain_step = cost.needs_plain_step();
        let mut texts = Vec::with_capacity(n_decoding);
        for entry in entries.iter_mut().filter(|entry| entry.is_decoding()) {
            let Entry { work: Work::Text(text), gate, slot: Some(slot), .. } = entry else {
                continue;
            };
            text.propose(&[]);
            let left = text.tokens_left().map_or(usize::MAX, |left| left.saturating_sub(1));
            let context = text.context();
            let in_context = n_ctx.saturating_sub(context.len());
            let max = gate.limit(room.min(left).min(in_context));
            if max > 0 && !needs_plain_step {
                let known = std::mem::replace(&mut gate.known, context.len());
                texts.push(DraftText { slot: *slot, context, known, max, draft: Vec::new() });
            }
        }
        if texts.is_empty() {
            return Ok(());
        }
        let seconds = drafter.draft(&mut texts, room, max_new).await?;
        let drafts: Vec<(Slot, Vec<u32>)> =
            texts.into_iter().map(|text| (text.slot, text.draft)).collect();
        cost.record_drafts(drafts.iter().map(|(_, draft)| draft.len()).sum(), seconds);
        for (slot, draft) in drafts {
            let of_slot = entries.iter_mut().find(|entry| entry.slot == Some(slot));
            if let Some(Entry { work: Work::Text(text), .. }) = of_slot {
                text.propose(&draft);
            }
        }
        Ok(())
    }

    /// Chooses the tokens of the next step: texts first, then prompts in chunks.
    async fn plan(&mut self) -> Result<(), Error> {
        self.planned.clear();
        let StateOptions { n_batch, n_outputs, .. } = self.state.options();
        let mut room = Room { tokens: n_batch, rows: n_outputs, pages: 0 };
        for index in 0..self.entries.len() {
            if self.entries[index].is_decoding() {
                let n = self.entries[index].work.pending().len();
                self.plan_entry(index, n, &mut room).await?;
            }
        }
        if !self.planned.is_empty() {
            room.tokens = room.tokens.min(self.chunk());
        }
        for index in 0..self.entries.len() {
            let entry = &self.entries[index];
            if entry.slot.is_some() && !entry.is_decoding() {
                let n = entry.work.pending().len();
                self.plan_entry(index, n, &mut room).await?;
            }
        }
        Ok(())
    }

    /// Longest chunk of prompts beside texts, in tokens.
    fn chunk(&self) -> usize {
        let n_batch = self.state.options().n_batch;
        let next = self.entries.iter().find(|entry| !entry.is_decoding() && entry.slot.is_some());
        let n_before = next.and_then(|entry| entry.slot).map_or(0, |slot| self.state.len(slot));
        let shortest = if n_before < LONG_PROMPT { MIN_CHUNK } else { MIN_LATE_CHUNK };
        if self.token_seconds == 0.0 {
            return shortest.min(n_batch);
        }
        let n = (self.max_gap.as_secs_f64() / self.token_seconds) as usize;
        (n / 16 * 16).clamp(shortest, n_batch.max(shortest))
    }

    /// Adds at most `n` tokens of a request to the plan, as many as fit the step, if it gets their pages.
    async fn plan_entry(&mut self, index: usize, n: usize, room: &mut Room) -> Result<(), Error> {
        let entry = &self.entries[index];
        let Some(slot) = entry.slot else { return Ok(()) };
        let mut n = n.min(room.tokens);
        if entry.is_decoding() && n < entry.work.pending().len() {
            return Ok(());
        }
        let (mut output, mut n_rows) = entry.work.output(n);
        if output != OutputRequest::Hidden && n_rows > room.rows {
            if entry.is_decoding() {
                return Ok(());
            }
            // The last token of the prompt waits for a step with a row.
            n -= 1;
            (output, n_rows) = entry.work.output(n);
        }
        if n == 0 || !self.make_room(index, slot, n, room.pages).await? {
            return Ok(());
        }
        room.tokens -= n;
        room.pages += self.state.pages_needed(slot, n);
        if output != OutputRequest::Hidden {
            room.rows -= n_rows;
        }
        let Entry { id, choice, .. } = self.entries[index];
        self.planned.push(Planned { id, choice, slot, n, output, n_rows });
        Ok(())
    }

    /// Frees pages for `n` tokens of a request beside `n_taken` pages of the plan: from the prefix cache, then from the
    /// requests behind it that are not in the plan.
    async fn make_room(
        &mut self,
        index: usize,
        slot: Slot,
        n: usize,
        n_taken: usize,
    ) -> Result<bool, Error> {
        loop {
            let needed = n_taken + self.state.pages_needed(slot, n);
            if needed <= self.state.free_pages()
                || self.cache.evict(&mut self.state, needed).await?
            {
                return Ok(true);
            }
            let is_planned = |victim: usize| {
                self.planned.iter().any(|planned| planned.is_of(&self.entries[victim]))
            };
            let victim = (index + 1..self.entries.len())
                .rev()
                .find(|&victim| self.entries[victim].slot.is_some() && !is_planned(victim));
            match victim {
                Some(victim) => self.preempt(victim),
                None if self.planned.is_empty() && self.cache.n_pages() > 0 => {
                    // A page that it shares with the cache alone need not be copied.
                    self.cache.clear(&mut self.state);
                }
                None => return Ok(false),
            }
        }
    }

    /// Takes slot and pages of a request, which waits again.
    fn preempt(&mut self, index: usize) {
        self.n_preempted += 1;
        self.entries[index].n_preemptions += 1;
        self.entries[index].work.preempt();
        self.release(index);
    }

    /// Gives back the slots of a request with their pages.
    pub(crate) fn release(&mut self, index: usize) {
        let entry = &mut self.entries[index];
        for slot in entry.slot.take().into_iter().chain(entry.spare.drain(..)) {
            self.state.truncate(slot, 0);
            self.free_slots.push(slot);
        }
    }
}
