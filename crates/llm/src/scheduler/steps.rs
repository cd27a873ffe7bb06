//! Steps of a scheduler on the device: in flight, then their outputs for the requests.

use crate::scheduler::Planned;
use crate::scheduler::entry::{Entry, EntryState, Work};
use crate::{Error, OnRequestEvent, Scheduler, Ticket};

impl Scheduler {
    /// Enqueues the planned step; `None` if it has no tokens.
    pub(crate) fn enqueue(&mut self) -> Result<Option<Ticket>, Error> {
        let Self { state, entries, planned, .. } = self;
        if planned.is_empty() {
            return Ok(None);
        }
        let mut plan = state.plan();
        for planned in planned.iter() {
            let entry = entries.iter().find(|entry| planned.is_of(entry)).expect("a request");
            let &Planned { slot, n, output, n_rows, .. } = planned;
            plan.add(slot, &entry.work.pending()[..n], output, n_rows)?;
        }
        Ok(Some(plan.run()?))
    }

    /// The step that was enqueued ahead, as the current one; `None` if none of its requests is left.
    pub(crate) fn take_ahead(&mut self) -> Option<Ticket> {
        let (ticket, planned) = self.ahead.take()?;
        self.planned = planned;
        let is_left = |planned: &Planned| self.entries.iter().any(|entry| planned.is_of(entry));
        self.planned.iter().any(is_left).then_some(ticket)
    }

    /// Enqueues another step behind the current one, if the device can go on without the host: all requests are texts that
    /// take the most probable token.
    pub(crate) fn plan_ahead(&mut self) -> Result<(), Error> {
        let max_tokens = self.max_tokens();
        let Self { state, entries, planned, drafter: None, ahead, .. } = self else {
            return Ok(());
        };
        let goes_on = |planned: &Planned| {
            let entry = entries.iter().find(|entry| planned.is_of(entry));
            entry.is_some_and(|entry| match &entry.work {
                Work::Text(text) => entry.is_decoding() && text.can_run_ahead(max_tokens),
                Work::Embedding(_) => false,
            })
        };
        let can_go_on = state.runs_ahead()
            && entries.len() == planned.len()
            && planned.iter().all(goes_on)
            && planned.iter().map(|planned| state.pages_needed(planned.slot, 1)).sum::<usize>()
                <= state.free_pages();
        if can_go_on {
            let mut plan = state.plan();
            for (row, planned) in planned.iter().enumerate() {
                plan.add_next(planned.slot, row, planned.output)?;
            }
            *ahead = Some((plan.run()?, planned.clone()));
        }
        Ok(())
    }

    /// Waits for the outputs of the current step, and hands them to the requests.
    pub(crate) async fn take_outputs(
        &mut self,
        ticket: Ticket,
        on_event: &mut OnRequestEvent<'_>,
    ) -> Result<(), Error> {
        let Self { state, entries, planned, scratch, accepted, cost, .. } = self;
        let is_text = |planned: &&Planned| {
            entries.iter().any(|entry| planned.is_of(entry) && entry.is_decoding())
        };
        let n_texts = planned.iter().filter(is_text).count();
        let outputs = state.outputs(ticket).await?;
        let mut row = 0;
        let mut forks = Vec::new();
        for planned in planned.iter() {
            let &Planned { n, n_rows, .. } = planned;
            let rows = row..row + n_rows;
            row += n_rows;
            // A request may have ended while its step was in flight.
            let Some(entry) = entries.iter_mut().find(|entry| planned.is_of(entry)) else {
                continue;
            };
            if n_rows > 0 {
                forks.extend(entry.fork());
            }
            let (n_drafted, before) = entry.drafts();
            entry.take_rows(n, || outputs.rows(rows.clone()), (scratch, accepted), on_event);
            if n_drafted > 0 {
                entry.gate.record((n_drafted, entry.drafts().1 - before), n_texts, cost);
            }
            let of_entry = forks.iter_mut().filter(|fork: &&mut Entry| fork.id == entry.id);
            for fork in of_entry.filter(|fork| fork.is_new()) {
                fork.take_rows(n, || outputs.rows(rows.clone()), (scratch, accepted), on_event);
            }
        }
        self.settle(forks).await?;
        self.remove_ended(on_event);
        Ok(())
    }

    /// Forks sequences, cuts refused drafts, and caches the prompts and texts that have just ended.
    async fn settle(&mut self, forks: Vec<Entry>) -> Result<(), Error> {
        for fork in forks {
            let from = self.entries.iter().find(|entry| entry.id == fork.id && entry.choice == 0);
            if let (Some(from), Some(to)) = (from.and_then(|entry| entry.slot), fork.slot) {
                self.state.fork(from, to);
            }
            let at = self.entries.partition_point(|other| other.rank() <= fork.rank());
            self.entries.insert(at, fork);
        }
        let stores_new = self.cache.stores_new();
        for entry in &mut self.entries {
            let Some(slot) = entry.slot else { continue };
            let Work::Text(text) = &entry.work else { continue };
            let cached = text.cached();
            let is_ahead = |(_, planned): &(Ticket, Vec<Planned>)| {
                planned.iter().any(|planned| planned.is_of(entry))
            };
            let len = cached.len() + usize::from(self.ahead.as_ref().is_some_and(is_ahead));
            if len < self.state.len(slot) {
                self.state.truncate(slot, len);
            }
            let is_stored = stores_new && entry.state == EntryState::Ended;
            if entry.state == EntryState::PromptDone || is_stored {
                self.cache.insert(&mut self.state, slot, cached, entry.salt);
                self.cache.store_new(&mut self.state, cached, entry.salt).await?;
            }
            if entry.state == EntryState::PromptDone {
                entry.state = EntryState::Decoding;
            }
        }
        Ok(())
    }
}
