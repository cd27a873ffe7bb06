//! Rotary embeddings: configuration, and the table of cosines and sines, computed on the host in f64 when a state is made.
//!
//! Pair `i` of `R/2` is rotated by `pos * f[i]`: `f[i] = base^(-2i/R)`, changed by RoPE scaling, then divided by the
//! file's frequency factor. Cosine and sine are multiplied by `mscale`.

use std::f64::consts::PI;

use stonechat_nn::op::Weight;
use stonechat_nn::{Device, Error, RopePairs};

/// Rotary embedding (RoPE).
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct RopeConfig {
    /// Channels that form a pair.
    pub pairs: RopePairs,
    /// Rotated channels of a head, `R`.
    pub n_rot: usize,
    /// Base of the frequencies.
    pub freq_base: f32,
    /// RoPE scaling.
    pub scaling: RopeScaling,
    /// Growth of the rotated heads with their position.
    pub temperature: Option<Temperature>,
}

/// Growth of queries with their position `p`: a factor `1 + scale * ln(1 + floor(p / n_ctx))` (Llama 4, Ministral 3).
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Temperature {
    /// Factor of the logarithm.
    pub scale: f32,
    /// Context length before scaling.
    pub n_ctx: usize,
}

impl Temperature {
    fn factor(self, position: usize) -> f64 {
        1.0 + f64::from(self.scale) * (1.0 + (position / self.n_ctx) as f64).ln()
    }
}

/// RoPE scaling, for contexts longer than those in training.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum RopeScaling {
    /// None; the file may still have frequency factors (Llama 3).
    None,
    /// Positions divided by a factor (Chen et al. 2023).
    Linear {
        /// The factor.
        factor: f32,
    },
    /// YaRN (Peng et al. 2023): low frequencies divided, high ones kept, with a ramp between.
    Yarn {
        /// The factor.
        factor: f32,
        /// Context length before scaling.
        n_ctx_orig: usize,
        /// Rotations in `n_ctx_orig` above which a frequency is unchanged.
        beta_fast: f32,
        /// Rotations in `n_ctx_orig` below which a frequency is divided by the factor.
        beta_slow: f32,
        /// Factor of `mscale`, on top of YaRN's own.
        attn_factor: f32,
        /// Whether the ends of the ramp are rounded to whole pairs.
        truncate: bool,
    },
    /// LongRoPE (Ding et al. 2024): frequency factors of the file, the long ones if the context
    /// is longer than `n_ctx_orig`.
    Long {
        /// Context length before scaling.
        n_ctx_orig: usize,
        /// `mscale`: factor of cosines and sines.
        attn_factor: f32,
    },
    /// Llama 3.1: low frequencies divided, high ones kept, with a ramp between.
    Llama3 {
        /// Divisor of low frequencies.
        factor: f32,
        /// Wavelengths above `n_ctx_orig / low_freq_factor` are low.
        low_freq_factor: f32,
        /// Wavelengths below `n_ctx_orig / high_freq_factor` are high.
        high_freq_factor: f32,
        /// Context length before scaling.
        n_ctx_orig: usize,
    },
}

/// Positions that one task computes.
const TASK_POSITIONS: usize = 64;

/// Frequency factors of a file, `[R/2]` each: divisors of the frequencies.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct RopeFreqFactors {
    /// Llama 3: for any context length.
    pub(crate) always: Option<Vec<f32>>,
    /// LongRoPE: for contexts up to the original length.
    pub(crate) short: Option<Vec<f32>>,
    /// LongRoPE: for longer contexts.
    pub(crate) long: Option<Vec<f32>>,
}

/// Scaled frequencies of a rotary embedding, for a context length.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RopeFrequencies {
    /// `[R/2]`: radians per position.
    frequencies: Vec<f64>,
    /// Factor of cosines and sines (YaRN, LongRoPE).
    mscale: f64,
    /// Further factor of cosines and sines, by position.
    temperature: Option<Temperature>,
}

