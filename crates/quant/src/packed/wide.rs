//! Panels times many rows in integers, on any vectors of x86-64.
//!
//! The kernel for few rows unpacks codes while it multiplies and loads the activations of each product
//! anew, so that loads are its bound. Here some units of two vectors of a panel's rows (two panels on 512 bits, both
//! halves of one on 256) are unpacked once for all rows, and what is loaded of a row meets both. Every sum is made of
//! the same terms in the same order as there: a row's results do not depend on how many there are.

use std::marker::PhantomData;
use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use stonechat_compute::cpu::{MatRef, SharedMut};
use stonechat_compute::simd::{F32, NullaryFnOnce, prefetch};
use stonechat_compute::with_scratch;

use super::blocks::{Blocks, UnitOfBlock};
use super::format::match_format;
use super::kernel::{Block, Codes, Format, Groups, Sink};
use super::layout::Place;
use super::simd::PanelSimd;
use super::{PANEL_ROWS, PackedMatrix, Task, Words};
use crate::activation::{UNIT_LEN, Unit, quantize_unit};

/// Vectors of rows that are multiplied together.
const VECTORS: usize = 2;
/// Units that are unpacked at a time: codes and factors stay in the first-level cache.
const CHUNK_UNITS: usize = 16;
/// Steps of a chunk at most. A step is a unit or half of one, with a scale of its own.
const CHUNK_STEPS: usize = 2 * CHUNK_UNITS;
/// Words of a unit.
const GROUPS: usize = 8;
/// Panels of a task, for which units of all inputs are read once from the last-level cache.
const MAX_PANELS: usize = 8;
/// Rows whose units of a chunk, and whose sums with a task's panels, stay in the second-level cache: whole blocks. For
/// more rows, panels are unpacked again.
const MAX_ROWS: usize = 240;

/// What codes without a min are too large by, whatever their format, where [`WideSimd::IS_BYTES`]: so that what a product
/// starts from is read as it is. As much as bytes are, which are read in place where a vector is a panel's word.
const OFFSET: i32 = 128;

/// What this kernel needs beside the panels' vocabulary.
pub(super) trait WideSimd: PanelSimd<Words: Pod> {
    /// Whether [`dot`](PanelSimd::dot) multiplies any bytes, without [widening](PanelSimd::widen).
    const IS_BYTES: bool;

    /// Every byte larger by `more`.
    fn add_to_bytes(self, x: Self::Words, more: u8) -> Self::Words;
}

/// Panels whose rows fill [`VECTORS`].
const fn panels<S: PanelSimd>() -> usize {
    VECTORS * S::LANES / PANEL_ROWS
}

/// The panel of a vector, from the first of them on, and which part of it.
const fn panel_of<S: PanelSimd>(vector: usize) -> (usize, usize) {
    let parts = PANEL_ROWS / S::LANES;
    (vector / parts, vector % parts)
}

/// How many panels a task takes, `most` if each thread is to have several tasks; in pairs.
pub(super) fn panels_per_task(most: usize) -> usize {
    (most / VECTORS * VECTORS).clamp(VECTORS, MAX_PANELS)
}

/// A unit of some rows, so that a single address leads to all that a step needs of them. They are as many as have sums
/// in registers, two vectors of integers and, where there are registers for them, two of floats: four on 16 registers,
/// since bytes there take sums, codes, magnitudes and ones.
#[derive(Clone, Copy, Debug, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct UnitOfRows<const ROWS: usize> {
    values: [Unit; ROWS],
    scales: [f32; ROWS],
    /// The scale times the sum of the values.
    scaled_sums: [f32; ROWS],
    /// `-OFFSET` times the sum of the values, and of each half of them.
    offsets: [i32; ROWS],
    offsets_of_halves: [[i32; ROWS]; 2],
}

impl<const N: usize> UnitOfBlock for UnitOfRows<N> {
    const ROWS: usize = N;
    const BLOCKS: usize = 1;
    const PIECE: usize = 64;

