//! The register tile: `c[R,NV·LANES] (+)= a[R,K] · b[K,NV·LANES]`, sums held in registers.

use crate::cpu::element::Element;
use crate::simd::{F32, Simd, prefetch_span};

/// How values of a row meet vectors of columns.
pub(crate) trait Multiply<S: Simd> {
    /// What a row holds.
    type Row: Copy;
    /// What `b` holds.
    type Column: Copy;
    /// A vector of columns, loaded.
    type Columns: Copy;

    /// Values of a row that one of [`Self::Row`] holds.
    const VALUES: usize;

    /// Loads `S::LANES` columns.
    ///
    /// # Safety
    /// `p` is readable for as many.
    unsafe fn load(s: S, p: *const Self::Column) -> Self::Columns;

    /// `sums + x * columns`.
    fn add(s: S, x: Self::Row, columns: Self::Columns, sums: F32<S>) -> F32<S>;
}

impl<S: Simd, E: Element> Multiply<S> for E {
    type Row = f32;
    type Column = E;
    type Columns = F32<S>;

    const VALUES: usize = 1;

    #[inline(always)]
    unsafe fn load(s: S, p: *const E) -> F32<S> {
        // SAFETY: what the caller vouches for is what `Element` asks.
        unsafe { <E as Element>::load(s, p) }
    }

    #[inline(always)]
    fn add(s: S, x: f32, columns: F32<S>, sums: F32<S>) -> F32<S> {
        s.mul_add(s.splat(x), columns, sums)
    }
}

/// Where a tile reads and writes. `a` and `c` have rows, `b` has one row a `k`.
pub(crate) struct Operands<S: Simd, M: Multiply<S>> {
    /// `a[r, k]` is `a[r * a_stride + k]`.
    pub(crate) a: *const M::Row,
    pub(crate) a_stride: usize,
    /// `b[k, n]` is `b[k * b_stride + n]`.
    pub(crate) b: *const M::Column,
    pub(crate) b_stride: usize,
    /// `c[r, n]` is `c[r * c_stride + n]`.
    pub(crate) c: *mut f32,
    pub(crate) c_stride: usize,
    /// Length of the sums, each of [`Multiply::VALUES`] products.
    pub(crate) k: usize,
    /// Whether the product is added to `c` or replaces it.
    pub(crate) accumulate: bool,
    /// Bytes from what is read of `b` to what is to be asked for meanwhile, if anything is.
    pub(crate) ahead: isize,
}

impl<S: Simd, M: Multiply<S>> Clone for Operands<S, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S: Simd, M: Multiply<S>> Copy for Operands<S, M> {}

/// Rows of the largest tile: with two vectors a row, its sums and operands fill the registers.
#[inline(always)]
pub(crate) fn max_rows<S: Simd>() -> usize {
    if S::N_REGISTERS >= 32 { 12 } else { 6 }
}

/// Computes `rows` rows, tile by tile. With `ASKS`, each row of `b` that is read asks for what lies `ahead` of it.
///
/// # Safety
/// `a` is readable for `rows × k`, `b` for `k × NV·LANES` and `c` is writable (and initialised,
/// with `accumulate`) for `rows × NV·LANES` values, at their strides; nothing else uses `c`.
#[inline(always)]
pub(crate) unsafe fn tile_rows<S: Simd, M: Multiply<S>, const NV: usize, const ASKS: bool>(
    s: S,
    rows: usize,
    mut o: Operands<S, M>,
) {
    let mut left = rows;
    while left > 0 {
        // SAFETY: every arm computes at most `left` of the rows that the caller vouches for.
        let done = unsafe {
            if const { NV <= 2 && S::N_REGISTERS >= 32 } && left >= 12 {
                tile::<S, M, 12, NV, ASKS>(s, o);
                12
            } else if left >= 6 {
                tile::<S, M, 6, NV, ASKS>(s, o);
                6
            } else if left >= 5 {
                tile::<S, M, 5, NV, ASKS>(s, o);
                5
            } else if left >= 4 {
                tile::<S, M, 4, NV, ASKS>(s, o);
                4
            } else if left >= 3 {
                tile::<S, M, 3, NV, ASKS>(s, o);
                3
            } else {
                tile::<S, M, 1, NV, ASKS>(s, o);
                1
            }
        };
        left -= done;
        o.a = o.a.wrapping_add(done * o.a_stride);
        o.c = o.c.wrapping_add(done * o.c_stride);
    }
}

/// # Safety
/// As for [`tile_rows`] with `rows = R`.
#[inline(always)]
unsafe fn tile<S: Simd, M: Multiply<S>, const R: usize, const NV: usize, const ASKS: bool>(
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
        // Line by line: 32 at a time stall one thread of Zen 5, which reads a step's cross-attention at 19 GB/s so and at
        // 24-28 here. A page of wide heads would crowd the first-level cache: 16 threads of Sapphire Rapids read one at
        // 42-46 GB/s to there and at 52-58 to the second level. Tiles of half a line ask for it twice: asked for once,
        // pages took AVX2 a quarter longer.
        if ASKS {
            prefetch_span(b.wrapping_byte_offset(o.ahead), NV * S::LANES);
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
                    sums[r][v] = M::add(s, x, columns[v], sums[r][v]);
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
