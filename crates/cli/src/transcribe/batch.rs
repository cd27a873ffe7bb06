//! Transcription of all inputs by [`Whisper`]: a thread reads ahead, `--jobs` workers wait for transcripts and write them.
//!
//! ```text
//! reader:      decode, resample, cut silence --> sync_channel(1) --> worker 0..jobs: Whisper::transcribe, write
//! this thread: open the device, open the model, start the workers
//! ```
//!
//! The first recording is read while the device is opened and the weights are loaded. Loading starts when an input has
//! turned out to be audio. Reads of standard input and pipes may block, and delay no error: the device is opened before,
//! the weights are loaded after them. At most two recordings are read ahead, so memory does not depend on the number of
//! inputs. Workers share the weights and divide the CPU threads; a GPU decodes their recordings in one batch.

mod reader;
mod reports;

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use std::{panic, thread};

use anyhow::Context;
use stonechat::formats::ModelFile;
use stonechat::whisper::{CancelToken, Event, Model, Options, Timings, Transcript};
use stonechat::{Recording, Whisper};

use super::output::{Output, Written};
use super::plan::Plan;
use super::progress::Overall;
use super::remarks;
use super::results::{Task, Verdict};
use super::stages::Stages;
use super::summary::{Outcome, Status};
use crate::console::Console;
use crate::device::OpenDevices;
use crate::load::with_load_stats;
use crate::recognizer::Recognizer;
use reader::{Decoded, Reader, Signal};
use reports::Reports;

/// State shared by the threads.
struct Batch<'a, 'r> {
    plan: &'a Plan<'a>,
    cancel: &'a CancelToken,
    reports: &'r Reports<'a>,
}

/// Result of a run.
pub(super) struct Done {
    /// In the order of the inputs.
    pub(super) outcomes: Vec<Outcome>,
    /// The table that `-v` prints.
    pub(super) report: String,
    /// Devices, if there was work to do.
    pub(super) devices: Option<OpenDevices>,
}

/// Outcome of an input that is not transcribed, which it prints.
fn judged(task: &Task, console: &Console) -> Option<Outcome> {
    match &task.verdict {
        Verdict::Transcribe => None,
        Verdict::Skip(note) => {
            console.note(note);
            Some(Outcome::new(task, Status::Skipped))
        }
        Verdict::Refuse(why) => {
            let error = anyhow::anyhow!("{}: {why}", task.input.name());
            let error = Some(console.error(&error));
            Some(Outcome { error, ..Outcome::new(task, Status::Failed) })
        }
    }
}

/// Transcribes every input without up-to-date results; one that fails does not stop the others.
/// After `cancel`, no input is started and unfinished ones are dropped. `open` opens the devices of the model.
pub(super) fn run(
    plan: &Plan<'_>,
    file: ModelFile,
    open: impl Fn(&ModelFile) -> anyhow::Result<OpenDevices>,
    console: &Console,
    cancel: &CancelToken,
) -> anyhow::Result<Done> {
    let (mut to_do, mut sizes, mut outcomes) = (Vec::new(), Vec::new(), Vec::new());
    for (index, task) in plan.tasks.iter().enumerate() {
        let judged = judged(task, console);
        // Skipped inputs have no share in the progress bar.
        let path = task.input.path().filter(|_| judged.is_none());
        sizes.push(path.and_then(|path| fs::metadata(path).ok()).map_or(0, |data| data.len()));
        to_do.extend(judged.is_none().then_some(index));
        outcomes.push(judged.unwrap_or_else(|| Outcome::new(task, Status::Stopped)));
    }
    let name = match &plan.tasks[..] {
        [only] => Some(only.input.name()),
        _ => None,
    };
    let is_english_only = plan.options.language.is_none() && Recognizer::is_english_only(&file);
    let english_only = is_english_only.then(|| plan.recognizer.name());
    let overall = Overall::new(console, name, sizes.into_iter());
    let reports = Reports::new(plan, console, overall, outcomes, english_only);
    let (mut report, mut devices) = (String::new(), None);
    if !to_do.is_empty() {
        let batch = Batch { plan, cancel, reports: &reports };
        let opened;
        (report, opened) = batch.transcribe(&to_do, file, open, &mut Stages::start())?;
        devices = Some(opened);
    }
    console.end();
    Ok(Done { outcomes: reports.into_outcomes(), report, devices })
}

