//! `TQ2_0`: 256 ternary values with one scale, four to a byte, 2.0625 bits an element.

use bytemuck::{Pod, Zeroable};
use stonechat_compute::DType;
use stonechat_compute::simd::RowInt8;

use super::q2_k::pack2;
use super::row::{self, Quants, RowBlock};
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

impl RowBlock for BlockTq2_0 {
    const GROUP_LEN: usize = 32;
    const QUANTS: Quants = Quants::Unsigned { offset: 1 };

    #[inline(always)]
    fn quants32(&self, u: usize) -> ([u8; 32], u32) {
        let mut quants = [0; 32];
        for m in 0..32 {
            quants[m] = self.qs[u / 4 * 32 + m] >> (u % 4 * 2) & 3;
        }
        (quants, 0)
    }

    #[inline(always)]
    fn load_quants<S: RowInt8>(&self, s: S, u: usize, part: usize) -> S::U32s {
        let halves: [[u32; 8]; 2] = bytemuck::cast(self.qs);
        s.mask(s.shift_right(s.load_u32s(&halves[u / 4], part), u % 4 * 2), 3)
    }

    #[inline(always)]
    fn d(&self) -> Half {
        self.d
    }

    #[inline(always)]
    fn scales(&self, d: f32) -> [f32; 16] {
        [d; 16]
    }
}

impl Block for BlockTq2_0 {
    const DTYPE: DType = DType::Tq2_0;
    const BLOCK_LEN: usize = 256;
    type Values = [f32; 256];

    #[inline(always)]
    fn dequantize(&self, out: &mut [f32; 256]) {
        row::dequantize(self, out);
    }
}

impl QuantizeBlock for BlockTq2_0 {
    fn quantize(x: &[f32; 256]) -> Self {
        let (d, t) = ternary(x);
        Self { qs: pack2(&t), d }
    }
}
