//! Activations quantized to 8 bits, once per matmul and for every weight format alike.
//!
//! Each 32 elements have an f32 scale of their own, also beside weights in blocks of 256: the
//! quantization noise is then at most that of GGML's `Q8_K`, which has one scale per 256, and one
//! buffer serves matrices of different formats.

use bytemuck::{Pod, Zeroable};
use stonechat_compute::cpu::MatRef;
use stonechat_compute::simd::NullaryFnOnce;
#[cfg(target_arch = "x86_64")]
use stonechat_compute::simd::Tile;
use stonechat_compute::{Cpu, Isa, Parts};

#[cfg(target_arch = "x86_64")]
use crate::packed::blocks::{BlockRoom, Blocks};
#[cfg(target_arch = "x86_64")]
use crate::packed::wide::UnitOfRows;

/// Elements that share a scale.
pub(crate) const UNIT_LEN: usize = 32;
/// Units of a row are padded to a multiple of this, a block of 256 elements.
const UNITS_PER_BLOCK: usize = 8;

/// Values that a thread quantizes at a time: some microseconds of work.
const TASK_LEN: usize = 16 * 1024;

/// Rows from which the kernels for many are used: weights are unpacked for them first.
#[cfg(target_arch = "x86_64")]
const MIN_ROWS_OF_MANY: usize = 17;

/// 32 values in one register, never across a cache line.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(32))]
pub(crate) struct Unit(pub(crate) [i8; UNIT_LEN]);

impl Unit {
    pub(crate) const ZERO: Self = Self([0; UNIT_LEN]);

    #[inline(always)]
    pub(crate) fn bytes(&self) -> &[u8; UNIT_LEN] {
        bytemuck::cast_ref(&self.0)
    }

    /// Four values at a time.
    #[inline(always)]
    pub(crate) fn words(&self) -> &[i32; UNIT_LEN / 4] {
        bytemuck::cast_ref(self)
    }
}

/// Quantized rows `x[M, K]`, reusable: after [`reserve`](Self::reserve) nothing is allocated as
/// long as matrices are no larger.
#[derive(Clone, Debug, Default)]
pub struct ActivationBuffer {
    m: usize,
    k: usize,
    /// Units of a row, padding included, which is zeros.
    units_per_row: usize,
    units: Vec<Unit>,
    /// Per unit: the scale `d`, with `x = d * q`.
    scales: Vec<f32>,
    /// Per unit: `d * sum(q)`.
    sums32: Vec<f32>,
    /// Per 256 elements and 16 of them: `d * sum(q)`.
    sums16: Vec<[[f32; 8]; 2]>,
    /// Per unit and 16 elements: `sum(q)`.
    int_sums: Vec<[i32; 2]>,
    /// The rows as the kernels for many want them, if they are not above.
    #[cfg(target_arch = "x86_64")]
    tiles: Blocks<Tile>,
    #[cfg(target_arch = "x86_64")]
    fours: Blocks<UnitOfRows<4>>,
    #[cfg(target_arch = "x86_64")]
    sixes: Blocks<UnitOfRows<6>>,
    form: Form,
}

/// Where the rows of an [`ActivationBuffer`] are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Form {
    /// One after the other, as every kernel for few rows wants them.
    #[default]
    Rows,
    /// In bf16 on tiles.
    #[cfg(target_arch = "x86_64")]
    Tiles,
    /// In blocks of four for the panel kernel of many rows.
    #[cfg(target_arch = "x86_64")]
    Fours,
    /// The same in blocks of six.
    #[cfg(target_arch = "x86_64")]
    Sixes,
}

/// One row; all slices are of the same extent.
#[derive(Clone, Copy)]
pub(crate) struct ActivationRow<'a> {
    pub(crate) units: &'a [Unit],
    pub(crate) scales: &'a [f32],
    pub(crate) sums32: &'a [f32],
    pub(crate) sums16: &'a [[[f32; 8]; 2]],
    pub(crate) int_sums: &'a [[i32; 2]],
}

impl ActivationRow<'_> {
    /// Cuts to `n` units, so that the compiler knows one length for all.
    #[inline(always)]
    pub(crate) fn first_units(self, n: usize) -> Self {
        Self {
            units: &self.units[..n],
            scales: &self.scales[..n],
            sums32: &self.sums32[..n],
            sums16: &self.sums16[..n / UNITS_PER_BLOCK],
            int_sums: &self.int_sums[..n],
        }
    }
}

