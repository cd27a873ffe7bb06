//! Panels times many rows in integers, on 32 registers of 512 bits with VNNI.
//!
//! The kernel for few rows unpacks codes while it multiplies and loads the activations of each product
//! anew, so that loads are its bound. Here some units of two panels are unpacked once for all rows, and what
//! is loaded of a row meets both. Every sum is made of the same terms in the same order as there: a row's
//! results do not depend on how many there are.

use std::arch::x86_64::{__m512, _mm512_dpbusd_epi32};
use std::marker::PhantomData;
use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use stonechat_compute::cpu::{MatRef, SharedMut};
use stonechat_compute::simd::{Avx512Vnni, NullaryFnOnce, Simd, prefetch};
use stonechat_compute::with_scratch;

use super::blocks::{Blocks, UnitOfBlock};
use super::format::match_format;
use super::kernel::{Block, Codes, Format, Groups, Sink};
use super::layout::Place;
use super::simd::PanelSimd;
use super::{PANEL_ROWS, PackedMatrix, Task, Words};
use crate::activation::{UNIT_LEN, quantize_unit};

/// Panels that are multiplied together.
const PANELS: usize = 2;
/// Units that are unpacked at a time: codes and factors of two panels stay in the first-level cache.
const CHUNK_UNITS: usize = 16;
/// Words of a unit.
const GROUPS: usize = 8;
/// Rows that have sums in registers, two vectors of integers and two of floats each.
const TILE_ROWS: usize = 6;
/// Panels of a task, for which units of all inputs are read once from the last-level cache.
const MAX_PANELS: usize = 8;
/// Rows whose units of a chunk, and whose sums with a task's panels, stay in the second-level cache. For more rows,
/// panels are unpacked again.
const MAX_ROWS: usize = 40 * TILE_ROWS;

/// What codes without a min are too large by here, whatever their format: so that what a product starts from is read
/// as it is. As much as bytes are, which are read in place.
const OFFSET: i32 = <Avx512Vnni as PanelSimd>::BYTE_OFFSET as i32;

/// How many panels a task takes, `most` if each thread is to have several tasks; in pairs.
pub(super) fn panels_per_task(most: usize) -> usize {
    (most / PANELS * PANELS).clamp(PANELS, MAX_PANELS)
}

/// A unit of some rows, so that a single address leads to all that a step needs of them.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct UnitOfRows {
    /// The values, in words of four.
    words: [[i32; GROUPS]; TILE_ROWS],
    scales: [f32; TILE_ROWS],
    /// The scale times the sum of the values.
    scaled_sums: [f32; TILE_ROWS],
    /// `-OFFSET` times the sum of the values, and of each half of them.
    offsets: [i32; TILE_ROWS],
    offsets_of_halves: [[i32; TILE_ROWS]; 2],
    padding: [u32; 2],
}

impl UnitOfBlock for UnitOfRows {
    const ROWS: usize = TILE_ROWS;
    const BLOCKS: usize = 1;
    const PIECE: usize = 64;

    #[inline(always)]
    fn fill(units: &mut [Self], x: MatRef<'_>, rows: Range<usize>, from: usize) {
        for (m, r) in rows.enumerate() {
            let values = x.row(r).as_chunks::<UNIT_LEN>().0;
            for (to, values) in units.iter_mut().zip(&values[from..]) {
                let (scale, unit, sums) = quantize_unit(values);
                to.words[m] = *unit.words();
                to.scales[m] = scale;
                to.scaled_sums[m] = scale * (sums[0] + sums[1]) as f32;
                to.offsets[m] = -OFFSET * (sums[0] + sums[1]);
                to.offsets_of_halves[0][m] = -OFFSET * sums[0];
                to.offsets_of_halves[1][m] = -OFFSET * sums[1];
            }
        }
    }
}

/// A word, a factor or a sum of each row of a panel.
type Lanes = [u32; PANEL_ROWS];