impl RopeFrequencies {
    pub(crate) fn new(rope: &RopeConfig, factors: &RopeFreqFactors, n_ctx: usize) -> Self {
        let n = rope.n_rot as f64;
        let base = f64::from(rope.freq_base);
        let mut frequencies: Vec<f64> =
            (0..rope.n_rot / 2).map(|i| base.powf(-2.0 * i as f64 / n)).collect();
        let mut mscale = 1.0;
        let mut freq_factors = factors.always.as_ref();
        match rope.scaling {
            RopeScaling::None => {}
            RopeScaling::Linear { factor } => {
                frequencies.iter_mut().for_each(|f| *f /= f64::from(factor));
            }
            RopeScaling::Yarn { factor, attn_factor, .. } => {
                let factor = f64::from(factor);
                let (low, high) = yarn_ramp(rope);
                for (i, f) in frequencies.iter_mut().enumerate() {
                    let ramp = ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                    *f = *f / factor * ramp + *f * (1.0 - ramp);
                }
                mscale = yarn_mscale(factor, 1.0) * f64::from(attn_factor);
            }
            RopeScaling::Long { n_ctx_orig, attn_factor } => {
                let by_length = if n_ctx > n_ctx_orig { &factors.long } else { &factors.short };
                freq_factors = by_length.as_ref().or(freq_factors);
                mscale = f64::from(attn_factor);
            }
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, n_ctx_orig } => {
                let (factor, n_ctx) = (f64::from(factor), n_ctx_orig as f64);
                let (low, high) = (f64::from(low_freq_factor), f64::from(high_freq_factor));
                for f in &mut frequencies {
                    let turns = n_ctx * *f / (2.0 * PI);
                    let smooth = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                    *f = *f / factor * (1.0 - smooth) + *f * smooth;
                }
            }
        }
        if let Some(freq_factors) = freq_factors {
            for (f, &factor) in frequencies.iter_mut().zip(freq_factors) {
                *f /= f64::from(factor);
            }
        }
        Self { frequencies, mscale, temperature: rope.temperature }
    }

    /// Rotated channels of a head, `R`.
    fn n_rot(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// The table of the positions `0..n_positions`, `[n_positions, R]`: `R/2` cosines, then `R/2` sines of a position.
    ///
    /// # Errors
    /// If the device has no memory for the table.
    pub(crate) fn table(&self, device: &Device, n_positions: usize) -> Result<Weight, Error> {
        let n_rot = self.n_rot();
        let mut values = vec![0.0; n_positions * n_rot];
        let rows = values.chunks_mut(TASK_POSITIONS * n_rot);
        let mut tasks: Vec<_> = (0..).step_by(TASK_POSITIONS).zip(rows).collect();
        device.for_each(&mut tasks, |(first, rows)| self.fill(*first, rows));
        device.load_values(&values)
    }

    /// Computes the rows of the positions from `first`.
    fn fill(&self, first: usize, rows: &mut [f32]) {
        for (position, row) in (first..).zip(rows.chunks_exact_mut(self.n_rot())) {
            let (cos, sin) = row.split_at_mut(self.frequencies.len());
            let scale = self.mscale * self.temperature.map_or(1.0, |t| t.factor(position));
            for ((f, cos), sin) in self.frequencies.iter().zip(cos).zip(sin) {
                let angle = position as f64 * f;
                *cos = (angle.cos() * scale) as f32;
                *sin = (angle.sin() * scale) as f32;
            }
        }
    }
}

/// YaRN's `mscale` of a factor, with a multiplier of its logarithm (`DeepSeek`).
pub(crate) fn yarn_mscale(factor: f64, multiplier: f64) -> f64 {
    if factor > 1.0 { 1.0 + 0.1 * multiplier * factor.ln() } else { 1.0 }
}

/// YaRN's ramp `(low, high)`: pairs below `low` keep their frequency, pairs above `high` are divided by the factor.
fn yarn_ramp(rope: &RopeConfig) -> (f64, f64) {
    let RopeScaling::Yarn { n_ctx_orig, beta_fast, beta_slow, truncate, .. } = rope.scaling else {
        return (0.0, 0.0);
    };
    let n = rope.n_rot as f64;
    let pair = |beta: f32| {
        n * (n_ctx_orig as f64 / (f64::from(beta) * 2.0 * PI)).ln()
            / (2.0 * f64::from(rope.freq_base).ln())
    };
    let (mut low, mut high) = (pair(beta_fast), pair(beta_slow));
    if truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    (low.max(0.0), high.min(n - 1.0))
}

