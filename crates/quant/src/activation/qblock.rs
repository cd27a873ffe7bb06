//! The q8 block: 32 activations as signed bytes, one f32 scale and integer sums.

use bytemuck::{Pod, Zeroable};

/// Elements of a q8 block.
pub(crate) const QBLOCK_LEN: usize = 32;

/// Q8 blocks of 256 elements. Rows are padded to a multiple of them.
pub(super) const QBLOCKS_PER_256: usize = 8;

/// The quants of a q8 block: one 256-bit register, never across a cache line.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(32))]
pub(crate) struct QBlock(pub(crate) [i8; QBLOCK_LEN]);

impl QBlock {
    pub(crate) const ZERO: Self = Self([0; QBLOCK_LEN]);

    /// The quads as bits.
    #[inline(always)]
    pub(crate) fn u32s(&self) -> &[u32; QBLOCK_LEN / 4] {
        bytemuck::cast_ref(self)
    }

    /// The eight quads: four consecutive quants each, the operand of a 4-way 8-bit dot product.
    #[inline(always)]
    pub(crate) fn quads(&self) -> &[i32; QBLOCK_LEN / 4] {
        bytemuck::cast_ref(self)
    }
}

/// Quantizes 32 values: the scale `d = max |x| / 127`, the quants `q = round(x / d)`, and `sum(q)` of each half.
///
/// The maximum is taken of the bits without the sign, where NaN is greater than infinity: non-finite values end up in
/// the scale.
#[inline(always)]
pub(crate) fn quantize_qblock(x: &[f32; QBLOCK_LEN]) -> (f32, QBlock, [i32; 2]) {
    let magnitude = |v: f32| (v.to_bits() & 0x7fff_ffff).cast_signed();
    let mut max_bits = [0; 16];
    for i in 0..16 {
        max_bits[i] = magnitude(x[i]).max(magnitude(x[i + 16]));
    }
    let scale = f32::from_bits(reduce(max_bits, i32::max).cast_unsigned()) / 127.0;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let mut q = [0i8; QBLOCK_LEN];
    let mut sums = [0; 2];
    for half in 0..2 {
        let mut wide = [0; 16];
        for i in 0..16 {
            // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
            let rounded = x[16 * half + i] * inverse + 12_582_912.0;
            q[16 * half + i] = rounded.to_bits() as i8;
            wide[i] = i32::from(rounded.to_bits() as i8);
        }
        sums[half] = reduce(wide, |a, b| a + b);
    }
    (scale, QBlock(q), sums)
}

/// Tree reduction of 16 values with `f`, by halves: LLVM keeps each level in one vector, but not a sequential fold.
#[inline(always)]
fn reduce<F: Fn(i32, i32) -> i32>(x: [i32; 16], f: F) -> i32 {
    let (mut eight, mut four) = ([0; 8], [0; 4]);
    for i in 0..8 {
        eight[i] = f(x[i], x[i + 8]);
    }
    for i in 0..4 {
        four[i] = f(eight[i], eight[i + 4]);
    }
    f(f(four[0], four[1]), f(four[2], four[3]))
}

/// Extends `values` with zeros to `len`. It is never truncated: zeroing the rest again would be one thread's work.
pub(super) fn grow<T: Zeroable + Clone>(values: &mut Vec<T>, len: usize) {
    if values.len() < len {
        values.resize(len, T::zeroed());
    }
}