/// Some units of two panels. A step is a unit or half of one, with a scale of its own.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Chunk {
    codes: [[Words; CHUNK_UNITS * GROUPS]; PANELS],
    scales: [[Lanes; PANELS]; 2 * CHUNK_UNITS],
    mins: [[Lanes; PANELS]; 2 * CHUNK_UNITS],
    /// For each step twice its unit, and whether it is the second half.
    halves: [u32; 2 * CHUNK_UNITS],
    /// Where the codes of each step begin.
    starts: [u32; 2 * CHUNK_UNITS],
    has_mins: u32,
    /// Groups of four values of a step: 8 or 4.
    n_groups: u32,
    padding: [u32; 14],
}

/// Sums of a row of activations with two panels.
type Sums = [Lanes; PANELS];

impl Task<'_> {
    /// Multiplies all rows.
    pub(super) fn run_wide(&self, s: Avx512Vnni) {
        let n_rows = self.x.rows();
        let n_pairs = self.panels.len().div_ceil(PANELS);
        let n_sums = n_pairs * n_rows.min(MAX_ROWS) * size_of::<Sums>() / size_of::<f32>();
        with_scratch(n_sums + size_of::<Chunk>() / size_of::<f32>(), |scratch| {
            let (chunk, sums) = scratch.split_at_mut(size_of::<Chunk>() / size_of::<f32>());
            let chunk: &mut Chunk = bytemuck::cast_slice_mut(chunk).first_mut().expect("one");
            let sums: &mut [Sums] = bytemuck::cast_slice_mut(sums);
            for from in (0..n_rows).step_by(MAX_ROWS) {
                let rows = from..n_rows.min(from + MAX_ROWS);
                let sums = &mut sums[..n_pairs * rows.len()];
                // The first chunk fills them, if there is one.
                if self.w.blocks_per_row() == 0 {
                    sums.fill(Zeroable::zeroed());
                }
                match_format!(self.w.dtype(), F => {
                    self.add_products::<F>(s, rows.clone(), chunk, sums);
                });
                s.vectorize(Finish { task: self, s, rows, sums });
            }
        });
    }

    /// Adds the products of all panels with `rows`, whose units of a chunk stay in the second-level cache while the
    /// panels pass.
    fn add_products<F: Format>(
        &self,
        s: Avx512Vnni,
        rows: Range<usize>,
        chunk: &mut Chunk,
        sums: &mut [Sums],
    ) {
        let n_blocks = self.w.blocks_per_row();
        let at_once = CHUNK_UNITS / F::UNITS;
        for first in (0..n_blocks).step_by(at_once) {
            let blocks = first..n_blocks.min(first + at_once);
            let (at, n_units) = (first * F::UNITS, blocks.len() * F::UNITS);
            for (pair, sums) in sums.chunks_exact_mut(rows.len()).enumerate() {
                let panel = self.panels.start + PANELS * pair;
                s.vectorize(Unpack::<F> {
                    task: self,
                    s,
                    panel,
                    blocks: blocks.clone(),
                    chunk,
                    format: PhantomData,
                });
                let next = match (panel + PANELS < self.panels.end, blocks.end < n_blocks) {
                    (true, _) => (panel + PANELS, blocks.clone()),
                    (false, true) => {
                        (self.panels.start, blocks.end..n_blocks.min(blocks.end + at_once))
                    }
                    // The thread's next task is most often the panels behind these.
                    (false, false) => (panel + PANELS, 0..n_blocks.min(at_once)),
                };
                let next = words_of::<F>(self.w, next);
                let is_last = blocks.end == n_blocks;
                let cols = (panel * PANEL_ROWS).saturating_sub(self.rows.start)
                    ..((panel + PANELS) * PANEL_ROWS).saturating_sub(self.rows.start);
                let out = is_last.then_some((self.out, cols));
                let (x, from) = (self.x.wide(), rows.start);
                let codes = if F::ARE_CODES {
                    // As when they are unpacked, a last panel is its own neighbour.
                    [panel, (panel + 1).min(self.panels.end - 1)]
                        .map(|panel| &self.w.panel(panel)[span_of::<F>(&blocks)])
                } else {
                    [&chunk.codes[0][..], &chunk.codes[1][..]]
                };
                let is_first = first == 0;
                s.vectorize(Rows {
                    s,
                    chunk,
                    codes,
                    x,
                    from,
                    at,
                    n_units,
                    is_first,
                    sums,
                    next,
                    out,
                });
            }
        }
    }
}

