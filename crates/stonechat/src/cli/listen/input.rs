//! Where sound comes from: standard input or a microphone, read while text is made.

use std::io::{self, IsTerminal, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use anyhow::Context;

use super::pcm::{Pcm, PcmFormat};
use microphone::Microphone;

/// Pieces of sound that wait at most. What writes to standard input waits then; a microphone drops
/// sound, which is half a minute at least of what cannot be kept up with.
const MAX_PIECES: usize = 1024;
/// Bytes of a piece of standard input: 30 ms of 16-bit samples at 16 kHz.
const PIECE_BYTES: usize = 960;
/// How long ctrl-C may go unnoticed.
const PATIENCE: Duration = Duration::from_millis(100);

/// What to listen to.
#[derive(Debug)]
pub(super) enum Source {
    StandardInput(Pcm),
    /// The system's, or the one with this name.
    Microphone(Option<String>),
}

impl Source {
    /// What an argument asks for.
    pub(super) fn choose(
        name: Option<&str>,
        format: PcmFormat,
        rate: u32,
        channels: u16,
    ) -> anyhow::Result<Self> {
        match name {
            Some(name) if name != "-" => Ok(Self::Microphone(Some(name.to_owned()))),
            None if io::stdin().is_terminal() => Ok(Self::Microphone(None)),
            _ => Ok(Self::StandardInput(Pcm::new(format, rate, channels)?)),
        }
    }
}

/// News from where the sound comes from.
#[derive(Debug)]
enum News {
    Samples(Vec<f32>),
    /// The last, with the number of bytes that are no whole frame.
    End(usize),
    Failed(anyhow::Error),
}

/// Sound that is being read.
#[derive(Debug)]
pub(super) struct Input {
    name: String,
    news: Receiver<News>,
    interrupted: Arc<AtomicBool>,
    is_open: bool,
    pending: Vec<f32>,
    result: anyhow::Result<usize>,
    /// Records as long as it lives.
    _microphone: Option<Microphone>,
}

impl Input {
    /// Begins to read; `interrupted` ends it.
    pub(super) fn open(source: Source, interrupted: &Arc<AtomicBool>) -> anyhow::Result<Self> {
        let (sender, news) = sync_channel(MAX_PIECES);
        let (name, microphone) = match source {
            Source::StandardInput(pcm) => {
                std::thread::Builder::new()
                    .name("standard input".to_owned())
                    .spawn(move || read_standard_input(pcm, &sender))
                    .context("cannot start a thread")?;
                ("standard input".to_owned(), None)
            }
            Source::Microphone(name) => {
                let microphone = Microphone::open(name.as_deref(), sender)?;
                (microphone.name().to_owned(), Some(microphone))
            }
        };
        Ok(Self {
            name,
            news,
            interrupted: Arc::clone(interrupted),
            is_open: true,
            pending: Vec::new(),
            result: Ok(0),
            _microphone: microphone,
        })
    }

    /// What messages call it.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Waits for `n` samples and gives all that are there, or exactly `n`; fewer are the last, none is
    /// the end.
    pub(super) fn next(&mut self, n: usize, exactly: bool) -> Vec<f32> {
        while self.is_open && self.pending.len() < n {
            if self.interrupted.load(Ordering::Relaxed) {
                self.is_open = false;
                break;
            }
            match self.news.recv_timeout(PATIENCE) {
                Ok(news) => self.take(news),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => self.is_open = false,
            }
        }
        while self.is_open
            && !exactly
            && let Ok(news) = self.news.try_recv()
        {
            self.take(news);
        }
        let n = if exactly { n.min(self.pending.len()) } else { self.pending.len() };
        let rest = self.pending.split_off(n);
        std::mem::replace(&mut self.pending, rest)
    }

    fn take(&mut self, news: News) {
        match news {
            News::Samples(samples) => self.pending.extend_from_slice(&samples),
            News::End(n_left) => (self.is_open, self.result) = (false, Ok(n_left)),
            News::Failed(error) => (self.is_open, self.result) = (false, Err(error)),
        }
    }

    /// The number of bytes that were no whole frame at the end.
    ///
    /// # Errors
    /// Why the sound ended early.
    pub(super) fn end(self) -> anyhow::Result<usize> {
        self.result
    }
}

/// Sends standard input up to its end, or as long as somebody listens.
fn read_standard_input(mut pcm: Pcm, sender: &SyncSender<News>) {
    let mut bytes = [0; PIECE_BYTES];
    let mut stdin = io::stdin().lock();
    let last = loop {
        let mut samples = Vec::new();
        match stdin.read(&mut bytes) {
            Ok(0) => {
                let n_left = pcm.finish(&mut samples);
                let _ = sender.send(News::Samples(samples));
                break News::End(n_left);
            }
            Ok(n) => match pcm.push(&bytes[..n], &mut samples) {
                Ok(()) if sender.send(News::Samples(samples)).is_err() => return,
                Ok(()) => {}
                Err(error) => break News::Failed(error),
            },
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                break News::Failed(
                    anyhow::Error::new(error).context("cannot read standard input"),
                );
            }
        }
    };
    // Whoever has stopped listening need not know.
    let _ = sender.send(last);
}

