//! Ends of tasks in a scheduler: their own, by time, by the context, by the caller, by a fault.

use std::mem::take;

use stonechat_nn::Slot;
use web_time::Instant;

use crate::scheduler::event::{RequestEvent, RequestId};
use crate::scheduler::task::{Kind, Task, TaskKey};
use crate::text::completion::Finish;
use crate::{Error, Model, OnRequestEvent, Scheduler, SchedulerOptions};

impl Scheduler {
    /// Ends a request between two steps; its texts end with [`Finish::Cancelled`].
    pub fn cancel(&mut self, id: RequestId, on_event: &mut OnRequestEvent<'_>) {
        let keys = (id, 0)..=(id, usize::MAX);
        let (running, waiting) = (self.running.range(keys.clone()), self.waiting.range(keys));
        for key in sorted(running.chain(waiting).map(|(key, _)| *key)) {
            self.end(key, Finish::Cancelled, on_event);
        }
    }

    /// Ends all requests with an error, and empties the prefix cache: after a failed step nothing is known of the pages.
    pub fn fail_all(&mut self, error: impl Fn() -> Error, on_event: &mut OnRequestEvent<'_>) {
        let mut tasks = take(&mut self.waiting);
        tasks.append(&mut self.running);
        for task in tasks.into_values() {
            on_event(task.id, RequestEvent::Failed(error()));
        }
        self.reset();
    }

    /// Drops all requests without an event, and empties the prefix cache.
    pub(crate) fn reset(&mut self) {
        self.waiting.clear();
        self.running.clear();
        self.ahead = None;
        let n_slots = self.state.options().n_sequences;
        self.free_slots = (0..n_slots).rev().map(Slot::new).collect();
        (0..n_slots).for_each(|slot| _ = self.state.truncate(Slot::new(slot), 0));
        self.cache.clear(&mut self.state);
        if let Some(drafter) = &mut self.drafter {
            drafter.clear();
        }
    }

    /// Replaces the state by a fresh one of `model`, after a panic that left it unknown. The requests are dropped without an
    /// event; the drafter and the stores of pages stay.
    ///
    /// # Errors
    /// If a device is out of memory.
    pub fn reopen(self, model: &Model) -> Result<Self, Error> {
        let Self { state, cache, max_gap, mut drafter, .. } = self;
        let (options, stores) = (state.options(), cache.into_stores());
        drop(state);
        if let Some(drafter) = &mut drafter {
            drafter.reopen()?;
        }
        Self::new(model, SchedulerOptions { state: options, max_gap, drafter, stores })
    }

    /// Ends the tasks whose time has passed: texts with what they have, those without a token with an error.
    pub(crate) fn end_expired(&mut self, now: Instant, on_event: &mut OnRequestEvent<'_>) {
        let tasks = self.running.iter().chain(&self.waiting);
        let expired = tasks.filter(|(_, task)| task.has_expired(now));
        for key in sorted(expired.map(|(key, _)| *key)) {
            let Some(mut task) = self.remove(key) else { continue };
            if task.has_begun() {
                task.end(Finish::TimeLimit, &mut self.accepted, on_event);
            } else {
                task.fail(Error::DeadlinePassed);
            }
            self.close(task, on_event);
        }
    }

    /// Shifts the contexts that are full, or ends their texts.
    pub(crate) fn end_full(&mut self, on_event: &mut OnRequestEvent<'_>) {
        let max_tokens = self.max_tokens();
        let mut full = Vec::new();
        for (key, task) in &mut self.running {
            let (Some(slot), Kind::Text(text)) = (task.slot, &mut task.kind) else { continue };
            if !text.exceeds(max_tokens) {
                continue;
            }
            match text.shift_full(max_tokens) {
                Some([len, negative]) => {
                    text.truncate(self.state.truncate(slot, len));
                    if let Some(slot) = task.negative_slot {
                        text.truncate_negative(self.state.truncate(slot, negative));
                    }
                }
                None => full.push(*key),
            }
        }
        full.into_iter().for_each(|key| self.end(key, Finish::ContextFull, on_event));
    }

    /// Removes the tasks that have ended.
    pub(crate) fn remove_ended(&mut self, on_event: &mut OnRequestEvent<'_>) {
        let ended = self.running.iter().filter(|(_, task)| task.is_ended());
        for key in ended.map(|(key, _)| *key).collect::<Vec<_>>() {
            if let Some(task) = self.running.remove(&key) {
                self.close(task, on_event);
            }
        }
    }

