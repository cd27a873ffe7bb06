//! Dot products of rows of weight blocks with q8 activations, for formats without panels.
//!
//! With weights `w = scale * (±q - offset)` and activations `x = d * p` over a group,
//! `sum(w * x) = scale * d * sum(q * ±p) - scale * offset * (d * sum(p))`. The first sum is an integer dot product; the
//! bracket is stored with the activations.
//!
//! ```text
//! for each block of a row:
//!     q = bytes of all elements                      once for M rows of activations
//!     factors[m] = scale * d[m]                      one for each group
//!     sums[m] -= scale * offset * (d * sum(p))[m]
//!     for each 32 elements:
//!         sums[m] += f32(dot4(q, ±p[m])) * factors[m][group]
//! ```
//!
//! Vectors have at most 32 bytes: blocks come as 32 bytes at a time from tables. Loops, not closures: a closure that the
//! compiler does not inline leaves the feature context, and every intrinsic in it becomes a call.

use stonechat_compute::simd::{F32, RowInt8};

use crate::activation::{ActivationRow, QBLOCK_LEN};
use crate::block::{Half, Quants, RowBlock};

/// Maximum vectors of a q8 block: eight, of one lane each.
const MAX_PARTS: usize = 8;

/// `sum(w[k] * x[m][k])` for each `m`. The activation rows have at least as many elements as `w`.
#[inline(always)]
pub(crate) fn dot<B: RowBlock, S: RowInt8, const M: usize>(
    s: S,
    w: &[B],
    x: &[ActivationRow<'_>; M],
) -> [f32; M] {
    let n_qblocks = const { B::BLOCK_LEN / QBLOCK_LEN };
    let n_groups = const { B::BLOCK_LEN / B::GROUP_LEN };
    let n_parts = const { MAX_PARTS / S::LANES };
    let mut x = *x;
    for m in 0..M {
        x[m] = x[m].first_qblocks(n_qblocks * w.len());
    }
    // One chain of additions for each row, four for a single row, to hide their latency.
    let mut sums = [[s.splat(0.0); 4]; M];
    for (i, block) in w.iter().enumerate() {
        let scales = block.scales(widen(s, block.d()));
        // Scales of whole vectors of groups; a block of four groups has no whole vector.
        let mut factors = [[0.0; 16]; M];
        if n_groups >= 8 {
            for m in 0..M {
                let x_scales = &x[m].scales[n_qblocks * i..][..n_qblocks];
                let mut twice = [0.0; 16];
                if B::GROUP_LEN < QBLOCK_LEN {
                    for g in 0..n_groups {
                        twice[g] = x_scales[g / 2];
                    }
                }
                let x_scales = if B::GROUP_LEN < QBLOCK_LEN { &twice } else { x_scales };
                for g in (0..n_groups).step_by(S::LANES) {
                    let factor = s.mul(lanes(s, &scales, g), lanes(s, x_scales, g));
                    let to = &mut factors[m][g..][..S::LANES];
                    // SAFETY: `to` was cut to `LANES` values.
                    unsafe { s.store(to.as_mut_ptr(), factor) };
                }
            }
        }
        for part in 0..n_parts {
            let mut q = [s.load_u32s(&[0; 8], 0); 8];
            for u in 0..n_qblocks {
                q[u] = block.load_quants(s, u, part);
            }
            for u in 0..n_qblocks {
                let group_scales = s.splat_halves([scales[2 * u], scales[2 * u + 1]], part);
                for m in 0..M {
                    let quants = &x[m].quants[n_qblocks * i..][..n_qblocks];
                    let x_scales = &x[m].scales[n_qblocks * i..][..n_qblocks];
                    let p = s.load_u32s(quants[u].u32s(), part);
                    let products = match B::QUANTS {
                        Quants::Unsigned { .. } => s.dot4(s.start(0), q[u], p),
                        _ => s.dot4_signed(s.start(0), q[u], p),
                    };
                    let products = s.finish(products, 0);
                    let factor = match B::GROUP_LEN {
                        QBLOCK_LEN => s.splat(factors[m][u]),
                        _ if n_groups < 8 => s.mul(group_scales, s.splat(x_scales[u])),
                        _ => s.splat_halves([factors[m][2 * u], factors[m][2 * u + 1]], part),
                    };
                    let sum = &mut sums[m][if M == 1 { (u + part) % 4 } else { 0 }];
                    *sum = s.mul_add(products, factor, *sum);
                }
            }
        }
        let Quants::Unsigned { offset } = B::QUANTS else { continue };
        for m in 0..M {
            let x_sums = match B::GROUP_LEN {
                QBLOCK_LEN => x[m].sums32,
                _ => x[m].sums16.as_flattened().as_flattened(),
            };
            let x_sums = &x_sums[n_groups * i..][..n_groups];
            for (n, g) in (0..n_groups).step_by(S::LANES).enumerate() {
                let min = s.mul(lanes(s, &scales, g), s.splat(-f32::from(offset)));
                let sum = &mut sums[m][if M == 1 { n % 4 } else { 0 }];
                *sum = s.mul_add(min, lanes(s, x_sums, g), *sum);
            }
        }
    }
    let mut dots = [0.0; M];
    for m in 0..M {
        let [a, b, c, d] = sums[m];
        let sum = if M == 1 { s.add(s.add(a, b), s.add(c, d)) } else { a };
        dots[m] = s.reduce_sum(sum);
    }
    dots
}

/// [`Simd::LANES`](stonechat_compute::simd::Simd::LANES) values of `x` from `at` on.
#[inline(always)]
fn lanes<S: RowInt8>(s: S, x: &[f32], at: usize) -> F32<S> {
    let x = &x[at..][..S::LANES];
    // SAFETY: `x` was cut to `LANES` values.
    unsafe { s.load(x.as_ptr()) }
}

/// The value of `x`, on vectors where they convert.
#[inline(always)]
fn widen<S: RowInt8>(s: S, x: Half) -> f32 {
    let all = s.load_f16s(&[x.to_bits(); 8], 0);
    bytemuck::cast_slice(&[all])[0]
}