#[cfg(test)]
mod tests {
    use stonechat_nn::{Cpu, RopePairs};

    use super::{Device, RopeConfig, RopeFreqFactors, RopeFrequencies, RopeScaling, Temperature};

    fn rope(scaling: RopeScaling) -> RopeConfig {
        let pairs = RopePairs::Neox;
        RopeConfig { pairs, n_rot: 8, freq_base: 10_000.0, scaling, temperature: None }
    }

    #[test]
    fn plain_frequencies_are_powers_of_the_base() {
        let table = RopeFrequencies::new(&rope(RopeScaling::None), &RopeFreqFactors::default(), 64);
        for (f, expected) in table.frequencies.iter().zip([1.0, 0.1, 0.01, 0.001]) {
            assert!((f - expected).abs() < 1e-12, "{f}");
        }
    }

    #[test]
    fn tables_hold_cosines_then_sines_of_every_position() {
        let device = Device::from(Cpu::new(2).unwrap());
        let frequencies = vec![1.0, 0.1, 0.01, 0.001];
        let rope = RopeFrequencies { frequencies, mscale: 1.5, temperature: None };
        for n_positions in [1, 64, 129] {
            let mut table = vec![0.0; n_positions * 8];
            rope.fill(0, &mut table);
            for (position, row) in table.chunks_exact(8).enumerate() {
                for (i, f) in rope.frequencies.iter().enumerate() {
                    let angle = position as f64 * f;
                    assert_eq!(row[i], (1.5 * angle.cos()) as f32, "cosine {i} of {position}");
                    assert_eq!(row[4 + i], (1.5 * angle.sin()) as f32, "sine {i} of {position}");
                }
            }
            assert_eq!(rope.table(&device, n_positions).unwrap().info().cols, table.len());
        }
    }

    #[test]
    fn queries_grow_with_their_position() {
        let temperature = Some(Temperature { scale: 0.5, n_ctx: 4 });
        let rope = RopeFrequencies { frequencies: vec![0.0], mscale: 2.0, temperature };
        let mut table = vec![0.0; 9 * 2];
        rope.fill(0, &mut table);
        for (position, n) in [(0, 1.0), (3, 1.0), (4, 2.0), (7, 2.0), (8, 3.0)] {
            let expected = (2.0 * (1.0 + 0.5 * f64::ln(n))) as f32;
            assert_eq!(table[2 * position..2 * position + 2], [expected, 0.0], "{position}");
        }
    }

    #[test]
    fn long_context_takes_the_long_factors() {
        let factors = RopeFreqFactors {
            always: None,
            short: Some(vec![1.0, 1.0, 1.0, 2.0]),
            long: Some(vec![4.0; 4]),
        };
        let scaling = RopeScaling::Long { n_ctx_orig: 128, attn_factor: 1.5 };
        let short = RopeFrequencies::new(&rope(scaling), &factors, 128);
        let long = RopeFrequencies::new(&rope(scaling), &factors, 129);
        assert!((short.frequencies[3] - 0.0005).abs() < 1e-12);
        assert!((long.frequencies[0] - 0.25).abs() < 1e-12);
        assert_eq!(long.mscale, 1.5);
    }

    #[test]
    fn yarn_keeps_fast_pairs_and_divides_slow_ones() {
        let scaling = RopeScaling::Yarn {
            factor: 4.0,
            n_ctx_orig: 1024,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attn_factor: 1.0,
            truncate: true,
        };
        let table = RopeFrequencies::new(&rope(scaling), &RopeFreqFactors::default(), 4096);
        assert!((table.frequencies[0] - 1.0).abs() < 1e-12);
        assert!((table.frequencies[3] - 0.001 / 4.0).abs() < 1e-12);
        assert!((table.mscale - (1.0 + 0.1 * 4f64.ln())).abs() < 1e-12);
    }
}
