//! Whisper's log-mel spectrogram: 25 ms Hann windows every 10 ms, 80 or 128 Slaney mels.
//!
//! The rows are time-major (`[n_frames][n_mels]`), the order that a convolution over time reads;
//! the Python packages keep the transpose. Values agree with openai-whisper's
//! `log_mel_spectrogram` within 1e-4 (golden test).
//!
//! Own code: no maintained crate computes it. The FFT is `rustfft`'s, through `realfft`.

mod filters;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use realfft::{RealFftPlanner, RealToComplex};
use stonechat_compute::LogMelTables;

use crate::Error;
use filters::FilterBank;

/// Samples under one analysis window.
pub const N_FFT: usize = 400;
/// Samples between the starts of two frames.
pub const HOP: usize = 160;
/// Powers below this count as this.
const LEAST_POWER: f32 = 1e-10;
/// Frames per task.
const CHUNK_FRAMES: usize = 500;
/// Frequency bins of one window, 40 Hz apart.
pub(crate) const N_BINS: usize = N_FFT / 2 + 1;

/// Computes log-mel spectrograms; holds the window, the FFT plan and the filters.
#[derive(Clone)]
pub struct LogMel {
    filters: FilterBank,
    window: Vec<f32>,
    fft: Arc<dyn RealToComplex<f32>>,
}

impl fmt::Debug for LogMel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogMel").field("n_mels", &self.n_mels()).finish_non_exhaustive()
    }
}

/// A log-mel spectrogram.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Mel {
    /// Values in a frame.
    pub n_mels: usize,
    /// Frames of 10 ms.
    pub n_frames: usize,
    /// `[n_frames][n_mels]`, time-major.
    pub data: Vec<f32>,
}

/// Consecutive frames of an unfinished spectrogram, the work of one task.
#[derive(Debug)]
pub struct MelChunk<'a> {
    /// Index of its first frame.
    first: usize,
    /// `[frames][n_mels]`.
    data: &'a mut [f32],
    /// Largest log10 power.
    max: f32,
}

impl LogMel {
    /// Filters computed from librosa's formula; `n_mels` is 80, or 128 for large-v3 and turbo.
    ///
    /// # Panics
    /// If `n_mels` is 0.
    pub fn new(n_mels: usize) -> Self {
        assert!(n_mels > 0, "n_mels must be positive");
        Self::build(FilterBank::slaney(n_mels))
    }

    /// Filters read from a model file: `[n_mels][201]`, as whisper.cpp stores them.
    ///
    /// # Errors
    /// [`Error::Filters`] if `n_mels` is 0 or `filters` has another length.
    pub fn with_filters(n_mels: usize, filters: &[f32]) -> Result<Self, Error> {
        if n_mels == 0 || n_mels.checked_mul(N_BINS) != Some(filters.len()) {
            return Err(Error::Filters { n_mels, n_bins: N_BINS, got: filters.len() });
        }
        Ok(Self::build(FilterBank::from_dense(filters)))
    }

    fn build(filters: FilterBank) -> Self {
        // Periodic Hann: the period is N_FFT, not N_FFT - 1.
        let window = (0..N_FFT)
            .map(|i| {
                let phase = std::f64::consts::TAU * i as f64 / N_FFT as f64;
                (0.5 - 0.5 * phase.cos()) as f32
            })
            .collect();
        let fft = RealFftPlanner::<f32>::new().plan_fft_forward(N_FFT);
        Self { filters, window, fft }
    }

    /// Values in a frame.
    pub fn n_mels(&self) -> usize {
        self.filters.n_mels()
    }

    /// The filters, `[n_mels][201]`, as whisper.cpp stores them.
    pub fn filters(&self) -> Vec<f32> {
        self.filters.to_dense()
    }

