//! The worker: opens jobs and times them.
//!
//! | module | times |
//! |---|---|
//! | `peaks` | what memory and arithmetic units can do |
//! | `speech` | Whisper, by stage and as a whole |
//! | `text` | a language model's phases |
//! | `load` | opening a model |
//! | `kernels` | one op at a time |
//! | `files` | (nothing: looks at models, makes the files that jobs read) |

mod files;
mod kernels;
mod load;
mod memory;
mod peaks;
mod speech;
mod text;

use std::time::Instant;

use anyhow::{Result, bail};
use stonechat_benches::protocol::{Job, PROTOCOL, Reply, Request, Stage};
use stonechat_nn::{Cpu, DeviceApi};

/// A job that is ready to be timed.
trait Work {
    /// Stages that each sample times.
    fn stages(&self) -> Vec<Stage>;

    /// Method, where engines could do it differently.
    fn settings(&self) -> String {
        String::new()
    }

    /// Does it once; the seconds of each stage.
    fn sample(&mut self) -> Result<Vec<f64>>;

    /// Output of the last sample.
    fn text(&self) -> Option<String> {
        None
    }
}

/// The state between requests.
pub(crate) struct Worker {
    backend: Cpu,
    work: Option<Box<dyn Work>>,
}

impl Worker {
    /// Without a job.
    pub(crate) fn new(backend: Cpu) -> Self {
        Self { backend, work: None }
    }

    /// Does what is asked for.
    pub(crate) fn answer(&mut self, request: Request) -> Result<Reply> {
        Ok(match request {
            Request::Hello => Reply::Hello {
                protocol: PROTOCOL,
                engine: "stonechat".to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                device: self.backend.describe(),
                threads: self.backend.device().threads.n_threads(),
            },
            Request::Kernels { quick } => {
                let names = kernels::list(quick).into_iter().map(|case| case.name).collect();
                Reply::Kernels { names }
            }
            Request::Inspect { model } => files::inspect(&model)?,
            Request::Convert { model, to, dtype } => {
                files::convert(&model, &to, dtype.as_deref())?;
                Reply::Done
            }
            Request::Join { audio, to } => {
                files::join(&audio, &to)?;
                Reply::Done
            }
            Request::Open { job } => {
                // The last job's memory is free before this one takes its own.
                self.work = None;
                let work = self.open(job)?;
                let (stages, settings) = (work.stages(), work.settings());
                self.work = Some(work);
                Reply::Opened { stages, settings }
            }
            Request::Sample => {
                let Some(work) = &mut self.work else { bail!("no job is open") };
                let seconds = work.sample()?;
                Reply::Sample { seconds, peak_bytes: memory::peak_bytes(), text: work.text() }
            }
        })
    }

    fn open(&self, job: Job) -> Result<Box<dyn Work>> {
        let backend = self.backend.clone();
        Ok(match job {
            Job::Peaks { bytes } => Box::new(peaks::Peaks::new(backend, bytes)),
            Job::Kernel { name } => kernels::open(&backend, &name)?,
            Job::Load { model } => Box::new(load::Load::new(backend, model)?),
            Job::Speech { model, audio } => Box::new(speech::Speech::new(backend, &model, audio)?),
            Job::Text { model, prefill, decode, batch } => {
                Box::new(text::Text::new(backend, &model, text::Sizes { prefill, decode, batch })?)
            }
        })
    }
}

/// The seconds that `f` takes, and its result.
fn timed<R>(f: impl FnOnce() -> R) -> (f64, R) {
    let start = Instant::now();
    let result = f();
    (start.elapsed().as_secs_f64(), result)
}

#[cfg(test)]
mod tests;