/// Microphones of this build.
#[cfg(feature = "microphone")]
mod microphone {
    use std::sync::mpsc::SyncSender;

    use anyhow::{Context, anyhow};
    use cpal::traits::{DeviceTrait, HostTrait, StreamTrait};
    use cpal::{ErrorKind, FromSample, SampleFormat, SizedSample};
    use stonechat::audio::Resampler;

    use super::News;

    /// A microphone that records.
    pub(super) struct Microphone {
        name: String,
        /// Ends the recording when it is dropped.
        _stream: cpal::Stream,
    }

    impl std::fmt::Debug for Microphone {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("Microphone").field("name", &self.name).finish_non_exhaustive()
        }
    }

    impl Microphone {
        /// Records from the microphone whose name holds `name`, or from the system's.
        pub(super) fn open(name: Option<&str>, sender: SyncSender<News>) -> anyhow::Result<Self> {
            let device = find(name)?;
            let name = name_of(&device);
            let config = device
                .default_input_config()
                .with_context(|| format!("cannot record from `{name}`"))?;
            let stream = match config.sample_format() {
                SampleFormat::F32 => record::<f32>(&device, &config, sender),
                SampleFormat::I16 => record::<i16>(&device, &config, sender),
                SampleFormat::I32 => record::<i32>(&device, &config, sender),
                SampleFormat::U16 => record::<u16>(&device, &config, sender),
                other => Err(anyhow!("expected samples as f32, i16, i32 or u16, got {other}")),
            };
            let stream = stream.with_context(|| format!("cannot record from `{name}`"))?;
            Ok(Self { name, _stream: stream })
        }

        /// Its name.
        pub(super) fn name(&self) -> &str {
            &self.name
        }
    }

    fn name_of(device: &cpal::Device) -> String {
        device
            .description()
            .map_or_else(|_| "microphone".to_owned(), |description| description.name().to_owned())
    }

    fn find(name: Option<&str>) -> anyhow::Result<cpal::Device> {
        let host = cpal::default_host();
        let Some(name) = name else {
            let none = "no microphone: pipe raw sound in, for example from `ffmpeg -f s16le -`";
            return host.default_input_device().context(none);
        };
        let devices: Vec<_> = host.input_devices().context("cannot list microphones")?.collect();
        let names: Vec<String> = devices.iter().map(name_of).collect();
        let found = names.iter().position(|found| found.contains(name));
        found.and_then(|index| devices.into_iter().nth(index)).with_context(|| {
            format!("microphone: expected one of `{}`, got `{name}`", names.join("`, `"))
        })
    }

    fn record<T: SizedSample>(
        device: &cpal::Device,
        config: &cpal::SupportedStreamConfig,
        sender: SyncSender<News>,
    ) -> anyhow::Result<cpal::Stream>
    where
        f32: FromSample<T>,
    {
        let n_channels = usize::from(config.channels());
        let mut resampler = Resampler::new(config.sample_rate())?;
        let failed = sender.clone();
        let mut mono = Vec::new();
        let take = move |samples: &[T], _: &cpal::InputCallbackInfo| {
            mono.clear();
            let mean = |frame: &[T]| {
                let sum: f32 = frame.iter().map(|&x| <f32 as FromSample<T>>::from_sample_(x)).sum();
                sum / n_channels as f32
            };
            mono.extend(samples.chunks_exact(n_channels).map(mean));
            let mut resampled = Vec::new();
            resampler.push(&mono, &mut resampled);
            // The sound card does not wait: what nobody takes is lost.
            let _ = sender.try_send(News::Samples(resampled));
        };
        let fail = move |error: cpal::Error| {
            // Some sound was lost, or comes from another device: it goes on.
            let goes_on = matches!(
                error.kind(),
                ErrorKind::DeviceChanged | ErrorKind::Xrun | ErrorKind::RealtimeDenied
            );
            if !goes_on {
                let _ = failed.try_send(News::Failed(anyhow::Error::new(error)));
            }
        };
        let stream = device.build_input_stream(config.config(), take, fail, None)?;
        stream.play()?;
        Ok(stream)
    }
}

/// A build without microphones.
#[cfg(not(feature = "microphone"))]
mod microphone {
    use std::sync::mpsc::SyncSender;

    use super::News;

    /// What this build has none of.
    #[derive(Debug)]
    pub(super) enum Microphone {}

    impl Microphone {
        pub(super) fn open(_: Option<&str>, _: SyncSender<News>) -> anyhow::Result<Self> {
            anyhow::bail!(
                "this build has no microphone (feature `microphone`): pipe raw sound in, for example `arecord -f S16_LE -r 16000 | stonechat listen -`"
            )
        }

        pub(super) fn name(&self) -> &str {
            match *self {}
        }
    }
}
