//! Prefill attention with bf16 operands: `vdpbf16ps` on AVX-512 BF16, matrix tiles on AMX.
//!
//! ```text
//! Q  [rows][C/2]          pairs of adjacent channels, packed once per block
//! for each page:
//!   K [C/2][PAGE_LEN]     pairs of adjacent channels of each slot       pack_page
//!   V [PAGE_LEN/2][C']    pairs of adjacent slots of each channel
//!   S = Q · K             f32 sums: vectors (score) or tiles (Tiles::multiply)
//!   P [rows][PAGE_LEN/2]  pairs of adjacent slots of exp(S - m)         Bf16Weights
//!   O += P · V
//! pair: u32 = bf16 of the first in the low half, of the second in the high half
//! ```
//!
//! On tiles all shapes are whole multiples of 32: rows are padded, and `C` must be a multiple ([`channel_multiple`]).

use std::f32::consts::LOG2_E;

use pulp::NullaryFnOnce;

use super::super::element::Element;
use super::super::gemm::MulAdd;
use super::super::kv::KvHead;
use super::head::{VisibleSlots, add_weighted, score};
use super::{AttentionBlock, SoftmaxState, StoreWeights};
use crate::op::{PAGE_LEN, Precision};
use crate::scratch::with_scratch;
use crate::simd::{Avx512Bf16, F32, Isa, Simd, Tiles, Token, U32};

/// Multiply-add of pairs of bf16 values.
struct Bf16Pairs;

impl MulAdd<Avx512Bf16> for Bf16Pairs {
    type A = u32;
    type B = u32;
    type BVector = U32<Avx512Bf16>;

    const K_PER_ELEMENT: usize = 2;

    #[inline(always)]
    unsafe fn load(s: Avx512Bf16, p: *const u32) -> U32<Avx512Bf16> {
        // SAFETY: the contract is the same; u32 and f32 lanes have the same size and no invalid bits.
        s.to_bits(unsafe { s.load(p.cast()) })
    }

    #[inline(always)]
    fn mul_add(
        s: Avx512Bf16,
        a: u32,
        b: U32<Avx512Bf16>,
        sums: F32<Avx512Bf16>,
    ) -> F32<Avx512Bf16> {
        s.dot_bf16(s.splat_u32(a), b, sums)
    }
}

/// Required divisor of `head_dim` for bf16 attention on `isa`; `None` where `precision` means f32.
pub(super) fn channel_multiple(isa: Isa, precision: Precision) -> Option<usize> {
    match precision {
        Precision::AsProducts | Precision::Bf16 if isa.tiles().is_some() => Some(Tiles::SIDE),
        Precision::Bf16 => isa.bf16().map(|_| Bf16Pairs::K_PER_ELEMENT),
        _ => None,
    }
}

/// Computes `block`, whose `head_dim` is a multiple of [`channel_multiple`].
pub(super) fn run(isa: Isa, block: AttentionBlock<'_>) {
    let s = isa.bf16().expect("`channel_multiple` is `None` without bf16 products");
    match isa.tiles() {
        Some(amx) => amx.with_tiles(|tiles| run_with(s, Some(tiles), block)),
        None => run_with(s, None, block),
    }
}

fn run_with(s: Avx512Bf16, tiles: Option<&Tiles>, block: AttentionBlock<'_>) {
    let layout = block.args.kv.layout();
    let rows = block.tile_rows();
    let padded_rows = if tiles.is_some() { rows.next_multiple_of(Tiles::SIDE) } else { rows };
    let per_row = layout.head_dim / 2 + PAGE_LEN / 2;
    let per_page = PAGE_LEN / 2 * (layout.head_dim + layout.value_stride());
    let n_pairs = padded_rows * per_row + per_page;
    with_scratch(n_pairs + block.scratch_len(padded_rows), |scratch| {
        let (pairs, scratch) = scratch.split_at_mut(n_pairs);
        let pairs = bytemuck::cast_slice_mut(pairs);
        s.vectorize(Bf16AttentionKernel { s, tiles, block, padded_rows, scratch, pairs });
    });
}

/// Attention of one block with bf16 products.
struct Bf16AttentionKernel<'a, 's> {
    s: Avx512Bf16,
    /// Tiles to multiply with; `None` for vectors.
    tiles: Option<&'s Tiles>,
    block: AttentionBlock<'a>,
    /// Rows of the buffers; those beyond the tile's rows have unspecified content.
    padded_rows: usize,
    scratch: &'s mut [f32],
    /// `Q`, `P`, `K` and `V`, one after the other.
    pairs: &'s mut [u32],
}