/// Where some blocks of a panel lie, with what they share; the first of them does not share with one before.
fn span_of<F: Format>(blocks: &Range<usize>) -> Range<usize> {
    let place = |index| Place::new(F::N_WORDS, F::SHARING, index);
    place(blocks.start).factors..place(blocks.end - 1).words + F::N_WORDS
}

/// The words of some blocks of two panels, as far as there are such panels.
fn words_of<F: Format>(
    w: &PackedMatrix,
    (first, blocks): (usize, Range<usize>),
) -> [&[Words]; PANELS] {
    let mut words: [&[Words]; PANELS] = [&[]; PANELS];
    for (panel, words) in (first..w.n().div_ceil(PANEL_ROWS)).zip(&mut words) {
        *words = &w.panel(panel)[span_of::<F>(&blocks)];
    }
    words
}

/// Unpacks blocks of two panels.
struct Unpack<'a, F> {
    task: &'a Task<'a>,
    s: Avx512Vnni,
    panel: usize,
    blocks: Range<usize>,
    chunk: &'a mut Chunk,
    format: PhantomData<F>,
}

impl<F: Format> NullaryFnOnce for Unpack<'_, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { task, s, panel, blocks, chunk, .. } = self;
        for which in 0..PANELS {
            // A last panel without another is multiplied twice; the second result is not asked for.
            let panel = (panel + which).min(task.panels.end - 1);
            let panel = task.w.panel(panel);
            let start = span_of::<F>(&blocks).start;
            let mut sink =
                Unpacked { chunk, which, in_place: None, first_unit: 0, step: 0, group: 0 };
            for index in blocks.clone() {
                if F::ARE_CODES {
                    let place = Place::new(F::N_WORDS, F::SHARING, index);
                    sink.in_place = Some(place.words - start);
                }
                let block = Block::of::<F>(panel, index, 0);
                // SAFETY: the sink asks for nothing.
                unsafe { F::unpack(s, block, &mut sink) };
                sink.first_unit += F::UNITS;
            }
        }
    }
}

/// Writes codes and factors step by step. Nothing is asked of its callers.
struct Unpacked<'a> {
    chunk: &'a mut Chunk,
    which: usize,
    /// Where the block's codes are, if they are read there.
    in_place: Option<usize>,
    /// Of the block at hand.
    first_unit: usize,
    step: usize,
    group: usize,
}

impl Sink<Avx512Vnni> for Unpacked<'_> {
    #[inline(always)]
    unsafe fn take<const N: usize, const BITS: usize>(
        &mut self,
        s: Avx512Vnni,
        of: Codes<Avx512Vnni, N>,
        codes: &impl Groups<Avx512Vnni, N>,
    ) {
        let n_groups = of.groups.len();
        if self.in_place.is_none() {
            let more = if of.mins.is_some() { 0 } else { OFFSET - of.offset };
            let more = s.avx512f._mm512_set1_epi8(more as i8);
            for (i, g) in of.groups.clone().enumerate() {
                let codes = codes.group(s, g);
                for n in 0..N {
                    let at = self.group + n * n_groups + i;
                    let larger = s.avx512bw._mm512_add_epi8(codes[n], more);
                    self.chunk.codes[self.which][at] = bytemuck::cast(larger);
                }
            }
        }
        for n in 0..N {
            let step = self.step + n;
            let unit = self.first_unit + of.units[n];
            self.chunk.halves[step] = (2 * unit + of.groups.start / 4) as u32;
            self.chunk.starts[step] = self.in_place.unwrap_or(self.group + n * n_groups) as u32;
            self.chunk.scales[step][self.which] = bytemuck::cast(of.scales[n]);
            let min = of.mins.map_or(s.splat(0.0), |mins| mins[n]);
            self.chunk.mins[step][self.which] = bytemuck::cast(min);
        }
        self.chunk.has_mins = of.mins.is_some().into();
        self.chunk.n_groups = n_groups as u32;
        assert!(of.mins.is_none() || of.offset == 0, "codes with a min have no offset");
        self.group += N * n_groups;
        self.step += N;
    }
}

