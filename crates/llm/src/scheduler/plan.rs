//! Plan of a step: drafts, tokens of texts, chunks of prompts, and the pages for them.

use std::ops::Bound::{Excluded, Unbounded};

use stonechat_nn::PAGE_LEN;

use crate::drafts::draft::DraftText;
use crate::scheduler::task::{Kind, Planned, Task, TaskKey};
use crate::{Error, OutputRequest, Scheduler, State, StateOptions, StepReport};

/// Minimum tokens of a prompt chunk: with fewer rows the matrix products are less efficient.
const MIN_CHUNK: usize = 2 * PAGE_LEN;
/// Positions of a prompt from which attention takes most of the time of a chunk, however many rows it has.
const LONG_PROMPT: usize = 2048;
/// Minimum tokens of a chunk that starts at [`LONG_PROMPT`] or later.
const MIN_LATE_CHUNK: usize = PAGE_LEN;

/// Tokens, rows and KV pages that are still available while a step is planned.
#[derive(Debug)]
struct StepBudget {
    tokens: usize,
    /// Rows of logits and top-k.
    rows: usize,
    /// Rows of these that are left to the prompts after the one that is planned.
    kept_rows: usize,
    /// Free pages that the plan takes.
    taken_pages: usize,
}

impl Scheduler {
    /// Drafts tokens for the texts that are decoding, in one batch.
    pub(crate) async fn propose(&mut self) -> Result<(), Error> {
        let max_new = self.chunk();
        let Self { drafter: Some(drafter), running, state, cost, .. } = self else {
            return Ok(());
        };
        let StateOptions { n_outputs, n_batch, n_ctx, .. } = state.options();
        let n_decoding = running.values().filter(|task| task.is_decoding()).count();
        // Each prompt whose rows are asked for needs one, or drafts would keep it from running.
        let n_scored = running.values().filter(|task| task.scores_prompt()).count();
        let max_total = n_outputs.min(n_batch).saturating_sub(n_decoding + n_scored);
        let needs_plain_step = cost.needs_plain_step();
        let (mut keys, mut texts) = (Vec::new(), Vec::with_capacity(n_decoding));
        for (key, task) in running.iter_mut().filter(|(_, task)| task.is_decoding()) {
            let Task { kind: Kind::Text(text), gate, slot: Some(slot), .. } = task else {
                continue;
            };
            text.propose(&[]);
            let left = text.tokens_left().map_or(usize::MAX, |left| left.saturating_sub(1));
            let context = text.context();
            let in_context = n_ctx.saturating_sub(context.len());
            let max = gate.limit(max_total.min(left).min(in_context));
            if max > 0 && !needs_plain_step {
                let known = std::mem::replace(&mut gate.known, context.len());
                keys.push(*key);
                texts.push(DraftText { slot: *slot, context, known, max, draft: Vec::new() });
            }
        }
        if texts.is_empty() {
            return Ok(());
        }
        let seconds = drafter.draft(&mut texts, max_total, max_new).await?;
        let drafts: Vec<Vec<u32>> = texts.into_iter().map(|text| text.draft).collect();
        cost.record_drafts(drafts.iter().map(Vec::len).sum(), seconds);
        for (key, draft) in keys.iter().zip(drafts) {
            if let Some(Task { kind: Kind::Text(text), .. }) = running.get_mut(key) {
                text.propose(&draft);
            }
        }
        Ok(())
    }

    /// Chooses the tokens of the next step: texts first, then prompts in chunks.
    pub(crate) async fn plan(&mut self) -> Result<(), Error> {
        self.planned.clear();
        self.running.values_mut().for_each(|task| task.is_planned = false);
        let StateOptions { n_batch, n_outputs, .. } = self.state.options();
        let mut budget =
            StepBudget { tokens: n_batch, rows: n_outputs, kept_rows: 0, taken_pages: 0 };
        for key in self.running_keys(Task::is_decoding) {
            self.plan_task(key, &mut budget).await?;
        }
        if !self.planned.is_empty() {
            budget.tokens = budget.tokens.min(self.chunk());
        }
        let prompts = self.running_keys(|task| !task.is_decoding());
        for (index, key) in prompts.iter().enumerate() {
            budget.kept_rows = prompts.len() - 1 - index;
            self.plan_task(*key, &mut budget).await?;
        }
        Ok(())
    }

