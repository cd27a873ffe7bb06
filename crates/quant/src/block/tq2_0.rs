//! `TQ2_0`: 256 ternary values with one scale, four to a byte, 2.0625 bits an element.

use bytemuck::{Pod, Zeroable};
use stonechat_compute::DType;

use super::q2_k::pack2;
use super::tq1_0::ternary;
use super::{Block, Half, QuantizeBlock};

/// `x[i] = d * (q[i] - 1)`.
///
/// ```text
/// byte 0..64    qs[32 h + m]: bits 2 n .. 2 n + 2 = q[128 h + 32 n + m], n in 0..4
/// byte 64..66   d, f16
/// ```
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockTq2_0 {
    /// Values, offset by 1.
    pub qs: [u8; 64],
    /// Scale.
    pub d: Half,
}

const _: () = assert!(size_of::<BlockTq2_0>() == 66 && align_of::<BlockTq2_0>() == 1);

impl Block for BlockTq2_0 {
    const DTYPE: DType = DType::Tq2_0;
    const BLOCK_LEN: usize = 256;
    type Values = [f32; 256];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 256]) {
        let d = self.d.to_f32();
        for h in 0..2 {
            for n in 0..4 {
                for m in 0..32 {
                    let q = self.qs[32 * h + m] >> (2 * n) & 3;
                    out[128 * h + 32 * n + m] = f32::from(q as i8 - 1) * d;
                }
            }
        }
    }
}

impl QuantizeBlock for BlockTq2_0 {
    fn quantize(x: &[f32; 256]) -> Self {
        let (d, t) = ternary(x);
        Self { qs: pack2(&t), d }
    }
}
