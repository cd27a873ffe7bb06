//! The kernel for panels, on any instruction set.
//!
//! Four codes of each row meet four signed activations in one instruction or a few; sums of products stay
//! in the row's lane. Formats differ in how they unpack four codes of each row ([`Format`]).

use std::marker::PhantomData;
use std::ops::Range;

use stonechat_compute::simd::{F32, NullaryFnOnce, prefetch_line, reads_ahead};

use super::format::match_format;
use super::layout::Place;
use super::simd::PanelSimd;
use super::{PANEL_ROWS, Task, Words};
use crate::activation::{ActivationRow, Unit};
use crate::block::half_power;

/// How far ahead the first rows, for which weights come from memory, ask for them, in words: one word for each that is
/// read. All of a block at a time are more than a core waits for: on Zen 5 a thread then streams `q4_k` at 18 to 20
/// GB/s instead of 37, `q6_k` at 14 to 17 instead of 33. At 64 words it is 33 and 30.
const PREFETCH_WORDS: usize = 128;
/// Rows that are so much work that no processor sees far enough what comes next.
const MIN_ROWS_TO_PREFETCH: usize = 4;
/// Units of a panel whose first rows are multiplied before the next ones, so that words are still in the
/// first-level cache.
const UNITS_AT_ONCE: usize = 8;

/// How a format's panels unpack.
pub(super) trait Format {
    /// Words of a block.
    const N_WORDS: usize;
    /// Units of 32 values of a block.
    const UNITS: usize;
    /// Blocks whose lone factors share a vector, 0 if they have none.
    const SHARING: usize = 0;
    /// Whether a block's words are the codes of one unit, group by group, where codes of bytes have an offset.
    #[cfg(target_arch = "x86_64")]
    const ARE_CODES: bool = false;

    /// Gives `sink` all values of a block.
    ///
    /// # Safety
    /// The sink's contract for [`UNITS`](Self::UNITS) units.
    unsafe fn unpack<S: PanelSimd>(s: S, block: Block<'_>, sink: &mut impl Sink<S>);
}

/// Some units of a block: a value is `scale * (code - offset) + min`.
pub(super) struct Codes<S: PanelSimd, const N: usize> {
    /// Which units of the block; `N` at a time because they share words of the panel.
    pub(super) units: [usize; N],
    /// Which groups of four values of each unit: all eight or a half.
    pub(super) groups: Range<usize>,
    pub(super) offset: i32,
    pub(super) scales: [F32<S>; N],
    pub(super) mins: Option<[F32<S>; N]>,
}

/// Codes of units that share words. Closures cannot be told to be inlined, and a call would leave the
/// features of the instruction set, in which every operation becomes a call of its own.
pub(super) trait Groups<S: PanelSimd, const N: usize> {
    /// Those of group `g`, four of each row, of each unit.
    fn group(&self, s: S, g: usize) -> [S::Words; N];
}

/// What is done with the values of a block.
pub(super) trait Sink<S: PanelSimd> {
    /// Takes codes of a bit width, 8 for bytes that may be negative.
    ///
    /// # Safety
    /// As the implementation says.
    unsafe fn take<const N: usize, const BITS: usize>(
        &mut self,
        s: S,
        of: Codes<S, N>,
        codes: &impl Groups<S, N>,
    );
}

/// A block of `S::LANES` rows.
#[derive(Clone, Copy)]
pub(super) struct Block<'a> {
    words: &'a [Words],
    /// A vector in which it has what has no place in words, if the format has that.
    factors: &'a Words,
    /// Which of that vector's.
    nth: usize,
    /// Which of the `16 / S::LANES` parts of the rows.
    part: usize,
    /// Whether each word that is read asks for one that comes later.
    asks: bool,
}

impl<'a> Block<'a> {
    /// Block `index` of a panel.
    #[inline(always)]
    pub(super) fn of<F: Format>(panel: &'a [Words], index: usize, part: usize) -> Self {
        let Place { words, factors, nth } = Place::new(F::N_WORDS, F::SHARING, index);
        Self {
            words: &panel[words..][..F::N_WORDS],
            factors: &panel[factors],
            nth,
            part,
            asks: false,
        }
    }

    /// The same block, whose words ask if `asks`, which is to be known when a kernel is compiled.
    #[inline(always)]
    pub(super) fn asking(self, asks: bool) -> Self {
        Self { asks, ..self }
    }

    /// Asks for the word that lies [`PREFETCH_WORDS`] behind `word`, if this block's words ask.
    #[inline(always)]
    fn ask(&self, word: &Words) {
        if self.asks {
            prefetch_line(std::ptr::from_ref(word).wrapping_add(PREFETCH_WORDS));
        }
    }

