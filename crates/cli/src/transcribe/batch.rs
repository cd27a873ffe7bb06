//! All inputs of a command line: one thread reads ahead, `jobs` others transcribe.
//!
//! Reading is decoding, resampling and finding speech. At most two recordings wait, so that memory does
//! not depend on the number of inputs. Jobs share the weights and divide the threads of the CPU; a GPU
//! does one job after the other.

use std::ops::Range;
use std::panic;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};
use std::{fs, io};

use anyhow::Context;
use stonechat::audio::{Audio, Decoder};
use stonechat::formats::ModelFile;
use stonechat::nn::Backend;
use stonechat::whisper::{
    CancelToken, Language, Model, Progress, Timings, Transcriber, Transcript,
};

use super::inputs::Input;
use super::output::Output;
use super::plan::Plan;
use super::progress::Overall;
use super::results::Task;
use super::stages::Stages;
use super::summary::{Outcome, Status};
use crate::console::Console;
use crate::load::with_cost;

/// Name of the thread that reads.
const READER: &str = "reader";

/// A recording that has been read.
struct Recording {
    index: usize,
    read: anyhow::Result<Vec<Signal>>,
    seconds: f64,
}

/// A channel of it, or all of them mixed.
struct Signal {
    audio: Audio,
    /// Where somebody speaks, if only that is heard.
    speech: Option<Vec<Range<usize>>>,
}

impl Recording {
    fn audio_s(&self) -> f64 {
        let signals = self.read.as_deref().unwrap_or_default();
        signals.first().map_or(0.0, |signal| signal.audio.duration_s())
    }
}

/// Recordings on their way to whoever transcribes them.
struct Waiting {
    /// The one that was there before the weights.
    first: Option<Recording>,
    receiver: Option<Receiver<Recording>>,
}

/// What a job has done.
#[derive(Default)]
struct Work {
    timings: Timings,
    reading: Duration,
    audio_s: f64,
}

/// What the threads share.
struct Batch<'a> {
    plan: &'a Plan,
    console: &'a Console,
    cancel: &'a CancelToken,
    overall: Overall<'a>,
    /// By task; `None` until something has become of it.
    outcomes: Mutex<Vec<Option<Outcome>>>,
}

/// What came of all inputs.
pub(super) struct Done {
    /// In the order of the inputs.
    pub(super) outcomes: Vec<Outcome>,
    /// The table that `-v` prints.
    pub(super) report: String,
}

/// Transcribes every input but those whose results are there; one that fails does not stop the others.
/// Once `cancel` is cancelled, nothing new is begun, and what is not whole is dropped.
pub(super) fn run<B: Backend>(
    plan: &Plan,
    file: ModelFile,
    backend: B,
    console: &Console,
    cancel: &CancelToken,
) -> anyhow::Result<Done> {
    let is_done = |task: &Task| !plan.overwrite && task.is_done();
    let skipped: Vec<bool> = plan.tasks.iter().map(is_done).collect();
    let outcome =
        |(task, &skipped): (&Task, &bool)| skipped.then(|| Outcome::new(task, Status::Skipped));
    let outcomes = plan.tasks.iter().zip(&skipped).map(outcome).collect();
    let to_do: Vec<usize> = (0..plan.tasks.len()).filter(|&index| !skipped[index]).collect();
    for (task, _) in plan.tasks.iter().zip(&skipped).filter(|(_, skipped)| **skipped) {
        let name = task.input.name();
        console.note(&format!(
            "{name}: skipped, its results are newer (--overwrite makes them again)"
        ));
    }
    let bytes = |task: &Task| {
        task.input.path().and_then(|path| fs::metadata(path).ok()).map_or(0, |m| m.len())
    };
    // What is skipped weighs nothing, and is over.
    let sizes = plan
        .tasks
        .iter()
        .zip(&skipped)
        .map(|(task, &skipped)| if skipped { 0 } else { bytes(task) });
    let name = match &plan.tasks[..] {
        [only] => Some(only.input.name()),
        _ => None,
    };
    let overall = Overall::new(console, name, sizes);
    let batch = Batch { plan, console, cancel, overall, outcomes: Mutex::new(outcomes) };
    let mut stages = Stages::start();
    let report = batch.transcribe(&to_do, file, backend, &mut stages)?;
    console.end();
    let outcomes = batch.outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
    let or_stopped = |(outcome, task): (Option<Outcome>, &Task)| {
        outcome.unwrap_or_else(|| Outcome::new(task, Status::Stopped))
    };
    let outcomes = outcomes.into_iter().zip(&plan.tasks).map(or_stopped).collect();
    Ok(Done { outcomes, report })
}

