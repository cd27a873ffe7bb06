//! Log mel powers of audio.

use std::f64::consts::TAU;

use bytemuck::{Pod, Zeroable};

use super::launch;
use crate::cuda::{Buffer, CommandList, Gpu};
use crate::{LogMelTables, MelFilter, Result};

/// Samples of a window.
pub const N_FFT: usize = 400;
/// Samples from one window to the next.
pub const HOP: usize = 160;
/// Frequencies of a window, from 0 to half the sample rate.
const N_BINS: usize = N_FFT / 2 + 1;
/// Frames of a block.
const FRAMES: usize = 8;
/// Threads of a block.
const THREADS: usize = 128;

/// Window, angles and filters on the device.
#[derive(Debug)]
pub struct LogMelBuffers {
    window: Buffer,
    angles: Buffer,
    filters: Buffer,
    weights: Buffer,
    n_mels: usize,
}

impl LogMelBuffers {
    /// Uploads tables; `None` if the kernel has another window or hop.
    ///
    /// # Errors
    /// If the device failed or is out of memory.
    ///
    /// # Panics
    /// If a filter has weights of bins above 200.
    pub fn new(gpu: &Gpu, tables: &LogMelTables<'_>) -> Result<Option<Self>> {
        let LogMelTables { window, hop, filters } = tables;
        if (window.len(), *hop) != (N_FFT, HOP) {
            return Ok(None);
        }
        let (starts, weights) = pack(filters);
        let load = |bytes: &[u8]| {
            let buffer = Buffer::new(gpu, bytes.len())?;
            gpu.upload(&buffer, 0, bytes)?;
            Ok(buffer)
        };
        Ok(Some(Self {
            window: load(bytemuck::cast_slice(window))?,
            angles: load(bytemuck::cast_slice(&angles()))?,
            filters: load(bytemuck::cast_slice(&starts))?,
            weights: load(bytemuck::cast_slice(&weights))?,
            n_mels: filters.len(),
        }))
    }

    /// Values of a frame.
    #[must_use]
    pub fn n_mels(&self) -> usize {
        self.n_mels
    }
}

/// First bin and first weight of each filter, and an end; all weights.
fn pack(filters: &[MelFilter<'_>]) -> (Vec<[u32; 2]>, Vec<f32>) {
    let (mut starts, mut all) = (Vec::new(), Vec::new());
    for &MelFilter { first_bin, weights } in filters {
        let end = first_bin + weights.len();
        assert!(end <= N_BINS, "filter of bins up to {end} of {N_BINS}");
        starts.push([first_bin as u32, all.len() as u32]);
        all.extend_from_slice(weights);
    }
    starts.push([0, all.len() as u32]);
    (starts, all)
}

/// Cosine and sine of the angle of sample `n` for each thread, `[N_BINS, THREADS]`.
fn angles() -> Vec<[f32; 2]> {
    let angle = |n: usize, k: usize| {
        // The remainder keeps the angle exact.
        let (sin, cos) = (TAU * (n * k % N_FFT) as f64 / N_FFT as f64).sin_cos();
        if k <= N_FFT / 4 { [cos as f32, sin as f32] } else { [0.0; 2] }
    };
    (0..N_BINS).flat_map(|n| (0..THREADS).map(move |k| angle(n, k))).collect()
}

/// Number of maxima for a number of frames.
#[must_use]
pub fn n_maxima(n_frames: usize) -> usize {
    n_frames.div_ceil(FRAMES)
}

/// Number of samples for a number of frames.
#[must_use]
pub fn n_samples(n_frames: usize) -> usize {
    n_frames.saturating_sub(1) * HOP + N_FFT
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct LogMelParams {
    samples: u64,
    window: u64,
    angles: u64,
    filters: u64,
    weights: u64,
    out: u64,
    maxima: u64,
    n_frames: u32,
    n_mels: u32,
}

/// `log10(max(power, 1e-10))` of each mel of the [`n_samples`] samples at an address, `[n_frames, n_mels]`, and at the second address
/// of `out` [`n_maxima`] values, the largest of which is the largest of all.
pub fn log_mel(
    list: &mut CommandList,
    tables: &LogMelBuffers,
    (out, maxima): (u64, u64),
    samples: u64,
    n_frames: usize,
) {
    let params = LogMelParams {
        samples,
        window: tables.window.address(),
        angles: tables.angles.address(),
        filters: tables.filters.address(),
        weights: tables.weights.address(),
        out,
        maxima,
        n_frames: n_frames as u32,
        n_mels: tables.n_mels as u32,
    };
    launch(list, ("log_mel", "log_mel"), [n_maxima(n_frames), 1, 1], THREADS, &params);
}

#[cfg(test)]
mod tests {
    use super::{N_FFT, THREADS, angles, pack};
    use crate::MelFilter;

    #[test]
    fn weights_of_a_filter_end_where_the_next_begin() {
        let filters = [(0, &[1.0, 2.0][..]), (7, &[]), (198, &[3.0, 4.0, 5.0])];
        let filters = filters.map(|(first_bin, weights)| MelFilter { first_bin, weights });
        let (starts, weights) = pack(&filters);
        assert_eq!(starts, [[0, 0], [7, 2], [198, 2], [0, 5]]);
        assert_eq!(weights, [1.0, 2.0, 3.0, 4.0, 5.0]);
    }

    #[test]
    fn sums_over_even_and_odd_samples_give_the_spectrum() {
        let x: Vec<f64> = (0..N_FFT).map(|n| (n as f64 * 0.7).sin() + (n % 13) as f64).collect();
        let angles = angles();
        let angle = |n: usize, k: usize| angles[n * THREADS + k].map(f64::from);
        let power = |bin: usize| {
            let at = |n: usize| std::f64::consts::TAU * (n * bin) as f64 / N_FFT as f64;
            let re: f64 = (0..N_FFT).map(|n| x[n] * at(n).cos()).sum();
            let im: f64 = (0..N_FFT).map(|n| x[n] * at(n).sin()).sum();
            re * re + im * im
        };
        for k in [0, 1, 57, 99, 100] {
            // Cosine and sine sums over the samples of each parity, as in the kernel.
            let mut sums = [[0.0; 2]; 2];
            for n in 0..=N_FFT / 2 {
                let is_pair = n > 0 && n < N_FFT / 2;
                let (low, high) = (x[n], if is_pair { x[N_FFT - n] } else { 0.0 });
                let [cos, sin] = angle(n, k);
                sums[n % 2][0] += (low + high) * cos;
                sums[n % 2][1] += if is_pair { (low - high) * sin } else { 0.0 };
            }
            let [[ca, sa], [cb, sb]] = sums;
            for (bin, sign) in [(k, 1.0), (N_FFT / 2 - k, -1.0)] {
                let (re, im) = (ca + sign * cb, sa + sign * sb);
                let (got, want) = (re * re + im * im, power(bin));
                assert!((got - want).abs() < 1e-5 * (want + 1.0), "bin {bin}: {got}, {want}");
            }
        }
    }
}