impl NullaryFnOnce for Bf16AttentionKernel<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { s, tiles, block, padded_rows, scratch, pairs } = self;
        let (rows, c) = (block.tile_rows(), block.args.kv.layout().head_dim);
        let mut state = SoftmaxState::new(&block, padded_rows, scratch);
        let stride = state.value_stride;
        let (q, pairs) = pairs.split_at_mut(padded_rows * c / 2);
        let (weights, pairs) = pairs.split_at_mut(padded_rows * PAGE_LEN / 2);
        let (keys, values) = pairs.split_at_mut(c / 2 * PAGE_LEN);
        s.narrow_slice_bf16(&mut q[..rows * c / 2], &state.q[..rows * c]);
        for (id, visible) in block.pages() {
            match block.args.kv.head(id, block.kv_head) {
                KvHead::F32(kv) => pack_page(s, kv, visible, keys, (values, stride)),
                KvHead::F16(kv) => pack_page(s, kv, visible, keys, (values, stride)),
                KvHead::Q8(_) => unreachable!("8-bit pages have no bf16 kernel"),
            }
            match tiles {
                Some(tiles) => {
                    tiles.multiply(state.scores, q, keys, [padded_rows, c / 2, PAGE_LEN], false)
                }
                None => score::<_, Bf16Pairs, 2, false>(
                    s,
                    (rows, c),
                    (q, 0..c),
                    keys,
                    visible,
                    state.scores,
                ),
            }
            state.softmax_page(s, &block, visible, &mut Bf16Weights(weights));
            if let Some(tiles) = tiles {
                let shape = [padded_rows, PAGE_LEN / 2, stride];
                tiles.multiply(state.acc, weights, values, shape, true);
            } else {
                let shape = (rows, stride);
                add_weighted::<_, Bf16Pairs, 2, false>(
                    s,
                    shape,
                    weights,
                    values,
                    0..stride,
                    visible,
                    state.acc,
                );
            }
        }
        state.finish(s, &block);
    }
}

/// Weights as pairs of adjacent slots, `[rows][PAGE_LEN/2]`.
struct Bf16Weights<'a>(&'a mut [u32]);

impl StoreWeights<Avx512Bf16> for Bf16Weights<'_> {
    #[inline(always)]
    fn store_weights(
        &mut self,
        s: Avx512Bf16,
        r: usize,
        scores: &mut [F32<Avx512Bf16>],
        max: f32,
    ) -> F32<Avx512Bf16> {
        let (base, max) = (s.splat(LOG2_E), s.splat(-max * LOG2_E));
        let mut sum = s.splat(0.0);
        let pairs = self.0[r * PAGE_LEN / 2..][..PAGE_LEN / 2].as_chunks_mut::<16>().0;
        for (pairs, [low, high]) in pairs.iter_mut().zip(scores.as_chunks::<2>().0) {
            let low = exp2_approx(s, s.mul_add(*low, base, max));
            let high = exp2_approx(s, s.mul_add(*high, base, max));
            sum = s.add(sum, s.add(low, high));
            *pairs = bytemuck::cast(s.narrow_bf16(low, high));
        }
        sum
    }

    #[inline(always)]
    fn store_zeros(&mut self, r: usize, _: &mut [f32]) {
        self.0[r * PAGE_LEN / 2..][..PAGE_LEN / 2].fill(0);
    }
}

/// Lower bound of the argument of [`exp2_approx`], which is 0 below it.
const EXP2_MIN: f32 = -125.0;

/// Minimax polynomial of `2^r` for `|r| <= 1/2` by relative error, highest power first.
const EXP2_POLYNOMIAL: [f32; 4] = [0.055_171_67, 0.242_611_13, 0.693_260_97, 0.999_928_06];

