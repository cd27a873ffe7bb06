//! Loop of a language model's thread: requests of a queue in one scheduler.

use std::collections::HashMap;
use std::fmt;
use std::sync::mpsc::{Receiver, TryRecvError};

use pollster::block_on;
use stonechat_llm::{Error as LlmError, Request, RequestEvent, RequestId, Scheduler, StepReport};

use crate::llm_sink::Sink;

/// Message to the thread.
pub(crate) enum Query {
    /// Requests of a job, with the receiver of their events.
    Run { requests: Vec<Request>, sink: Box<dyn Sink> },
    /// Work between two steps.
    Control(Box<dyn FnOnce(&mut Scheduler) + Send>),
}

impl fmt::Debug for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run { requests, sink } => {
                f.debug_tuple("Run").field(requests).field(sink).finish()
            }
            Self::Control(_) => f.write_str("Control"),
        }
    }
}

/// Jobs by number, and the job of each request with its index in the job.
#[derive(Default)]
struct Jobs {
    sinks: HashMap<u64, Box<dyn Sink>>,
    requests: HashMap<RequestId, (u64, usize)>,
    n_jobs: u64,
}

/// Serves the queue until it is disconnected.
pub(crate) fn run(
    mut scheduler: Scheduler,
    queue: &Receiver<Query>,
    mut on_step: impl FnMut(&StepReport),
) {
    let mut jobs = Jobs::default();
    loop {
        if scheduler.is_idle() {
            // Cancelled requests and controls give pages back without a step.
            on_step(&scheduler.counts());
        }
        // After the report: who has an answer finds its last step counted.
        jobs.end_complete();
        if scheduler.is_idle() {
            match queue.recv() {
                Ok(query) => jobs.start(&mut scheduler, query),
                Err(_) => return,
            }
        }
        loop {
            match queue.try_recv() {
                Ok(query) => jobs.start(&mut scheduler, query),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return,
            }
        }
        jobs.cancel_ended(&mut scheduler);
        if scheduler.is_idle() {
            continue;
        }
        match block_on(scheduler.step(&mut |id, event| jobs.send(id, event))) {
            Ok(report) => on_step(&report),
            Err(error) => {
                let message = error.to_string();
                tracing::error!("a step failed: {message}");
                let error = || LlmError::Step { message: message.clone() };
                scheduler.fail_all(error, &mut |id, event| jobs.send(id, event));
            }
        }
    }
}

impl Jobs {
    /// Answers a query, or gives its requests to the scheduler.
    fn start(&mut self, scheduler: &mut Scheduler, query: Query) {
        let (requests, sink) = match query {
            Query::Run { requests, sink } => (requests, sink),
            Query::Control(control) => return control(scheduler),
        };
        let job = self.n_jobs;
        self.n_jobs += 1;
        let mut ids = Vec::with_capacity(requests.len());
        for request in requests {
            match scheduler.add(request) {
                Ok(id) => ids.push(id),
                Err(error) => {
                    ids.into_iter().for_each(|id| scheduler.cancel(id, &mut |_, _| {}));
                    sink.end(Err(error.into()));
                    return;
                }
            }
        }
        let ids = ids.into_iter().enumerate();
        self.requests.extend(ids.map(|(index, id)| (id, (job, index))));
        self.sinks.insert(job, sink);
    }

    /// Cancels the requests of jobs that were cancelled or dropped.
    fn cancel_ended(&mut self, scheduler: &mut Scheduler) {
        let is_ended = |job| self.sinks.get(job).is_none_or(|sink| sink.is_cancelled());
        let of_ended = self.requests.iter().filter(|(_, (job, _))| is_ended(job));
        let ids: Vec<RequestId> = of_ended.map(|(id, _)| *id).collect();
        for id in ids {
            scheduler.cancel(id, &mut |id, event| self.send(id, event));
            self.requests.remove(&id);
        }
        self.end_complete();
        // The job of a cancelled embedding gets no event.
        self.sinks.retain(|job, _| self.requests.values().any(|(other, _)| other == job));
    }

    /// Passes an event to the job of its request.
    fn send(&mut self, id: RequestId, event: RequestEvent<'_>) {
        let Some(&(job, index)) = self.requests.get(&id) else { return };
        if let RequestEvent::Failed(error) = event {
            // The other requests of the job are cancelled before the next step.
            self.requests.remove(&id);
            if let Some(sink) = self.sinks.remove(&job) {
                sink.end(Err(error.into()));
            }
            return;
        }
        if let Some(sink) = self.sinks.get_mut(&job) {
            sink.take(index, event);
        }
    }

    /// Ends the jobs that have all their results.
    fn end_complete(&mut self) {
        for (job, sink) in self.sinks.extract_if(|_, sink| sink.is_complete()) {
            self.requests.retain(|_, (other, _)| *other != job);
            sink.end(Ok(()));
        }
    }
}