impl Batch<'_> {
    /// Gives the table of stages.
    fn transcribe<B: Backend>(
        &self,
        to_do: &[usize],
        file: ModelFile,
        backend: B,
        stages: &mut Stages,
    ) -> anyhow::Result<String> {
        let (sender, receiver) = sync_channel(1);
        let waiting = Mutex::new(Waiting { first: None, receiver: Some(receiver) });
        silence_reader();
        thread::scope(|scope| {
            let reader = thread::Builder::new().name(READER.to_owned());
            let result = reader
                .spawn_scoped(scope, move || self.read_all(to_do, &sender))
                .context("cannot start a thread")
                .and_then(|_| {
                    // The weights are loaded when there is something to transcribe.
                    let Some(first) = self.next(&waiting) else { return Ok(String::new()) };
                    lock(&waiting).first = Some(first);
                    let started = Instant::now();
                    let model = self.plan.recognizer.load(&file, backend, self.console)?;
                    // Its pages count as this process's memory.
                    drop(file);
                    stages.load = started.elapsed();
                    let models = model.divide(self.plan.jobs.min(to_do.len()))?;
                    let start = |model| scope.spawn(|| self.work(model, &waiting));
                    let workers: Vec<_> = models.into_iter().map(start).collect();
                    self.wait_for(workers, &model, stages)
                });
            // The reader ends when nobody takes what it reads.
            lock(&waiting).receiver = None;
            result
        })
    }

    fn wait_for<B: Backend>(
        &self,
        workers: Vec<ScopedJoinHandle<'_, anyhow::Result<Work>>>,
        model: &Model<B>,
        stages: &mut Stages,
    ) -> anyhow::Result<String> {
        let mut timings = Timings::default();
        for worker in workers {
            let work = worker.join().unwrap_or_else(|panic| panic::resume_unwind(panic))?;
            timings += work.timings;
            stages.audio += work.reading;
            stages.audio_s += work.audio_s;
        }
        let device = model.backend();
        let load = with_cost(&device.describe(), "; ", device.load_stats());
        Ok(stages.report(timings, &load))
    }

    /// Reads inputs until nobody takes them.
    fn read_all(&self, to_do: &[usize], sender: &SyncSender<Recording>) {
        for (i, &index) in to_do.iter().enumerate() {
            let started = Instant::now();
            // While the first is read, nothing else is done yet.
            let n_threads = if i == 0 { self.plan.recognizer.n_threads() } else { 1 };
            let read = self.read(&self.plan.tasks[index].input, n_threads);
            let seconds = started.elapsed().as_secs_f64();
            let recording = Recording { index, read, seconds };
            if recording.read.is_ok() {
                self.overall.is_read(index, recording.audio_s());
            }
            if self.cancel.is_cancelled() || sender.send(recording).is_err() {
                return;
            }
        }
    }

    fn read(&self, input: &Input, n_threads: usize) -> anyhow::Result<Vec<Signal>> {
        let decoder = Decoder::new().channels(self.plan.channels);
        let channels = match input {
            Input::StandardInput => decoder.reader_channels(io::stdin().lock()),
            Input::File { path, .. } => decoder.file_channels(path),
        }?;
        let signal = |audio: Audio| -> anyhow::Result<Signal> {
            let speech = self.plan.options.find_speech(&audio.samples, n_threads)?;
            Ok(Signal { audio, speech })
        };
        channels.into_iter().map(signal).collect()
    }

    /// The next recording that could be read; those before it have failed.
    fn next(&self, waiting: &Mutex<Waiting>) -> Option<Recording> {
        let mut waiting = lock(waiting);
        while !self.cancel.is_cancelled() {
            let first = waiting.first.take();
            let receive = || waiting.receiver.as_ref()?.recv().ok();
            let recording = first.or_else(receive)?;
            match recording.read {
                Ok(_) => return Some(recording),
                Err(error) => self.fail(recording.index, error, 0.0, recording.seconds),
            }
        }
        None
    }

    /// Transcribes what is waiting until nothing comes.
    fn work<B: Backend>(&self, model: Model<B>, waiting: &Mutex<Waiting>) -> anyhow::Result<Work> {
        let Plan { recognizer, options, .. } = self.plan;
        let mut engine = recognizer.transcriber(model, options, self.cancel)?;
        let mut work = Work::default();
        while let Some(recording) = self.next(waiting) {
            let Recording { index, seconds, .. } = recording;
            let task = &self.plan.tasks[index];
            let (started, length_s) = (Instant::now(), recording.audio_s());
            work.reading += Duration::from_secs_f64(seconds);
            work.audio_s += length_s;
            let result =
                self.transcribe_one(&mut engine, index, recording.read.unwrap_or_default());
            let seconds = seconds + started.elapsed().as_secs_f64();
            match result {
                Ok(transcript) if transcript.cancelled => {}
                Ok(transcript) => {
                    let language = Some(transcript.language);
                    let outcome = Outcome::new(task, Status::Done);
                    self.is_over(
                        index,
                        Outcome { audio_s: length_s, seconds, language, ..outcome },
                    );
                    if let (Some((_, path)), true) =
                        (task.results.first(), self.plan.tasks.len() > 1)
                    {
                        let (name, path) = (task.input.name(), path.display());
                        self.console.note(&format!(
                            "{name}: `{path}`, {length_s:.1} s of audio in {seconds:.1} s"
                        ));
                    }
                }
                Err(error) => self.fail(index, error, length_s, seconds),
            }
        }
        work.timings = engine.timings();
        Ok(work)
    }

    /// Transcribes the signals of a recording and writes what is said; nothing if that was cancelled.
    fn transcribe_one<B: Backend>(
        &self,
        engine: &mut Transcriber<B>,
        index: usize,
        signals: Vec<Signal>,
    ) -> anyhow::Result<Transcript> {
        let task = &self.plan.tasks[index];
        let n_signals = signals.len();
        if let Some(Signal { audio, .. }) = signals.first()
            && audio.source.n_bad_packets > 0
        {
            let n = audio.source.n_bad_packets;
            self.console.note(&format!("{}: {n} damaged packets were skipped", task.input.name()));
        }
        let mut output = Output::begin(self.plan, task)?;
        let mut written = Ok(());
        let mut said = Vec::with_capacity(n_signals);
        for (number, Signal { audio, speech }) in signals.into_iter().enumerate() {
            let options = &self.plan.options;
            let before_s = audio.duration_s() * number as f64;
            let mut on_progress = |news: Progress<'_>| match news {
                Progress::Language(language, probability) => {
                    self.console.note(&self.detected(task, language, probability));
                }
                // Several signals are written once it is known who spoke first.
                Progress::Segment(segment) if n_signals == 1 && written.is_ok() => {
                    written = self.console.beside_bar(|| output.segment(segment));
                }
                Progress::Segment(_) => {}
                Progress::Position(done, all) => {
                    let done_s = audio.duration_s() * done as f64 / all.max(1) as f64;
                    self.overall.at(index, (before_s + done_s) / n_signals as f64);
                }
            };
            let transcript =
                engine.transcribe_speech(&audio.samples, speech, options, &mut on_progress)?;
            let is_cancelled = transcript.cancelled;
            said.push((channel_name(number, n_signals), transcript));
            if is_cancelled {
                break;
            }
        }
        written?;
        let transcript =
            if n_signals == 1 { said.swap_remove(0).1 } else { Transcript::of_speakers(said) };
        if transcript.cancelled {
            return Ok(transcript);
        }
        if n_signals > 1 {
            let mut segments = transcript.segments.iter();
            self.console.beside_bar(|| segments.try_for_each(|segment| output.segment(segment)))?;
        }
        output.end(&transcript)?;
        Ok(transcript)
    }

    fn detected(&self, task: &Task, language: Language, probability: f32) -> String {
        let percent = probability * 100.0;
        let several = self.plan.tasks.len() > 1;
        let name = if several { format!("{}: ", task.input.name()) } else { String::new() };
        format!("{name}detected language: {} ({}, {percent:.0}%)", language.name, language.code)
    }

    fn fail(&self, index: usize, error: anyhow::Error, audio_s: f64, seconds: f64) {
        let task = &self.plan.tasks[index];
        let name = task.input.name();
        // The message of a file that cannot be opened names it already.
        let named = error.to_string().contains(&name);
        let message = self.console.error(&if named { error } else { error.context(name) });
        let outcome = Outcome::new(task, Status::Failed);
        self.is_over(index, Outcome { audio_s, seconds, error: Some(message), ..outcome });
    }

    fn is_over(&self, index: usize, outcome: Outcome) {
        self.overall.is_over(index);
        lock(&self.outcomes)[index] = Some(outcome);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a segment of signal `number` of `n` is labelled with.
fn channel_name(number: usize, n: usize) -> String {
    match (number, n) {
        (0, 2) => "left".to_owned(),
        (1, 2) => "right".to_owned(),
        _ => format!("channel {}", number + 1),
    }
}

/// A decoder that panics on a damaged file is contained and reported as an error; the default hook
/// would print a second message.
fn silence_reader() {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if thread::current().name() != Some(READER) {
            hook(info);
        }
    }));
}
