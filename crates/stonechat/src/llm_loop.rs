//! Loop of a language model: the jobs of a queue in one scheduler.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use futures_channel::mpsc::{TryRecvError, UnboundedReceiver};
use futures_util::FutureExt;
use stonechat_llm::{
    Error as LlmError, Model, RequestEvent, RequestId, Scheduler, StepReport, Task,
};

use crate::Error;
use crate::engine::{OnPanic, catch};
use crate::llm_output::JobOutput;
use crate::runtime::yield_now;

/// Call between two steps, which starts a job or controls the scheduler.
pub(crate) type Call = Box<dyn FnOnce(&mut OpenJobs, &mut Scheduler) + Send>;

/// A job that has not ended.
struct OpenJob {
    output: Box<dyn JobOutput>,
    requests: Vec<RequestId>,
}

/// Open jobs by number, and the job of each request with its index in the job.
#[derive(Default)]
pub(crate) struct OpenJobs {
    open: HashMap<u64, OpenJob>,
    requests: HashMap<RequestId, (u64, usize)>,
    /// Requests of jobs that failed; their other choices are cancelled before the next step.
    failed: Vec<RequestId>,
    n_jobs: u64,
}

/// Serves the queue until it is closed. A panic fails the requests of the batch; then the model gets a fresh state.
///
/// # Errors
/// If the device has no memory for the fresh state.
pub(crate) async fn run(
    mut scheduler: Scheduler,
    model: &Model,
    mut queue: UnboundedReceiver<Call>,
    mut on_step: impl FnMut(&StepReport),
    mut on_panic: OnPanic,
) -> Result<(), Error> {
    let mut jobs = OpenJobs::default();
    loop {
        let served = serve(&mut scheduler, &mut queue, &mut jobs, &mut on_step);
        let served = AssertUnwindSafe(served).catch_unwind().await;
        let Err(payload) = served else { return Ok(()) };
        let reason = on_panic.caught(&*payload);
        std::mem::take(&mut jobs).fail(&reason);
        scheduler = catch(|| Ok(scheduler.reopen(model)?))?;
    }
}

/// Serves the queue until it is closed.
async fn serve(
    scheduler: &mut Scheduler,
    queue: &mut UnboundedReceiver<Call>,
    jobs: &mut OpenJobs,
    on_step: &mut impl FnMut(&StepReport),
) {
    // A callback that panics whenever it is called must not do so for ever while there is no request.
    let _ = catch_unwind(AssertUnwindSafe(|| on_step(&scheduler.counts())));
    let mut is_reported = true;
    loop {
        if scheduler.is_idle() && !is_reported {
            // Cancelled requests and controls give pages back without a step.
            on_step(&scheduler.counts());
        }
        // The report comes first, so that a caller with an answer finds the last step counted.
        jobs.end_complete();
        if scheduler.is_idle() {
            match queue.recv().await {
                Ok(call) => call(jobs, scheduler),
                Err(_) => return,
            }
        }
        is_reported = false;
        loop {
            match queue.try_recv() {
                Ok(call) => call(jobs, scheduler),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Closed) => return,
            }
        }
        jobs.cancel_ended(scheduler);
        if scheduler.is_idle() {
            continue;
        }
        match scheduler.step(&mut |id, event| jobs.send(id, event)).await {
            Ok(report) => on_step(&report),
            Err(error) => {
                let message = error.to_string();
                tracing::error!("a step failed: {message}");
                let error = || LlmError::Step { message: message.clone() };
                scheduler.fail_all(error, &mut |id, event| jobs.send(id, event));
            }
        }
        yield_now().await;
    }
}

impl OpenJobs {
    /// Gives the tasks of a job to the scheduler; `output` takes their events.
    pub(crate) fn start(
        &mut self,
        scheduler: &mut Scheduler,
        tasks: Vec<Task>,
        output: Box<dyn JobOutput>,
    ) {
        let job = self.n_jobs;
        self.n_jobs += 1;
        let mut ids = Vec::with_capacity(tasks.len());
        for task in tasks {
            match scheduler.add_task(task) {
                Ok(id) => ids.push(id),
                Err(error) => {
                    ids.into_iter().for_each(|id| scheduler.cancel(id, &mut |_, _| {}));
                    output.end(Err(error.into()));
                    return;
                }
            }
        }
        self.requests.extend(ids.iter().enumerate().map(|(index, &id)| (id, (job, index))));
        self.open.insert(job, OpenJob { output, requests: ids });
    }