    /// Running tasks of a kind, in order.
    fn running_keys(&self, is_chosen: impl Fn(&Task) -> bool) -> Vec<TaskKey> {
        let chosen = self.running.iter().filter(|(_, task)| is_chosen(task));
        chosen.map(|(key, _)| *key).collect()
    }

    /// Maximum tokens of prompts in a step with texts.
    fn chunk(&self) -> usize {
        let n_batch = self.state.options().n_batch;
        let next = self.running.values().find(|task| !task.is_decoding());
        let n_before = next.and_then(|task| task.slot).map_or(0, |slot| self.state.len(slot));
        let shortest = if n_before < LONG_PROMPT { MIN_CHUNK } else { MIN_LATE_CHUNK };
        if self.token_seconds == 0.0 {
            return shortest.min(n_batch);
        }
        let n = (self.max_gap.as_secs_f64() / self.token_seconds) as usize;
        (n / 16 * 16).clamp(shortest, n_batch.max(shortest))
    }

    /// Adds the pending tokens of a task to the plan, as many as the budget has, if it gets their pages. A task that was
    /// preempted for an earlier one gets none.
    async fn plan_task(&mut self, key: TaskKey, budget: &mut StepBudget) -> Result<(), Error> {
        let Some(task) = self.running.get(&key) else { return Ok(()) };
        let rows = match task.scores_prompt() {
            true => budget.rows.saturating_sub(budget.kept_rows).max(budget.rows.min(1)),
            false => budget.rows,
        };
        let planned = task.plan(budget.tokens, rows);
        let planned = planned.into_iter().flatten().filter(|planned| planned.n > 0);
        if planned.clone().next().is_none()
            || !self.take_pages(key, planned.clone(), budget).await?
        {
            return Ok(());
        }
        for planned in planned {
            budget.tokens -= planned.n;
            if planned.output != OutputRequest::Hidden {
                budget.rows -= planned.n_rows;
            }
            self.planned.push(planned);
            if let Some(task) = self.running.get_mut(&key) {
                task.is_planned = true;
            }
        }
        Ok(())
    }

    /// Takes pages for tokens of a task: free ones, then those of the prefix cache, then those of the newest running tasks that
    /// come after it and are not planned. Returns whether it got them.
    async fn take_pages(
        &mut self,
        key: TaskKey,
        planned: impl Iterator<Item = Planned> + Clone,
        budget: &mut StepBudget,
    ) -> Result<bool, Error> {
        loop {
            let pages = |state: &State| {
                planned.clone().map(|run| state.pages_needed(run.slot, run.n)).sum::<usize>()
            };
            let needed = budget.taken_pages + pages(&self.state);
            if needed <= self.state.free_pages()
                || self.cache.evict(&mut self.state, needed).await?
            {
                budget.taken_pages += pages(&self.state);
                return Ok(true);
            }
            let mut newest = self.running.range((Excluded(key), Unbounded)).rev();
            match newest.find(|(_, task)| !task.is_planned).map(|(key, _)| *key) {
                Some(victim) => self.preempt(victim),
                None if self.planned.is_empty() && self.cache.n_pages() > 0 => {
                    // A page that it shares with the cache alone need not be copied.
                    self.cache.clear(&mut self.state);
                }
                None => return Ok(false),
            }
        }
    }

    /// Records the `seconds` of a step of the model: per token of prompts, or by rows if it has no prompts.
    pub(crate) fn measure(&mut self, report: &StepReport, seconds: f64) {
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
}
