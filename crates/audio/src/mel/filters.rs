//! The mel filter bank, in a form that touches only the bins under each triangle.

use stonechat_compute::MelFilter;

use super::N_BINS;

/// Triangular mel filter: weights over `first_bin..first_bin + weights.len()`.
#[derive(Debug, Clone)]
struct Band {
    first_bin: usize,
    weights: Vec<f32>,
}

/// `n_mels` triangles over the `N_BINS` bins of a 400-point spectrum at 16 kHz.
#[derive(Debug, Clone)]
pub(super) struct FilterBank {
    bands: Vec<Band>,
}

impl FilterBank {
    /// Slaney triangles of unit area from 0 Hz to 8 kHz, computed in f64 and rounded to f32.
    ///
    /// Source: `librosa.filters.mel(sr=16000, n_fft=400, n_mels=n_mels)`, the source of
    /// OpenAI's filters.
    pub(super) fn slaney(n_mels: usize) -> Self {
        let top = hz_to_mel(8000.0);
        let edges: Vec<f64> =
            (0..n_mels + 2).map(|i| mel_to_hz(top * i as f64 / (n_mels + 1) as f64)).collect();
        let mut dense = vec![0.0f32; n_mels * N_BINS];
        for (band, row) in dense.chunks_exact_mut(N_BINS).enumerate() {
            let (low, centre, high) = (edges[band], edges[band + 1], edges[band + 2]);
            for (bin, weight) in row.iter_mut().enumerate() {
                let hz = bin as f64 * 40.0;
                let rising = (hz - low) / (centre - low);
                let falling = (high - hz) / (high - centre);
                *weight = (rising.min(falling).max(0.0) * 2.0 / (high - low)) as f32;
            }
        }
        Self::from_dense(&dense)
    }

    /// From rows `[n_mels][N_BINS]`; zeros at both ends of a row are dropped.
    pub(super) fn from_dense(rows: &[f32]) -> Self {
        let bands = rows
            .chunks_exact(N_BINS)
            .map(|row| {
                let first_bin = row.iter().position(|&w| w != 0.0).unwrap_or(0);
                let end = row.iter().rposition(|&w| w != 0.0).map_or(first_bin, |last| last + 1);
                Band { first_bin, weights: row[first_bin..end].to_vec() }
            })
            .collect();
        Self { bands }
    }

    /// The rows `[n_mels][N_BINS]`.
    pub(super) fn to_dense(&self) -> Vec<f32> {
        let mut rows = vec![0.0; self.bands.len() * N_BINS];
        for (band, row) in self.bands.iter().zip(rows.chunks_exact_mut(N_BINS)) {
            row[band.first_bin..band.first_bin + band.weights.len()].copy_from_slice(&band.weights);
        }
        rows
    }

    /// The triangles.
    pub(super) fn bands(&self) -> impl Iterator<Item = MelFilter<'_>> {
        let bands = self.bands.iter();
        bands.map(|band| MelFilter { first_bin: band.first_bin, weights: &band.weights })
    }

    pub(super) fn n_mels(&self) -> usize {
        self.bands.len()
    }

    /// `mels[m] = sum_bin filter[m][bin] * power[bin]`; `power` has `N_BINS` values.
    pub(super) fn apply(&self, power: &[f32], mels: &mut [f32]) {
        for (band, mel) in self.bands.iter().zip(mels) {
            let bins = &power[band.first_bin..band.first_bin + band.weights.len()];
            *mel = band.weights.iter().zip(bins).map(|(w, p)| w * p).sum();
        }
    }
}

// Slaney's Auditory Toolbox scale: linear below 1 kHz, 27 steps per factor 6.4 above.
const HZ_PER_MEL: f64 = 200.0 / 3.0;
const LOG_START_HZ: f64 = 1000.0;
const LOG_START_MEL: f64 = LOG_START_HZ / HZ_PER_MEL;

fn log_step() -> f64 {
    6.4f64.ln() / 27.0
}

fn hz_to_mel(hz: f64) -> f64 {
    if hz < LOG_START_HZ {
        hz / HZ_PER_MEL
    } else {
        LOG_START_MEL + (hz / LOG_START_HZ).ln() / log_step()
    }
}

fn mel_to_hz(mel: f64) -> f64 {
    if mel < LOG_START_MEL {
        mel * HZ_PER_MEL
    } else {
        LOG_START_HZ * ((mel - LOG_START_MEL) * log_step()).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_scales_are_inverse_and_meet_at_1_khz() {
        for hz in [0.0, 40.0, 999.0, 1000.0, 1001.0, 4000.0, 8000.0] {
            assert!((mel_to_hz(hz_to_mel(hz)) - hz).abs() < 1e-9, "{hz}");
        }
        assert!((hz_to_mel(8000.0) - 45.245_640_471_924_965).abs() < 1e-12);
    }

    #[test]
    fn sparse_product_equals_the_dense_one() {
        let dense: Vec<f32> =
            (0..3 * N_BINS).map(|i| if i % 7 == 0 { 0.0 } else { i as f32 * 1e-3 }).collect();
        let power: Vec<f32> = (0..N_BINS).map(|i| (i as f32 * 0.37).sin().abs()).collect();
        let mut got = [0.0; 3];
        FilterBank::from_dense(&dense).apply(&power, &mut got);
        for (row, got) in dense.chunks_exact(N_BINS).zip(got) {
            let want: f64 =
                row.iter().zip(&power).map(|(&w, &p)| f64::from(w) * f64::from(p)).sum();
            assert!((f64::from(got) - want).abs() <= 1e-5 * want, "{got} {want}");
        }
    }
}
