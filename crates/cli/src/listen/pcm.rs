//! Raw PCM to 16 kHz mono samples.

use anyhow::ensure;
use clap::ValueEnum;
use stonechat::audio::Resampler;

/// PCM sample format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum PcmFormat {
    /// 16-bit signed integers, little-endian
    S16le,
    /// 32-bit floats from -1 to 1, little-endian
    F32le,
}

impl PcmFormat {
    /// Bytes per sample.
    pub(super) fn bytes(self) -> usize {
        match self {
            Self::S16le => 2,
            Self::F32le => 4,
        }
    }

    fn sample(self, bytes: &[u8]) -> f32 {
        match (self, bytes) {
            (Self::S16le, &[a, b]) => f32::from(i16::from_le_bytes([a, b])) / 32768.0,
            (Self::F32le, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
            _ => unreachable!("slices of `bytes()` bytes"),
        }
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

/// Streaming converter: bytes in buffers of any length to 16 kHz mono samples.
#[derive(Debug)]
pub(super) struct Pcm {
    format: PcmFormat,
    channels: usize,
    resampler: Resampler,
    /// Incomplete frame.
    partial: Vec<u8>,
    frames: Vec<f32>,
}

impl Pcm {
    /// Makes a converter from `rate` Hz and `channels` interleaved channels.
    ///
    /// # Errors
    /// If the resampler does not support the rate.
    pub(super) fn new(format: PcmFormat, rate: u32, channels: u16) -> anyhow::Result<Self> {
        let resampler = Resampler::new(rate)?;
        let (partial, frames) = (Vec::new(), Vec::new());
        Ok(Self { format, channels: usize::from(channels), resampler, partial, frames })
    }

    /// Converts `bytes` and appends the samples to `out`.
    ///
    /// # Errors
    /// If a sample is not finite: the bytes are of another format.
    pub(super) fn push(&mut self, bytes: &[u8], out: &mut Vec<f32>) -> anyhow::Result<()> {
        self.partial.extend_from_slice(bytes);
        let width = self.format.bytes();
        let frame_bytes = width * self.channels;
        self.frames.clear();
        for frame in self.partial.chunks_exact(frame_bytes) {
            let sum: f32 = frame.chunks_exact(width).map(|bytes| self.format.sample(bytes)).sum();
            ensure!(sum.is_finite(), "standard input: expected samples as f32le, got {sum}");
            self.frames.push(sum / self.channels as f32);
        }
        self.partial.drain(..self.frames.len() * frame_bytes);
        self.resampler.push(&self.frames, out);
        Ok(())
    }

    /// Appends the last samples; returns the number of bytes of an incomplete frame.
    pub(super) fn finish(self, out: &mut Vec<f32>) -> usize {
        self.resampler.finish(out);
        self.partial.len()
    }
}

#[cfg(test)]
mod tests {
    use super::{Pcm, PcmFormat};

    #[track_caller]
    fn check(format: PcmFormat, channels: u16, bytes: &[u8], expected: &[f32], n_left: usize) {
        for n_bytes in 1..=bytes.len().max(1) {
            let mut pcm = Pcm::new(format, 16_000, channels).unwrap();
            let mut samples = Vec::new();
            for bytes in bytes.chunks(n_bytes) {
                pcm.push(bytes, &mut samples).unwrap();
            }
            assert_eq!(pcm.finish(&mut samples), n_left);
            assert_eq!(samples, expected, "in buffers of {n_bytes}");
        }
    }

    #[test]
    fn samples_are_read_wherever_the_bytes_are_cut() {
        let bytes = [0, 64, 0, 192, 255, 127, 1];
        check(PcmFormat::S16le, 1, &bytes, &[0.5, -0.5, 32767.0 / 32768.0], 1);
        check(PcmFormat::S16le, 2, &bytes, &[0.0], 3);
        let floats: Vec<u8> = [0.25f32, -1.0, 0.5].iter().flat_map(|x| x.to_le_bytes()).collect();
        check(PcmFormat::F32le, 1, &floats, &[0.25, -1.0, 0.5], 0);
        check(PcmFormat::F32le, 3, &floats, &[-0.25 / 3.0], 0);
        check(PcmFormat::F32le, 1, &[], &[], 0);
    }

    #[test]
    fn other_rates_are_resampled() {
        let mut pcm = Pcm::new(PcmFormat::S16le, 48_000, 1).unwrap();
        let mut samples = Vec::new();
        pcm.push(&[0; 96_000], &mut samples).unwrap();
        assert_eq!(pcm.finish(&mut samples), 0);
        assert_eq!(samples.len(), 16_000);
    }

    #[test]
    fn invalid_pcm_is_refused() {
        assert!(Pcm::new(PcmFormat::S16le, 0, 1).is_err());
        let mut pcm = Pcm::new(PcmFormat::F32le, 16_000, 1).unwrap();
        let error = pcm.push(&f32::NAN.to_le_bytes(), &mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("expected samples as f32le, got NaN"), "{error}");
    }
}