    /// Asks for words that [`word_again`](Self::word_again) reads.
    #[inline(always)]
    pub(super) fn ask_for(&self, words: Range<usize>) {
        for i in words {
            self.ask(&self.words[i]);
        }
    }

    /// Word `i` of each row.
    #[inline(always)]
    pub(super) fn word<S: PanelSimd>(&self, s: S, i: usize) -> S::Words {
        self.ask(&self.words[i]);
        self.word_again(s, i)
    }

    /// Word `i` of each row, which is read several times and asks for nothing.
    #[inline(always)]
    pub(super) fn word_again<S: PanelSimd>(&self, s: S, i: usize) -> S::Words {
        s.load_word(&self.words[i], self.part)
    }

    /// Two f16 of each row, from word `i`.
    #[inline(always)]
    pub(super) fn factor_pair<S: PanelSimd>(&self, s: S, i: usize) -> [F32<S>; 2] {
        self.ask(&self.words[i]);
        let [a, b] = bytemuck::cast_ref::<Words, [[u16; PANEL_ROWS]; 2]>(&self.words[i]);
        [s.load_f16s(a, self.part), s.load_f16s(b, self.part)]
    }

    /// The f16 of each row that has no place in a word.
    #[inline(always)]
    pub(super) fn lone_factor<S: PanelSimd>(&self, s: S) -> F32<S> {
        self.ask(self.factors);
        let factors = bytemuck::cast_ref::<Words, [[u16; PANEL_ROWS]; 2]>(self.factors);
        s.load_f16s(&factors[self.nth % 2], self.part)
    }

    /// The second halves of word `i` of each row, as integers.
    #[inline(always)]
    pub(super) fn second_halves<S: PanelSimd>(&self, s: S, i: usize) -> S::Words {
        let [_, second] = bytemuck::cast_ref::<Words, [[u16; PANEL_ROWS]; 2]>(&self.words[i]);
        s.load_u16(second, self.part)
    }

    /// The power of two of each row that has no place in a word.
    #[inline(always)]
    pub(super) fn lone_exponent<S: PanelSimd>(&self, s: S) -> F32<S> {
        self.ask(self.factors);
        let exponents = bytemuck::cast_ref::<Words, [[u8; PANEL_ROWS]; 4]>(self.factors);
        let exponents = exponents[self.nth % 4];
        let mut scales = [0.0; PANEL_ROWS];
        for i in 0..PANEL_ROWS {
            scales[i] = half_power(exponents[i]);
        }
        let of_part = &scales[self.part * S::LANES..][..S::LANES];
        // SAFETY: the slice's length is `LANES`.
        unsafe { s.load(of_part.as_ptr()) }
    }
}

/// Rows of `x`.
struct Activations<'a, const M: usize>([ActivationRow<'a>; M]);

