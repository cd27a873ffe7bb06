//! Thread that reads the inputs of a batch ahead.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, SyncSender};
use std::time::{Duration, Instant};
use std::{io, panic, thread};

use stonechat::audio::{Audio, Decoder, SourceInfo};
use stonechat::whisper::{CancelToken, Samples};

use super::reports::Reports;
use crate::transcribe::inputs::Input;
use crate::transcribe::plan::Plan;

/// Name of the thread.
pub(super) const NAME: &str = "reader";

/// An input that was read.
pub(super) struct Decoded {
    pub(super) index: usize,
    pub(super) signals: anyhow::Result<Vec<Signal>>,
    /// Seconds of reading.
    pub(super) seconds: f64,
}

/// One channel of a recording, or all mixed to mono.
pub(super) struct Signal {
    /// Samples; without silence, if voice activity detection is on.
    pub(super) samples: Samples<'static>,
    pub(super) source: SourceInfo,
}

impl Decoded {
    /// Length in seconds, with silence.
    pub(super) fn audio_s(&self) -> f64 {
        let signals = self.signals.as_deref().unwrap_or_default();
        signals.first().map_or(0.0, |signal| signal.samples.duration())
    }
}

/// Statistics of the reader.
#[derive(Default)]
pub(super) struct ReadStats {
    pub(super) time: Duration,
    pub(super) audio_s: f64,
}

/// Reader of all inputs.
pub(super) struct Reader<'a, 'r> {
    pub(super) plan: &'a Plan<'a>,
    pub(super) cancel: &'a CancelToken,
    pub(super) reports: &'r Reports<'a>,
    /// Cancels the reader, whose recordings nobody needs any more.
    pub(super) stops: AtomicBool,
}

impl Reader<'_, '_> {
    /// Reads the inputs until the receiver of `sender` is dropped. `has_audio` gets a message once an input has turned out to be
    /// audio; errors before that are reported at once, later ones by a worker.
    pub(super) fn read_all(
        &self,
        to_do: &[usize],
        has_audio: Sender<()>,
        sender: &SyncSender<Decoded>,
    ) -> ReadStats {
        let (mut stats, mut has_audio) = (ReadStats::default(), Some(has_audio));
        for (i, &index) in to_do.iter().enumerate() {
            let started = Instant::now();
            // No worker runs while the first input is read.
            let n_threads = if i == 0 { self.plan.recognizer.n_threads } else { 1 };
            let signals = self.read(&self.plan.tasks[index].input, n_threads, &mut has_audio);
            let time = started.elapsed();
            if self.is_cancelled() {
                break;
            }
            let signals = match signals {
                Err(error) if has_audio.is_some() => {
                    self.reports.fail(index, error, 0.0, time.as_secs_f64());
                    continue;
                }
                signals => signals,
            };
            let decoded = Decoded { index, signals, seconds: time.as_secs_f64() };
            if decoded.signals.is_ok() {
                announce(&mut has_audio);
                self.reports.overall.set_length(index, decoded.audio_s());
                stats.time += time;
                stats.audio_s += decoded.audio_s();
            }
            if sender.send(decoded).is_err() {
                break;
            }
        }
        stats
    }

    /// Whether the reader is cancelled.
    fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled() || self.stops.load(Ordering::Relaxed)
    }

    /// Decodes an input and detects its speech; announces audio after the first decoded second, unless reads may block.
    fn read(
        &self,
        input: &Input,
        n_threads: usize,
        has_audio: &mut Option<Sender<()>>,
    ) -> anyhow::Result<Vec<Signal>> {
        let may_block = input.may_block();
        let mut decoder = Decoder::new()
            .channels(self.plan.args.files.channels)
            .cancelled_by(|| self.is_cancelled())
            .on_progress(|_| {
                if !may_block {
                    announce(has_audio);
                }
            });
        if let Some(number) = self.plan.args.files.audio_track {
            decoder = decoder.track(number.into());
        }
        let channels = match input {
            Input::StandardInput => decoder.reader_channels(io::stdin()),
            Input::File { path, .. } => decoder.file_channels(path),
        }?;
        let signal = |audio: Audio| -> anyhow::Result<Signal> {
            let Audio { samples, source, .. } = audio;
            let speech = self.plan.options.find_speech(&samples, n_threads)?;
            let samples = Samples::from(samples).with_speech(speech)?;
            Ok(Signal { samples, source })
        };
        channels.into_iter().map(signal).collect()
    }
}

/// Tells the receiver that there is audio; once.
fn announce(has_audio: &mut Option<Sender<()>>) {
    if let Some(has_audio) = has_audio.take() {
        // The receiver may be gone after an error of the device.
        let _ = has_audio.send(());
    }
}

/// Silences panics of the reader: a decoder's panic on a damaged file is reported as an error already.
pub(super) fn silence_reader() {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if thread::current().name() != Some(NAME) {
            hook(info);
        }
    }));
}
