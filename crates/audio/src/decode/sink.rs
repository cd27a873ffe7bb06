//! The end of the pipe: interleaved frames in, 16 kHz out.

use std::sync::Arc;

use stonechat_compute::huge_page_vec;

use super::stream::SourceState;
use super::{Audio, Channels, Decoder, Progress, SourceInfo};
use crate::{Error, Resampler, SAMPLE_RATE};

/// Default limit of the decoded length: twice the longest recordings met in practice.
const MAX_SECONDS: u64 = 24 * 3600;

/// Limit of the decoded length of a file of `bytes` bytes, in seconds. The densest honest files are
/// digital silence in FLAC (about 0.04 s a byte at 8 kHz) and in Opus (0.03 s).
pub(super) fn max_seconds(bytes: u64) -> u64 {
    60 + bytes / 20
}

/// One output channel: its resampler and its samples at 16 kHz.
#[derive(Default)]
struct Lane {
    samples: Vec<f32>,
    resampler: Option<Resampler>,
}

impl Lane {
    /// An empty lane with room for `n` samples.
    fn with_capacity(n: usize) -> Self {
        Self { samples: huge_page_vec(n), resampler: None }
    }

    /// Starts a new resampler; pads the samples with zeros to `n_before`.
    fn restart(&mut self, rate: u32, n_before: usize) -> Result<(), Error> {
        let next = Resampler::new(rate)?;
        if let Some(done) = self.resampler.replace(next) {
            done.finish(&mut self.samples);
        }
        self.samples.resize(n_before.max(self.samples.len()), 0.0);
        Ok(())
    }
}

/// Mixes down or takes channels apart, resamples and collects.
pub(super) struct Sink<'a> {
    pub(super) source: SourceInfo,
    /// Total source frames, if the container states them.
    pub(super) total_frames: Option<u64>,
    source_state: Arc<SourceState>,
    options: Decoder<'a>,
    lanes: Vec<Lane>,
    /// The samples of a block of frames for one lane.
    block: Vec<f32>,
    rate: u32,
    next_report_s: f64,
}

impl<'a> Sink<'a> {
    pub(super) fn new(source_state: Arc<SourceState>, options: Decoder<'a>) -> Self {
        Self {
            source: SourceInfo::default(),
            total_frames: None,
            source_state,
            options,
            lanes: Vec::new(),
            block: Vec::new(),
            rate: 0,
            next_report_s: 1.0,
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
        if self.options.is_cancelled.as_ref().is_some_and(|is_cancelled| is_cancelled()) {
            return Err(Error::Cancelled);
        }
        let channels = self.options.channels;
        if let Channels::One(number) = channels
            && !(1..=n_channels).contains(&usize::from(number))
        {
            return Err(Error::NoSuchChannel { n_channels, got: number });
        }
        let n_lanes = if channels == Channels::Each { n_channels } else { 1 };
        self.set_format(sample_rate, n_lanes)?;
        if self.source.channels == 0 {
            self.source.channels = n_channels as u16;
            self.source.sample_rate = sample_rate;
        }
        let finite = |x: f32| if x.is_finite() { x } else { 0.0 };
        let scale = 1.0 / n_channels as f32;
        let (mono, frames) = (frames, frames.chunks_exact(n_channels));
        let n_frames = frames.len();
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            self.block.clear();
            match channels {
                // A frame of one channel is a sample.
                _ if n_channels == 1 && index == 0 => {
                    self.block.extend(mono.iter().map(|&x| finite(x)));
                }
                Channels::Mix if n_channels > 1 => {
                    let mean =
                        |frame: &[f32]| frame.iter().map(|&x| finite(x)).sum::<f32>() * scale;
                    self.block.extend(frames.clone().map(mean));
                }
                // A channel that this part of a chained stream does not have is silent in it.
                Channels::Each if index >= n_channels => self.block.resize(n_frames, 0.0),
                Channels::Mix | Channels::Each => {
                    self.block.extend(frames.clone().map(|frame| finite(frame[index])));
                }
                Channels::One(number) => {
                    let index = usize::from(number) - 1;
                    self.block.extend(frames.clone().map(|frame| finite(frame[index])));
                }
            }
            if let Some(resampler) = &mut lane.resampler {
                resampler.push(&self.block, &mut lane.samples);
            }
        }
        self.source.duration_s += n_frames as f64 / f64::from(sample_rate);
        self.check_length()?;
        self.report();
        Ok(())
    }

    fn check_length(&self) -> Result<(), Error> {
        let file_bytes = self.source_state.n_bytes();
        let max_s = max_seconds(file_bytes);
        if self.source.duration_s > max_s as f64 {
            return Err(Error::Inflated { max_s, file_bytes });
        }
        let max_s = self.options.max_seconds.unwrap_or(MAX_SECONDS);
        let n_samples: u64 = self.lanes.iter().map(|lane| lane.samples.len() as u64).sum();
        let n_lanes = if self.options.max_seconds.is_some() { self.lanes.len() as u64 } else { 1 };
        if n_samples > max_s.saturating_mul(u64::from(SAMPLE_RATE)).saturating_mul(n_lanes) {
            return Err(Error::TooLong { max_s });
        }
        Ok(())
    }

    /// Starts new resamplers when the rate changes or channels are added, as chained streams may do.
    fn set_format(&mut self, sample_rate: u32, n_lanes: usize) -> Result<(), Error> {
        if self.rate == sample_rate && n_lanes <= self.lanes.len() {
            return Ok(());
        }
        let n_lanes = n_lanes.max(self.lanes.len());
        let n_samples = self.expected_samples(sample_rate, n_lanes);
        self.lanes.resize_with(n_lanes, || Lane::with_capacity(n_samples));
        let mut n_before = 0;
        for lane in &mut self.lanes {
            lane.restart(sample_rate, n_before)?;
            n_before = lane.samples.len();
        }
        self.rate = sample_rate;
        Ok(())
    }

    /// Samples of a lane by the length that the container states; all lanes together at most those of the longest file of
    /// this size.
    fn expected_samples(&self, sample_rate: u32, n_lanes: usize) -> usize {
        let Some(n_frames) = self.total_frames else { return 0 };
        let max_s = max_seconds(self.source_state.n_bytes());
        let max_s = max_s.min(self.options.max_seconds.unwrap_or(MAX_SECONDS)).min(MAX_SECONDS);
        let max_samples = max_s * u64::from(SAMPLE_RATE) / n_lanes as u64;
        let scaled = u128::from(n_frames) * u128::from(SAMPLE_RATE);
        let n_samples = scaled / u128::from(sample_rate.max(1));
        n_samples.min(max_samples.into()) as usize
    }

    fn report(&mut self) {
        let decoded_s = self.source.duration_s;
        let Some(on_progress) = &mut self.options.on_progress else { return };
        if decoded_s < self.next_report_s {
            return;
        }
        self.next_report_s = decoded_s + 1.0;
        let total_s = self.total_frames.map(|n| n as f64 / f64::from(self.rate));
        on_progress(Progress { decoded_s, total_s });
    }

    /// The collected audio: one result, or one per channel with [`Channels::Each`].
    pub(super) fn finish(mut self) -> Vec<Audio> {
        if self.lanes.is_empty() {
            self.lanes.push(Lane::default());
        }
        let source = self.source;
        let audio = |lane: Lane| {
            let Lane { mut samples, resampler } = lane;
            if let Some(resampler) = resampler {
                resampler.finish(&mut samples);
            }
            Audio { samples, source: source.clone() }
        };
        self.lanes.into_iter().map(audio).collect()
    }
}
