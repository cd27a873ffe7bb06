//! Steps of a scheduler on the device: in flight, then their outputs for the tasks.

use crate::scheduler::task::{Kind, Planned, Task, TaskState};
use crate::{Error, OnRequestEvent, Scheduler, Ticket};

impl Scheduler {
    /// Enqueues the planned step; `None` if it has no tokens.
    pub(crate) fn enqueue(&mut self) -> Result<Option<Ticket>, Error> {
        let Self { state, running, planned, .. } = self;
        if planned.is_empty() {
            return Ok(None);
        }
        let mut plan = state.plan();
        for &Planned { key, slot, n, output, n_rows } in &*planned {
            let task = &running[&key];
            let is_negative = task.negative_slot == Some(slot);
            let kind = &task.kind;
            let tokens = if is_negative { kind.pending_negative() } else { kind.pending() };
            plan.add(slot, &tokens[..n], output, n_rows)?;
        }
        Ok(Some(plan.run()?))
    }

    /// The step that was enqueued ahead, as the current one; `None` if none of its tasks is left.
    pub(crate) fn take_ahead(&mut self) -> Option<Ticket> {
        let (ticket, planned) = self.ahead.take()?;
        self.planned = planned;
        let is_left = |planned: &Planned| self.running.contains_key(&planned.key);
        self.planned.iter().any(is_left).then_some(ticket)
    }

    /// Enqueues the next step before the outputs of the current one are read, if the device can run it without the host: all
    /// tasks are texts that take the most probable token.
    pub(crate) fn plan_ahead(&mut self) -> Result<(), Error> {
        let max_tokens = self.max_tokens();
        let Self { state, running, waiting, planned, drafter: None, ahead, .. } = self else {
            return Ok(());
        };
        let async_scheduling = |planned: &Planned| match running.get(&planned.key) {
            Some(task @ Task { kind: Kind::Text(text), .. }) => {
                task.is_decoding() && text.can_run_ahead(max_tokens)
            }
            _ => false,
        };
        let can_run_ahead = state.async_scheduling()
            && waiting.is_empty()
            && running.len() == planned.len()
            && planned.iter().all(async_scheduling)
            && planned.iter().map(|planned| state.pages_needed(planned.slot, 1)).sum::<usize>()
                <= state.free_pages();
        if can_run_ahead {
            let mut plan = state.plan();
            for (row, planned) in planned.iter().enumerate() {
                plan.add_next(planned.slot, row, planned.output)?;
            }
            *ahead = Some((plan.run()?, planned.clone()));
        }
        Ok(())
    }

    /// Waits for the outputs of the current step, and gives their rows to the tasks.
    pub(crate) async fn take_outputs(
        &mut self,
        ticket: Ticket,
        on_event: &mut OnRequestEvent<'_>,
    ) -> Result<(), Error> {
        let Self { state, running, planned, scratch, accepted, cost, .. } = self;
        let is_decoding =
            |planned: &&Planned| running.get(&planned.key).is_some_and(Task::is_decoding);
        let n_decoding = planned.iter().filter(is_decoding).count();
        let outputs = state.outputs(ticket).await?;
        let mut row = 0;
        let mut forks = Vec::new();
        for &Planned { key, slot, n, n_rows, .. } in &*planned {
            let mut rows = row..row + n_rows;
            row += n_rows;
            // A task may have ended while its step was in flight.
            let Some(task) = running.get_mut(&key) else { continue };
            if task.negative_slot == Some(slot) {
                task.ran_negative(n);
                continue;
            }
            let n_prompt_rows = task.prompt_rows(n);
            let prompt_rows = rows.start..rows.start + n_prompt_rows;
            rows.start = prompt_rows.end;
            task.take_prompt_rows(outputs.rows(prompt_rows), on_event);
            if task.negative_slot.is_some() && n_rows > 0 {
                // The row before is that of the negative sequence.
                rows.start -= 1;
            }
            let first_fork = forks.len();
            if !rows.is_empty() {
                forks.extend(task.fork());
            }
            let (n_drafted, before) = task.drafts();
            task.take_rows(n, || outputs.rows(rows.clone()), (scratch, accepted), on_event);
            if n_drafted > 0 {
                task.gate.record((n_drafted, task.drafts().1 - before), n_decoding, cost);
            }
            for fork in &mut forks[first_fork..] {
                fork.take_rows(n, || outputs.rows(rows.clone()), (scratch, accepted), on_event);
            }
        }
        self.settle(forks).await?;
        self.remove_ended(on_event);
        Ok(())
    }

    /// Forks sequences, cuts refused drafts, and caches the prompts and texts that have just ended.
    async fn settle(&mut self, forks: Vec<Task>) -> Result<(), Error> {
        let Self { state, running, cache, ahead, .. } = self;
        for fork in forks {
            let from = running.get(&(fork.id, 0)).and_then(|task| task.slot);
            if let (Some(from), Some(to)) = (from, fork.slot) {
                state.fork(from, to);
            }
            running.insert(fork.key(), fork);
        }
        let stores_new = cache.stores_new();
        // A step ahead has one token of each task.
        let n_ahead = usize::from(ahead.is_some());
        for task in running.values_mut() {
            let (Some(slot), Kind::Text(text)) = (task.slot, &mut task.kind) else { continue };
            let len = text.cached().len() + n_ahead;
            if len < state.len(slot) {
                text.truncate(state.truncate(slot, len));
            }
            let (cached, salt) = (text.cached(), task.cache_salt);
            let is_stored = stores_new && task.state == TaskState::Ended;
            if task.state == TaskState::PromptDone || is_stored {
                cache.insert(state, slot, cached, salt);
                cache.store_new(state, cached, salt).await?;
            }
            if task.state == TaskState::PromptDone {
                task.state = TaskState::Decoding;
            }
        }
        Ok(())
    }
}