impl ActivationBuffer {
    /// An empty buffer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes room for `m` rows of `k` elements.
    pub fn reserve(&mut self, m: usize, k: usize) {
        let n_units = m * padded_units(k);
        self.units.reserve(n_units.saturating_sub(self.units.len()));
        self.scales.reserve(n_units.saturating_sub(self.scales.len()));
        self.sums32.reserve(n_units.saturating_sub(self.sums32.len()));
        self.int_sums.reserve(n_units.saturating_sub(self.int_sums.len()));
        let n_blocks = n_units / UNITS_PER_BLOCK;
        self.sums16.reserve(n_blocks.saturating_sub(self.sums16.len()));
    }

    /// Bytes that `m` rows of `k` elements take.
    #[must_use]
    pub fn bytes_for(m: usize, k: usize) -> usize {
        m * padded_units(k) * (UNIT_LEN + 4 * size_of::<f32>() + 2 * size_of::<i32>())
    }

    /// Rows held.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.m
    }

    /// Elements of a row.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.k
    }

    /// Quantizes `x`, rounding to nearest, ties to even. Non-finite values make the rows' outputs
    /// non-finite.
    ///
    /// # Panics
    /// If the rows of `x` are no whole number of 32 elements.
    #[track_caller]
    pub fn quantize(&mut self, cpu: &Cpu, x: MatRef<'_>) {
        let room = self.row_room(x.rows, x.cols);
        let rows_per_task = (TASK_LEN / x.cols.max(1)).max(1);
        cpu.threads.run(x.rows.div_ceil(rows_per_task), |task| {
            let first = task * rows_per_task;
            let x = x.slice(first, rows_per_task.min(x.rows - first));
            // SAFETY: each row is of one task, and tasks run once.
            unsafe { room.put(cpu.isa, first, 0, x) };
        });
    }

    /// [`quantize`](Self::quantize) for panels alone, whose kernel for many rows may want them in another
    /// order or, on an instruction set with tiles, in bf16.
    ///
    /// # Panics
    /// If the rows of `x` are no whole number of 32 elements.
    #[track_caller]
    pub fn prepare(&mut self, cpu: &Cpu, x: MatRef<'_>) {
        #[cfg(target_arch = "x86_64")]
        if x.rows >= MIN_ROWS_OF_MANY {
            match cpu.isa.of_integers() {
                Isa::Amx(_) => return self.put_on_tiles(cpu, x),
                Isa::Avx2(_) => {
                    self.take_shape(x.rows, x.cols, Form::Fours);
                    return self.fours.room(x.rows, x.cols).put_all(cpu, x);
                }
                Isa::AvxVnni(_) | Isa::Avx512Vnni(_) => {
                    self.take_shape(x.rows, x.cols, Form::Sixes);
                    return self.sixes.room(x.rows, x.cols).put_all(cpu, x);
                }
                _ => {}
            }
        }
        self.quantize(cpu, x);
    }

    /// The rows as tiles of bf16 values.
    #[cfg(target_arch = "x86_64")]
    #[track_caller]
    pub(crate) fn put_on_tiles(&mut self, cpu: &Cpu, x: MatRef<'_>) {
        self.take_shape(x.rows, x.cols, Form::Tiles);
        self.tiles.room(x.rows, x.cols).put_all(cpu, x);
    }

    #[track_caller]
    fn take_shape(&mut self, m: usize, k: usize, form: Form) {
        assert!(k.is_multiple_of(UNIT_LEN), "activation rows: expected k % 32 == 0, got k = {k}");
        (self.m, self.k, self.form) = (m, k, form);
    }

    /// Takes the shape of `m` rows of `k` values that are still to come. Allocates when there are more than
    /// ever before.
    #[track_caller]
    pub(crate) fn room(&mut self, m: usize, k: usize, form: Form) -> Room<'_> {
        self.take_shape(m, k, form);
        match form {
            Form::Rows => Room::Rows(self.row_room(m, k)),
            #[cfg(target_arch = "x86_64")]
            Form::Tiles => Room::Tiles(self.tiles.room(m, k)),
            #[cfg(target_arch = "x86_64")]
            Form::Fours => Room::Fours(self.fours.room(m, k)),
            #[cfg(target_arch = "x86_64")]
            Form::Sixes => Room::Sixes(self.sixes.room(m, k)),
        }
    }

    #[track_caller]
    fn row_room(&mut self, m: usize, k: usize) -> RowRoom<'_> {
        self.take_shape(m, k, Form::Rows);
        let units_per_row = padded_units(k);
        self.units_per_row = units_per_row;
        grow(&mut self.units, m * units_per_row);
        grow(&mut self.scales, m * units_per_row);
        grow(&mut self.sums32, m * units_per_row);
        grow(&mut self.sums16, m * units_per_row / UNITS_PER_BLOCK);
        grow(&mut self.int_sums, m * units_per_row);
        RowRoom {
            n_units: k / UNIT_LEN,
            units_per_row,
            units: Parts::new(&mut self.units),
            scales: Parts::new(&mut self.scales),
            sums32: Parts::new(&mut self.sums32),
            sums16: Parts::new(self.sums16.as_flattened_mut().as_flattened_mut()),
            int_sums: Parts::new(&mut self.int_sums),
        }
    }

    /// The rows on tiles.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn tiles(&self) -> &Blocks<Tile> {
        &self.tiles
    }

    /// The rows in blocks of four.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn fours(&self) -> &Blocks<UnitOfRows<4>> {
        &self.fours
    }

    /// The rows in blocks of six.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn sixes(&self) -> &Blocks<UnitOfRows<6>> {
        &self.sixes
    }

    /// Where the rows are.
    pub(crate) fn form(&self) -> Form {
        self.form
    }

    /// Row `r` as the values that the integer dot products see.
    ///
    /// # Panics
    /// If there is no such row or `out` is shorter than it.
    pub fn dequantize_row(&self, r: usize, out: &mut [f32]) {
        let row = self.row(r);
        for (i, v) in out[..self.k].iter_mut().enumerate() {
            *v = row.scales[i / UNIT_LEN] * f32::from(row.units[i / UNIT_LEN].0[i % UNIT_LEN]);
        }
    }

    #[inline(always)]
    pub(crate) fn row(&self, r: usize) -> ActivationRow<'_> {
        let units = r * self.units_per_row..(r + 1) * self.units_per_row;
        let blocks = units.start / UNITS_PER_BLOCK..units.end / UNITS_PER_BLOCK;
        ActivationRow {
            units: &self.units[units.clone()],
            scales: &self.scales[units.clone()],
            sums32: &self.sums32[units.clone()],
            sums16: &self.sums16[blocks],
            int_sums: &self.int_sums[units],
        }
    }
}

