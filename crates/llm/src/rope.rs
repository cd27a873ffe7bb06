//! Cosines and sines of rotary embeddings, computed on the host in f64, once for each batch.
//!
//! Pair `i` of `R/2` is rotated by `pos * f[i]`: `f[i] = base^(-2i/R)`, changed by RoPE scaling, then divided by the
//! file's frequency factor. Cosine and sine are multiplied by `mscale`.

use std::f64::consts::PI;

use crate::config::{RopeConfig, RopeScaling};

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
pub(crate) struct RopeTable {
    /// `[R/2]`: radians per position.
    frequencies: Vec<f64>,
    /// Factor of cosines and sines (YaRN, LongRoPE).
    mscale: f64,
}

impl RopeTable {
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
                let yarn = if factor > 1.0 { 1.0 + 0.1 * factor.ln() } else { 1.0 };
                mscale = yarn * f64::from(attn_factor);
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
        Self { frequencies, mscale }
    }

    /// Rotated channels of a head, `R`.
    pub(crate) fn n_rot(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// Writes `R/2` cosines, then `R/2` sines, for each position: `[T, R]`.
    pub(crate) fn fill(&self, pos: &[u32], out: &mut Vec<f32>) {
        out.clear();
        for &pos in pos {
            let angle = |f: &f64| f64::from(pos) * f;
            out.extend(self.frequencies.iter().map(|f| (angle(f).cos() * self.mscale) as f32));
            out.extend(self.frequencies.iter().map(|f| (angle(f).sin() * self.mscale) as f32));
        }
    }
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
    use stonechat_nn::RopePairs;

    use super::{RopeFreqFactors, RopeTable};
    use crate::config::{RopeConfig, RopeScaling};

    fn rope(scaling: RopeScaling) -> RopeConfig {
        RopeConfig { pairs: RopePairs::Neox, n_rot: 8, freq_base: 10_000.0, scaling }
    }

    #[test]
    fn plain_frequencies_are_powers_of_the_base() {
        let table = RopeTable::new(&rope(RopeScaling::None), &RopeFreqFactors::default(), 64);
        for (f, expected) in table.frequencies.iter().zip([1.0, 0.1, 0.01, 0.001]) {
            assert!((f - expected).abs() < 1e-12, "{f}");
        }
        let mut out = Vec::new();
        table.fill(&[0, 3], &mut out);
        assert_eq!(out[..8], [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
        assert!((out[8] - 3f32.cos()).abs() < 1e-6 && (out[12] - 3f32.sin()).abs() < 1e-6);
    }

    #[test]
    fn long_context_takes_the_long_factors() {
        let factors = RopeFreqFactors {
            always: None,
            short: Some(vec![1.0, 1.0, 1.0, 2.0]),
            long: Some(vec![4.0; 4]),
        };
        let scaling = RopeScaling::Long { n_ctx_orig: 128, attn_factor: 1.5 };
        let short = RopeTable::new(&rope(scaling), &factors, 128);
        let long = RopeTable::new(&rope(scaling), &factors, 129);
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
        let table = RopeTable::new(&rope(scaling), &RopeFreqFactors::default(), 4096);
        assert!((table.frequencies[0] - 1.0).abs() < 1e-12);
        assert!((table.frequencies[3] - 0.001 / 4.0).abs() < 1e-12);
        assert!((table.mscale - (1.0 + 0.1 * 4f64.ln())).abs() < 1e-12);
    }
}
