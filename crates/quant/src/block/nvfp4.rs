//! `NVFP4`: 4 groups of 16 values of 4-bit floats (E2M1), each with an 8-bit float (E4M3), 4.5 bits
//! per element.

use bytemuck::{Pod, Zeroable};

use super::definition::{Half, QuantizeBlock};
use super::mxfp4::{E2M1_TWICE, nearest_e2m1};
use super::row::{Quants, RowBlock, row_block};

/// `x[i] = d / 2 * E2M1_TWICE[q[i]]`, with `d` of the group. A tensor's own scale is not part of
/// the blocks.
///
/// ```text
/// byte 0..4    d[g], E4M3 without a sign: bits 0..3 = mantissa, bits 3..7 = exponent plus 7
/// byte 4..36   qs[8 g + j]: bits 0..4 = q[16 g + j], bits 4..8 = q[16 g + j + 8]
/// ```
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockNvfp4 {
    /// Scales of the groups.
    pub d: [u8; 4],
    /// Values of each 16 elements.
    pub qs: [[u8; 8]; 4],
}

impl RowBlock for BlockNvfp4 {
    const GROUP_LEN: usize = 16;
    const QUANTS: Quants = Quants::Levels(&E2M1_TWICE);

    #[inline(always)]
    fn quants32(&self, u: usize) -> ([u8; 32], u32) {
        let [a, b] = [2 * u, 2 * u + 1].map(|g| u64::from_le_bytes(self.qs[g]));
        let nibbles = [a, a >> 4, b, b >> 4];
        (bytemuck::cast(nibbles.map(|v| (v & 0x0f0f_0f0f_0f0f_0f0f).to_le_bytes())), 0)
    }

    #[inline(always)]
    fn d(&self) -> Half {
        Half::default()
    }

    #[inline(always)]
    fn scales(&self, _: f32) -> [f32; 16] {
        let mut scales = [0.0; 16];
        for g in 0..4 {
            scales[g] = half_of_e4m3(self.d[g]);
        }
        scales
    }
}

row_block!(BlockNvfp4: Nvfp4, 64);

impl QuantizeBlock for BlockNvfp4 {
    fn quantize(x: &[f32; 64]) -> Self {
        let mut block = Self::zeroed();
        for (g, x) in bytemuck::cast_ref::<_, [[f32; 16]; 4]>(x).iter().enumerate() {
            let mut amax = 0.0f32;
            for v in x {
                if amax < v.abs() {
                    amax = v.abs();
                }
            }
            // 6 is the largest value of E2M1.
            block.d[g] = to_e4m3(amax / 6.0);
            let scale = half_of_e4m3(block.d[g]);
            let q = x.map(|v| nearest_e2m1(scale, v));
            block.qs[g] = std::array::from_fn(|j| q[j] | q[j + 8] << 4);
        }
        block
    }
}

/// The halved value; the sign bit is ignored, the NaN 0x7f is 0 as in GGML.
#[inline(always)]
fn half_of_e4m3(x: u8) -> f32 {
    if x == 0x7f {
        return 0.0;
    }
    let (exponent, mantissa) = (u32::from(x >> 3 & 15), u32::from(x & 7));
    if exponent == 0 {
        mantissa as f32 * (1.0 / 1024.0)
    } else {
        f32::from_bits((exponent + 119) << 23 | mantissa << 20)
    }
}

/// Rounds to nearest, ties away from zero; like GGML's, 248 and more become 448, the largest value.
fn to_e4m3(x: f32) -> u8 {
    if x.is_nan() || x <= 0.0 {
        return 0;
    }
    let bits = x.min(448.0).to_bits();
    let exponent = (bits >> 23) as i32 - 120;
    if exponent <= 0 {
        return ((x * 512.0 + 0.5) as u8).min(7);
    }
    // A carry out of the mantissa raises the exponent.
    let rounded = ((exponent as u32) << 3 | bits >> 20 & 7) + (bits >> 19 & 1);
    if rounded >= 0x78 { 0x7e } else { rounded as u8 }
}