    /// The spectrogram of `samples` (16 kHz mono) followed by `padding_samples` zeros.
    ///
    /// `n_frames` is `(samples.len() + padding_samples) / 160`. The signal is reflected by 200
    /// samples at both ends, as `torch.stft(center=True)` does, and that transform's last frame is
    /// dropped. Values are `(max(log10(max(power, 1e-10)), top - 8) + 4) / 4`. `top` is the maximum
    /// over the whole result, so a caller that wants the reference's values passes the whole file:
    /// openai-whisper pads by 480 000 samples, faster-whisper 1.2 by 160.
    ///
    /// Inputs of 200 samples or fewer, which the reference refuses, are reflected repeatedly
    /// (a bouncing index), so that any non-zero length works.
    pub fn compute(&self, samples: &[f32], padding_samples: usize) -> Mel {
        self.compute_by(samples, padding_samples, |chunks, task| chunks.iter_mut().for_each(task))
    }

    /// [`compute`](Self::compute) in chunks: `for_each` runs a task on each, in any order or in parallel.
    pub fn compute_by(
        &self,
        samples: &[f32],
        padding_samples: usize,
        for_each: impl Fn(&mut [MelChunk<'_>], &(dyn Fn(&mut MelChunk<'_>) + Sync)),
    ) -> Mel {
        let n_frames = (samples.len() + padding_samples) / HOP;
        let data = vec![0.0f32; n_frames * self.n_mels()];
        self.finish(samples, padding_samples, data, (0..0, f32::NEG_INFINITY), for_each)
    }

    /// [`compute_by`](Self::compute_by) with the frames whose windows lie within `samples` from `log_powers`, a device's kernel.
    /// It gets the samples of these windows and memory `[frames, n_mels]` for `log10(max(power, 1e-10))`, and returns the largest
    /// of these values. It is not called if there are no such frames.
    ///
    /// # Errors
    /// The error of `log_powers`.
    pub fn compute_with<E>(
        &self,
        samples: &[f32],
        padding_samples: usize,
        log_powers: impl FnOnce(&[f32], &mut [f32]) -> Result<f32, E>,
        for_each: impl Fn(&mut [MelChunk<'_>], &(dyn Fn(&mut MelChunk<'_>) + Sync)),
    ) -> Result<Mel, E> {
        let n_mels = self.n_mels();
        let n_frames = (samples.len() + padding_samples) / HOP;
        let mut data = vec![0.0f32; n_frames * n_mels];
        let inside = frames_inside(samples.len(), n_frames);
        let mut top = f32::NEG_INFINITY;
        if !inside.is_empty() {
            let windows = window_start(inside.start)..window_start(inside.end - 1) + N_FFT;
            let out = &mut data[inside.start * n_mels..inside.end * n_mels];
            top = log_powers(&samples[windows], out)?;
        }
        Ok(self.finish(samples, padding_samples, data, (inside, top), for_each))
    }

    /// Window and filters, for a device's kernel.
    pub fn tables(&self) -> LogMelTables<'_> {
        LogMelTables { window: &self.window, hop: HOP, filters: self.filters.bands().collect() }
    }

    /// Computes the frames outside of `done`, whose log10 powers have this maximum, and normalizes all.
    fn finish(
        &self,
        samples: &[f32],
        padding_samples: usize,
        mut data: Vec<f32>,
        (done, done_max): (Range<usize>, f32),
        for_each: impl Fn(&mut [MelChunk<'_>], &(dyn Fn(&mut MelChunk<'_>) + Sync)),
    ) -> Mel {
        let n_mels = self.n_mels();
        let (head, rest) = data.split_at_mut(done.start * n_mels);
        let tail = &mut rest[done.len() * n_mels..];
        let mut chunks = chunks(0, head, n_mels);
        chunks.extend(self::chunks(done.end, tail, n_mels));
        for_each(&mut chunks, &|chunk| self.transform(samples, padding_samples, chunk));
        let top = chunks.iter().fold(done_max, |top, chunk| top.max(chunk.max));
        for_each(&mut self::chunks(0, &mut data, n_mels), &|chunk| {
            for x in &mut *chunk.data {
                *x = (x.max(top - 8.0) + 4.0) / 4.0;
            }
        });
        Mel { n_mels, n_frames: data.len() / n_mels, data }
    }

    /// Computes the log10 mel powers of a chunk and their maximum.
    fn transform(&self, samples: &[f32], padding_samples: usize, chunk: &mut MelChunk<'_>) {
        let mut frame = vec![0.0f32; N_FFT];
        let mut spectrum = self.fft.make_output_vec();
        let mut scratch = self.fft.make_scratch_vec();
        let mut power = [0.0f32; N_BINS];
        let MelChunk { first, data, max } = chunk;
        for (i, mels) in data.chunks_exact_mut(self.n_mels()).enumerate() {
            load_frame(samples, padding_samples, *first + i, &mut frame);
            // Most of a padded file is zeros: their power is zero.
            if frame.iter().all(|&x| x == 0.0) {
                mels.fill(LEAST_POWER.log10());
                *max = max.max(LEAST_POWER.log10());
                continue;
            }
            for (x, w) in frame.iter_mut().zip(&self.window) {
                *x *= w;
            }
            let done = self.fft.process_with_scratch(&mut frame, &mut spectrum, &mut scratch);
            debug_assert!(done.is_ok(), "the buffers come from the plan");
            for (p, bin) in power.iter_mut().zip(&spectrum) {
                *p = bin.norm_sqr();
            }
            self.filters.apply(&power, mels);
            for x in mels {
                *x = x.max(LEAST_POWER).log10();
                *max = max.max(*x);
            }
        }
    }
}