    fn remove(&mut self, key: TaskKey) -> Option<Task> {
        self.running.remove(&key).or_else(|| self.waiting.remove(&key))
    }

    /// Ends a task between two steps.
    fn end(&mut self, key: TaskKey, finish: Finish, on_event: &mut OnRequestEvent<'_>) {
        if let Some(mut task) = self.remove(key) {
            task.end(finish, &mut self.accepted, on_event);
            self.close(task, on_event);
        }
    }

    /// Reports a task that has ended; the prefix cache keeps the pages of its text.
    fn close(&mut self, mut task: Task, on_event: &mut OnRequestEvent<'_>) {
        if let (Some(slot), Kind::Text(text)) = (task.slot, &task.kind) {
            let len = self.state.truncate(slot, text.cached().len());
            let cached = &text.cached()[..len];
            self.cache.insert_ended(&mut self.state, slot, cached, task.cache_salt);
            self.last_texts[slot.index()] = (cached.to_vec(), task.cache_salt);
        }
        self.release(&mut task);
        task.finish(on_event);
    }
}

/// Keys in order of service.
fn sorted(keys: impl Iterator<Item = TaskKey>) -> Vec<TaskKey> {
    let mut keys: Vec<TaskKey> = keys.collect();
    keys.sort_unstable();
    keys
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pollster::block_on;
    use stonechat_formats::ModelFile;
    use stonechat_nn::Cpu;
    use stonechat_sampling::SamplingOptions;
    use web_time::Instant;

    use crate::{
        Embedding, Error, Finish, GenerateOptions, Model, Pooling, Request, RequestEvent,
        Scheduler, SchedulerOptions, StateOptions, Task,
    };

    #[test]
    fn a_deadline_ends_a_text_with_what_it_has_and_a_waiting_request_with_an_error() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/golden/llm/llama.gguf");
        let file = ModelFile::open(path).unwrap();
        let model = Model::load(Cpu::new(1).unwrap(), &file, |_| ()).unwrap();
        let state = StateOptions { n_outputs: 2, n_sequences: 2, ..StateOptions::new(128) };
        let state = StateOptions { n_hidden: state.n_batch, ..state };
        let (max_gap, drafter, stores) = (Duration::ZERO, None, Vec::new());
        let options = SchedulerOptions { state, max_gap, drafter, stores };
        let mut scheduler = Scheduler::new(&model, options).unwrap();
        let greedy = GenerateOptions {
            sampling: SamplingOptions::greedy(),
            ignore_eos: true,
            ..GenerateOptions::default()
        };
        let text = || Request::new(vec![3, 4, 5], greedy.clone());
        let deadline = Instant::now() + Duration::from_secs(3600);
        let limited = |request| Request { deadline: Some(deadline), ..request };
        let running = scheduler.add(limited(text())).unwrap();
        let endless = scheduler.add(text()).unwrap();
        for _ in 0..3 {
            block_on(scheduler.step(&mut |_, _| {})).unwrap();
        }
        // Both slots are in use.
        let waiting = scheduler.add(limited(text())).unwrap();
        let embedding = Embedding::new(vec![3], Pooling::Mean).unwrap();
        let mut embedding = Task::from(embedding);
        embedding.deadline = Some(deadline);
        let embedding = scheduler.add_task(embedding).unwrap();
        let mut ends = Vec::new();
        let mut on_event = |id, event: RequestEvent| match event {
            RequestEvent::Ended { completion, .. } => {
                ends.push((id, Some((completion.finish, completion.tokens.len()))));
            }
            RequestEvent::Failed(error) => {
                assert!(matches!(error, Error::DeadlinePassed), "{error}");
                ends.push((id, None));
            }
            _ => {}
        };
        scheduler.end_expired(deadline - Duration::from_secs(1), &mut on_event);
        scheduler.end_expired(deadline, &mut on_event);
        let ended = (running, Some((Finish::TimeLimit, 3)));
        assert_eq!(ends, [ended, (waiting, None), (embedding, None)]);
        let left: Vec<_> = scheduler.running.values().map(|task| task.id).collect();
        assert_eq!((left, scheduler.free_slots.len()), (vec![endless], 1));
    }
}