/// Makes `values` at least as long. It never gets shorter, since filling what an input wider than the last one
/// needs anew would be one thread's work.
pub(crate) fn grow<T: Zeroable + Clone>(values: &mut Vec<T>, len: usize) {
    if values.len() < len {
        values.resize(len, T::zeroed());
    }
}

fn padded_units(k: usize) -> usize {
    k.div_ceil(UNIT_LEN).next_multiple_of(UNITS_PER_BLOCK)
}

/// An [`ActivationBuffer`] while several threads write parts of it.
#[derive(Clone, Copy)]
pub(crate) enum Room<'a> {
    Rows(RowRoom<'a>),
    #[cfg(target_arch = "x86_64")]
    Tiles(BlockRoom<'a, Tile>),
    #[cfg(target_arch = "x86_64")]
    Fours(BlockRoom<'a, UnitOfRows<4>>),
    #[cfg(target_arch = "x86_64")]
    Sixes(BlockRoom<'a, UnitOfRows<6>>),
}

impl Room<'_> {
    /// Puts columns of all rows, from unit `first` on.
    ///
    /// # Safety
    /// Nobody else has these units at the same time.
    ///
    /// # Panics
    /// If there are no such units.
    pub(crate) unsafe fn put(self, isa: Isa, first: usize, x: MatRef<'_>) {
        match self {
            // SAFETY: the caller vouches for the units.
            Self::Rows(room) => unsafe { room.put(isa, 0, first, x) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Self::Tiles(room) => unsafe { room.put(isa, first, x) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Self::Fours(room) => unsafe { room.put(isa, first, x) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Self::Sixes(room) => unsafe { room.put(isa, first, x) },
        }
    }
}

/// Room for rows one after the other.
#[derive(Clone, Copy)]
pub(crate) struct RowRoom<'a> {
    /// Units of a row, and with padding.
    n_units: usize,
    units_per_row: usize,
    units: Parts<'a, Unit>,
    scales: Parts<'a, f32>,
    sums32: Parts<'a, f32>,
    sums16: Parts<'a, f32>,
    int_sums: Parts<'a, [i32; 2]>,
}

impl RowRoom<'_> {
    /// Quantizes `x` to the units from `first` on of the rows from `row` on. Whoever brings the last unit of a
    /// row fills the padding, too.
    ///
    /// # Safety
    /// Nobody else has these units at the same time.
    unsafe fn put(self, isa: Isa, row: usize, first: usize, x: MatRef<'_>) {
        let end = first + x.cols / UNIT_LEN;
        let end = if end == self.n_units { self.units_per_row } else { end };
        for r in 0..x.rows {
            let start = (row + r) * self.units_per_row;
            let units = start + first..start + end;
            // SAFETY: units of different rows are different, and these are the caller's.
            let mut row = unsafe {
                QuantizeRow {
                    x: x.row(r).as_chunks().0,
                    units: self.units.part(units.clone()),
                    scales: self.scales.part(units.clone()),
                    sums32: self.sums32.part(units.clone()),
                    sums16: self.sums16.part(2 * units.start..2 * units.end),
                    int_sums: self.int_sums.part(units),
                }
            };
            row.clear_padding();
            isa.vectorize(row);
        }
    }
}

struct QuantizeRow<'a> {
    x: &'a [[f32; UNIT_LEN]],
    units: &'a mut [Unit],
    scales: &'a mut [f32],
    sums32: &'a mut [f32],
    sums16: &'a mut [f32],
    int_sums: &'a mut [[i32; 2]],
}

impl QuantizeRow<'_> {
    /// Makes all units without values zero.
    fn clear_padding(&mut self) {
        let n = self.x.len();
        self.units[n..].fill(Unit::zeroed());
        self.scales[n..].fill(0.0);
        self.sums32[n..].fill(0.0);
        self.int_sums[n..].fill([0; 2]);
    }
}

impl NullaryFnOnce for QuantizeRow<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        for i in 0..self.x.len() {
            let (scale, unit, sums) = quantize_unit(&self.x[i]);
            self.units[i] = unit;
            self.int_sums[i] = sums;
            self.scales[i] = scale;
            self.sums32[i] = scale * (sums[0] + sums[1]) as f32;
            self.sums16[2 * i] = scale * sums[0] as f32;
            self.sums16[2 * i + 1] = scale * sums[1] as f32;
        }
    }
}

