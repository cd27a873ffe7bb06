//! Attention of many rows whose queries, keys, weights and values are rounded to bf16 first and multiplied in pairs, by
//! vectors or tiles.

use std::f32::consts::LOG2_E;

use pulp::NullaryFnOnce;

use super::super::element::Element;
use super::super::gemm::Multiply;
use super::super::kv::{KvHead, PAGE_LEN};
use super::head::{Seen, add_weighted, score};
use super::{Block, Precision, State, Weights};
use crate::scratch::with_scratch;
use crate::simd::{Avx512Bf16, F32, Isa, Simd, Tiles, U32};

/// Pairs of bf16 values, the first in the low half.
struct Pairs;

impl Multiply<Avx512Bf16> for Pairs {
    type Row = u32;
    type Column = u32;
    type Columns = U32<Avx512Bf16>;

    const VALUES: usize = 2;

    #[inline(always)]
    unsafe fn load(s: Avx512Bf16, p: *const u32) -> U32<Avx512Bf16> {
        // SAFETY: lanes are as large, whatever their bits mean.
        s.to_bits(unsafe { s.load(p.cast()) })
    }

    #[inline(always)]
    fn add(
        s: Avx512Bf16,
        x: u32,
        columns: U32<Avx512Bf16>,
        sums: F32<Avx512Bf16>,
    ) -> F32<Avx512Bf16> {
        s.dot_bf16(s.splat_u32(x), columns, sums)
    }
}

/// Channels that are multiplied at a time, of which a head must be a whole number; none where nothing is rounded.
pub(super) fn unit(isa: Isa, precision: Precision) -> Option<usize> {
    match (isa, precision) {
        (Isa::Amx(_), Precision::AsProducts | Precision::Bf16) => Some(Tiles::SIDE),
        (Isa::Avx512Bf16(_), Precision::Bf16) => Some(Pairs::VALUES),
        _ => None,
    }
}

/// Computes `block`, whose heads are whole [units](unit).
pub(super) fn run(isa: Isa, block: Block<'_>) {
    match isa {
        Isa::Avx512Bf16(s) => run_on(s, None, block),
        Isa::Amx(amx) => amx.with_tiles(|tiles| run_on(amx.bf16(), Some(tiles), block)),
        isa => unreachable!("{isa} has no products of bf16 values"),
    }
}

fn run_on(s: Avx512Bf16, tiles: Option<&Tiles>, block: Block<'_>) {
    let layout = block.args.kv.layout();
    let rows = block.tile_rows();
    let room = if tiles.is_some() { rows.next_multiple_of(Tiles::SIDE) } else { rows };
    let per_row = layout.head_dim / 2 + PAGE_LEN / 2;
    let per_page = PAGE_LEN / 2 * (layout.head_dim + layout.value_stride());
    let n_pairs = room * per_row + per_page;
    with_scratch(n_pairs + block.scratch_len(room), |scratch| {
        let (pairs, scratch) = scratch.split_at_mut(n_pairs);
        let pairs = bytemuck::cast_slice_mut(pairs);
        s.vectorize(Run { s, tiles, block, room, scratch, pairs });
    });
}

struct Run<'a, 's> {
    s: Avx512Bf16,
    /// Multiply if they are there.
    tiles: Option<&'s Tiles>,
    block: Block<'a>,
    /// Rows that buffers have room for; what those beyond the block's hold has no meaning.
    room: usize,
    scratch: &'s mut [f32],
    pairs: &'s mut [u32],
}

impl NullaryFnOnce for Run<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { s, tiles, block, room, scratch, pairs } = self;
        let (rows, c) = (block.tile_rows(), block.args.kv.layout().head_dim);
        let mut state = State::new(&block, room, scratch);
        let stride = state.value_stride;
        let (q, pairs) = pairs.split_at_mut(room * c / 2);
        let (weights, pairs) = pairs.split_at_mut(room * PAGE_LEN / 2);
        let (keys, values) = pairs.split_at_mut(c / 2 * PAGE_LEN);
        s.narrow_slice_bf16(&mut q[..rows * c / 2], &state.q[..rows * c]);
        for (id, seen) in block.pages() {
            match block.args.kv.head(id, block.kv_head) {
                KvHead::F32(kv) => round_page(s, kv, seen, keys, (values, stride)),
                KvHead::F16(kv) => round_page(s, kv, seen, keys, (values, stride)),
                KvHead::Q8(_) => unreachable!("such pages are not rounded"),
            }
            match tiles {
                Some(tiles) => {
                    tiles.multiply(state.scores, q, keys, [room, c / 2, PAGE_LEN], false)
                }
                None => {
                    score::<_, Pairs, 2, false>(s, (rows, c), (q, 0..c), keys, seen, state.scores)
                }
            }
            state.weigh(s, &block, seen, &mut Rounded(weights));
            if let Some(tiles) = tiles {
                let shape = [room, PAGE_LEN / 2, stride];
                tiles.multiply(state.sums, weights, values, shape, true);
            } else {
                let shape = (rows, stride);
                add_weighted::<_, Pairs, 2, false>(
                    s,
                    shape,
                    weights,
                    values,
                    0..stride,
                    seen,
                    state.sums,
                );
            }
        }
        state.finish(s, &block);
    }
}