/// Chunks of the frames from `first` on in `data`, `[frames][n_mels]`.
fn chunks(first: usize, data: &mut [f32], n_mels: usize) -> Vec<MelChunk<'_>> {
    let chunks = data.chunks_mut(CHUNK_FRAMES * n_mels).enumerate();
    chunks
        .map(|(i, data)| MelChunk { first: first + i * CHUNK_FRAMES, data, max: f32::NEG_INFINITY })
        .collect()
}

/// First sample of the window of a frame that does not start before the signal.
fn window_start(frame: usize) -> usize {
    frame * HOP - N_FFT / 2
}

/// Range of frames with whole windows, of `n_frames` frames of a signal of `n_samples` samples.
fn frames_inside(n_samples: usize, n_frames: usize) -> Range<usize> {
    let first = (N_FFT / 2).div_ceil(HOP);
    let end = n_samples.checked_sub(N_FFT / 2).map_or(0, |last| last / HOP + 1).min(n_frames);
    if first < end { first..end } else { 0..0 }
}

/// Copies the window of frame `index` out of the reflected, padded signal.
fn load_frame(samples: &[f32], padding_samples: usize, index: usize, frame: &mut [f32]) {
    let start = (index * HOP) as isize - (N_FFT / 2) as isize;
    let inside = start >= 0 && start as usize + N_FFT <= samples.len();
    if inside {
        frame.copy_from_slice(&samples[start as usize..start as usize + N_FFT]);
        return;
    }
    let len = samples.len() + padding_samples;
    for (i, x) in frame.iter_mut().enumerate() {
        let at = reflect(start + i as isize, len);
        *x = samples.get(at).copied().unwrap_or(0.0);
    }
}

/// Mirrors an index into `0..len` without repeating the end samples.
fn reflect(index: isize, len: usize) -> usize {
    if len < 2 {
        return 0;
    }
    let period = 2 * (len - 1);
    let wrapped = index.rem_euclid(period as isize) as usize;
    wrapped.min(period - wrapped)
}

impl Mel {
    /// The values of frame `index`.
    ///
    /// # Panics
    /// If `index >= n_frames`.
    pub fn frame(&self, index: usize) -> &[f32] {
        &self.data[index * self.n_mels..(index + 1) * self.n_mels]
    }

    /// `n_frames` frames from `start_frame` on, `[n_frames][n_mels]`; frames past the end are 0.0,
    /// as both Python packages pad (`pad_or_trim` on the spectrogram, not on the samples).
    pub fn window(&self, start_frame: usize, n_frames: usize) -> Vec<f32> {
        let start = start_frame.min(self.n_frames);
        let end = start.saturating_add(n_frames).min(self.n_frames);
        let mut out = self.data[start * self.n_mels..end * self.n_mels].to_vec();
        out.resize(n_frames * self.n_mels, 0.0);
        out
    }
}

#[cfg(test)]
mod tests;