    /// Cancels the requests of jobs that were cancelled or dropped, and the other requests and choices of failed ones.
    fn cancel_ended(&mut self, scheduler: &mut Scheduler) {
        for id in std::mem::take(&mut self.failed) {
            scheduler.cancel(id, &mut |_, _| {});
        }
        let ended = self.open.iter().filter(|(_, job)| job.output.is_cancelled());
        let ended: Vec<(u64, Vec<RequestId>)> =
            ended.map(|(number, job)| (*number, job.requests.clone())).collect();
        for (number, ids) in ended {
            for id in ids {
                scheduler.cancel(id, &mut |id, event| self.send(id, event));
                self.requests.remove(&id);
            }
            // The job of a cancelled embedding gets no event.
            if let Some(job) = self.open.remove(&number)
                && job.output.is_complete()
            {
                job.output.end(Ok(()));
            }
        }
    }

    /// Passes an event to the job of its request.
    fn send(&mut self, id: RequestId, event: RequestEvent) {
        let Some(&(number, index)) = self.requests.get(&id) else { return };
        if let RequestEvent::Failed(error) = event {
            if let Some(OpenJob { output, requests }) = self.open.remove(&number) {
                requests.iter().for_each(|id| _ = self.requests.remove(id));
                self.failed.extend(requests);
                output.end(Err(error.into()));
            }
            return;
        }
        if let Some(job) = self.open.get_mut(&number) {
            job.output.take(index, event);
        }
    }

    /// Ends the jobs that have all their results.
    fn end_complete(&mut self) {
        for (_, job) in self.open.extract_if(|_, job| job.output.is_complete()) {
            job.requests.iter().for_each(|id| _ = self.requests.remove(id));
            job.output.end(Ok(()));
        }
    }

    /// Ends all jobs after a panic.
    fn fail(self, reason: &str) {
        for OpenJob { output, .. } in self.open.into_values() {
            let failed = Err(Error::Panicked { reason: reason.to_owned() });
            let result = if output.is_complete() { Ok(()) } else { failed };
            output.end(result);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use pollster::block_on;
    use stonechat_formats::ModelFile;
    use stonechat_llm::{
        Error as LlmError, Model, Request, RequestEvent, Scheduler, SchedulerOptions, StateOptions,
    };
    use stonechat_nn::Cpu;

    use super::OpenJobs;
    use crate::GenerateOptions;
    use crate::job::Job;
    use crate::llm_output::events;

    /// One choice of a prompt fails, as by an error of its grammar: the others must not run on.
    #[test]
    fn a_failed_choice_ends_the_others() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/golden/llm/llama.gguf");
        let file = ModelFile::open(path).unwrap();
        let model = Model::load(Cpu::new(1).unwrap(), &file, |_| ()).unwrap();
        let state = StateOptions { n_sequences: 4, ..StateOptions::new(256) };
        let state = StateOptions { n_outputs: 4, ..state };
        let max_gap = Duration::from_secs(1);
        let options = SchedulerOptions { state, max_gap, drafter: None, stores: Vec::new() };
        let mut scheduler = Scheduler::new(&model, options).unwrap();
        let options = GenerateOptions { ignore_eos: true, ..GenerateOptions::default() };
        let request = Request { n_choices: 3, ..Request::new(vec![5, 6, 7], options) };
        let tasks = vec![request.prepare(model.info()).unwrap()];
        let (job, sender) = Job::new(Arc::new(()));
        let output = Box::new(events(sender, 3));
        let mut jobs = OpenJobs::default();
        jobs.start(&mut scheduler, tasks, output);
        while scheduler.counts().n_running < 3 {
            block_on(scheduler.step(&mut |id, event| jobs.send(id, event))).unwrap();
        }
        let id = *jobs.requests.keys().next().unwrap();
        let error = LlmError::Step { message: "a wrong token".to_owned() };
        jobs.send(id, RequestEvent::Failed(error));
        jobs.cancel_ended(&mut scheduler);
        assert!(scheduler.is_idle(), "{:?}", scheduler.counts());
        assert!(jobs.open.is_empty() && jobs.requests.is_empty());
        let error = job.wait().unwrap_err().to_string();
        assert!(error.contains("a wrong token"), "{error}");
    }
}
