//! Continuous batching: admission of requests, plan of each step, KV pages, preemption.
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
//! A request becomes a [`Task`], and one task more for each further choice when its prompt has run. Tasks are kept in order of
//! rank: running ones have a slot, waiting ones have none.
//!
//! A task is admitted if a slot and the KV pages of its whole input are free; none overtakes an older one of its priority. A
//! task that lacks a page takes one from the prefix cache, else from the newest running task. So the oldest task always runs,
//! and none fails because others use the pool.
//!
//! On a device that runs ahead, the next step is enqueued before the outputs of the current one are read, if all texts take
//! the most probable token. A text that ends with these outputs has run one token too many, which is truncated.
//!
//! While texts are decoding, a chunk of prompts is as long as [`SchedulerOptions::max_gap`] allows, by the measured time per
//! token.

mod admit;
mod ends;
pub(crate) mod event;
mod plan;
pub(crate) mod request;
pub(crate) mod slots;
mod steps;
pub(crate) mod task;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use stonechat_nn::{PAGE_LEN, Slot};
use web_time::Instant;

use crate::drafts::gate::StepCost;
use crate::scheduler::event::{RequestEvent, RequestId};
use crate::scheduler::request::Request;
use crate::scheduler::task::{Kind, Planned, Task, TaskKey};
use crate::text::generation::{Accepted, GenerationScratch};
use crate::{
    Drafter, Error, Model, ModelInfo, PageStore, PrefixCache, State, StateOptions, Ticket,
};

/// Options of a [`Scheduler`].
#[derive(Debug)]
pub struct SchedulerOptions {
    /// Sizes of the state.
    pub state: StateOptions,
    /// Time that chunks of prompts may add to a step while texts are decoding.
    pub max_gap: Duration,
    /// Source of drafts for all texts.
    pub drafter: Option<Drafter>,
    /// Stores for KV pages that the prefix cache drops, fastest first.
    pub stores: Vec<Box<dyn PageStore>>,
}

impl SchedulerOptions {
    /// A state of these sizes, without drafts and stores; chunks of prompts may take any time.
    #[must_use]
    pub fn new(state: StateOptions) -> Self {
        Self { state, max_gap: Duration::MAX, drafter: None, stores: Vec::new() }
    }
}

/// Requests in a running batch over one [`State`].
#[derive(Debug)]
pub struct Scheduler {
    pub(crate) info: Arc<ModelInfo>,
    pub(crate) state: State,
    pub(crate) cache: PrefixCache,
    pub(crate) max_gap: Duration,
    pub(crate) drafter: Option<Drafter>,
    /// Tasks with a slot.
    pub(crate) running: BTreeMap<TaskKey, Task>,
    /// Tasks without a slot.
    pub(crate) waiting: BTreeMap<TaskKey, Task>,
    pub(crate) free_slots: Vec<Slot>,
    /// Tokens and cache salt of the last text of each slot.
    pub(crate) last_texts: Vec<(Vec<u32>, u64)>,
    n_added: u64,
    /// Seconds per prompt token, smoothed when it falls; 0 before the first prompt.
    token_seconds: f64,
    pub(crate) cost: StepCost,
    n_preempted: usize,
    pub(crate) scratch: GenerationScratch,
    pub(crate) accepted: Accepted,
    pub(crate) planned: Vec<Planned>,
    /// Step that was enqueued after the current one, with its plan.
    pub(crate) ahead: Option<(Ticket, Vec<Planned>)>,
}

/// Counts of a step, and of the scheduler after it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct StepReport {
    /// Tokens of prompts.
    pub prompt_tokens: usize,
    /// Tokens of texts, including drafts.
    pub text_tokens: usize,
    /// Texts that are decoding.
    pub n_decoding: usize,
    /// Tasks with a slot.
    pub n_running: usize,
    /// Tasks without a slot.
    pub n_waiting: usize,
    /// Tasks that lost their pages to an older one.
    pub n_preempted: usize,
    /// KV pages in use, including those of the prefix cache.
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
pub type OnRequestEvent<'a> = dyn FnMut(RequestId, RequestEvent) + Send + 'a;

/// Callback for the events of all requests. `Send`, but on wasm32.
#[cfg(target_arch = "wasm32")]
pub type OnRequestEvent<'a> = dyn FnMut(RequestId, RequestEvent) + 'a;

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
            running: BTreeMap::new(),
            waiting: BTreeMap::new(),
            n_added: 0,
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
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Maximum tokens of a text: the context, or the whole pool if it is smaller.
    #[must_use]
    pub fn max_tokens(&self) -> usize {
        self.state.options().max_positions()
    }

    /// Adds a request to the queue.
    ///
    /// # Errors
    /// As [`Request::prepare`] and [`add_task`](Self::add_task).
    pub fn add(&mut self, request: Request) -> Result<RequestId, Error> {
        let task = request.prepare(&self.info)?;
        self.add_task(task)
    }

    /// Adds a task to the queue.
    ///
    /// # Errors
    /// If the input is longer than [`max_tokens`](Self::max_tokens), there are more choices than slots, or more than one with
    /// guidance, the pool cannot hold both sequences of guidance, or hidden states do not fit a step.
    pub fn add_task(&mut self, mut task: Task) -> Result<RequestId, Error> {
        let options = self.state.options();
        let n_negative = task.kind.pending_negative().len();
        let (tokens, n_ctx) = (task.pending().len().max(n_negative), self.max_tokens());
        if tokens > n_ctx {
            return Err(Error::ContextFull { tokens, n_ctx });
        }
        let invalid =
            |option, expected: String, got: String| Err(Error::Option { option, expected, got });
        let max_choices = if n_negative > 0 { 1 } else { options.n_sequences };
        if !(1..=max_choices).contains(&task.n_choices) {
            let expected = format!("1 to {max_choices}");
            return invalid("choices", expected, task.n_choices.to_string());
        }
        if n_negative > 0 {
            let n_pages = 2 * options.n_ctx.div_ceil(PAGE_LEN);
            let n_sequences = options.n_sequences.min(options.n_outputs).min(options.n_batch);
            if n_sequences < 2 || self.n_pages() < n_pages {
                let expected = format!("2 sequences or more, with {n_pages} KV pages");
                return invalid("guidance", expected, format!("{n_sequences}, {}", self.n_pages()));
            }
        }
        if matches!(task.kind, Kind::Embedding(_)) && options.n_hidden < options.n_batch {
            let expected = format!("{} for embeddings", options.n_batch);
            return invalid("hidden states", expected, options.n_hidden.to_string());
        }
        task.queue(self.n_added);
        self.n_added += 1;
        let id = task.id;
        self.waiting.insert(task.key(), task);
        Ok(id)
    }

    /// Runs one step.
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
            let Some(task) = self.running.get(&planned.key) else { continue };
            if task.negative_slot == Some(planned.slot) {
                continue;
            }
            if task.is_decoding() {
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

    /// Tasks and pages between two steps.
    #[must_use]
    pub fn counts(&self) -> StepReport {
        StepReport {
            n_running: self.running.len(),
            n_waiting: self.waiting.len(),
            n_pages: self.n_pages(),
            used_pages: self.n_pages() - self.state.free_pages(),
            cached_pages: self.cache.n_pages(),
            ..StepReport::default()
        }
    }
}
