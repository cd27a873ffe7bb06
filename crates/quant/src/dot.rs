//! Fused dot products: rows of weight blocks with quantized activations, never leaving integers
//! within 32 elements.
//!
//! Formats differ only in how a block unpacks to bytes, scales and mins ([`Unpack32`] in `block32`,
//! [`Unpack256`] in `block256`; `block64` is `NVFP4`), instruction sets only in [`I8Dot`]; the two
//! loops here are written once.
//!
//! With weights `w = scale * q + min` and activations `a = d * p` over a group,
//! `sum(w * a) = scale * d * sum(q * p) + min * (d * sum(p))`. The first sum is an integer dot
//! product; the bracket is stored with the activations.
//!
//! Loops, not closures: a closure that the compiler does not inline leaves the feature context,
//! and every intrinsic in it becomes a call.

mod block256;
mod block32;
mod block64;

use crate::activation::ActivationRow;
use crate::block::Block;
use crate::simd::I8Dot;

/// Weight rows that have a dot product with `M` activation rows.
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

    /// `q`, `scale`, `min`.
    fn unpack<S: I8Dot>(&self, s: S) -> (S::Bytes, f32, f32);
}

/// A block of 256 elements in 16 groups of 16 or 8 groups of 32, each with `w = scale * q + min`.
trait Unpack256: Block {
    /// Whether groups have 16 elements.
    const GROUPS_OF_16: bool;
    /// Whether the bytes are signed and there are no mins; unsigned ones are at most 127.
    const SIGNED: bool;

    /// `q` of each 32 elements.
    fn unpack<S: I8Dot>(&self, s: S) -> [S::Bytes; 8];

    /// Scales and mins; with groups of 32 only the first eight count.
    fn grids<S: I8Dot>(&self, s: S) -> ([f32; 16], [f32; 16]);
}

/// Every row cut to `n` units.
#[inline(always)]
fn first_units<'a, const M: usize>(x: &[ActivationRow<'a>; M], n: usize) -> [ActivationRow<'a>; M] {
    let mut x = *x;
    for m in 0..M {
        x[m] = x[m].first_units(n);
    }
    x
}

#[inline(always)]
fn dot32<B: Unpack32, S: I8Dot, const M: usize>(
    s: S,
    w: &[B],
    x: &[ActivationRow<'_>; M],
) -> [f32; M] {
    let x = first_units(x, w.len());
    let mut sums = [s.splat_floats(0.0); M];
    let mut min_sums = [0.0f32; M];
    for (i, block) in w.iter().enumerate() {
        let (q, scale, min) = block.unpack(s);
        for m in 0..M {
            let p = s.load_bytes(x[m].units[i].bytes());
            let dot = if B::SIGNED { s.dot_signed(q, p) } else { s.dot_unsigned(q, p) };
            let factor = s.splat_floats(scale * x[m].scales[i]);
            sums[m] = s.fused(s.to_floats(dot), factor, sums[m]);
            if B::HAS_MIN {
                min_sums[m] += min * x[m].sums32[i];
            }
        }
    }
    for m in 0..M {
        min_sums[m] += s.sum(sums[m]);
    }
    min_sums
}

#[inline(always)]
fn dot256<B: Unpack256, S: I8Dot, const M: usize>(
    s: S,
    w: &[B],
    x: &[ActivationRow<'_>; M],
) -> [f32; M] {
    let x = first_units(x, 8 * w.len());
    let mut sums = [s.splat_floats(0.0); M];
    for (i, block) in w.iter().enumerate() {
        let q = block.unpack(s);
        let (scales, mins) = block.grids(s);
        for u in 0..8 {
            let scale = if B::GROUPS_OF_16 {
                s.pair(scales[2 * u], scales[2 * u + 1])
            } else {
                s.splat_floats(scales[u])
            };
            for m in 0..M {
                let p = s.load_bytes(x[m].units[8 * i + u].bytes());
                let factor = s.scale_floats(scale, s.splat_floats(x[m].scales[8 * i + u]));
                let dot = if B::SIGNED { s.dot_signed(q[u], p) } else { s.dot_unsigned(q[u], p) };
                sums[m] = s.fused(s.to_floats(dot), factor, sums[m]);
            }
        }
        if B::SIGNED {
            continue;
        }
        let [mins_low, mins_high]: [[f32; 8]; 2] = bytemuck::cast(mins);
        let (mins_low, mins_high) = (s.load_floats(&mins_low), s.load_floats(&mins_high));
        for m in 0..M {
            if B::GROUPS_OF_16 {
                let [low, high] = &x[m].sums16[i];
                sums[m] = s.fused(mins_low, s.load_floats(low), sums[m]);
                sums[m] = s.fused(mins_high, s.load_floats(high), sums[m]);
            } else {
                let (groups, _) = x[m].sums32.as_chunks();
                sums[m] = s.fused(mins_low, s.load_floats(&groups[i]), sums[m]);
            }
        }
    }
    let mut dots = [0.0; M];
    for m in 0..M {
        dots[m] = s.sum(sums[m]);
    }
    dots
}
