//! Drafts from a smaller model, for all texts of a step in one batch.
//!
//! ```text
//! context of a text   prompt ................. tokens since its last draft
//! draft model         cached | catch up       | first step | draft, one token per step
//!                              one step,        all texts    all texts
//!                              no outputs
//! ```
//!
//! Each text has the slot of its target. A slot keeps its tokens until a text needs its pages: the next text in it, or in
//! another one, starts from the longest common prefix. A text whose context the draft model lacks catches up over several
//! steps, by a bounded number of tokens each, and has no draft until then.

use std::cmp::Reverse;

use stonechat_nn::{PAGE_LEN, Slot};
use web_time::Instant;

use crate::cache::prefix_cache::common_prefix;
use crate::drafts::draft::{DraftLength, DraftText};
use crate::model::vocabulary::same_vocabulary;
use crate::{Config, Error, Model, ModelInfo, OutputRequest, OutputRow, State, StateOptions};

/// Tokens that the first step of a draft runs at most; a text that lacks more catches up before.
const MAX_NEW: usize = 8;

/// Drafts from a smaller model.
#[derive(Debug)]
pub struct ModelDrafter {
    model: Model,
    state: State,
    pub(crate) length: DraftLength,
    /// Vocabulary of the target.
    n_target: u32,
    slots: Vec<DraftSlot>,
    /// Number of calls.
    clock: u64,
}

/// Sequence of the draft model.
#[derive(Debug, Default)]
struct DraftSlot {
    /// Cached tokens.
    tokens: Vec<u32>,
    /// Call that used it last.
    last_used: u64,
}

/// Text of a draft step.
#[derive(Debug)]
struct DraftRun {
    text: usize,
    slot: usize,
    /// Tokens of the step.
    tokens: Vec<u32>,
}

impl ModelDrafter {
    /// Default length of drafts.
    pub const LENGTH: DraftLength = DraftLength { max: 3, min: 0 };

    /// A drafter for `target`; `options` are those of [`state_options`](Self::state_options).
    ///
    /// # Errors
    /// If the vocabularies differ or the device is out of memory.
    pub fn new(
        model: Model,
        target: &ModelInfo,
        length: DraftLength,
        options: StateOptions,
    ) -> Result<Self, Error> {
        let n_target = target.config().vocab_size;
        if !same_vocabulary(
            (model.tokenizer(), model.config().vocab_size),
            (target.tokenizer(), n_target),
        ) {
            return Err(Error::Option {
                option: "draft model",
                expected: format!("the vocabulary of {}", target.summary().name),
                got: format!("that of {}", model.summary().name),
            });
        }
        let state = model.state(options)?;
        let slots = (0..options.n_sequences).map(|_| DraftSlot::default()).collect();
        Ok(Self { model, state, length, n_target: n_target as u32, slots, clock: 0 })
    }

    /// Sizes of the state of a draft model with this configuration, for the state of its target.
    #[must_use]
    pub fn state_options(target: StateOptions, config: &Config) -> StateOptions {
        let n_ctx = target.n_ctx.min(config.n_ctx_train);
        StateOptions {
            n_ctx,
            n_batch: target.n_batch.min(n_ctx).max(target.n_sequences),
            n_outputs: target.n_sequences,
            n_hidden: 0,
            ..target
        }
    }

    /// Replaces the state by a fresh one.
    ///
    /// # Errors
    /// If a device is out of memory.
    pub(crate) fn reopen(&mut self) -> Result<(), Error> {
        self.state = self.model.state(self.state.options())?;
        self.slots.fill_with(DraftSlot::default);
        Ok(())
    }

    /// Empties all sequences: after a failed step nothing is known of the pages.
    pub(crate) fn clear(&mut self) {
        (0..self.slots.len()).for_each(|slot| self.truncate(slot, 0));
    }

