//! `TQ2_0`: 256 ternary values with one scale, four to a byte, 2.0625 bits per element.

use bytemuck::{Pod, Zeroable};
use stonechat_compute::DType;

use super::definition::{Block, Half, QuantizeBlock};
use super::q2_k::pack2;
use super::row::{Quants, RowBlock};
use super::tq1_0::ternary;

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

impl RowBlock for BlockTq2_0 {
    const GROUP_LEN: usize = 32;
    const QUANTS: Quants = Quants::Unsigned { offset: 1 };

    #[inline(always)]
    fn quants32(&self, u: usize) -> ([u8; 32], u32) {
        // Words, since vectors of bytes have no shift.
        let mut words: [u32; 8] = bytemuck::cast::<_, [[u32; 8]; 2]>(self.qs)[u / 4];
        for word in &mut words {
            *word = *word >> (u % 4 * 2) & 0x0303_0303;
        }
        (bytemuck::cast(words), 0)
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
