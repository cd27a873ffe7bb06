//! Angles of rotary embeddings, computed on the host in f64 once a batch.

use std::f64::consts::PI;

use crate::config::{RopeConfig, RopeScaling};

/// Divisors of the frequencies that a file carries, `[R/2]` each.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct RopeDivisors {
    /// Llama 3's, for any context.
    pub(crate) always: Option<Vec<f32>>,
    /// `LongRoPE`'s up to the original context length.
    pub(crate) short: Option<Vec<f32>>,
    /// `LongRoPE`'s beyond it.
    pub(crate) long: Option<Vec<f32>>,
}

/// Frequencies of a rotary embedding for a context length.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RopeTable {
    /// Radians a position of each pair.
    frequencies: Vec<f64>,
    /// Factor of cosines and sines.
    magnitude: f64,
}

impl RopeTable {
    pub(crate) fn new(rope: &RopeConfig, divisors: &RopeDivisors, n_ctx: usize) -> Self {
        let n = rope.n_rot as f64;
        let base = f64::from(rope.freq_base);
        let mut frequencies: Vec<f64> =
            (0..rope.n_rot / 2).map(|i| base.powf(-2.0 * i as f64 / n)).collect();
        let mut magnitude = 1.0;
        let mut chosen = divisors.always.as_ref();
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
                let own = if factor > 1.0 { 1.0 + 0.1 * factor.ln() } else { 1.0 };
                magnitude = own * f64::from(attn_factor);
            }
            RopeScaling::Long { n_ctx_orig, attn_factor } => {
                let by_length = if n_ctx > n_ctx_orig { &divisors.long } else { &divisors.short };
                chosen = by_length.as_ref().or(chosen);
                magnitude = f64::from(attn_factor);
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
        if let Some(divisors) = chosen {
            for (f, &d) in frequencies.iter_mut().zip(divisors) {
                *f /= f64::from(d);
            }
        }
        Self { frequencies, magnitude }
    }

    /// Channels that are rotated.
    pub(crate) fn n_rot(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// Writes cosines then sines of every position, `[T, R]`.
    pub(crate) fn fill(&self, pos: &[u32], out: &mut Vec<f32>) {
        out.clear();
        for &pos in pos {
            let angle = |f: &f64| f64::from(pos) * f;
            out.extend(self.frequencies.iter().map(|f| (angle(f).cos() * self.magnitude) as f32));
            out.extend(self.frequencies.iter().map(|f| (angle(f).sin() * self.magnitude) as f32));
        }
    }
}

/// The pairs between which `YaRN` passes from extrapolation to interpolation.
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

    use super::{RopeDivisors, RopeTable};
    use crate::config::{RopeConfig, RopeScaling};

    fn rope(scaling: RopeScaling) -> RopeConfig {
        RopeConfig { pairs: RopePairs::Neox, n_rot: 8, freq_base: 10_000.0, scaling }
    }

    #[test]
    fn plain_frequencies_are_powers_of_the_base() {
        let table = RopeTable::new(&rope(RopeScaling::None), &RopeDivisors::default(), 64);
        for (f, expected) in table.frequencies.iter().zip([1.0, 0.1, 0.01, 0.001]) {
            assert!((f - expected).abs() < 1e-12, "{f}");
        }
        let mut out = Vec::new();
        table.fill(&[0, 3], &mut out);
        assert_eq!(out[..8], [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
        assert!((out[8] - 3f32.cos()).abs() < 1e-6 && (out[12] - 3f32.sin()).abs() < 1e-6);
    }

    #[test]
    fn long_context_takes_the_long_divisors() {
        let divisors = RopeDivisors {
            always: None,
            short: Some(vec![1.0, 1.0, 1.0, 2.0]),
            long: Some(vec![4.0; 4]),
        };
        let scaling = RopeScaling::Long { n_ctx_orig: 128, attn_factor: 1.5 };
        let short = RopeTable::new(&rope(scaling), &divisors, 128);
        let long = RopeTable::new(&rope(scaling), &divisors, 129);
        assert!((short.frequencies[3] - 0.0005).abs() < 1e-12);
        assert!((long.frequencies[0] - 0.25).abs() < 1e-12);
        assert_eq!(long.magnitude, 1.5);
    }

    #[test]
    fn yarn_keeps_fast_pairs_and_stretches_slow_ones() {
        let scaling = RopeScaling::Yarn {
            factor: 4.0,
            n_ctx_orig: 1024,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attn_factor: 1.0,
            truncate: true,
        };
        let table = RopeTable::new(&rope(scaling), &RopeDivisors::default(), 4096);
        assert!((table.frequencies[0] - 1.0).abs() < 1e-12);
        assert!((table.frequencies[3] - 0.001 / 4.0).abs() < 1e-12);
        assert!((table.magnitude - (1.0 + 0.1 * 4f64.ln())).abs() < 1e-12);
    }
}