impl<'a, const M: usize> Activations<'a, M> {
    /// # Panics
    /// If a row has fewer units.
    #[inline(always)]
    fn new(rows: [ActivationRow<'a>; M], n_units: usize) -> Self {
        for row in &rows {
            assert!(row.units.len() >= n_units && row.scales.len() >= n_units);
            assert!(row.sums32.len() >= n_units && row.int_sums.len() >= n_units);
            assert!(16 * row.sums16.len() >= 2 * n_units);
        }
        Self(rows)
    }

    /// # Safety
    /// Rows have unit `at`.
    #[inline(always)]
    unsafe fn units(&self, at: usize) -> [&'a Unit; M] {
        // A loop, since `map` on an array stays a call.
        let mut units = [const { &Unit::ZERO }; M];
        for m in 0..M {
            // SAFETY: the caller vouches for the unit.
            units[m] = unsafe { self.0[m].units.get_unchecked(at) };
        }
        units
    }

    /// `-offset` times the sums of a unit or of one of its halves.
    ///
    /// # Safety
    /// Rows have unit `at`.
    #[inline(always)]
    unsafe fn offsets(&self, at: usize, halves: Range<usize>, offset: i32) -> [i32; M] {
        let mut offsets = [0; M];
        if offset != 0 {
            for m in 0..M {
                // SAFETY: there are as many sums as units, and the caller vouches for those.
                let sums = unsafe { self.0[m].int_sums.get_unchecked(at) };
                offsets[m] = -offset * sums[halves.clone()].iter().sum::<i32>();
            }
        }
        offsets
    }

    /// Adds sums of products of unit `at`, scaled.
    ///
    /// # Safety
    /// Rows have unit `at`.
    #[inline(always)]
    unsafe fn add_scaled<S: PanelSimd>(
        &self,
        s: S,
        sums: &mut [F32<S>; M],
        products: [F32<S>; M],
        scale: F32<S>,
        at: usize,
    ) {
        for m in 0..M {
            // SAFETY: there are as many scales as units, and the caller vouches for those.
            let x_scale = unsafe { *self.0[m].scales.get_unchecked(at) };
            sums[m] = s.mul_add(s.mul(products[m], scale), s.splat(x_scale), sums[m]);
        }
    }

    /// Adds a min times the sums of unit `at`.
    ///
    /// # Safety
    /// Rows have unit `at`.
    #[inline(always)]
    unsafe fn add_min<S: PanelSimd>(&self, s: S, sums: &mut [F32<S>; M], min: F32<S>, at: usize) {
        for m in 0..M {
            // SAFETY: `sums32` is as long as `units`; the caller vouches for unit `at`.
            let x_sum = unsafe { *self.0[m].sums32.get_unchecked(at) };
            sums[m] = s.mul_add(min, s.splat(x_sum), sums[m]);
        }
    }

    /// The same with half `half` of the unit.
    ///
    /// # Safety
    /// Rows have unit `at`.
    #[inline(always)]
    unsafe fn add_min_of_half<S: PanelSimd>(
        &self,
        s: S,
        sums: &mut [F32<S>; M],
        min: F32<S>,
        (at, half): (usize, usize),
    ) {
        for m in 0..M {
            let of_halves = self.0[m].sums16.as_flattened().as_flattened();
            // SAFETY: `new` checked that there are two sums for each unit, and the caller vouches for unit `at`.
            let x_sum = unsafe { *of_halves.get_unchecked(2 * at + half) };
            sums[m] = s.mul_add(min, s.splat(x_sum), sums[m]);
        }
    }
}

/// Adds products with units `at ..` of `x` to sums. Rows of `x` must have those of a whole block.
struct Products<'a, S: PanelSimd, const M: usize> {
    x: &'a Activations<'a, M>,
    at: usize,
    sums: &'a mut [F32<S>; M],
}

impl<S: PanelSimd, const M: usize> Sink<S> for Products<'_, S, M> {
    #[inline(always)]
    unsafe fn take<const N: usize, const BITS: usize>(
        &mut self,
        s: S,
        of: Codes<S, N>,
        codes: &impl Groups<S, N>,
    ) {
        let Codes { units, groups, offset, scales, mins } = of;
        let headroom = if BITS == 8 { S::HEADROOM } else { S::HEADROOM << (7 - BITS) };
        let halves = groups.start / 4..groups.end / 4;
        let mut x = [[const { &Unit::ZERO }; M]; N];
        let mut offsets = [[0; M]; N];
        let mut sums = [[s.start(0); M]; N];
        for n in 0..N {
            // SAFETY: the caller vouches for the unit.
            unsafe {
                x[n] = self.x.units(self.at + units[n]);
                offsets[n] = self.x.offsets(self.at + units[n], halves.clone(), offset);
            }
            for m in 0..M {
                sums[n][m] = s.start(offsets[n][m]);
            }
        }
        for g in groups.clone() {
            let codes = codes.group(s, g);
            let is_full = g > groups.start && (g - groups.start).is_multiple_of(headroom);
            for n in 0..N {
                for m in 0..M {
                    if is_full {
                        sums[n][m] = s.widen(sums[n][m]);
                    }
                    sums[n][m] = if BITS == 8 {
                        s.dot_bytes(sums[n][m], codes[n], x[n][m], g)
                    } else {
                        s.dot(sums[n][m], codes[n], x[n][m], g)
                    };
                }
            }
        }
        for n in 0..N {
            let at = self.at + units[n];
            let mut products = [s.splat(0.0); M];
            for m in 0..M {
                products[m] = s.finish(sums[n][m], offsets[n][m]);
            }
            // SAFETY: these are the units from above, or halves of them.
            unsafe {
                self.x.add_scaled(s, self.sums, products, scales[n], at);
                match mins {
                    Some(mins) if halves.len() == 2 => self.x.add_min(s, self.sums, mins[n], at),
                    Some(mins) => {
                        self.x.add_min_of_half(s, self.sums, mins[n], (at, halves.start));
                    }
                    None => {}
                }
            }
        }
    }
}

