//! `Q2_K`: 16 groups of 16 unsigned 2-bit values, 2.625 bits per element.

use bytemuck::{Pod, Zeroable};
use stonechat_compute::DType;

use super::definition::{Block, Half, QuantizeBlock};
use super::search::{AffineSearch, nearest, search_scale_min};

/// `x[i] = d * s * q[i] - dmin * m`, with 4-bit `s`, `m` per 16 elements.
///
/// ```text
/// byte 0..16    scales[g]: bits 0..4 = s of group g, bits 4..8 = m of group g
/// byte 16..80   qs[32 h + l], half h of 128 elements:
///               bits 2 p .. 2 p + 2 = q[128 h + 32 p + l], p in 0..4
/// byte 80..82   d, f16
/// byte 82..84   dmin, f16
/// ```
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockQ2K {
    /// Scales and mins of the groups.
    pub scales: [u8; 16],
    /// Quants.
    pub qs: [u8; 64],
    /// Scale of the scales.
    pub d: Half,
    /// Scale of the mins.
    pub dmin: Half,
}

const SEARCH: AffineSearch =
    AffineSearch { limit: 3, first: -0.5, step: 0.1, steps: 15, absolute: true };

impl Block for BlockQ2K {
    const DTYPE: DType = DType::Q2K;
    type Values = [f32; 256];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 256]) {
        let (d, dmin) = (self.d.to_f32(), self.dmin.to_f32());
        let qs = self.qs.as_chunks::<32>().0;
        let out = bytemuck::cast_mut::<_, [[f32; 32]; 8]>(out);
        for (pair, out) in out.iter_mut().enumerate() {
            let packed = [0, 1].map(|g| self.scales[2 * pair + g]);
            let scales = packed.map(|packed| d * f32::from(packed & 15));
            let mins = packed.map(|packed| dmin * f32::from(packed >> 4));
            for l in 0..32 {
                let q = qs[pair / 4][l] >> (2 * (pair % 4)) & 3;
                out[l] = scales[l / 16] * f32::from(q) - mins[l / 16];
            }
        }
    }
}

impl QuantizeBlock for BlockQ2K {
    fn quantize(x: &[f32; 256]) -> Self {
        let mut block = Self::zeroed();
        let mut q = [[0u8; 16]; 16];
        let (mut scales, mut mins) = ([0.0f32; 16], [0.0f32; 16]);
        let groups = bytemuck::cast_ref::<_, [[f32; 16]; 16]>(x);
        for (g, group) in groups.iter().enumerate() {
            (scales[g], mins[g]) =
                search_scale_min(&SEARCH, group, &group.map(f32::abs), &mut q[g]);
        }
        let max_scale = scales.iter().fold(0.0, |a: f32, &b| if b > a { b } else { a });
        let max_min = mins.iter().fold(0.0, |a: f32, &b| if b > a { b } else { a });
        if max_scale > 0.0 {
            let inverse = 15.0 / max_scale;
            block.scales = scales.map(|s| nearest(inverse * s) as u8);
            block.d = Half::from_f32(max_scale / 15.0);
        }
        if max_min > 0.0 {
            let inverse = 15.0 / max_min;
            for (packed, &m) in block.scales.iter_mut().zip(&mins) {
                *packed |= (nearest(inverse * m) << 4) as u8;
            }
            block.dmin = Half::from_f32(max_min / 15.0);
        }
        for (g, group) in groups.iter().enumerate() {
            let d = block.d.to_f32() * f32::from(block.scales[g] & 15);
            if d != 0.0 {
                let m = block.dmin.to_f32() * f32::from(block.scales[g] >> 4);
                q[g] = group.map(|v| nearest((v + m) / d).clamp(0, 3) as u8);
            }
        }
        block.qs = pack2(&bytemuck::cast(q));
        block
    }
}

/// The low two bits of 256 values, as `Q2_K` and `Q3_K` store them.
pub(super) fn pack2(q: &[u8; 256]) -> [u8; 64] {
    std::array::from_fn(|i| {
        let first = i / 32 * 128 + i % 32;
        (0..4).fold(0, |byte, p| byte | (q[first + 32 * p] & 3) << (2 * p))
    })
}
