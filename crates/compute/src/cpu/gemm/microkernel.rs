//! Microkernel: `c[MR,NR] (+)= a[MR,K] · b[K,NR]` with the sums in registers, `NR = NV` vectors.

use crate::cpu::element::Element;
use crate::simd::{F32, Simd, prefetch_span};

/// Multiply-add of the microkernel: element types of `a` and `b`, and the instruction.
pub(crate) trait MulAdd<S: Simd> {
    /// Element of `a`.
    type A: Copy;
    /// Element of `b`.
    type B: Copy;
    /// `S::LANES` elements of `b` in a register.
    type BVector: Copy;

    /// Values along `k` in one element of `a` or `b`: 1, or 2 for pairs of bf16.
    const K_PER_ELEMENT: usize;

    /// Loads `S::LANES` elements of `b`.
    ///
    /// # Safety
    /// - `p` is readable for `S::LANES` elements.
    unsafe fn load(s: S, p: *const Self::B) -> Self::BVector;

    /// `sums + a * b`, `a` broadcast to all lanes.
    fn mul_add(s: S, a: Self::A, b: Self::BVector, sums: F32<S>) -> F32<S>;
}

impl<S: Simd, E: Element> MulAdd<S> for E {
    type A = f32;
    type B = E;
    type BVector = F32<S>;

    const K_PER_ELEMENT: usize = 1;

    #[inline(always)]
    unsafe fn load(s: S, p: *const E) -> F32<S> {
        // SAFETY: both contracts are the same.
        unsafe { <E as Element>::load(s, p) }
    }

    #[inline(always)]
    fn mul_add(s: S, a: f32, b: F32<S>, sums: F32<S>) -> F32<S> {
        s.mul_add(s.splat(a), b, sums)
    }
}

/// Operands of the microkernel; strides are in elements.
pub(crate) struct Operands<S: Simd, M: MulAdd<S>> {
    /// `[M, K]`: element `(r, k)` at `r * a_stride + k`.
    pub(crate) a: *const M::A,
    pub(crate) a_stride: usize,
    /// `[K, NR]`: element `(k, n)` at `k * b_stride + n`.
    pub(crate) b: *const M::B,
    pub(crate) b_stride: usize,
    /// `[M, NR]`: element `(r, n)` at `r * c_stride + n`.
    pub(crate) c: *mut f32,
    pub(crate) c_stride: usize,
    /// `K` in elements, each of which holds [`MulAdd::K_PER_ELEMENT`] values.
    pub(crate) k: usize,
    /// Whether to add to `c` or to overwrite it.
    pub(crate) accumulate: bool,
    /// Distance in bytes from a row of `b` to the memory to prefetch meanwhile, with `PREFETCH`.
    pub(crate) prefetch_offset: isize,
}

impl<S: Simd, M: MulAdd<S>> Clone for Operands<S, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S: Simd, M: MulAdd<S>> Copy for Operands<S, M> {}

/// Largest MR: with NR of two vectors, sums and operands just fit into the registers. Tiers with few variants have tiles of
/// 4 rows: a browser's compiler keeps all `a` of a column in registers, and would spill sums of 6 rows.
#[inline(always)]
pub(crate) fn max_mr<S: Simd>() -> usize {
    match S::N_REGISTERS {
        32.. => 12,
        _ if S::HAS_ALL_VARIANTS => 6,
        _ => 4,
    }
}

/// Computes `rows` rows of `c` in tiles of at most 12 rows.
///
/// `PREFETCH` prefetches, for each row of `b` that is read, the memory [`Operands::prefetch_offset`] bytes away.
///
/// # Safety
/// With `NR = NV * S::LANES`, at the strides of `o`:
/// - `a` is readable for `rows × k` elements, `b` for `k × NR`.
/// - `c` is writable for `rows × NR` values, and initialised with `accumulate`.
/// - No reference to any of these values of `c` is alive, and no other thread uses them.
#[inline(always)]
pub(crate) unsafe fn run_tiles<S: Simd, M: MulAdd<S>, const NV: usize, const PREFETCH: bool>(
    s: S,
    rows: usize,
    mut o: Operands<S, M>,
) {
    let mut left = rows;
    // The conditions on constants stand alone, so that tiles that no tier needs are not compiled.
    while left > 0 {
        // SAFETY: every arm computes at most `left` rows, which are among those of the contract.
        let done = unsafe {
            if const { NV <= 2 && S::N_REGISTERS >= 32 } && left >= 12 {
                tile::<S, M, 12, NV, PREFETCH>(s, o);
                12
            } else if const { S::HAS_ALL_VARIANTS } && left >= 6 {
                tile::<S, M, 6, NV, PREFETCH>(s, o);
                6
            } else if const { S::HAS_ALL_VARIANTS } && left >= 5 {
                tile::<S, M, 5, NV, PREFETCH>(s, o);
                5
            } else if left >= 4 {
                tile::<S, M, 4, NV, PREFETCH>(s, o);
                4
            } else if const { S::HAS_ALL_VARIANTS } && left >= 3 {
                tile::<S, M, 3, NV, PREFETCH>(s, o);
                3
            } else {
                tile::<S, M, 1, NV, PREFETCH>(s, o);
                1
            }
        };
        left -= done;
        o.a = o.a.wrapping_add(done * o.a_stride);
        o.c = o.c.wrapping_add(done * o.c_stride);
    }
}

/// One tile of `R` rows.
///
/// # Safety
/// - As for [`run_tiles`] with `rows = R`.
#[inline(always)]
unsafe fn tile<S: Simd, M: MulAdd<S>, const R: usize, const NV: usize, const PREFETCH: bool>(
    s: S,
    o: Operands<S, M>,
) {
    let mut sums = [[s.splat(0.0); NV]; R];
    if o.accumulate {
        for r in 0..R {
            for v in 0..NV {
                // SAFETY: `r < R` and `v < NV`, inside `c`.
                sums[r][v] = unsafe { s.load(o.c.add(r * o.c_stride + v * S::LANES)) };
            }
        }
    }
    let (mut a, mut b) = (o.a, o.b);
    for _ in 0..o.k {
        // One row at a time: bursts of prefetches stall Zen 5. To L2, since a page of wide heads would crowd the L1 cache.
        // Tiles narrower than a cache line prefetch it twice; to skip the second time is slower on AVX2.
        if PREFETCH {
            prefetch_span(b.wrapping_byte_offset(o.prefetch_offset), NV * S::LANES);
        }
        // SAFETY: `a` has advanced by at most `k - 1` columns and `b` by as many rows.
        unsafe {
            let mut columns = [M::load(s, b); NV];
            for v in 1..NV {
                columns[v] = M::load(s, b.add(v * S::LANES));
            }
            for r in 0..R {
                let x = *a.add(r * o.a_stride);
                for v in 0..NV {
                    sums[r][v] = M::mul_add(s, x, columns[v], sums[r][v]);
                }
            }
        }
        a = a.wrapping_add(1);
        b = b.wrapping_add(o.b_stride);
    }
    for r in 0..R {
        for v in 0..NV {
            // SAFETY: `r < R` and `v < NV`, inside `c`.
            unsafe { s.store(o.c.add(r * o.c_stride + v * S::LANES), sums[r][v]) };
        }
    }
}
