//! Fused dot products: rows of weight blocks with q8 activations, in integers within 32 elements.
//!
//! Formats differ only in how a block unpacks to bytes, scales and mins ([`Unpack32`] in `block32`,
//! [`Unpack256`] in `block256`; `block64` is `NVFP4`), instruction sets only in [`I8Dot`]; the two
//! loops here are written once.
//!
//! With weights `w = scale * q + min` and activations `a = d * p` over a group,
//! `sum(w * a) = scale * d * sum(q * p) + min * (d * sum(p))`. The first sum is an integer dot
//! product; the bracket is stored with the activations.
//!
//! ```text
//! for each 256 weights of a row:                     8 blocks of 32, or a block of 256
//!     factors[m] = scale * d[m]                      8 or 16 lanes, one per group
//!     sums[m] += min * (d * sum(p))[m]
//!     for each 32 weights:
//!         q = unpack to bytes                        once for M rows of activations
//!         sums[m] += f32(dot(q, p[m])) * factors[m][group]
//! ```
//!
//! Loops, not closures: a closure that the compiler does not inline leaves the feature context,
//! and every intrinsic in it becomes a call.

mod block256;
mod block32;
mod block64;

use crate::activation::ActivationRow;
use crate::block::Block;
use crate::simd::I8Dot;

