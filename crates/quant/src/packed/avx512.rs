//! The kernel for panels on AVX-512 with VNNI.
//!
//! One instruction multiplies 64 unsigned weights, four of each row, with four signed activations and
//! adds the products to 16 sums. Formats differ in how they unpack four values of each row ([`Format`]).

use std::arch::x86_64::{
    __m512, __m512i, _MM_HINT_T0, _mm_cvtsi32_si128, _mm_prefetch, _mm512_and_si512,
    _mm512_cvtepi32_epi16, _mm512_cvtepi32_ps, _mm512_cvtph_ps, _mm512_dpbusd_epi32,
    _mm512_fmadd_ps, _mm512_loadu_si512, _mm512_mask_add_epi8, _mm512_mul_ps, _mm512_or_si512,
    _mm512_set1_epi8, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_sll_epi16,
    _mm512_sll_epi32, _mm512_sra_epi32, _mm512_srl_epi16, _mm512_srl_epi32, _mm512_test_epi8_mask,
};

use stonechat_compute::DType;
use stonechat_compute::simd::{Avx512Vnni, NullaryFnOnce};

use super::{PANEL_ROWS, Task, Words};
use crate::activation::ActivationRow;

/// Rows of `x` that pass a panel together: their sums, two vectors each, and what they share fill the
/// 32 registers.
const MAX_TILE_ROWS: usize = 8;
/// How far ahead the first rows, for which weights come from memory, ask for them, in vectors.
const PREFETCH_WORDS: usize = 64;

impl Task<'_> {
    pub(super) fn run(self, token: Avx512Vnni) {
        token.vectorize(InContext(self, token));
    }
}

struct InContext<'a>(Task<'a>, Avx512Vnni);

impl NullaryFnOnce for InContext<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self(task, token) = self;
        match task.w.dtype() {
            DType::Q4_0 => panels::<Q4_0>(&task, token),
            DType::Q4_1 => panels::<Q4_1>(&task, token),
            DType::Q5_0 => panels::<Q5_0>(&task, token),
            DType::Q5_1 => panels::<Q5_1>(&task, token),
            DType::Q8_0 => panels::<Q8_0>(&task, token),
            DType::Q4K => panels::<Q4K>(&task, token),
            DType::Q5K => panels::<Q5K>(&task, token),
            DType::Q6K => panels::<Q6K>(&task, token),
            other => unreachable!("{other} has no panels"),
        }
    }
}

#[inline(always)]
fn panels<F: Format>(task: &Task<'_>, token: Avx512Vnni) {
    let n_rows = task.x.rows();
    let mut row = 0;
    while row < n_rows {
        let len = match n_rows - row {
            MAX_TILE_ROWS.. => MAX_TILE_ROWS,
            4.. => 4,
            2.. => 2,
            _ => 1,
        };
        for panel in task.panels.clone() {
            match len {
                MAX_TILE_ROWS => tile::<F, MAX_TILE_ROWS>(task, token, row, panel),
                4 => tile::<F, 4>(task, token, row, panel),
                2 => tile::<F, 2>(task, token, row, panel),
                _ => tile::<F, 1>(task, token, row, panel),
            }
        }
        row += len;
    }
}

/// Rows `row .. row + M` of `x` with one panel.
#[inline(always)]
fn tile<F: Format, const M: usize>(task: &Task<'_>, token: Avx512Vnni, row: usize, panel: usize) {
    let w = task.w;
    let n_blocks = w.blocks_per_row();
    let mut x = [task.x.row(row); M];
    for m in 1..M {
        x[m] = task.x.row(row + m);
    }
    let panel_len = w.panel_len();
    let words = &w.data[panel * panel_len..][..panel_len];
    // SAFETY: `token` proves the instructions; `matmul_packed` checked that rows of `x` have as many
    // values as rows of `w`, which are `F`'s blocks.
    let sums =
        unsafe { dots::<F, M>(words, n_blocks, w.layout.factors_len(n_blocks), &x, row == 0) };
    // A range that starts or ends inside the panel wants some of its rows only.
    let all = panel * PANEL_ROWS..(panel + 1) * PANEL_ROWS;
    let wanted = all.start.max(task.rows.start)..all.end.min(task.rows.end);
    let lanes = wanted.start - all.start..wanted.end - all.start;
    let cols = wanted.start - task.rows.start..wanted.end - task.rows.start;
    for m in 0..M {
        let sums = stored(sums[m]);
        // SAFETY: `row + M <= x.rows()` by the split in `panels`, `cols` lies in `0..rows.len()`, and
        // `matmul_packed` checked that the output holds all of them; they are this task's alone.
        let out = unsafe { task.out.span(row + m, cols.clone()) };
        task.epilogue.finish(token, &sums[lanes.clone()], cols.start, out);
    }
}