/// To pairs of adjacent slots, `[rows][PAGE_LEN/2]`.
struct Rounded<'a>(&'a mut [u32]);

impl Weights<Avx512Bf16> for Rounded<'_> {
    #[inline(always)]
    fn take(
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
            let low = coarse_exp2(s, s.mul_add(*low, base, max));
            let high = coarse_exp2(s, s.mul_add(*high, base, max));
            sum = s.add(sum, s.add(low, high));
            *pairs = bytemuck::cast(s.narrow_bf16(low, high));
        }
        sum
    }

    #[inline(always)]
    fn take_none(&mut self, r: usize, _: &mut [f32]) {
        self.0[r * PAGE_LEN / 2..][..PAGE_LEN / 2].fill(0);
    }
}

/// Below this, [`coarse_exp2`] is 0.
const EXP2_MIN: f32 = -125.0;

/// `2^r` for `|r| <= 1/2`, highest power first: the polynomial whose relative error is the least.
const COARSE_EXP2: [f32; 4] = [0.055_171_67, 0.242_611_13, 0.693_260_97, 0.999_928_06];

/// `2^x` within a relative 7.5e-5, a twentieth of what rounding to bf16 adds at most; `x` is below 127.
#[inline(always)]
fn coarse_exp2<S: Simd>(s: S, x: F32<S>) -> F32<S> {
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits of the mantissa.
    let magic = s.splat(12_582_912.0);
    let clamped = s.max(s.splat(EXP2_MIN), x);
    let shifted = s.add(clamped, magic);
    let r = s.sub(clamped, s.sub(shifted, magic));
    let mut p = s.splat(COARSE_EXP2[0]);
    for &c in &COARSE_EXP2[1..] {
        p = s.mul_add(p, r, s.splat(c));
    }
    let power = s.mul_u32(s.to_bits(shifted), s.splat_u32(1 << 23));
    let y = s.with_bits(s.add_u32(s.to_bits(p), power));
    s.select(s.less_than(x, s.splat(EXP2_MIN)), s.splat(0.0), y)
}

/// Pairs of channels of the keys of a page, `[C/2][PAGE_LEN]`, and of slots of its values, `[PAGE_LEN/2][stride]`,
/// for the slots that are seen. The values of others become zero.
#[inline(always)]
fn round_page<E: Element>(
    s: Avx512Bf16,
    head: &[E],
    seen: Seen,
    keys: &mut [u32],
    (values, stride): (&mut [u32], usize),
) {
    const LANES: usize = <Avx512Bf16 as Simd>::LANES;
    let (from_keys, from_values) = head.split_at(2 * keys.len());
    let (rows, _) = from_keys.as_chunks::<PAGE_LEN>();
    for (pairs, rows) in keys.chunks_exact_mut(PAGE_LEN).zip(rows.chunks_exact(2)) {
        for n in (seen.from / LANES * LANES..seen.to).step_by(LANES) {
            // SAFETY: rows and pairs have `PAGE_LEN` slots, a whole number of vectors.
            unsafe {
                let even = <E as Element>::load(s, rows[0][n..].as_ptr());
                let odd = <E as Element>::load(s, rows[1][n..].as_ptr());
                store(s, &mut pairs[n..], even, odd);
            }
        }
    }
    values[..seen.from / 2 * stride].fill(0);
    values[seen.to.div_ceil(2) * stride..].fill(0);
    for slot in (seen.from / 2 * 2..seen.to).step_by(2) {
        let pairs = &mut values[slot / 2 * stride..][..stride];
        let (even, odd) = from_values[slot * stride..][..2 * stride].split_at(stride);
        let (has_even, has_odd) = (slot >= seen.from, slot + 1 < seen.to);
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

/// Stores a vector of pairs.
///
/// # Safety
/// `to` has room for it.
#[inline(always)]
unsafe fn store(s: Avx512Bf16, to: &mut [u32], even: F32<Avx512Bf16>, odd: F32<Avx512Bf16>) {
    let pairs = s.with_bits(s.pairs_bf16(even, odd));
    // SAFETY: the caller vouches for the room; lanes are as large, whatever their bits mean.
    unsafe { s.store(to.as_mut_ptr().cast(), pairs) };
}

#[cfg(test)]
mod tests {
    use super::{EXP2_MIN, coarse_exp2};
    use crate::simd::{Isa, Kernel, Simd};

    struct Exp2<'a>(&'a mut [f32]);

    impl Kernel for Exp2<'_> {
        type Output = ();

        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            for v in s.split_mut(self.0).0 {
                *v = coarse_exp2(s, *v);
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
