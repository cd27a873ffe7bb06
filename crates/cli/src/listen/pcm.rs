//! Raw PCM on standard input.

use clap::ValueEnum;
use stonechat::audio::{Error, PcmFormat as Format, PcmStream};

/// PCM sample format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum PcmFormat {
    /// 16-bit signed integers, little-endian
    S16le,
    /// 32-bit floats from -1 to 1, little-endian
    F32le,
}

impl PcmFormat {
    fn format(self) -> Format {
        match self {
            Self::S16le => Format::S16,
            Self::F32le => Format::F32,
        }
    }

    /// Bytes per sample.
    pub(super) fn bytes(self) -> usize {
        self.format().bytes()
    }

    /// Makes a converter from `rate` Hz and `channels` interleaved channels to 16 kHz mono samples.
    ///
    /// # Errors
    /// If the resampler does not support the rate.
    pub(super) fn stream(self, rate: u32, channels: u16) -> Result<PcmStream, Error> {
        PcmStream::new(self.format(), rate, usize::from(channels))
    }
}

/// Message of a microphone or of the reader of standard input.
#[derive(Debug)]
pub(super) enum Message {
    Samples(Vec<f32>),
    /// End of input, with the number of bytes of an incomplete frame.
    End(usize),
    Failed(anyhow::Error),
}

/// Error of standard input whose bytes are of another format than `--format`.
pub(super) fn pcm_error(error: Error) -> anyhow::Error {
    match error {
        Error::NotFinite { got } => {
            anyhow::anyhow!("standard input: expected samples as f32le, got {got}")
        }
        error => anyhow::Error::new(error),
    }
}
