//! Admission of waiting tasks, and preemption of running ones.

use stonechat_nn::PAGE_LEN;

use crate::scheduler::event::RequestEvent;
use crate::scheduler::task::{Task, TaskKey, TaskState};
use crate::{Error, OnRequestEvent, Scheduler, State};

impl Scheduler {
    /// Gives slots to waiting tasks in order, while the pages of their whole inputs are free.
    pub(crate) async fn admit(&mut self, on_event: &mut OnRequestEvent<'_>) -> Result<(), Error> {
        let Self { state, cache, running, waiting, free_slots, .. } = self;
        let pages_needed = |task: &Task, state: &State| {
            task.sequences().map(|(slot, n)| state.pages_needed(slot, n)).sum::<usize>()
        };
        let mut n_reserved: usize = running.values().map(|task| pages_needed(task, state)).sum();
        while let Some(task) = waiting.values().next() {
            let (tokens, salt, n_slots) = (task.pending(), task.cache_salt, task.n_slots());
            if n_slots > free_slots.len() {
                break;
            }
            let mut n_cached = 0;
            if task.reads_cache() {
                if let Some(&slot) = free_slots.last() {
                    cache.load(state, slot, tokens, salt).await?;
                }
                n_cached = cache.cached_len(tokens, salt);
            }
            // The first token of the text needs a place, too. A page that is shared in part is copied.
            let n_needed = (tokens.len() + 1).div_ceil(PAGE_LEN) - n_cached / PAGE_LEN
                + task.kind.pending_negative().len().div_ceil(PAGE_LEN);
            let n_missing = (n_needed + n_reserved).saturating_sub(state.free_pages());
            if !running.is_empty() && !cache.has_evictable(state, n_missing) {
                break;
            }
            let Some((key, mut task)) = waiting.pop_first() else { break };
            let slot = free_slots.pop().expect("a free slot was counted");
            let mut n_found = 0;
            if task.reads_cache() {
                n_found = cache.attach(state, slot, task.pending(), salt);
            }
            let spare = free_slots.split_off(free_slots.len() + 1 - n_slots);
            task.start(slot, spare, n_found);
            n_reserved += pages_needed(&task, state);
            if task.state == TaskState::Prompt {
                on_event(task.id, RequestEvent::Started { cached_tokens: n_found });
            }
            running.insert(key, task);
        }
        Ok(())
    }

    /// Takes slot and pages of a running task, which waits again.
    pub(crate) fn preempt(&mut self, key: TaskKey) {
        let Some(mut task) = self.running.remove(&key) else { return };
        self.n_preempted += 1;
        task.preempt();
        self.release(&mut task);
        self.waiting.insert(key, task);
    }

    /// Gives back the slots of a task with their pages.
    pub(crate) fn release(&mut self, task: &mut Task) {
        let slots = task.spare.drain(..).chain(task.negative_slot.take()).chain(task.slot.take());
        for slot in slots {
            self.state.truncate(slot, 0);
            self.free_slots.push(slot);
        }
    }
}
