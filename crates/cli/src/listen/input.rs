//! Audio input: standard input or a microphone, read on a thread during decoding.

use std::io::{self, IsTerminal, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use anyhow::Context;
use stonechat::audio::PcmStream;
use stonechat::audio::decode::container_name;

use super::microphone::Microphone;
use super::pcm::{Message, PcmFormat, pcm_error};

/// Capacity of the channel, at least half a minute. When it is full, a pipe blocks and a microphone drops audio.
const MAX_BUFFERS: usize = 1024;
/// Bytes of one read of standard input: 30 ms of 16-bit samples at 16 kHz.
const BUFFER_BYTES: usize = 960;
/// Interval at which the Ctrl-C flag is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Source of audio.
#[derive(Debug)]
pub(super) enum Source {
    StandardInput(Box<PcmStream>),
    /// The default microphone, or the one with this name.
    Microphone(Option<String>),
}

impl Source {
    /// Chooses the source by the argument SOURCE.
    pub(super) fn choose(
        name: Option<&str>,
        format: PcmFormat,
        rate: u32,
        channels: u16,
    ) -> anyhow::Result<Self> {
        match name {
            Some(name) if name != "-" => Ok(Self::Microphone(Some(name.to_owned()))),
            None if io::stdin().is_terminal() => Ok(Self::Microphone(None)),
            _ => Ok(Self::StandardInput(Box::new(format.stream(rate, channels)?))),
        }
    }
}

/// Open audio input.
#[derive(Debug)]
pub(super) struct Input {
    name: String,
    receiver: Receiver<Message>,
    interrupted: Arc<AtomicBool>,
    is_open: bool,
    pending: Vec<f32>,
    result: anyhow::Result<usize>,
    /// Records until dropped.
    _microphone: Option<Microphone>,
}

impl Input {
    /// Starts to read; `interrupted` ends the input.
    pub(super) fn open(source: Source, interrupted: &Arc<AtomicBool>) -> anyhow::Result<Self> {
        let (sender, receiver) = sync_channel(MAX_BUFFERS);
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
            receiver,
            interrupted: Arc::clone(interrupted),
            is_open: true,
            pending: Vec::new(),
            result: Ok(0),
            _microphone: microphone,
        })
    }

    /// Name in messages.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Waits for `n` samples and returns all available ones, or `exactly` `n`. Fewer are the last, none is the end.
    pub(super) fn next(&mut self, n: usize, exactly: bool) -> Vec<f32> {
        while self.is_open && self.pending.len() < n {
            if self.interrupted.load(Ordering::Relaxed) {
                self.is_open = false;
                break;
            }
            match self.receiver.recv_timeout(POLL_INTERVAL) {
                Ok(message) => self.receive(message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => self.is_open = false,
            }
        }
        while self.is_open
            && !exactly
            && let Ok(message) = self.receiver.try_recv()
        {
            self.receive(message);
        }
        let n = if exactly { n.min(self.pending.len()) } else { self.pending.len() };
        let rest = self.pending.split_off(n);
        std::mem::replace(&mut self.pending, rest)
    }

    fn receive(&mut self, message: Message) {
        match message {
            Message::Samples(samples) => self.pending.extend_from_slice(&samples),
            Message::End(n_left) => (self.is_open, self.result) = (false, Ok(n_left)),
            Message::Failed(error) => (self.is_open, self.result) = (false, Err(error)),
        }
    }

    /// Number of bytes of an incomplete frame at the end.
    ///
    /// # Errors
    /// The error that ended the input early.
    pub(super) fn end(self) -> anyhow::Result<usize> {
        self.result
    }
}

/// Sends standard input until its end, or until the receiver is dropped.
fn read_standard_input(mut pcm: PcmStream, sender: &SyncSender<Message>) {
    let mut bytes = [0; BUFFER_BYTES];
    let mut stdin = io::stdin().lock();
    let mut is_first = true;
    let last = loop {
        let mut samples = Vec::new();
        match stdin.read(&mut bytes) {
            Ok(0) => {
                let n_left = pcm.finish(&mut samples);
                let _ = sender.send(Message::Samples(samples));
                break Message::End(n_left);
            }
            Ok(n) if std::mem::take(&mut is_first) && container_name(&bytes[..n]).is_some() => {
                let got = container_name(&bytes[..n]).unwrap_or_default();
                let hint = "`stonechat transcribe -` takes files, `ffmpeg -i FILE -f s16le -ac 1 -ar 16000 -` decodes them";
                let text = format!("standard input: expected raw PCM, got {got}: {hint}");
                break Message::Failed(anyhow::Error::msg(text));
            }
            Ok(n) => match pcm.push(&bytes[..n], &mut samples) {
                Ok(()) if sender.send(Message::Samples(samples)).is_err() => return,
                Ok(()) => {}
                Err(error) => break Message::Failed(pcm_error(error)),
            },
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                break Message::Failed(
                    anyhow::Error::new(error).context("cannot read standard input"),
                );
            }
        }
    };
    // The receiver may be dropped already.
    let _ = sender.send(last);
}
