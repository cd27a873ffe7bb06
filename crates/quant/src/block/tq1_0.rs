//! `TQ1_0`: 256 ternary values with one scale, five to a byte, 1.6875 bits per element.

use bytemuck::{Pod, Zeroable};

use super::definition::{Half, QuantizeBlock, reciprocal};
use super::row::{Quants, RowBlock, row_block};

/// `x[i] = d * (t[i] - 1)`, `t[i]` of 0, 1, 2.
///
/// A byte is the fraction `0.t0 t1 t2 t3 t4` in base 3, times 256 and rounded up; multiplying it by
/// 3 brings one digit after the other above the point.
///
/// ```text
/// byte 0..32    qs[m]: digits n = t[32 n + m], n in 0..5
/// byte 32..48   qs[32 + m]: digits n = t[160 + 16 n + m], n in 0..5
/// byte 48..52   qh[m]: digits n = t[240 + 4 n + m], n in 0..4
/// byte 52..54   d, f16
/// ```
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BlockTq1_0 {
    /// Five digits a byte.
    pub qs: [u8; 48],
    /// Four digits a byte.
    pub qh: [u8; 4],
    /// Scale.
    pub d: Half,
}

impl RowBlock for BlockTq1_0 {
    const GROUP_LEN: usize = 32;
    const QUANTS: Quants = Quants::Unsigned { offset: 1 };

    #[inline(always)]
    fn quants32(&self, u: usize) -> ([u8; 32], u32) {
        let (wide, narrow) = self.qs.split_at(32);
        let mut t = [0; 32];
        match u {
            0..5 => digits::<32>(wide, u, &mut t),
            5..7 => {
                digits::<16>(narrow, 2 * u - 10, &mut t[..16]);
                digits::<16>(narrow, 2 * u - 9, &mut t[16..]);
            }
            _ => {
                digits::<16>(narrow, 4, &mut t[..16]);
                for n in 0..4 {
                    digits::<4>(&self.qh, n, &mut t[16 + 4 * n..][..4]);
                }
            }
        }
        (t, 0)
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

row_block!(BlockTq1_0: Tq1_0, 256);

impl QuantizeBlock for BlockTq1_0 {
    fn quantize(x: &[f32; 256]) -> Self {
        let (d, t) = ternary(x);
        let mut block = Self { d, ..Self::zeroed() };
        let (wide, narrow) = block.qs.split_at_mut(32);
        pack::<32, 5>(&t[..160], wide);
        pack::<16, 5>(&t[160..240], narrow);
        pack::<4, 4>(&t[240..], &mut block.qh);
        block
    }
}

/// The scale and the digits, not quite 0, 1 or 2 if there are NaNs.
pub(super) fn ternary(x: &[f32; 256]) -> (Half, [u8; 256]) {
    let mut amax = 0.0f32;
    for v in x {
        amax = if amax > v.abs() { amax } else { v.abs() };
    }
    let inverse = reciprocal(amax);
    let digit = |v: f32| {
        let scaled = v * inverse;
        // C's `lroundf` on x86 returns a value that ends in zeros for infinities and NaN.
        if scaled.is_finite() { (scaled.round() as i32).wrapping_add(1) as u8 } else { 1 }
    };
    (Half::from_f32(amax), x.map(digit))
}

/// Digit `n` of each byte.
#[inline(always)]
fn digits<const LEN: usize>(packed: &[u8], n: usize, t: &mut [u8]) {
    let factor = [1, 3, 9, 27, 81][n];
    for m in 0..LEN {
        let q = packed[m].wrapping_mul(factor);
        t[m] = u8::from(q >= 86) + u8::from(q >= 171);
    }
}

fn pack<const LEN: usize, const DIGITS: usize>(t: &[u8], packed: &mut [u8]) {
    for (m, byte) in packed.iter_mut().enumerate() {
        let mut q = 0u8;
        for n in 0..5 {
            let digit = if n < DIGITS { t[LEN * n + m] } else { 0 };
            q = q.wrapping_mul(3).wrapping_add(digit);
        }
        *byte = (u32::from(q) * 256).div_ceil(243) as u8;
    }
}