impl Task<'_> {
    /// Multiplies.
    pub(super) fn run<S: PanelSimd>(&self, s: S) {
        match_format!(self.w.dtype(), F => self.rows::<S, F>(s));
    }

    fn rows<S: PanelSimd, F: Format>(&self, s: S) {
        let n_rows = self.x.rows();
        let mut row = 0;
        while row < n_rows {
            row += match n_rows - row {
                8.. if S::TILE_ROWS == 8 => self.tiles::<S, F, 8>(s, row),
                4.. => self.tiles::<S, F, 4>(s, row),
                2.. => self.tiles::<S, F, 2>(s, row),
                _ => self.tiles::<S, F, 1>(s, row),
            };
        }
    }

    /// Rows `row .. row + M` of `x` with all panels. Returns `M`.
    fn tiles<S: PanelSimd, F: Format, const M: usize>(&self, s: S, row: usize) -> usize {
        // Later rows find words in the caches.
        if row == 0 && (M >= MIN_ROWS_TO_PREFETCH || !reads_ahead()) {
            s.vectorize(Tiles::<S, F, M, true> { task: self, s, row, format: PhantomData });
        } else {
            s.vectorize(Tiles::<S, F, M, false> { task: self, s, row, format: PhantomData });
        }
        M
    }
}

/// `ASKS` tells whether words are asked for before they are read.
struct Tiles<'a, S, F, const M: usize, const ASKS: bool> {
    task: &'a Task<'a>,
    s: S,
    row: usize,
    format: PhantomData<F>,
}

impl<S: PanelSimd, F: Format, const M: usize, const ASKS: bool> NullaryFnOnce
    for Tiles<'_, S, F, M, ASKS>
{
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { task, s, row, .. } = self;
        let w = task.w;
        let n_blocks = w.blocks_per_row();
        let mut x = [task.x.row(row); M];
        for m in 1..M {
            x[m] = task.x.row(row + m);
        }
        let x = Activations::new(x, n_blocks * F::UNITS);
        for panel in task.panels.clone() {
            let sums = dots::<S, F, M, ASKS>(s, w.panel(panel), n_blocks, &x);
            // A range that starts or ends inside the panel wants some of its rows only.
            let all = panel * PANEL_ROWS..(panel + 1) * PANEL_ROWS;
            let wanted = all.start.max(task.rows.start)..all.end.min(task.rows.end);
            let lanes = wanted.start - all.start..wanted.end - all.start;
            let cols = wanted.start - task.rows.start..wanted.end - task.rows.start;
            for m in 0..M {
                // SAFETY: `row + M <= x.rows()` by the split in `rows`, `cols` lies in `0..rows.len()`, and
                // `matmul_packed` checked that the output holds all of them; they are this task's alone.
                let out = unsafe { task.out.span(row + m, cols.start, cols.len()) };
                task.epilogue.finish(s, &sums[m].0[lanes.clone()], cols.start, out);
            }
        }
    }
}

/// A sum of each row of a panel.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Sums([f32; PANEL_ROWS]);

/// The dot products of a panel's rows with `M` rows of activations, which have `n_blocks` blocks of `F`.
#[inline(always)]
fn dots<S: PanelSimd, F: Format, const M: usize, const ASKS: bool>(
    s: S,
    panel: &[Words],
    n_blocks: usize,
    x: &Activations<'_, M>,
) -> [Sums; M] {
    let n_parts = PANEL_ROWS / S::LANES;
    let at_once = if n_parts == 1 { n_blocks } else { UNITS_AT_ONCE / F::UNITS };
    let mut sums = [Sums([0.0; PANEL_ROWS]); M];
    for first in (0..n_blocks).step_by(at_once.max(1)) {
        for part in 0..n_parts {
            let mut of_part = [s.splat(0.0); M];
            for m in 0..M {
                let lanes = &sums[m].0[part * S::LANES..][..S::LANES];
                // SAFETY: a slice of `LANES` values.
                of_part[m] = unsafe { s.load(lanes.as_ptr()) };
            }
            for index in first..n_blocks.min(first + at_once) {
                let block = Block::of::<F>(panel, index, part).asking(ASKS);
                // SAFETY: `Activations::new` checked that there are units for `n_blocks` blocks.
                unsafe {
                    let at = index * F::UNITS;
                    F::unpack(s, block, &mut Products { x, at, sums: &mut of_part });
                }
            }
            for m in 0..M {
                let lanes = &mut sums[m].0[part * S::LANES..][..S::LANES];
                // SAFETY: the slice has `LANES` values.
                unsafe { s.store(lanes.as_mut_ptr(), of_part[m]) };
            }
        }
    }
    sums
}