    /// Drafts at most `max_total` tokens. Texts that lack many tokens run at most `max_new` of them, in order. Returns the
    /// seconds of drafting, without those of catching up.
    pub(crate) async fn draft(
        &mut self,
        texts: &mut [DraftText<'_>],
        max_total: usize,
        max_new: usize,
    ) -> Result<f64, Error> {
        self.clock += 1;
        self.limit(texts);
        self.align(texts);
        self.reserve(texts);
        self.catch_up(texts, max_new).await?;
        let started = Instant::now();
        self.generate(texts, max_total).await?;
        Ok(started.elapsed().as_secs_f64())
    }

    /// Bounds drafts by the context of the draft model; texts of tokens that it lacks have none.
    fn limit(&self, texts: &mut [DraftText<'_>]) {
        let (n_ctx, vocab_size) = (self.state.options().n_ctx, self.model.config().vocab_size);
        for text in texts {
            // The last token of a draft is never run.
            text.max = text.max.min((n_ctx + 1).saturating_sub(text.context.len()));
            let old = &self.slots[text.slot.index()].tokens;
            let new = &text.context[common_prefix(old, text.context)..];
            if new.iter().any(|&token| token as usize >= vocab_size) {
                text.max = 0;
            }
        }
    }

    /// Cuts the slots to the tokens that they share with their texts. A slot becomes a copy of one that shares at least a page
    /// more.
    fn align(&mut self, texts: &[DraftText<'_>]) {
        for text in texts.iter().filter(|text| text.max > 0) {
            let own = text.slot.index();
            // The last token is run in any case, for its logits.
            let context = &text.context[..text.context.len() - 1];
            let shared = |slot: &DraftSlot| common_prefix(&slot.tokens, context);
            self.truncate(own, shared(&self.slots[own]));
            let len = self.slots[own].tokens.len();
            if context.len() >= len + PAGE_LEN {
                let lens = self.slots.iter().map(shared).enumerate();
                let best = lens.max_by_key(|&(_, len)| len);
                if let Some((best, shared)) = best.filter(|&(_, shared)| shared >= len + PAGE_LEN) {
                    self.state.fork(Slot::new(best), text.slot);
                    self.slots[own].tokens.extend_from_slice(&context[len..shared]);
                    self.truncate(own, shared);
                }
            }
            self.slots[own].last_used = self.clock;
        }
    }

    /// Truncates a slot to `len` tokens, or to fewer if its state reaches less.
    fn truncate(&mut self, slot: usize, len: usize) {
        let len = self.state.truncate(Slot::new(slot), len);
        self.slots[slot].tokens.truncate(len);
    }

    /// Number of tokens of a text that the draft model lacks.
    fn n_new(&self, text: &DraftText<'_>) -> usize {
        text.context.len() - self.slots[text.slot.index()].tokens.len()
    }

    /// Frees the pages of whole texts with their drafts, in order: those of slots without a text first, least recently used
    /// first, then those of the last texts. A text whose pages are not free has no draft.
    fn reserve(&mut self, texts: &mut [DraftText<'_>]) {
        let mut n_taken = 0;
        for index in 0..texts.len() {
            if texts[index].max == 0 {
                continue;
            }
            loop {
                let text = &texts[index];
                let n = self.n_new(text) + text.max - 1;
                let n_needed = n_taken + self.state.pages_needed(text.slot, n);
                if n_needed <= self.state.free_pages() {
                    n_taken = n_needed;
                    break;
                }
                let Some(victim) = self.victim(texts, index) else {
                    texts[index].max = 0;
                    break;
                };
                self.truncate(victim, 0);
            }
        }
    }

    /// Slot to evict for text `index`: one without a text, or one of a later text.
    fn victim(&self, texts: &[DraftText<'_>], index: usize) -> Option<usize> {
        let place = |slot: usize| texts.iter().position(|text| text.slot.index() == slot);
        let used = (0..self.slots.len()).filter(|&slot| !self.slots[slot].tokens.is_empty());
        let victims = used.filter(|&slot| place(slot).is_none_or(|place| place > index));
        victims.min_by_key(|&slot| (self.slots[slot].last_used, Reverse(place(slot))))
    }

    /// Runs tokens of the texts that lack many of them, without outputs.
    async fn catch_up(&mut self, texts: &mut [DraftText<'_>], max_new: usize) -> Result<(), Error> {
        let mut left = max_new.min(self.state.options().n_batch);
        let mut planned = Vec::new();
        for (index, text) in texts.iter().enumerate().filter(|(_, text)| text.max > 0) {
            let n = (self.n_new(text) - 1).min(left);
            if self.n_new(text) > MAX_NEW && n > 0 {
                let slot = text.slot.index();
                let len = self.slots[slot].tokens.len();
                let tokens = text.context[len..len + n].to_vec();
                planned.push(DraftRun { text: index, slot, tokens });
                left -= n;
            }
        }
        self.run(texts, &mut planned, (0, &[])).await
    }

    /// Drafts the texts that lack few tokens, one token of each per step. On a device that runs ahead, each step takes the
    /// tokens of the step before on the device, and all are read at once.
    async fn generate(
        &mut self,
        texts: &mut [DraftText<'_>],
        max_total: usize,
    ) -> Result<(), Error> {
        let (mut left, mut n_tokens) = (max_total, 0);
        let n_batch = self.state.options().n_batch;
        let mut planned = Vec::new();
        for (index, text) in texts.iter().enumerate().filter(|(_, text)| text.max > 0) {
            let n = self.n_new(text);
            if n <= MAX_NEW && n_tokens + n <= n_batch {
                n_tokens += n;
                let tokens = text.context[text.context.len() - n..].to_vec();
                planned.push(DraftRun { text: index, slot: text.slot.index(), tokens });
            }
        }
        let async_scheduling = self.state.async_scheduling() && self.model.max_top_k() > 0;
        for n_drafted in 1.. {
            planned.truncate(left);
            if planned.is_empty() {
                break;
            }
            // Number of texts in each step: those of longer drafts first.
            planned.sort_by_key(|DraftRun { text, .. }| Reverse(texts[*text].max));
            let n_longer = |n: usize| {
                planned.partition_point(|DraftRun { text, .. }| texts[*text].max >= n_drafted + n)
            };
            let mut sizes = Vec::new();
            for n in 0..if async_scheduling { usize::MAX } else { 1 } {
                let size = n_longer(n).min(left);
                if size == 0 {
                    break;
                }
                left -= size;
                sizes.push(size);
            }
            self.run(texts, &mut planned, (1, &sizes[1..])).await?;
            planned.retain_mut(|DraftRun { text, tokens, .. }| {
                let DraftText { draft, max, .. } = &texts[*text];
                tokens.clear();
                tokens.extend(draft.last());
                // A draft without a token of this step has ended.
                !async_scheduling && draft.len() == n_drafted && n_drafted < *max
            });
        }
        Ok(())
    }

    /// Runs a step, with `n_outputs` rows of each text, then one for each of `sizes`, which continues as many texts by their
    /// most probable token. Texts whose pages are not free after all leave the plan and have no draft.
    async fn run(
        &mut self,
        texts: &mut [DraftText<'_>],
        planned: &mut Vec<DraftRun>,
        (n_outputs, sizes): (usize, &[usize]),
    ) -> Result<(), Error> {
        let Self { model, state, slots, n_target, .. } = self;
        let request =
            if model.max_top_k() > 0 { OutputRequest::TopK(1) } else { OutputRequest::Logits };
        let mut plan = state.plan();
        let mut failed = None;
        planned.retain(|DraftRun { text, slot, tokens }| {
            match plan.add(Slot::new(*slot), tokens, request, n_outputs) {
                Ok(()) => true,
                Err(Error::KvFull(_)) => {
                    texts[*text].max = 0;
                    false
                }
                Err(error) => {
                    failed = Some(error);
                    false
                }
            }
        });
        if let Some(error) = failed {
            return Err(error);
        }
        if planned.is_empty() {
            return Ok(());
        }
        let mut tickets = Vec::with_capacity(1 + sizes.len());
        for &size in sizes {
            tickets.push(plan.run_with_next()?);
            plan = state.plan();
            for (row, DraftRun { slot, .. }) in planned.iter().enumerate().take(size) {
                plan.add_next(Slot::new(*slot), row, request)?;
            }
        }
        tickets.push(plan.run()?);
        let ends = |token: u32| token >= *n_target || model.tokenizer().is_end_of_generation(token);
        let sizes = [planned.len()].into_iter().chain(sizes.iter().copied());
        for (n_drafted, (ticket, size)) in tickets.into_iter().zip(sizes).enumerate() {
            let outputs = state.outputs(ticket).await?;
            for (row, DraftRun { text, slot, tokens }) in planned.iter_mut().enumerate().take(size)
            {
                slots[*slot].tokens.append(tokens);
                if n_outputs == 0 {
                    continue;
                }
                let (draft, token) = (&mut texts[*text].draft, most_probable(outputs.row(row)));
                // The next step runs it even if the draft has ended.
                tokens.push(token);
                if draft.len() >= n_drafted && !ends(token) {
                    draft.push(token);
                }
            }
        }
        Ok(())
    }
}

fn most_probable(row: OutputRow<'_>) -> u32 {
    match row {
        OutputRow::TopK(top_k) | OutputRow::LogProbs { top_k, .. } => top_k[0].index,
        OutputRow::Logits(row) | OutputRow::Hidden(row) => {
            (0..row.len()).rev().max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap_or(0) as u32
        }
    }
}
