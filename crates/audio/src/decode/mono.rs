//! The end of the pipe: interleaved frames in, 16 kHz mono out.

use super::{Audio, Progress, SourceInfo};
use crate::{Error, Resampler, SAMPLE_RATE};

/// Twice the longest recordings met in practice.
const MAX_HOURS: u32 = 24;
const MAX_SAMPLES: usize = MAX_HOURS as usize * 3600 * SAMPLE_RATE as usize;

/// What a file of `bytes` bytes may unpack to, in seconds. The densest honest files are digital
/// silence in FLAC (about 0.04 s a byte at 8 kHz) and in Opus (0.03 s).
pub(super) fn max_seconds(bytes: u64) -> u64 {
    60 + bytes / 20
}

/// Mixes down, resamples and collects.
pub(super) struct MonoSink<'a> {
    pub(super) source: SourceInfo,
    /// Source frames in all, where the container says so.
    pub(super) total_frames: Option<u64>,
    file_bytes: u64,
    samples: Vec<f32>,
    mono: Vec<f32>,
    resampler: Option<Resampler>,
    rate: u32,
    next_report_s: f64,
    on_progress: Option<Box<dyn FnMut(Progress) + 'a>>,
}

impl<'a> MonoSink<'a> {
    pub(super) fn new(file_bytes: u64, on_progress: Option<Box<dyn FnMut(Progress) + 'a>>) -> Self {
        Self {
            source: SourceInfo::default(),
            total_frames: None,
            file_bytes,
            samples: Vec::new(),
            mono: Vec::new(),
            resampler: None,
            rate: 0,
            next_report_s: 1.0,
            on_progress,
        }
    }

    /// Takes interleaved frames; a trailing partial frame is dropped, a value that is not finite
    /// counts as 0.
    pub(super) fn push(
        &mut self,
        frames: &[f32],
        n_channels: usize,
        sample_rate: u32,
    ) -> Result<(), Error> {
        if n_channels == 0 || frames.len() < n_channels {
            return Ok(());
        }
        self.set_rate(sample_rate)?;
        if self.source.channels == 0 {
            self.source.channels = n_channels as u16;
            self.source.sample_rate = sample_rate;
        }
        let scale = 1.0 / n_channels as f32;
        let finite = |x: f32| if x.is_finite() { x } else { 0.0 };
        self.mono.clear();
        if n_channels == 1 {
            self.mono.extend(frames.iter().map(|&x| finite(x)));
        } else {
            let mean = |frame: &[f32]| frame.iter().map(|&x| finite(x)).sum::<f32>() * scale;
            self.mono.extend(frames.chunks_exact(n_channels).map(mean));
        }
        if let Some(resampler) = &mut self.resampler {
            resampler.push(&self.mono, &mut self.samples);
        }
        self.source.duration_s += self.mono.len() as f64 / f64::from(sample_rate);
        let max_s = max_seconds(self.file_bytes);
        if self.source.duration_s > max_s as f64 {
            return Err(Error::Inflated { max_s, file_bytes: self.file_bytes });
        }
        if self.samples.len() > MAX_SAMPLES {
            return Err(Error::TooLong { max_hours: MAX_HOURS });
        }
        self.report();
        Ok(())
    }

    /// Starts a new resampler when the rate changes, as chained streams may do.
    fn set_rate(&mut self, sample_rate: u32) -> Result<(), Error> {
        if self.resampler.is_none() || self.rate != sample_rate {
            let next = Resampler::new(sample_rate)?;
            if let Some(done) = self.resampler.replace(next) {
                done.finish(&mut self.samples);
            }
            self.rate = sample_rate;
        }
        Ok(())
    }

    fn report(&mut self) {
        let decoded_s = self.source.duration_s;
        let Some(on_progress) = &mut self.on_progress else { return };
        if decoded_s < self.next_report_s {
            return;
        }
        self.next_report_s = decoded_s + 1.0;
        let total_s = self.total_frames.map(|n| n as f64 / f64::from(self.rate));
        on_progress(Progress { decoded_s, total_s });
    }

    pub(super) fn finish(mut self) -> Result<Audio, Error> {
        if let Some(resampler) = self.resampler.take() {
            resampler.finish(&mut self.samples);
        }
        Ok(Audio { samples: self.samples, source: self.source })
    }
}