/// `2^x` for `x < 127` with a relative error of at most 7.5e-5, a twentieth of that of rounding to bf16.
#[inline(always)]
fn exp2_approx<S: Simd>(s: S, x: F32<S>) -> F32<S> {
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits of the mantissa.
    let magic = s.splat(12_582_912.0);
    let clamped = s.max(s.splat(EXP2_MIN), x);
    let shifted = s.add(clamped, magic);
    let r = s.sub(clamped, s.sub(shifted, magic));
    let mut p = s.splat(EXP2_POLYNOMIAL[0]);
    for &c in &EXP2_POLYNOMIAL[1..] {
        p = s.mul_add(p, r, s.splat(c));
    }
    let power = s.mul_u32(s.to_bits(shifted), s.splat_u32(1 << 23));
    let y = s.with_bits(s.add_u32(s.to_bits(p), power));
    s.select(s.less_than(x, s.splat(EXP2_MIN)), s.splat(0.0), y)
}

/// Packs the visible slots of a head: `keys` = `[C/2][PAGE_LEN]`, `values` = `[PAGE_LEN/2][stride]`. Values of other
/// slots become zero.
#[inline(always)]
fn pack_page<E: Element>(
    s: Avx512Bf16,
    head: &[E],
    visible: VisibleSlots,
    keys: &mut [u32],
    (values, stride): (&mut [u32], usize),
) {
    const LANES: usize = <Avx512Bf16 as Simd>::LANES;
    let (from_keys, from_values) = head.split_at(2 * keys.len());
    let (rows, _) = from_keys.as_chunks::<PAGE_LEN>();
    for (pairs, rows) in keys.chunks_exact_mut(PAGE_LEN).zip(rows.chunks_exact(2)) {
        for n in (visible.from / LANES * LANES..visible.to).step_by(LANES) {
            // SAFETY: rows and pairs have `PAGE_LEN` slots, a whole number of vectors.
            unsafe {
                let even = <E as Element>::load(s, rows[0][n..].as_ptr());
                let odd = <E as Element>::load(s, rows[1][n..].as_ptr());
                store(s, &mut pairs[n..], even, odd);
            }
        }
    }
    values[..visible.from / 2 * stride].fill(0);
    values[visible.to.div_ceil(2) * stride..].fill(0);
    for slot in (visible.from / 2 * 2..visible.to).step_by(2) {
        let pairs = &mut values[slot / 2 * stride..][..stride];
        let (even, odd) = from_values[slot * stride..][..2 * stride].split_at(stride);
        let (has_even, has_odd) = (slot >= visible.from, slot + 1 < visible.to);
        for n in (0..stride).step_by(LANES) {
            let zero = s.splat(0.0);
            // SAFETY: all have `stride` values, a whole number of vectors.
            unsafe {
                let even =
                    if has_even { <E as Element>::load(s, even[n..].as_ptr()) } else { zero };
                let odd = if has_odd { <E as Element>::load(s, odd[n..].as_ptr()) } else { zero };
                store(s, &mut pairs[n..], even, odd);
            }
        }
    }
}

/// Rounds `even` and `odd` to bf16 and stores them as a vector of pairs.
///
/// # Safety
/// - `to` has at least `LANES` elements.
#[inline(always)]
unsafe fn store(s: Avx512Bf16, to: &mut [u32], even: F32<Avx512Bf16>, odd: F32<Avx512Bf16>) {
    let pairs = s.with_bits(s.pairs_bf16(even, odd));
    // SAFETY: `to` is long enough by the contract; u32 and f32 lanes have the same size.
    unsafe { s.store(to.as_mut_ptr().cast(), pairs) };
}

#[cfg(test)]
mod tests {
    use super::{EXP2_MIN, exp2_approx};
    use crate::simd::{Isa, Kernel, Simd};

    struct Exp2<'a>(&'a mut [f32]);

    impl Kernel for Exp2<'_> {
        type Output = ();

        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            for v in s.split_mut(self.0).0 {
                *v = exp2_approx(s, *v);
            }
        }
    }

    #[test]
    fn weights_keep_their_stated_error() {
        for isa in Isa::available() {
            let x: Vec<f32> = (0..1 << 16).map(|i| -125.0 + i as f32 * (137.0 / 65536.0)).collect();
            let mut y = x.clone();
            isa.dispatch(Exp2(&mut y));
            for (x, y) in x.iter().zip(&y) {
                let exact = f64::from(*x).exp2();
                assert!((f64::from(*y) - exact).abs() <= 7.6e-5 * exact, "{isa}: 2^{x} is not {y}");
            }
            let mut y = [f32::NEG_INFINITY, -1e30, EXP2_MIN.next_down(), -126.0].repeat(16);
            isa.dispatch(Exp2(&mut y));
            assert!(y.iter().all(|&y| y == 0.0), "{isa}: {y:?}");
        }
    }
}