    #[inline(always)]
    fn fill(units: &mut [Self], x: MatRef<'_>, rows: Range<usize>, from: usize) {
        for (m, r) in rows.enumerate() {
            let values = x.row(r).as_chunks::<UNIT_LEN>().0;
            for (to, values) in units.iter_mut().zip(&values[from..]) {
                let (scale, unit, sums) = quantize_unit(values);
                to.values[m] = unit;
                to.scales[m] = scale;
                to.scaled_sums[m] = scale * (sums[0] + sums[1]) as f32;
                to.offsets[m] = -OFFSET * (sums[0] + sums[1]);
                to.offsets_of_halves[0][m] = -OFFSET * sums[0];
                to.offsets_of_halves[1][m] = -OFFSET * sums[1];
            }
        }
    }
}

/// Some units of [`VECTORS`].
struct Chunk<'a, S: WideSimd> {
    /// One for each group of each step.
    codes: [&'a mut [S::Words]; VECTORS],
    scales: &'a mut [[F32<S>; VECTORS]],
    mins: &'a mut [[F32<S>; VECTORS]],
    steps: Steps,
}

/// What is the same for all rows of a panel.
#[derive(Clone, Copy)]
struct Steps {
    /// For each step twice its unit, and whether it is the second half.
    halves: [u32; CHUNK_STEPS],
    /// Where the codes of each step begin.
    starts: [u32; CHUNK_STEPS],
    has_mins: bool,
    /// Groups of four values of a step: 8 or 4.
    n_groups: usize,
    /// What codes without a min are too large by.
    offset: i32,
    /// Groups that sums have room for, at most those of a step.
    headroom: usize,
    /// Groups that are added one after the other: so many, or all where sums are widened after each.
    run: usize,
}

impl<'a, S: WideSimd> Chunk<'a, S> {
    /// Vectors of codes of a row's vector.
    const N_CODES: usize = CHUNK_UNITS * GROUPS;
    /// Floats of all.
    const LEN: usize = VECTORS * (Self::N_CODES + 2 * CHUNK_STEPS) * S::LANES;

    fn new(scratch: &'a mut [f32]) -> Self {
        let (codes, factors) = scratch.split_at_mut(VECTORS * Self::N_CODES * S::LANES);
        let (first, second) = codes.split_at_mut(Self::N_CODES * S::LANES);
        let (scales, mins) = factors.split_at_mut(VECTORS * CHUNK_STEPS * S::LANES);
        let codes = [first, second].map(bytemuck::cast_slice_mut);
        let steps = Steps {
            halves: [0; CHUNK_STEPS],
            starts: [0; CHUNK_STEPS],
            has_mins: false,
            n_groups: GROUPS,
            offset: OFFSET,
            headroom: GROUPS,
            run: GROUPS,
        };
        let (scales, mins) = (bytemuck::cast_slice_mut(scales), bytemuck::cast_slice_mut(mins));
        Self { codes, scales, mins, steps }
    }
}

/// Sums of a row of activations with [`VECTORS`].
type Sums<S> = [F32<S>; VECTORS];

