//! Log-mel powers in f64.

use std::f64::consts::TAU;

use stonechat_compute::LogMelTables;
use stonechat_nn::{Error, LogMelKernel};

/// Log-mel powers by a DFT in f64, sample by sample and bin by bin.
#[derive(Debug)]
pub struct ReferenceLogMel {
    window: Vec<f64>,
    hop: usize,
    /// First bin and weights.
    filters: Vec<(usize, Vec<f64>)>,
}

impl ReferenceLogMel {
    /// The kernel with tables.
    #[must_use]
    pub fn new(tables: &LogMelTables<'_>) -> Self {
        let widen = |values: &[f32]| values.iter().copied().map(f64::from).collect();
        let filters = tables.filters.iter();
        let filters = filters.map(|filter| (filter.first_bin, widen(filter.weights)));
        Self { window: widen(tables.window), hop: tables.hop, filters: filters.collect() }
    }
}

impl LogMelKernel for ReferenceLogMel {
    fn log_powers(&self, samples: &[f32], out: &mut [f32]) -> Result<f32, Error> {
        let n_fft = self.window.len();
        let angle = |i: usize| TAU * i as f64 / n_fft as f64;
        let angles: Vec<(f64, f64)> = (0..n_fft).map(|i| angle(i).sin_cos()).collect();
        for (frame, mels) in out.chunks_exact_mut(self.filters.len()).enumerate() {
            let samples = &samples[frame * self.hop..][..n_fft];
            let y = samples.iter().zip(&self.window).map(|(x, w)| f64::from(*x) * w);
            let y: Vec<f64> = y.collect();
            let power = |bin: usize| {
                let (mut re, mut im) = (0.0, 0.0);
                for (n, y) in y.iter().enumerate() {
                    let (sin, cos) = angles[n * bin % n_fft];
                    re += y * cos;
                    im += y * sin;
                }
                re * re + im * im
            };
            let powers: Vec<f64> = (0..=n_fft / 2).map(power).collect();
            for (mel, (first, weights)) in mels.iter_mut().zip(&self.filters) {
                let sum: f64 = weights.iter().zip(&powers[*first..]).map(|(w, p)| w * p).sum();
                *mel = sum.max(1e-10).log10() as f32;
            }
        }
        Ok(out.iter().copied().fold(f32::NEG_INFINITY, f32::max))
    }
}