impl Batch<'_, '_> {
    /// Reads and transcribes the tasks `to_do`; returns the timing table and the devices.
    fn transcribe(
        &self,
        to_do: &[usize],
        file: ModelFile,
        open: impl Fn(&ModelFile) -> anyhow::Result<OpenDevices>,
        stages: &mut Stages,
    ) -> anyhow::Result<(String, OpenDevices)> {
        let (sender, receiver) = sync_channel(1);
        let (has_audio, first_audio) = channel();
        let open = |file: &ModelFile, stages: &mut Stages| {
            let started = Instant::now();
            let devices = open(file);
            stages.device = started.elapsed();
            devices
        };
        let may_block = |&index: &usize| self.plan.tasks[index].input.may_block();
        let opened = if to_do.iter().any(may_block) { Some(open(&file, stages)?) } else { None };
        reader::silence_reader();
        let Self { plan, cancel, reports } = *self;
        let reader = Reader { plan, cancel, reports, stops: AtomicBool::new(false) };
        let reader = &reader;
        thread::scope(|scope| {
            let thread = thread::Builder::new().name(reader::NAME.to_owned());
            let thread = thread
                .spawn_scoped(scope, move || reader.read_all(to_do, has_audio, &sender))
                .context("cannot start a thread")?;
            let transcribed = opened.map_or_else(|| open(&file, stages), Ok).and_then(|devices| {
                // Weights are not loaded if every input fails.
                let has_audio = first_audio.recv().is_ok();
                let n_jobs = self.plan.args.jobs.min(to_do.len());
                let run = || self.run(file, &devices, n_jobs, receiver, stages);
                let done = has_audio.then(run).transpose()?;
                Ok((done, devices))
            });
            // Ends the reader: its decoder is cancelled, and without a receiver its next send fails.
            reader.stops.store(true, Ordering::Relaxed);
            let read = thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic));
            (stages.audio, stages.audio_s) = (read.time, read.audio_s);
            let (done, devices) = transcribed?;
            let report = done.map_or_else(String::new, |(model, timings)| {
                let load = with_load_stats(&model.describe(), "; ", model.load_stats());
                stages.report(timings, &load)
            });
            Ok((report, devices))
        })
    }

    /// Loads the model and transcribes `n_jobs` recordings at a time until the reader ends.
    fn run(
        &self,
        file: ModelFile,
        devices: &OpenDevices,
        n_jobs: usize,
        recordings: Receiver<Decoded>,
        stages: &mut Stages,
    ) -> anyhow::Result<(Model, Timings)> {
        let started = Instant::now();
        let model = self.plan.recognizer.load(&file, devices, self.reports.console)?;
        // The mapped pages count as memory of this process.
        drop(file);
        stages.load = started.elapsed();
        let parts = model.divide(n_jobs)?;
        let n_each = n_jobs.div_ceil(parts.len());
        let timings = Arc::new(Mutex::new(vec![Timings::default(); parts.len()]));
        let open = |(index, part)| self.open(part, n_each, &timings, index);
        let engines = parts.into_iter().enumerate().map(open).collect::<Result<Vec<_>, _>>()?;
        let recordings = Mutex::new(recordings);
        thread::scope(|scope| {
            for whisper in engines.iter().cycle().take(n_jobs) {
                scope.spawn(|| self.work(whisper, &recordings));
            }
        });
        // Waits for the last steps.
        drop(engines);
        let mut sum = Timings::default();
        lock(&timings).iter().for_each(|&timings| sum += timings);
        Ok((model, sum))
    }

    /// Starts an engine for `n_jobs` recordings at a time, whose timings are those of `index`.
    fn open(
        &self,
        model: Model,
        n_jobs: usize,
        timings: &Arc<Mutex<Vec<Timings>>>,
        index: usize,
    ) -> Result<Whisper, stonechat::Error> {
        let Plan { recognizer, options, .. } = self.plan;
        let n_windows = n_jobs * options.batch_size.unwrap_or(1);
        let timings = Arc::clone(timings);
        Whisper::builder()
            .kv_dtype(recognizer.kv_dtype)
            .reserve_for(options.clone())
            .parallel(n_windows.min(Options::MAX_BATCH_SIZE))
            .on_step(move |step| lock(&timings)[index] = step.timings)
            .open_model(model)
    }

    /// Transcribes recordings until the reader ends.
    fn work(&self, whisper: &Whisper, recordings: &Mutex<Receiver<Decoded>>) {
        loop {
            let next = lock(recordings).recv();
            let Some(decoded) = next.ok().filter(|_| !self.cancel.is_cancelled()) else { return };
            let (started, length_s) = (Instant::now(), decoded.audio_s());
            let Decoded { index, signals, seconds } = decoded;
            let result = signals.and_then(|signals| self.transcribe_one(whisper, index, signals));
            let seconds = seconds + started.elapsed().as_secs_f64();
            match result {
                Ok((transcript, written)) if transcript.cancelled => {
                    self.reports.stop(index, &transcript, &written);
                }
                Ok((transcript, written)) => {
                    self.reports.succeed(index, &transcript, written, length_s, seconds);
                }
                Err(error) => self.reports.fail(index, error, length_s, seconds),
            }
        }
    }

    /// Transcribes the signals of a recording and writes the transcript, unless cancelled.
    fn transcribe_one(
        &self,
        whisper: &Whisper,
        index: usize,
        signals: Vec<Signal>,
    ) -> anyhow::Result<(Transcript, Written)> {
        let Plan { tasks, options, .. } = self.plan;
        let (task, n_signals) = (&tasks[index], signals.len());
        if let Some(Signal { source, samples }) = signals.first() {
            let notes = remarks::signals(self.plan.args, n_signals, source);
            notes.iter().for_each(|note| self.reports.note(task, note));
            let notes = remarks::clips(&options.clip_timestamps, samples.duration())?;
            notes.iter().for_each(|note| self.reports.note(task, note));
        }
        let mut output = Output::begin(self.plan, task)?;
        let mut written = Ok(());
        let mut transcripts = Vec::with_capacity(n_signals);
        // Noted when there is text: silence has no language.
        let mut detected = None;
        for (number, Signal { samples, .. }) in signals.into_iter().enumerate() {
            let duration_s = samples.duration();
            let before_s = duration_s * number as f64;
            let recording = Recording::from(samples).options(options.clone());
            let (sender, events) = channel();
            let job = whisper.transcribe_with(recording.cancelled_by(self.cancel), move |event| {
                let _ = sender.send(event);
            });
            for event in events {
                match event {
                    Event::Language(language, probability) => {
                        detected = Some(remarks::detected(language, probability));
                    }
                    Event::Segment(segment) => {
                        if remarks::has_text(&segment)
                            && let Some(note) = detected.take()
                        {
                            let several = tasks.len() > 1;
                            if several {
                                self.reports.note(task, &note)
                            } else {
                                self.reports.console.note(&note)
                            }
                        }
                        // Segments of several signals are sorted by time first.
                        if n_signals == 1 && written.is_ok() {
                            written = self.reports.console.suspend_bar(|| output.segment(&segment));
                        }
                    }
                    Event::Position(done, all) => {
                        let done_s = duration_s * done as f64 / all.max(1) as f64;
                        self.reports
                            .overall
                            .set_position(index, (before_s + done_s) / n_signals as f64);
                    }
                    _ => {}
                }
            }
            let mut transcript = job.wait()?;
            if detected.is_some() && remarks::is_silent(&transcript) {
                transcript.language.clear();
            }
            let is_cancelled = transcript.cancelled;
            transcripts.push((channel_name(number, n_signals), transcript));
            if is_cancelled {
                break;
            }
        }
        written?;
        let transcript = if n_signals == 1 {
            transcripts.swap_remove(0).1
        } else {
            Transcript::of_speakers(transcripts)
        };
        if transcript.cancelled {
            let written = output.interrupted(&transcript)?;
            return Ok((transcript, written));
        }
        if n_signals > 1 {
            let mut segments = transcript.segments.iter();
            self.reports
                .console
                .suspend_bar(|| segments.try_for_each(|segment| output.segment(segment)))?;
        }
        let written = output.end(&transcript)?;
        Ok((transcript, written))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Label of the segments of signal `number` of `n`.
fn channel_name(number: usize, n: usize) -> String {
    match (number, n) {
        (0, 2) => "left".to_owned(),
        (1, 2) => "right".to_owned(),
        _ => format!("channel {}", number + 1),
    }
}
