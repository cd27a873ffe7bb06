//! `IQ4_NL`: 32 values of 16 uneven levels with one scale, 4.5 bits per element.

use bytemuck::{Pod, Zeroable};
use stonechat_compute::DType;

use super::definition::{Block, Half, QuantizeBlock, nibbles, reciprocal, signed_max};
use super::search::GROUP_MAX_EPS;

/// The levels, ascending, denser around 0 (`kvalues_iq4nl` of llama.cpp).
pub(crate) const LEVELS: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// `x[i] = d * LEVELS[q[i]]`.
///
/// ```text
/// byte 0..2    d, f16
/// byte 2..18   qs[j]: bits 0..4 = q[j], bits 4..8 = q[j + 16]
/// ```
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockIq4Nl {
    /// Scale.
    pub d: Half,
    /// Levels.
    pub qs: [u8; 16],
}

impl Block for BlockIq4Nl {
    const DTYPE: DType = DType::Iq4Nl;
    type Values = [f32; 32];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 32]) {
        dequantize_levels(self.d.to_f32(), &LEVELS, &self.qs, out);
    }
}

impl QuantizeBlock for BlockIq4Nl {
    fn quantize(x: &[f32; 32]) -> Self {
        let scale = best_scale(x);
        Self { d: Half::from_f32(scale), qs: pack_levels(reciprocal(scale), x) }
    }
}

/// `scale * levels[q]` of 32 nibbles, the low ones first.
#[inline(always)]
pub(super) fn dequantize_levels(scale: f32, levels: &[i8; 16], qs: &[u8; 16], out: &mut [f32; 32]) {
    let table = levels.map(|level| scale * f32::from(level));
    let q = nibbles(qs);
    for j in 0..32 {
        out[j] = table[usize::from(q[j] & 15)];
    }
}

/// The levels nearest to `inverse * x`, packed.
pub(super) fn pack_levels(inverse: f32, x: &[f32; 32]) -> [u8; 16] {
    let q = x.map(|v| nearest_level(inverse * v) as u8);
    std::array::from_fn(|j| q[j] | q[j + 16] << 4)
}

/// The index of the level nearest to `x`, the higher one in the middle between two.
fn nearest_level(x: f32) -> usize {
    let level = |i: usize| f32::from(LEVELS[i]);
    if x <= level(0) {
        return 0;
    }
    let above = (1..15).find(|&i| x < level(i)).unwrap_or(15);
    if x - level(above - 1) < level(above) - x { above - 1 } else { above }
}

/// The scale that minimises the error weighted by `x^2`, over 16 ways to place the largest value.
///
/// The order of the f32 operations is part of the definition. Source: `quantize_row_iq4_nl_impl`
/// of llama.cpp's `ggml-quants.c`, as `ggml_quantize_chunk` calls it without weights.
pub(super) fn best_scale(x: &[f32; 32]) -> f32 {
    let max = signed_max(x);
    if max.abs() < GROUP_MAX_EPS {
        return 0.0;
    }
    let sums = |inverse: f32| {
        let (mut sum_qx, mut sum_q2) = (0.0f32, 0.0f32);
        for &v in x {
            let (q, w) = (f32::from(LEVELS[nearest_level(inverse * v)]), v * v);
            sum_qx += w * q * v;
            sum_q2 += w * q * q;
        }
        (sum_qx, sum_q2)
    };
    let first = f32::from(LEVELS[0]);
    let (sum_qx, sum_q2) = sums(1.0 / (-max / first));
    let mut scale = if sum_q2 > 0.0 { sum_qx / sum_q2 } else { 0.0 };
    let mut best = scale * sum_qx;
    for step in -7i8..=7 {
        let (sum_qx, sum_q2) = sums((f32::from(step) + first) / max);
        if sum_q2 > 0.0 && sum_qx * sum_qx > best * sum_q2 {
            scale = sum_qx / sum_q2;
            best = scale * sum_qx;
        }
    }
    scale
}
