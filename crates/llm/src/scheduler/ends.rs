//! Ends of requests in a scheduler: their own, of their time, of the context, by the caller, by a fault.

use stonechat_nn::Slot;
use web_time::Instant;

use crate::scheduler::entry::Work;
use crate::text::generate::Finish;
use crate::{Error, Model, OnRequestEvent, RequestEvent, RequestId, Scheduler, SchedulerOptions};

impl Scheduler {
    /// Ends a request between two steps; its texts end with [`Finish::Cancelled`].
    pub fn cancel(&mut self, id: RequestId, on_event: &mut OnRequestEvent<'_>) {
        while let Some(index) = self.entries.iter().position(|entry| entry.id == id) {
            self.end(index, Finish::Cancelled, on_event);
        }
    }

    /// Ends all requests with an error, and empties the prefix cache: after a failed step nothing is known of the pages.
    pub fn fail_all(&mut self, error: impl Fn() -> Error, on_event: &mut OnRequestEvent<'_>) {
        for entry in std::mem::take(&mut self.entries) {
            on_event(entry.id, RequestEvent::Failed(error()));
        }
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

    /// Ends the requests whose time has passed: texts with what they have, those without a token with an error.
    pub(crate) fn end_expired(&mut self, now: Instant, on_event: &mut OnRequestEvent<'_>) {
        let mut index = 0;
        while let Some(entry) = self.entries.get_mut(index) {
            if !entry.has_expired(now) {
                index += 1;
            } else if entry.has_begun() {
                self.end(index, Finish::TimeLimit, on_event);
            } else {
                entry.fail(Error::DeadlinePassed);
                self.close(index, on_event);
            }
        }
    }

    /// Shifts the contexts that are full, or ends their texts.
    pub(crate) fn end_full(&mut self, on_event: &mut OnRequestEvent<'_>) {
        let max_tokens = self.max_tokens();
        let mut index = 0;
        while let Some(entry) = self.entries.get_mut(index) {
            let Work::Text(text) = &mut entry.work else {
                index += 1;
                continue;
            };
            if !text.exceeds(max_tokens) {
                index += 1;
            } else if let Some(len) = text.shift_full(max_tokens) {
                if let Some(slot) = entry.slot {
                    self.state.truncate(slot, len);
                }
                index += 1;
            } else {
                self.end(index, Finish::ContextFull, on_event);
            }
        }
    }

    /// Removes the requests that have ended.
    pub(crate) fn remove_ended(&mut self, on_event: &mut OnRequestEvent<'_>) {
        let mut index = 0;
        while let Some(entry) = self.entries.get_mut(index) {
            if !entry.is_ended() {
                index += 1;
                continue;
            }
            self.close(index, on_event);
        }
    }

    /// Ends a request between two steps.
    fn end(&mut self, index: usize, finish: Finish, on_event: &mut OnRequestEvent<'_>) {
        self.entries[index].end(finish, &mut self.accepted, on_event);
        self.close(index, on_event);
    }

    /// Removes a request that has ended; the prefix cache keeps the pages of its text.
    fn close(&mut self, index: usize, on_event: &mut OnRequestEvent<'_>) {
        let entry = &self.entries[index];
        if let (Some(slot), Work::Text(text)) = (entry.slot, &entry.work) {
            self.state.truncate(slot, text.cached().len());
            self.cache.insert_ended(&mut self.state, slot, text.cached(), entry.salt);
            self.last_texts[slot.index()] = (text.cached().to_vec(), entry.salt);
        }
        self.release(index);
        self.entries.remove(index).finish(on_event);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pollster::block_on;
    use stonechat_formats::ModelFile;
    use stonechat_nn::Cpu;
    use stonechat_nn::sample::SamplingOptions;
    use web_time::Instant;

    use crate::{
        Embedding, Error, Finish, GenerateOptions, Generation, Model, Pooling, Request,
        RequestEvent, Scheduler, SchedulerOptions, StateOptions,
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
        let text = || Generation::new(model.info(), vec![3, 4, 5], greedy.clone()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(3600);
        let limited = |request| Request { deadline: Some(deadline), ..request };
        let running = scheduler.add(limited(Request::new(text()))).unwrap();
        let endless = scheduler.add(Request::new(text())).unwrap();
        for _ in 0..3 {
            block_on(scheduler.step(&mut |_, _| {})).unwrap();
        }
        // Both slots are in use.
        let waiting = scheduler.add(limited(Request::new(text()))).unwrap();
        let embedding = Embedding::new(vec![3], Pooling::Mean).unwrap();
        let embedding = scheduler.add(limited(Request::new(embedding))).unwrap();
        let mut ends = Vec::new();
        let mut on_event = |id, event: RequestEvent<'_>| match event {
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
        let left: Vec<_> = scheduler.entries.iter().map(|entry| entry.id).collect();
        assert_eq!((left, scheduler.free_slots.len()), (vec![endless], 1));
    }
}
