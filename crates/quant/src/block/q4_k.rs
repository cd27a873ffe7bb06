//! `Q4_K`: 8 groups of 32 unsigned 4-bit values, 4.5 bits per element.

use bytemuck::{Pod, Zeroable};
use stonechat_compute::DType;

use super::definition::{Block, Half, QuantizeBlock, pack_scales_mins, unpack_scales_mins};
use super::search::{AffineSearch, nearest, search_scale_min};

/// `x[i] = d * s * q[i] - dmin * m`, with 6-bit `s`, `m` per 32 elements.
///
/// ```text
/// byte 0..2      d, f16
/// byte 2..4      dmin, f16
/// byte 4..16     scales: s[0..8] and m[0..8], see `unpack_scales_mins`
/// byte 16..144   qs[32 h + l], quarter h of 64 elements:
///                bits 0..4 = q[64 h + l], bits 4..8 = q[64 h + 32 + l]
/// ```
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ4K {
    /// Scale of the scales.
    pub d: Half,
    /// Scale of the mins.
    pub dmin: Half,
    /// Scales and mins of the groups.
    pub scales: [u8; 12],
    /// Quants.
    pub qs: [u8; 128],
}

const SEARCH: AffineSearch =
    AffineSearch { limit: 15, first: -1.0, step: 0.1, steps: 20, absolute: false };

impl BlockQ4K {
    /// Scales and mins of the groups.
    #[inline(always)]
    pub(crate) fn group_scales(&self) -> ([u8; 8], [u8; 8]) {
        unpack_scales_mins(&self.scales)
    }
}

impl Block for BlockQ4K {
    const DTYPE: DType = DType::Q4K;
    type Values = [f32; 256];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 256]) {
        let (d, dmin) = (self.d.to_f32(), self.dmin.to_f32());
        let (scales, mins) = self.group_scales();
        for g in 0..8 {
            let scale = d * f32::from(scales[g]);
            let min = dmin * f32::from(mins[g]);
            for l in 0..32 {
                let q = self.qs[32 * (g / 2) + l] >> (4 * (g % 2)) & 15;
                out[32 * g + l] = scale * f32::from(q) - min;
            }
        }
    }
}

impl QuantizeBlock for BlockQ4K {
    fn quantize(x: &[f32; 256]) -> Self {
        let Groups { d, dmin, scales, q } = quantize_groups(&SEARCH, x);
        let qs = std::array::from_fn(|i| {
            let first = i / 32 * 64 + i % 32;
            q[first] | q[first + 32] << 4
        });
        Self { d, dmin, scales, qs }
    }
}

/// Fields of `Q4_K` and `Q5_K`, the values not yet packed.
pub(super) struct Groups {
    pub(super) d: Half,
    pub(super) dmin: Half,
    pub(super) scales: [u8; 12],
    pub(super) q: [u8; 256],
}

/// Searches scale and min of eight groups of 32, rounds them to 6 bits, and requantizes the values with the rounded
/// ones.
pub(super) fn quantize_groups(search: &AffineSearch, x: &[f32; 256]) -> Groups {
    let mut q = [[0u8; 32]; 8];
    let (mut scales, mut mins) = ([0.0f32; 8], [0.0f32; 8]);
    let groups = bytemuck::cast_ref::<_, [[f32; 32]; 8]>(x);
    for (g, group) in groups.iter().enumerate() {
        let sum_x2 = group.iter().fold(0.0, |sum: f32, &v| sum + v * v);
        let rms = (sum_x2 / 32.0).sqrt();
        let weights = group.map(|v| rms + v.abs());
        (scales[g], mins[g]) = search_scale_min(search, group, &weights, &mut q[g]);
    }
    let max_scale = scales.iter().fold(0.0, |a: f32, &b| if b > a { b } else { a });
    let max_min = mins.iter().fold(0.0, |a: f32, &b| if b > a { b } else { a });
    let six_bits = |values: &[f32; 8], max: f32| {
        let inverse = if max > 0.0 { 63.0 / max } else { 0.0 };
        values.map(|v| (nearest(inverse * v) as u8).min(63))
    };
    let (s, m) = (six_bits(&scales, max_scale), six_bits(&mins, max_min));
    let (d, dmin) = (Half::from_f32(max_scale / 63.0), Half::from_f32(max_min / 63.0));
    for (g, group) in groups.iter().enumerate() {
        let scale = d.to_f32() * f32::from(s[g]);
        if scale != 0.0 {
            let min = dmin.to_f32() * f32::from(m[g]);
            q[g] = group.map(|v| nearest((v + min) / scale).clamp(0, search.limit) as u8);
        }
    }
    Groups { d, dmin, scales: pack_scales_mins(&s, &m), q: bytemuck::cast(q) }
}