impl Task<'_> {
    /// Multiplies all rows.
    pub(super) fn run_wide<S: WideSimd, const ROWS: usize>(
        &self,
        s: S,
        x: &Blocks<UnitOfRows<ROWS>>,
    ) {
        const { assert!(MAX_ROWS.is_multiple_of(ROWS)) };
        let n_rows = self.x.rows();
        let n_pairs = self.panels.len().div_ceil(panels::<S>());
        let padded = n_rows.min(MAX_ROWS).next_multiple_of(ROWS);
        let n_sums = n_pairs * padded * VECTORS * S::LANES;
        with_scratch(n_sums + Chunk::<S>::LEN, |scratch| {
            let (chunk, sums) = scratch.split_at_mut(Chunk::<S>::LEN);
            let mut chunk = Chunk::<S>::new(chunk);
            let sums: &mut [Sums<S>] = bytemuck::cast_slice_mut(sums);
            for from in (0..n_rows).step_by(MAX_ROWS) {
                let rows = from..n_rows.min(from + MAX_ROWS);
                // Of the last block of activations all rows are there; surplus sums are not written.
                let padded = rows.len().next_multiple_of(ROWS);
                let sums = &mut sums[..n_pairs * padded];
                // The first chunk fills them, if there is one.
                if self.w.blocks_per_row() == 0 {
                    sums.fill([s.splat(0.0); VECTORS]);
                }
                match_format!(self.w.dtype(), F => {
                    self.add_products::<S, F, ROWS>(s, (x, rows.clone()), &mut chunk, sums);
                });
                s.vectorize(Finish { task: self, s, rows, padded, sums });
            }
        });
    }

    /// Adds the products of all panels with `rows`, whose units of a chunk stay in the second-level cache while the
    /// panels pass.
    fn add_products<S: WideSimd, F: Format, const ROWS: usize>(
        &self,
        s: S,
        (x, rows): (&Blocks<UnitOfRows<ROWS>>, Range<usize>),
        chunk: &mut Chunk<'_, S>,
        sums: &mut [Sums<S>],
    ) {
        let n_panels = const { panels::<S>() };
        let n_blocks = self.w.blocks_per_row();
        let at_once = CHUNK_UNITS / F::UNITS;
        for first in (0..n_blocks).step_by(at_once) {
            let blocks = first..n_blocks.min(first + at_once);
            let (at, n_units) = (first * F::UNITS, blocks.len() * F::UNITS);
            let padded = rows.len().next_multiple_of(ROWS);
            for (pair, sums) in sums.chunks_exact_mut(padded).enumerate() {
                let panel = self.panels.start + n_panels * pair;
                s.vectorize(Unpack::<S, F> {
                    task: self,
                    s,
                    panel,
                    blocks: blocks.clone(),
                    chunk: &mut *chunk,
                    format: PhantomData,
                });
                let next = match (panel + n_panels < self.panels.end, blocks.end < n_blocks) {
                    (true, _) => (panel + n_panels, blocks.clone()),
                    (false, true) => {
                        (self.panels.start, blocks.end..n_blocks.min(blocks.end + at_once))
                    }
                    // The thread's next task is most often the panels behind these.
                    (false, false) => (panel + n_panels, 0..n_blocks.min(at_once)),
                };
                let next = words_of::<S, F>(self.w, next);
                let is_last = blocks.end == n_blocks;
                let cols = (panel * PANEL_ROWS).saturating_sub(self.rows.start)
                    ..((panel + n_panels) * PANEL_ROWS).saturating_sub(self.rows.start);
                let out = is_last.then_some((self.out, cols));
                let codes = if const { are_read_in_place::<S, F>() } {
                    // As when they are unpacked, a last panel is its own neighbour.
                    [panel, (panel + 1).min(self.panels.end - 1)].map(|panel| {
                        bytemuck::cast_slice(&self.w.panel(panel)[span_of::<F>(&blocks)])
                    })
                } else {
                    [&chunk.codes[0][..], &chunk.codes[1][..]]
                };
                let is_first = first == 0;
                let chunk = &*chunk;
                s.vectorize(Rows {
                    s,
                    chunk,
                    codes,
                    x,
                    rows: rows.clone(),
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

/// Whether a panel's words are what the instruction multiplies.
const fn are_read_in_place<S: WideSimd, F: Format>() -> bool {
    F::ARE_CODES && S::IS_BYTES && S::LANES == PANEL_ROWS
}

/// Where some blocks of a panel lie, with what they share; the first of them does not share with one before.
fn span_of<F: Format>(blocks: &Range<usize>) -> Range<usize> {
    let place = |index| Place::new(F::N_WORDS, F::SHARING, index);
    place(blocks.start).factors..place(blocks.end - 1).words + F::N_WORDS
}

/// The words of some blocks of the panels of [`VECTORS`], as far as there are such panels.
fn words_of<S: WideSimd, F: Format>(
    w: &PackedMatrix,
    (first, blocks): (usize, Range<usize>),
) -> [&[Words]; VECTORS] {
    let mut words: [&[Words]; VECTORS] = [&[]; VECTORS];
    let panels = first..w.n().div_ceil(PANEL_ROWS).min(first + panels::<S>());
    for (panel, words) in panels.zip(&mut words) {
        *words = &w.panel(panel)[span_of::<F>(&blocks)];
    }
    words
}

/// Unpacks blocks of [`VECTORS`].
struct Unpack<'a, 'c, S: WideSimd, F> {
    task: &'a Task<'a>,
    s: S,
    panel: usize,
    blocks: Range<usize>,
    chunk: &'a mut Chunk<'c, S>,
    format: PhantomData<F>,
}

impl<S: WideSimd, F: Format> NullaryFnOnce for Unpack<'_, '_, S, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { task, s, panel, blocks, chunk, .. } = self;
        for which in 0..VECTORS {
            let (nth, part) = panel_of::<S>(which);
            // A last panel without another is multiplied twice; the second result is not asked for.
            let panel = (panel + nth).min(task.panels.end - 1);
            let panel = task.w.panel(panel);
            let start = span_of::<F>(&blocks).start;
            let mut sink =
                Unpacked { chunk, which, in_place: None, first_unit: 0, step: 0, group: 0 };
            for index in blocks.clone() {
                if const { are_read_in_place::<S, F>() } {
                    let place = Place::new(F::N_WORDS, F::SHARING, index);
                    sink.in_place = Some(place.words - start);
                }
                let block = Block::of::<F>(panel, index, part);
                // SAFETY: the sink asks for nothing.
                unsafe { F::unpack(s, block, &mut sink) };
                sink.first_unit += F::UNITS;
            }
        }
    }
}

/// Writes codes and factors step by step. Nothing is asked of its callers.
struct Unpacked<'a, 'c, S: WideSimd> {
    chunk: &'a mut Chunk<'c, S>,
    which: usize,
    /// Where the block's codes are, if they are read there.
    in_place: Option<usize>,
    /// Of the block at hand.
    first_unit: usize,
    step: usize,
    group: usize,
}

impl<S: WideSimd> Sink<S> for Unpacked<'_, '_, S> {
    #[inline(always)]
    unsafe fn take<const N: usize, const BITS: usize>(
        &mut self,
        s: S,
        of: Codes<S, N>,
        codes: &impl Groups<S, N>,
    ) {
        let n_groups = of.groups.len();
        // Those that are multiplied as bytes are alike in what they are too large by.
        let is_alike = S::IS_BYTES && of.mins.is_none();
        let offset = if is_alike { OFFSET } else { of.offset };
        if self.in_place.is_none() {
            for (i, g) in of.groups.clone().enumerate() {
                let codes = codes.group(s, g);
                for n in 0..N {
                    let larger = s.add_to_bytes(codes[n], (offset - of.offset) as u8);
                    self.chunk.codes[self.which][self.group + n * n_groups + i] = larger;
                }
            }
        }
        let steps = &mut self.chunk.steps;
        for n in 0..N {
            let step = self.step + n;
            let unit = self.first_unit + of.units[n];
            steps.halves[step] = (2 * unit + of.groups.start / 4) as u32;
            let start = self.in_place.unwrap_or(self.group + n * n_groups);
            steps.starts[step] = start as u32;
            self.chunk.scales[step][self.which] = of.scales[n];
            self.chunk.mins[step][self.which] = of.mins.map_or(s.splat(0.0), |mins| mins[n]);
        }
        steps.has_mins = of.mins.is_some();
        steps.n_groups = n_groups;
        steps.offset = offset;
        let headroom = if BITS == 8 { S::HEADROOM } else { S::HEADROOM << (7 - BITS) };
        steps.headroom = n_groups.min(headroom);
        steps.run = if steps.headroom == 1 { n_groups } else { steps.headroom };
        assert!(of.mins.is_none() || of.offset == 0, "codes with a min have no offset");
        assert!(S::IS_BYTES || BITS < 8 || of.offset == 0, "signed bytes have no offset");
        self.group += N * n_groups;
        self.step += N;
    }
}

/// All rows times a chunk.
struct Rows<'a, 'c, S: WideSimd, const ROWS: usize> {
    s: S,
    chunk: &'a Chunk<'c, S>,
    /// Those of each vector.
    codes: [&'a [S::Words]; VECTORS],
    x: &'a Blocks<UnitOfRows<ROWS>>,
    /// From a block's first row on.
    rows: Range<usize>,
    /// The chunk's first unit, and how many there are.
    at: usize,
    n_units: usize,
    /// Whether it is the first, before which sums hold anything.
    is_first: bool,
    /// Those of whole blocks of rows.
    sums: &'a mut [Sums<S>],
    /// What will be unpacked next.
    next: [&'a [Words]; VECTORS],
    /// Where the sums will be written, if they are the last ones.
    out: Option<(SharedMut<'a>, Range<usize>)>,
}

impl<S: WideSimd, const ROWS: usize> NullaryFnOnce for Rows<'_, '_, S, ROWS> {
    type Output = ();

    #[inline(always)]
    fn call(mut self) {
        let Steps { n_groups, has_mins, headroom, .. } = self.chunk.steps;
        if const { S::IS_BYTES } {
            return match (n_groups, has_mins) {
                (8, false) => self.all::<8, false, 8>(),
                (8, true) => self.all::<8, true, 8>(),
                (_, false) => self.all::<4, false, 4>(),
                (_, true) => self.all::<4, true, 4>(),
            };
        }
        match (n_groups, has_mins, headroom) {
            (8, false, 1) => self.all::<8, false, 1>(),
            (8, false, 8) => self.all::<8, false, 8>(),
            (8, true, 8) => self.all::<8, true, 8>(),
            (8, false, 4) => self.all::<8, false, 4>(),
            (8, true, 4) => self.all::<8, true, 4>(),
            (4, false, 4) => self.all::<4, false, 4>(),
            (4, true, 4) => self.all::<4, true, 4>(),
            (4, false, 2) => self.all::<4, false, 2>(),
            other => unreachable!("no format has steps of {other:?}"),
        }
    }
}

impl<S: WideSimd, const ROWS: usize> Rows<'_, '_, S, ROWS> {
    #[inline(always)]
    fn all<const G: usize, const MINS: bool, const HEADROOM: usize>(&mut self) {
        for row in (0..self.sums.len()).step_by(ROWS) {
            self.prefetch(row..self.rows.len().min(row + ROWS));
            self.tile::<G, MINS, HEADROOM>(row);
        }
    }

    /// Asks for these rows' share of what comes next: all of it at a time would be more than the caches wait for.
    #[inline(always)]
    fn prefetch(&self, rows: Range<usize>) {
        let n_rows = self.rows.len();
        for words in self.next {
            let share = words.len() * rows.start / n_rows..words.len() * rows.end / n_rows;
            for word in &words[share] {
                prefetch(word);
            }
        }
        if let Some((out, cols)) = &self.out {
            rows.for_each(|row| out.prefetch(self.rows.start + row, cols.clone()));
        }
    }

    /// Rows `row .. row + ROWS`, a block, with steps of `G` groups, of which sums have room for `HEADROOM`.
    #[inline(always)]
    fn tile<const G: usize, const MINS: bool, const HEADROOM: usize>(&mut self, row: usize) {
        let Self { s, chunk, codes, x, at, n_units, is_first, .. } = *self;
        let x = x.block((self.rows.start + row) / ROWS, at..at + n_units);
        let mut sums = [[s.splat(0.0); VECTORS]; ROWS];
        if !is_first {
            sums.copy_from_slice(&self.sums[row..row + ROWS]);
        }
        for step in 0..n_units * GROUPS / G {
            let start = chunk.steps.starts[step] as usize;
            let codes = [&codes[0][start..start + G], &codes[1][start..start + G]];
            let half = chunk.steps.halves[step] as usize;
            let (unit, half) = (half / 2, half % 2);
            let x = &x[unit];
            let first = if G == GROUPS { 0 } else { half * G };
            let mut offsets = [0; ROWS];
            // Neither codes with mins have an offset, nor bytes that are multiplied with their signs.
            if !MINS && HEADROOM > 1 {
                let all = if G == GROUPS { &x.offsets } else { &x.offsets_of_halves[half] };
                for m in 0..ROWS {
                    offsets[m] = if S::IS_BYTES {
                        all[m]
                    } else {
                        (all[m] >> OFFSET.trailing_zeros()) * chunk.steps.offset
                    };
                }
            }
            let products = self.products::<G, HEADROOM>(codes, &x.values, first, offsets);
            let (scales, mins) = (chunk.scales[step], chunk.mins[step]);
            for m in 0..ROWS {
                let x_scale = s.splat(x.scales[m]);
                for v in 0..VECTORS {
                    let products = s.finish(products[m][v], offsets[m]);
                    sums[m][v] = s.mul_add(s.mul(products, scales[v]), x_scale, sums[m][v]);
                    if MINS {
                        let x_sum = if G == GROUPS {
                            x.scaled_sums[m]
                        } else {
                            let offset = x.offsets_of_halves[half][m];
                            x.scales[m] * (offset as f32 * (-1.0 / OFFSET as f32))
                        };
                        sums[m][v] = s.mul_add(mins[v], s.splat(x_sum), sums[m][v]);
                    }
                }
            }
        }
        self.sums[row..row + ROWS].copy_from_slice(&sums);
    }

    /// The products of a step's codes with `G` groups of values, from `first` on.
    #[inline(always)]
    fn products<const G: usize, const HEADROOM: usize>(
        &self,
        codes: [&[S::Words]; VECTORS],
        x: &[Unit; ROWS],
        first: usize,
        offsets: [i32; ROWS],
    ) -> [[S::Sums; VECTORS]; ROWS] {
        let s = self.s;
        let mut products = [[s.start(0); VECTORS]; ROWS];
        for m in 0..ROWS {
            products[m] = [s.start(offsets[m]); VECTORS];
        }
        let widens_each = HEADROOM == 1;
        let run = if widens_each { G } else { HEADROOM };
        // A compiler that knew the length would make one piece of all groups, for which 16 registers are too few.
        let n = if S::IS_BYTES { run } else { self.chunk.steps.run };
        for from in (0..G).step_by(run) {
            assert!(from + n <= G && first + G <= GROUPS);
            if from > 0 {
                for m in 0..ROWS {
                    products[m] = [s.widen(products[m][0]), s.widen(products[m][1])];
                }
            }
            for g in from..from + n {
                let codes = [codes[0][g], codes[1][g]];
                for m in 0..ROWS {
                    for v in 0..VECTORS {
                        let sums = products[m][v];
                        products[m][v] = if widens_each {
                            s.widen(s.dot_bytes(sums, codes[v], &x[m], first + g))
                        } else {
                            s.dot(sums, codes[v], &x[m], first + g)
                        };
                    }
                }
            }
        }
        products
    }
}

/// Writes sums of a task's panels to `rows` of the output.
struct Finish<'a, S: WideSimd> {
    task: &'a Task<'a>,
    s: S,
    rows: Range<usize>,
    /// So many, with those that fill the last block.
    padded: usize,
    /// Those of all rows with the first [`VECTORS`], then those with the next ones.
    sums: &'a [Sums<S>],
}

impl<S: WideSimd> NullaryFnOnce for Finish<'_, S> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        if const { S::LANES == PANEL_ROWS } {
            self.write::<{ VECTORS * PANEL_ROWS }>();
        } else {
            self.write::<PANEL_ROWS>();
        }
    }
}

impl<S: WideSimd> Finish<'_, S> {
    /// `COLS` are those of [`VECTORS`]. With a length that is known, no more is left of a row than the vectors: 3 to 5 %
    /// of a product of 512.
    #[inline(always)]
    fn write<const COLS: usize>(self) {
        let Self { task, s, rows, padded, sums } = self;
        let first = task.panels.start * PANEL_ROWS;
        let wanted = first.max(task.rows.start)..(task.panels.end * PANEL_ROWS).min(task.rows.end);
        // Row by row, since an output's lines next to each other are on the same page of memory.
        for (m, row) in rows.enumerate() {
            for (sums, at) in sums[m..].iter().step_by(padded).zip((first..).step_by(COLS)) {
                let sums: &[f32] = bytemuck::cast_slice(sums);
                let cols = at.max(wanted.start)..(at + COLS).min(wanted.end);
                let col = cols.start - task.rows.start;
                // SAFETY: `row` is a row of `x`, and so of the output, which the caller checked; the columns are
                // of this task alone.
                let out = unsafe { task.out.span(row, col, cols.len()) };
                match (<&[f32; COLS]>::try_from(sums), <&mut [f32; COLS]>::try_from(&mut *out)) {
                    (Ok(sums), Ok(out)) => task.epilogue.finish(s, sums, col, out),
                    _ => task.epilogue.finish(s, &sums[cols.start - at..cols.end - at], col, out),
                }
            }
        }
    }
}