/// The scale, the values and the sums of the two halves.
///
/// The greatest magnitude is found among the bits, where NaN is greater than infinity and so
/// ends up in the scale.
#[inline(always)]
pub(crate) fn quantize_unit(x: &[f32; UNIT_LEN]) -> (f32, Unit, [i32; 2]) {
    let magnitude = |v: f32| (v.to_bits() & 0x7fff_ffff).cast_signed();
    let mut max_bits = [0; 16];
    for i in 0..16 {
        max_bits[i] = magnitude(x[i]).max(magnitude(x[i + 16]));
    }
    let scale = f32::from_bits(fold(max_bits, i32::max).cast_unsigned()) / 127.0;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let mut q = [0i8; UNIT_LEN];
    let mut sums = [0; 2];
    for half in 0..2 {
        let mut wide = [0; 16];
        for i in 0..16 {
            // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
            let rounded = x[16 * half + i] * inverse + 12_582_912.0;
            q[16 * half + i] = rounded.to_bits() as i8;
            wide[i] = i32::from(rounded.to_bits() as i8);
        }
        sums[half] = fold(wide, |a, b| a + b);
    }
    (scale, Unit(q), sums)
}

/// All of `x` by `f`, in halves: compilers keep those in vectors. One after the other, quantizing took 2.3 times
/// as long.
#[inline(always)]
fn fold<F: Fn(i32, i32) -> i32>(x: [i32; 16], f: F) -> i32 {
    let (mut eight, mut four) = ([0; 8], [0; 4]);
    for i in 0..8 {
        eight[i] = f(x[i], x[i + 8]);
    }
    for i in 0..4 {
        four[i] = f(eight[i], eight[i + 4]);
    }
    f(f(four[0], four[1]), f(four[2], four[3]))
}