/// All rows times a chunk.
struct Rows<'a> {
    s: Avx512Vnni,
    chunk: &'a Chunk,
    /// Those of each panel.
    codes: [&'a [Words]; PANELS],
    x: &'a Blocks<UnitOfRows>,
    /// The first row, a tile's first.
    from: usize,
    /// The chunk's first unit, and how many there are.
    at: usize,
    n_units: usize,
    /// Whether it is the first, before which sums hold anything.
    is_first: bool,
    sums: &'a mut [Sums],
    /// What will be unpacked next.
    next: [&'a [Words]; PANELS],
    /// Where the sums will be written, if they are the last ones.
    out: Option<(SharedMut<'a>, Range<usize>)>,
}

impl NullaryFnOnce for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn call(mut self) {
        match (self.chunk.n_groups == 8, self.chunk.has_mins != 0) {
            (true, false) => self.all::<8, false>(),
            (true, true) => self.all::<8, true>(),
            (false, false) => self.all::<4, false>(),
            (false, true) => self.all::<4, true>(),
        }
    }
}

impl Rows<'_> {
    #[inline(always)]
    fn all<const G: usize, const MINS: bool>(&mut self) {
        let n_rows = self.sums.len();
        let mut row = 0;
        while n_rows - row >= TILE_ROWS {
            self.prefetch(row..row + TILE_ROWS);
            self.tile::<G, MINS, TILE_ROWS>(row);
            row += TILE_ROWS;
        }
        self.prefetch(row..n_rows);
        match n_rows - row {
            1 => self.tile::<G, MINS, 1>(row),
            2 => self.tile::<G, MINS, 2>(row),
            3 => self.tile::<G, MINS, 3>(row),
            4 => self.tile::<G, MINS, 4>(row),
            5 => self.tile::<G, MINS, 5>(row),
            _ => {}
        }
    }

    /// Asks for these rows' share of what comes next: all of it at a time would be more than the caches wait for.
    #[inline(always)]
    fn prefetch(&self, rows: Range<usize>) {
        let n_rows = self.sums.len();
        for words in self.next {
            let share = words.len() * rows.start / n_rows..words.len() * rows.end / n_rows;
            for word in &words[share] {
                prefetch(word);
            }
        }
        if let Some((out, cols)) = &self.out {
            rows.for_each(|row| out.prefetch(self.from + row, cols.clone()));
        }
    }

    /// Rows `row .. row + M`, a tile, with steps of `G` groups.
    #[inline(always)]
    fn tile<const G: usize, const MINS: bool, const M: usize>(&mut self, row: usize) {
        let Self { s, chunk, codes, x, from, at, n_units, is_first, .. } = *self;
        let f = s.avx512f;
        let x = x.block((from + row) / TILE_ROWS, at..at + n_units);
        let mut sums = [[f._mm512_setzero_ps(); PANELS]; M];
        if !is_first {
            for m in 0..M {
                sums[m] = bytemuck::cast(self.sums[row + m]);
            }
        }
        for step in 0..n_units * GROUPS / G {
            let start = chunk.starts[step] as usize;
            let codes = [&codes[0][start..start + G], &codes[1][start..start + G]];
            let (unit, half) = (chunk.halves[step] as usize / 2, chunk.halves[step] as usize % 2);
            let x = &x[unit];
            let first = if G == GROUPS { 0 } else { half * G };
            let mut products = [[f._mm512_setzero_si512(); PANELS]; M];
            // Where there are mins, codes have no offset.
            if !MINS {
                let offsets = if G == GROUPS { &x.offsets } else { &x.offsets_of_halves[half] };
                for m in 0..M {
                    products[m] = [f._mm512_set1_epi32(offsets[m]); PANELS];
                }
            }
            for g in 0..G {
                let both = [bytemuck::cast(codes[0][g]), bytemuck::cast(codes[1][g])];
                for m in 0..M {
                    let four = f._mm512_set1_epi32(x.words[m][first + g]);
                    for p in 0..PANELS {
                        // SAFETY: `s` proves AVX-512 VNNI, which pulp does not wrap.
                        products[m][p] =
                            unsafe { _mm512_dpbusd_epi32(products[m][p], both[p], four) };
                    }
                }
            }
            let scales: [__m512; PANELS] = bytemuck::cast(chunk.scales[step]);
            let mins: [__m512; PANELS] = bytemuck::cast(chunk.mins[step]);
            for m in 0..M {
                let x_scale = f._mm512_set1_ps(x.scales[m]);
                for p in 0..PANELS {
                    let scaled = f._mm512_mul_ps(f._mm512_cvtepi32_ps(products[m][p]), scales[p]);
                    sums[m][p] = f._mm512_fmadd_ps(scaled, x_scale, sums[m][p]);
                    if MINS {
                        let x_sum = if G == GROUPS {
                            x.scaled_sums[m]
                        } else {
                            x.scales[m]
                                * (x.offsets_of_halves[half][m] as f32 * (-1.0 / OFFSET as f32))
                        };
                        let x_sum = f._mm512_set1_ps(x_sum);
                        sums[m][p] = f._mm512_fmadd_ps(mins[p], x_sum, sums[m][p]);
                    }
                }
            }
        }
        for m in 0..M {
            self.sums[row + m] = bytemuck::cast(sums[m]);
        }
    }
}

