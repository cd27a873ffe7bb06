//! Activations quantized to 8 bits, once per matmul and for every weight format alike.
//!
//! Each 32 elements have an f32 scale of their own, also beside weights in blocks of 256: the
//! quantization noise is then at most that of GGML's `Q8_K`, which has one scale per 256, and one
//! buffer serves matrices of different formats.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};
#[cfg(target_arch = "x86_64")]
use stonechat_compute::Isa;
use stonechat_compute::cpu::MatRef;
use stonechat_compute::simd::NullaryFnOnce;
use stonechat_compute::{Cpu, Parts, match_isa};

#[cfg(target_arch = "x86_64")]
use crate::packed::tiles::TileInputs;

/// Elements that share a scale.
const UNIT_LEN: usize = 32;
/// Units of a row are padded to a multiple of this, a block of 256 elements.
const UNITS_PER_BLOCK: usize = 8;

/// Values that a thread quantizes at a time: some microseconds of work.
const TASK_LEN: usize = 16 * 1024;

/// Rows from which tiles beat integers: a tile has 16, and weights are unpacked for it first.
#[cfg(target_arch = "x86_64")]
const MIN_ROWS_ON_TILES: usize = 17;

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
    /// The rows in bf16, if they are no integers.
    #[cfg(target_arch = "x86_64")]
    tiles: TileInputs,
    is_on_tiles: bool,
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
        self.take_shape(x, false);
        let (m, k, units_per_row) = (x.rows, x.cols, padded_units(x.cols));
        self.units_per_row = units_per_row;
        grow(&mut self.units, m * units_per_row);
        grow(&mut self.scales, m * units_per_row);
        grow(&mut self.sums32, m * units_per_row);
        grow(&mut self.sums16, m * units_per_row / UNITS_PER_BLOCK);
        grow(&mut self.int_sums, m * units_per_row);
        let shared = SharedBuffer {
            units: Parts::new(&mut self.units),
            scales: Parts::new(&mut self.scales),
            sums32: Parts::new(&mut self.sums32),
            sums16: Parts::new(self.sums16.as_flattened_mut()),
            int_sums: Parts::new(&mut self.int_sums),
        };
        let rows_per_task = (TASK_LEN / k.max(1)).max(1);
        cpu.threads.run(m.div_ceil(rows_per_task), |task| {
            for r in task * rows_per_task..m.min((task + 1) * rows_per_task) {
                // SAFETY: each row is of one task, and tasks run once.
                let mut row = unsafe { shared.row(r * units_per_row..(r + 1) * units_per_row) };
                row.x = x.row(r).as_chunks().0;
                row.clear_padding(k / UNIT_LEN);
                match_isa!(cpu.isa, token => token.vectorize(row));
            }
        });
    }

    /// [`quantize`](Self::quantize) for panels alone, whose kernel for many rows may want other numbers:
    /// bf16 on an instruction set with tiles.
    ///
    /// # Panics
    /// If the rows of `x` are no whole number of 32 elements.
    #[track_caller]
    pub fn prepare(&mut self, cpu: &Cpu, x: MatRef<'_>) {
        #[cfg(target_arch = "x86_64")]
        if matches!(cpu.isa, Isa::Amx(_)) && x.rows >= MIN_ROWS_ON_TILES {
            self.put_on_tiles(cpu, x);
            return;
        }
        self.quantize(cpu, x);
    }

    /// The rows as tiles of bf16 values.
    #[cfg(target_arch = "x86_64")]
    #[track_caller]
    pub(crate) fn put_on_tiles(&mut self, cpu: &Cpu, x: MatRef<'_>) {
        self.take_shape(x, true);
        self.tiles.fill(cpu, x);
    }

    #[track_caller]
    fn take_shape(&mut self, x: MatRef<'_>, is_on_tiles: bool) {
        let k = x.cols;
        assert!(k.is_multiple_of(UNIT_LEN), "activation rows: expected k % 32 == 0, got k = {k}");
        (self.m, self.k, self.is_on_tiles) = (x.rows, k, is_on_tiles);
    }

    /// The tiles that [`put_on_tiles`](Self::put_on_tiles) filled.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn tiles(&self) -> &TileInputs {
        &self.tiles
    }

    /// Whether the rows are on tiles and no integers.
    pub(crate) fn is_on_tiles(&self) -> bool {
        self.is_on_tiles
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

/// The buffer while several threads write rows of it.
#[derive(Clone, Copy)]
struct SharedBuffer<'a> {
    units: Parts<'a, Unit>,
    scales: Parts<'a, f32>,
    sums32: Parts<'a, f32>,
    sums16: Parts<'a, [f32; 8]>,
    int_sums: Parts<'a, [i32; 2]>,
}

impl<'a> SharedBuffer<'a> {
    /// A row of whole blocks, without its values yet.
    ///
    /// # Safety
    /// Nobody else has units of the row.
    unsafe fn row(self, units: Range<usize>) -> QuantizeRow<'a> {
        let halves = units.start / UNITS_PER_BLOCK * 2..units.end / UNITS_PER_BLOCK * 2;
        // SAFETY: rows do not share units or blocks, and this one is the caller's.
        unsafe {
            QuantizeRow {
                x: &[],
                units: self.units.part(units.clone()),
                scales: self.scales.part(units.clone()),
                sums32: self.sums32.part(units.clone()),
                sums16: self.sums16.part(halves).as_flattened_mut(),
                int_sums: self.int_sums.part(units),
            }
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
    /// Makes all units but the first `n` zero.
    fn clear_padding(&mut self, n: usize) {
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
fn quantize_unit(x: &[f32; UNIT_LEN]) -> (f32, Unit, [i32; 2]) {
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