/// Block formats whose rows have a dot product with q8 activations.
pub(crate) trait DotRow: Block {
    /// `sum(w[k] * x[m][k])` for each `m`. The activation rows have as many elements as `w`.
    fn dot<S: I8Dot, const M: usize>(s: S, w: &[Self], x: &[ActivationRow<'_>; M]) -> [f32; M];
}

/// A block of 32 elements that share `w = scale * q + min`.
trait Unpack32: Block {
    /// Whether the bytes are signed; unsigned ones are at most 127.
    const SIGNED: bool;
    /// Whether there is a min.
    const HAS_MIN: bool;

    /// `q`.
    fn unpack<S: I8Dot>(&self, s: S) -> S::Bytes;

    /// Scales of up to eight blocks, then zeros.
    fn scales<S: I8Dot>(s: S, blocks: &[Self]) -> S::Floats;

    /// Mins of up to eight blocks, whose scales are `scales`, then zeros.
    fn mins<S: I8Dot>(s: S, blocks: &[Self], scales: S::Floats) -> S::Floats;
}

/// Scales and mins of 16 groups.
type ScalesMins<S> = [[<S as I8Dot>::Floats; 2]; 2];

/// A block of 256 elements in 16 groups of 16 or 8 groups of 32, each with `w = scale * q + min`.
trait Unpack256: Block {
    /// Whether groups have 16 elements.
    const GROUPS_OF_16: bool;
    /// Whether the bytes are signed and there are no mins; unsigned ones are at most 127.
    const SIGNED: bool;

    /// `q` of each 32 elements.
    fn unpack<S: I8Dot>(&self, s: S) -> [S::Bytes; 8];

    /// Scales and mins; with groups of 32 only the first eight count.
    fn scales_mins<S: I8Dot>(&self, s: S) -> ScalesMins<S>;
}

/// Cuts every row to `n` q8 blocks.
#[inline(always)]
fn first_qblocks<'a, const M: usize>(
    x: &[ActivationRow<'a>; M],
    n: usize,
) -> [ActivationRow<'a>; M] {
    let mut x = *x;
    for m in 0..M {
        x[m] = x[m].first_qblocks(n);
    }
    x
}

/// Partial sums of `M` rows: one each, in registers, or four for a single row, to hide the latency of additions.
struct Sums<F, const M: usize>([[F; 4]; M]);

impl<F: Copy, const M: usize> Sums<F, M> {
    #[inline(always)]
    fn zeros<S: I8Dot<Floats = F>>(s: S) -> Self {
        Self([[s.splat_floats(0.0); 4]; M])
    }

    /// Accumulates `a * b` for row `m`: in sum `u % 4` if `M` is 1 (four independent chains), else in its only sum.
    #[inline(always)]
    fn add<S: I8Dot<Floats = F>>(&mut self, s: S, (m, u): (usize, usize), a: F, b: F) {
        let sum = &mut self.0[m][if M == 1 { u % 4 } else { 0 }];
        *sum = s.fused(a, b, *sum);
    }

    #[inline(always)]
    fn finish<S: I8Dot<Floats = F>>(self, s: S) -> [f32; M] {
        let mut dots = [0.0; M];
        for m in 0..M {
            let [mut a, b, mut c, d] = self.0[m];
            if M == 1 {
                let one = s.splat_floats(1.0);
                a = s.fused(b, one, a);
                c = s.fused(d, one, c);
                a = s.fused(c, one, a);
            }
            dots[m] = s.sum(a);
        }
        dots
    }
}

/// [`DotRow::dot`] for blocks of 32.
#[inline(always)]
fn dot32<B: Unpack32, S: I8Dot, const M: usize>(
    s: S,
    w: &[B],
    x: &[ActivationRow<'_>; M],
) -> [f32; M] {
    let x = first_qblocks(x, w.len().next_multiple_of(8));
    let mut sums = Sums::zeros(s);
    let (groups, rest) = w.as_chunks::<8>();
    for (i, group) in groups.iter().enumerate() {
        eight_blocks(s, group, i, &x, &mut sums);
    }
    if !rest.is_empty() {
        eight_blocks(s, rest, groups.len(), &x, &mut sums);
    }
    sums.finish(s)
}

/// Adds the products of up to eight weight blocks with q8 blocks `8 * i ..`. Their scales are one vector.
#[inline(always)]
fn eight_blocks<B: Unpack32, S: I8Dot, const M: usize>(
    s: S,
    blocks: &[B],
    i: usize,
    x: &[ActivationRow<'_>; M],
    sums: &mut Sums<S::Floats, M>,
) {
    let scales = B::scales(s, blocks);
    let mut factors = [[0.0; 8]; M];
    for m in 0..M {
        let x_scales = s.load_floats(&x[m].scales.as_chunks().0[i]);
        factors[m] = s.to_array(s.scale_floats(scales, x_scales));
        if B::HAS_MIN {
            let x_sums = s.load_floats(&x[m].sums32.as_chunks().0[i]);
            sums.add(s, (m, 0), B::mins(s, blocks, scales), x_sums);
        }
    }
    for (u, block) in blocks.iter().enumerate().take(8) {
        let q = block.unpack(s);
        for m in 0..M {
            let p = s.load_bytes(x[m].quants.as_chunks::<8>().0[i][u].bytes());
            let dot = if B::SIGNED { s.dot_signed(q, p) } else { s.dot_unsigned(q, p) };
            sums.add(s, (m, u), s.to_floats(dot), s.splat_floats(factors[m][u]));
        }
    }
}

/// [`DotRow::dot`] for blocks of 256.
#[inline(always)]
fn dot256<B: Unpack256, S: I8Dot, const M: usize>(
    s: S,
    w: &[B],
    x: &[ActivationRow<'_>; M],
) -> [f32; M] {
    let x = first_qblocks(x, 8 * w.len());
    let mut sums = Sums::zeros(s);
    for (i, block) in w.iter().enumerate() {
        let q = block.unpack(s);
        let [scales, mins] = block.scales_mins(s);
        let mut factors = [[[0.0; 8]; 2]; M];
        for m in 0..M {
            let x_scales = &x[m].scales.as_chunks().0[i];
            if B::GROUPS_OF_16 {
                let [low, high] = s.load_twice(x_scales);
                factors[m][0] = s.to_array(s.scale_floats(scales[0], low));
                factors[m][1] = s.to_array(s.scale_floats(scales[1], high));
            } else {
                let x_scales = s.load_floats(x_scales);
                factors[m][0] = s.to_array(s.scale_floats(scales[0], x_scales));
            }
        }
        for u in 0..8 {
            for m in 0..M {
                let p = s.load_bytes(x[m].quants.as_chunks::<8>().0[i][u].bytes());
                let factor = if B::GROUPS_OF_16 {
                    let pairs = &factors[m][u / 4];
                    s.pair(pairs[u % 4 * 2], pairs[u % 4 * 2 + 1])
                } else {
                    s.splat_floats(factors[m][0][u])
                };
                let dot = if B::SIGNED { s.dot_signed(q[u], p) } else { s.dot_unsigned(q[u], p) };
                sums.add(s, (m, u), s.to_floats(dot), factor);
            }
        }
        if B::SIGNED {
            continue;
        }
        for m in 0..M {
            if B::GROUPS_OF_16 {
                let [low, high] = &x[m].sums16[i];
                sums.add(s, (m, 0), mins[0], s.load_floats(low));
                sums.add(s, (m, 1), mins[1], s.load_floats(high));
            } else {
                let (groups, _) = x[m].sums32.as_chunks();
                sums.add(s, (m, 0), mins[0], s.load_floats(&groups[i]));
            }
        }
    }
    sums.finish(s)
}