#[inline(always)]
fn stored(sums: __m512) -> [f32; PANEL_ROWS] {
    // SAFETY: both are sixteen floats.
    unsafe { std::mem::transmute(sums) }
}

/// The dot products of a panel's rows with `M` rows of activations.
///
/// # Safety
/// The CPU has AVX-512 F, BW and VNNI; each row of `x` has `n_blocks` blocks of `F`, and `panel` is the
/// factors, `factors_len` vectors, and as many blocks.
#[inline(always)]
unsafe fn dots<F: Format, const M: usize>(
    panel: &[Words],
    n_blocks: usize,
    factors_len: usize,
    x: &[ActivationRow<'_>; M],
    is_first: bool,
) -> [__m512; M] {
    assert!(panel.len() >= factors_len + n_blocks * F::N_WORDS);
    for m in 0..M {
        assert!(x[m].units.len() >= n_blocks * F::UNITS);
        assert!(x[m].scales.len() >= n_blocks * F::UNITS);
        assert!(x[m].sums32.len() >= n_blocks * F::UNITS);
        assert!(x[m].int_sums.len() >= n_blocks * F::UNITS);
    }
    // SAFETY: by the asserts every block and unit is inside; the caller has the instructions.
    unsafe {
        let mut sums = [_mm512_setzero_ps(); M];
        let factors = panel.as_ptr().cast::<[u16; PANEL_ROWS]>();
        for i in 0..n_blocks {
            let words = panel.as_ptr().add(factors_len + i * F::N_WORDS);
            if is_first {
                for word in 0..F::N_WORDS {
                    let ahead = words.wrapping_add(word + PREFETCH_WORDS);
                    _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
                }
            }
            F::block(words, factors.wrapping_add(i), x, i * F::UNITS, &mut sums);
        }
        sums
    }
}

/// How a format's panels unpack.
trait Format {
    /// Vectors of a block.
    const N_WORDS: usize;
    /// Units of 32 values of a block.
    const UNITS: usize;

    /// Adds the products of a block with units `at ..` of `x`.
    ///
    /// # Safety
    /// The CPU has AVX-512 F, BW and VNNI; `words` is a block, `factor` its lone factors if the format has
    /// such, and rows of `x` have the units.
    unsafe fn block<const M: usize>(
        words: *const Words,
        factor: *const [u16; PANEL_ROWS],
        x: &[ActivationRow<'_>; M],
        at: usize,
        sums: &mut [__m512; M],
    );
}

/// What a code of values is larger than these, times the sum of the activations, so that it drops out.
///
/// # Safety
/// AVX-512 F; `x` has unit `at`.
#[inline(always)]
unsafe fn without_offset<const M: usize>(
    x: &[ActivationRow<'_>; M],
    at: usize,
    halves: std::ops::Range<usize>,
    offset: i32,
) -> [__m512i; M] {
    // SAFETY: AVX-512 F, by contract.
    let mut ints = unsafe { [_mm512_set1_epi32(0); M] };
    if offset != 0 {
        for m in 0..M {
            // SAFETY: the caller vouches for unit `at`.
            unsafe {
                let sum: i32 = x[m].int_sums.get_unchecked(at)[halves.clone()].iter().sum();
                ints[m] = _mm512_set1_epi32(-offset * sum);
            }
        }
    }
    ints
}

/// Adds the products of four codes of each row, group `g` of unit `at`.
///
/// # Safety
/// AVX-512 VNNI; `x` has unit `at`.
#[inline(always)]
unsafe fn add_products<const M: usize>(
    ints: &mut [__m512i; M],
    codes: __m512i,
    x: &[ActivationRow<'_>; M],
    at: usize,
    g: usize,
) {
    for m in 0..M {
        // SAFETY: the caller vouches for the dot product and for unit `at`, whose 32 bytes are eight words.
        unsafe {
            let values = x[m].units.get_unchecked(at).bytes().as_ptr().cast::<i32>();
            let four = _mm512_set1_epi32(values.add(g).read_unaligned());
            ints[m] = _mm512_dpbusd_epi32(ints[m], codes, four);
        }
    }
}

/// Adds sums of products, scaled.
///
/// # Safety
/// AVX-512 F; `x` has unit `at`.
#[inline(always)]
unsafe fn add_scaled<const M: usize>(
    sums: &mut [__m512; M],
    ints: &[__m512i; M],
    scale: __m512,
    x: &[ActivationRow<'_>; M],
    at: usize,
) {
    for m in 0..M {
        // SAFETY: the caller vouches for AVX-512 F and that there are scales of unit `at`.
        unsafe {
            let x_scale = _mm512_set1_ps(*x[m].scales.get_unchecked(at));
            let scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(ints[m]), scale);
            sums[m] = _mm512_fmadd_ps(scaled, x_scale, sums[m]);
        }
    }
}

/// Adds a min times the sums of the activations.
///
/// # Safety
/// AVX-512 F; `x` has unit `at`.
#[inline(always)]
unsafe fn add_min<const M: usize>(
    sums: &mut [__m512; M],
    min: __m512,
    x: &[ActivationRow<'_>; M],
    at: usize,
) {
    for m in 0..M {
        // SAFETY: the caller vouches for AVX-512 F and that there are sums of unit `at`.
        unsafe {
            let x_sum = _mm512_set1_ps(*x[m].sums32.get_unchecked(at));
            sums[m] = _mm512_fmadd_ps(min, x_sum, sums[m]);
        }
    }
}

/// # Safety
/// AVX-512 F; `words` has word `i`.
#[inline(always)]
unsafe fn load(words: *const Words, i: usize) -> __m512i {
    // SAFETY: the caller vouches for word `i`.
    unsafe { _mm512_loadu_si512(words.add(i).cast()) }
}

/// # Safety
/// AVX-512 F and BW.
#[inline(always)]
unsafe fn shifted(x: __m512i, n: usize) -> __m512i {
    // SAFETY: 16-bit lanes need AVX-512 BW, which the caller has.
    unsafe { _mm512_srl_epi16(x, _mm_cvtsi32_si128(n as i32)) }
}

/// The low nibbles, or the high ones.
///
/// # Safety
/// AVX-512 F and BW.
#[inline(always)]
unsafe fn nibbles(x: __m512i, high: bool) -> __m512i {
    // SAFETY: the caller has AVX-512 F and, to shift, BW.
    unsafe { _mm512_and_si512(if high { shifted(x, 4) } else { x }, _mm512_set1_epi8(15)) }
}

/// # Safety
/// AVX-512 F; `factor` is readable.
#[inline(always)]
unsafe fn lone_factor(factor: *const [u16; PANEL_ROWS]) -> __m512 {
    // SAFETY: the caller vouches for the 32 bytes of the factors.
    unsafe { _mm512_cvtph_ps(factor.cast::<std::arch::x86_64::__m256i>().read_unaligned()) }
}

/// Two f16 of each row, from the halves of its word.
///
/// # Safety
/// AVX-512 F.
#[inline(always)]
unsafe fn factor_pair(word: __m512i) -> [__m512; 2] {
    // SAFETY: the caller has AVX-512 F, which widens f16, too.
    unsafe {
        let high = shifted32(word, 16);
        [_mm512_cvtph_ps(_mm512_cvtepi32_epi16(word)), _mm512_cvtph_ps(_mm512_cvtepi32_epi16(high))]
    }
}

/// Adds 16 to the bytes whose bit is set in group `g` of the vector of fifth bits.
///
/// # Safety
/// AVX-512 F and BW; `words` has word `i`.
#[inline(always)]
unsafe fn with_fifth_bit(x: __m512i, words: *const Words, i: usize, g: usize) -> __m512i {
    // SAFETY: a word is eight 64-bit integers, and the caller vouches for word `i`.
    unsafe {
        let mask = words.add(i).cast::<u64>().add(g).read();
        _mm512_mask_add_epi8(x, mask, x, _mm512_set1_epi8(16))
    }
}

/// A format of 32 values with one scale: `$qs` is its first word of nibbles, `$bits` that of fifth bits.
macro_rules! block32 {
    ($name:ident, words $n_words:literal, offset $offset:literal, qs $qs:literal $(, bits $bits:literal)?) => {
        struct $name;

        impl Format for $name {
            const N_WORDS: usize = $n_words;
            const UNITS: usize = 1;

            #[inline(always)]
            unsafe fn block<const M: usize>(
                words: *const Words,
                factor: *const [u16; PANEL_ROWS],
                x: &[ActivationRow<'_>; M],
                at: usize,
                sums: &mut [__m512; M],
            ) {
                // SAFETY: formats of 32 values: the words named in the macro's arguments are below `N_WORDS`.
                unsafe {
                    let mut ints = without_offset(x, at, 0..2, $offset);
                    for g in 0..8 {
                        let q = nibbles(load(words, $qs + g % 4), g >= 4);
                        $(let q = with_fifth_bit(q, words, $bits, g);)?
                        add_products(&mut ints, q, x, at, g);
                    }
                    if $offset == 0 {
                        let [scale, min] = factor_pair(load(words, 0));
                        add_scaled(sums, &ints, scale, x, at);
                        add_min(sums, min, x, at);
                    } else {
                        add_scaled(sums, &ints, lone_factor(factor), x, at);
                    }
                }
            }
        }
    };
}

block32!(Q4_0, words 4, offset 8, qs 0);
block32!(Q4_1, words 5, offset 0, qs 1);
block32!(Q5_0, words 5, offset 16, qs 1, bits 0);
block32!(Q5_1, words 6, offset 0, qs 2, bits 1);

struct Q8_0;

impl Format for Q8_0 {
    const N_WORDS: usize = 8;
    const UNITS: usize = 1;

    #[inline(always)]
    unsafe fn block<const M: usize>(
        words: *const Words,
        factor: *const [u16; PANEL_ROWS],
        x: &[ActivationRow<'_>; M],
        at: usize,
        sums: &mut [__m512; M],
    ) {
        // SAFETY: eight words of `Q8_0`, as the trait asks for.
        unsafe {
            let mut ints = without_offset(x, at, 0..2, 128);
            for g in 0..8 {
                add_products(&mut ints, load(words, g), x, at, g);
            }
            add_scaled(sums, &ints, lone_factor(factor), x, at);
        }
    }
}

/// Scales and mins of a block of `Q4_K` or `Q5_K`: of the words, one has two f16 factors, three have eight
/// scales and eight mins of six bits.
///
/// # Safety
/// AVX-512 F; four words.
#[inline(always)]
unsafe fn k_scales(words: *const Words) -> [[__m512; 8]; 2] {
    // SAFETY: the caller vouches for the first four words.
    unsafe {
        let [scale, min] = factor_pair(load(words, 0));
        let factors = [scale, _mm512_mul_ps(min, _mm512_set1_ps(-1.0))];
        let packed = [load(words, 1), load(words, 2), load(words, 3)];
        let mut scales = [[_mm512_setzero_ps(); 8]; 2];
        for which in 0..2 {
            for u in 0..4 {
                let low = shifted32(packed[which], 8 * u);
                let bits = _mm512_and_si512(low, _mm512_set1_epi32(63));
                scales[which][u] = _mm512_mul_ps(factors[which], _mm512_cvtepi32_ps(bits));
                // The last four have four bits in the last word and the top two in the other words.
                let low = shifted32(packed[2], 8 * u + 4 * which);
                let low = _mm512_and_si512(low, _mm512_set1_epi32(15));
                let top = shifted32(packed[which], 8 * u + 2);
                let bits = _mm512_or_si512(low, _mm512_and_si512(top, _mm512_set1_epi32(48)));
                scales[which][u + 4] = _mm512_mul_ps(factors[which], _mm512_cvtepi32_ps(bits));
            }
        }
        scales
    }
}

/// # Safety
/// AVX-512 F.
#[inline(always)]
unsafe fn shifted32(x: __m512i, n: usize) -> __m512i {
    // SAFETY: a shift of 32-bit lanes is AVX-512 F.
    unsafe { _mm512_srl_epi32(x, _mm_cvtsi32_si128(n as i32)) }
}

/// `Q4_K`, or with a fifth bit `Q5_K`: `$bits` is the word of the first of these.
macro_rules! block_k {
    ($name:ident, words $n_words:literal, qs $qs:literal $(, bits $bits:literal)?) => {
        struct $name;

        impl Format for $name {
            const N_WORDS: usize = $n_words;
            const UNITS: usize = 8;

            #[inline(always)]
            unsafe fn block<const M: usize>(
                words: *const Words,
                _: *const [u16; PANEL_ROWS],
                x: &[ActivationRow<'_>; M],
                at: usize,
                sums: &mut [__m512; M],
            ) {
                // SAFETY: formats of 256 values: 32 words from `$qs` and eight from `$bits` end at `N_WORDS`.
                unsafe {
                    let [scales, mins] = k_scales(words);
                    // Two units share their words: low nibbles and high ones.
                    for pair in 0..4 {
                        let u = 2 * pair;
                        let mut low = [_mm512_set1_epi32(0); M];
                        let mut high = low;
                        for g in 0..8 {
                            let q = load(words, $qs + 8 * pair + g);
                            let (a, b) = (nibbles(q, false), nibbles(q, true));
                            $(
                                let bits = shifted(load(words, $bits + g), u);
                                let one = _mm512_set1_epi8(1);
                                let a = _mm512_mask_add_epi8(
                                    a,
                                    _mm512_test_epi8_mask(bits, one),
                                    a,
                                    _mm512_set1_epi8(16),
                                );
                                let b = _mm512_mask_add_epi8(
                                    b,
                                    _mm512_test_epi8_mask(bits, _mm512_set1_epi8(2)),
                                    b,
                                    _mm512_set1_epi8(16),
                                );
                            )?
                            add_products(&mut low, a, x, at + u, g);
                            add_products(&mut high, b, x, at + u + 1, g);
                        }
                        add_scaled(sums, &low, scales[u], x, at + u);
                        add_scaled(sums, &high, scales[u + 1], x, at + u + 1);
                        add_min(sums, mins[u], x, at + u);
                        add_min(sums, mins[u + 1], x, at + u + 1);
                    }
                }
            }
        }
    };
}

block_k!(Q4K, words 36, qs 4);
block_k!(Q5K, words 44, qs 12, bits 4);

struct Q6K;

impl Format for Q6K {
    const N_WORDS: usize = 52;
    const UNITS: usize = 8;

    #[inline(always)]
    unsafe fn block<const M: usize>(
        words: *const Words,
        factor: *const [u16; PANEL_ROWS],
        x: &[ActivationRow<'_>; M],
        at: usize,
        sums: &mut [__m512; M],
    ) {
        // SAFETY: words of `Q6_K`: 32 of nibbles, 16 of two bits, 4 of scales.
        unsafe {
            let factor = lone_factor(factor);
            let mut scales = [_mm512_setzero_ps(); 16];
            for (group, scale) in scales.iter_mut().enumerate() {
                let packed = load(words, 48 + group / 4);
                let top = _mm_cvtsi32_si128(24 - 8 * (group % 4) as i32);
                let signed = _mm512_sra_epi32(_mm512_sll_epi32(packed, top), _mm_cvtsi32_si128(24));
                *scale = _mm512_mul_ps(factor, _mm512_cvtepi32_ps(signed));
            }
            // Of the four units of a half, the first and third share words of nibbles, as do the others.
            for pair in 0..4 {
                let (half, quarter) = (pair / 2, pair % 2);
                let (u, v) = (4 * half + quarter, 4 * half + quarter + 2);
                for part in 0..2 {
                    let mut low = without_offset(x, at + u, part..part + 1, 32);
                    let mut high = without_offset(x, at + v, part..part + 1, 32);
                    for g in 4 * part..4 * part + 4 {
                        let q = load(words, 16 * half + 8 * quarter + g);
                        // Bits 0 and 1 for this quarter, 4 and 5 for the other unit.
                        let bits = shifted(load(words, 32 + 8 * half + g), 2 * quarter);
                        let top = _mm512_set1_epi8(48);
                        let four = _mm_cvtsi32_si128(4);
                        let a = _mm512_and_si512(_mm512_sll_epi16(bits, four), top);
                        let b = _mm512_and_si512(bits, top);
                        let a = _mm512_or_si512(nibbles(q, false), a);
                        let b = _mm512_or_si512(nibbles(q, true), b);
                        add_products(&mut low, a, x, at + u, g);
                        add_products(&mut high, b, x, at + v, g);
                    }
                    add_scaled(sums, &low, scales[2 * u + part], x, at + u);
                    add_scaled(sums, &high, scales[2 * v + part], x, at + v);
                }
            }
        }
    }
}