/// Writes sums of a task's panels to `rows` of the output.
struct Finish<'a> {
    task: &'a Task<'a>,
    s: Avx512Vnni,
    rows: Range<usize>,
    /// Those of all rows with the first two panels, then those with the next two.
    sums: &'a [Sums],
}

impl NullaryFnOnce for Finish<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        const COLS: usize = PANELS * PANEL_ROWS;
        let Self { task, s, rows, sums } = self;
        let first = task.panels.start * PANEL_ROWS;
        let wanted = first.max(task.rows.start)..(task.panels.end * PANEL_ROWS).min(task.rows.end);
        // Row by row, since an output's lines next to each other are on the same page of memory.
        for (m, row) in rows.clone().enumerate() {
            for (sums, at) in sums[m..].iter().step_by(rows.len()).zip((first..).step_by(COLS)) {
                let sums: &[f32; COLS] = bytemuck::cast_ref(sums);
                let cols = at.max(wanted.start)..(at + COLS).min(wanted.end);
                let lanes = &sums[cols.start - at..cols.end - at];
                let col = cols.start - task.rows.start;
                // SAFETY: `row` is a row of `x`, and so of the output, which the caller checked; the columns are
                // of this task alone.
                let out = unsafe { task.out.span(row, col, cols.len()) };
                // With a length that is known, no more is left of this than the vectors: 3 to 5 % of a product of 512.
                match <&mut [f32; COLS]>::try_from(&mut *out) {
                    Ok(out) => task.epilogue.finish(s, sums, col, out),
                    Err(_) => task.epilogue.finish(s, lanes, col, out),
                }
            }
        }
    }
}
