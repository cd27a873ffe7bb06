//! Where sound comes from: standard input or a microphone, read while text is made.

use std::io::{self, IsTerminal, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use anyhow::Context;

use super::microphone::Microphone;
use super::pcm::{Pcm, PcmFormat};

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
    StandardInput(Box<Pcm>),
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
            _ => Ok(Self::StandardInput(Box::new(Pcm::new(format, rate, channels)?))),
        }
    }
}

/// News from where the sound comes from.
#[derive(Debug)]
pub(super) enum News {
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
                    .spawn(move || read_standard_input(*pcm, &sender))
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
