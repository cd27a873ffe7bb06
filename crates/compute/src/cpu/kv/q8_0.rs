//! Heads of pages with 8-bit keys and values.
//!
//! ```text
//! head = keys         i8  [C][PAGE_LEN]
//!        values       i8  [PAGE_LEN][C']
//!        key scales   f16 [B][PAGE_LEN]     B = ceil(C / 32)
//!        value scales f16 [B][PAGE_LEN]
//! ```
//!
//! Channel `c` of position `p` is its integer times the scale at `(c / 32) * PAGE_LEN + p`.

use std::ops::Range;

use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::op::{KvLayout, PAGE_LEN, Q8_BLOCK_LEN};

/// One head of a page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Q8Head<'a> {
    layout: KvLayout,
    keys: &'a [i8],
    values: &'a [i8],
    key_scales: &'a [f16],
    value_scales: &'a [f16],
}

impl<'a> Q8Head<'a> {
    pub(super) fn new(layout: KvLayout, bytes: &'a [u8]) -> Self {
        let (integers, scales) = bytes.split_at(layout.head_len());
        let (keys, values) = bytemuck::cast_slice(integers).split_at(layout.head_dim * PAGE_LEN);
        let (key_scales, value_scales) =
            bytemuck::cast_slice(scales).split_at(layout.n_scales() / 2);
        Self { layout, keys, values, key_scales, value_scales }
    }

    /// q8 blocks of the keys: channels, keys `[channels][PAGE_LEN]` and scales, one per slot.
    #[inline(always)]
    pub(crate) fn key_blocks(
        &self,
    ) -> impl Iterator<Item = (Range<usize>, &'a [i8], &'a [f16; PAGE_LEN])> {
        let Self { layout, keys, .. } = *self;
        self.key_scales.as_chunks().0.iter().enumerate().map(move |(b, scales)| {
            let channels = b * Q8_BLOCK_LEN..layout.head_dim.min((b + 1) * Q8_BLOCK_LEN);
            let keys = &keys[channels.start * PAGE_LEN..channels.end * PAGE_LEN];
            (channels, keys, scales)
        })
    }

    /// q8 blocks of the values: columns (the last with the padding) and scales, one per slot.
    #[inline(always)]
    pub(crate) fn value_blocks(&self) -> impl Iterator<Item = (Range<usize>, &'a [f16; PAGE_LEN])> {
        let stride = self.layout.value_stride();
        self.value_scales
            .as_chunks()
            .0
            .iter()
            .enumerate()
            .map(move |(b, scales)| (b * Q8_BLOCK_LEN..stride.min((b + 1) * Q8_BLOCK_LEN), scales))
    }

    /// Values, `[PAGE_LEN][C']`.
    #[inline(always)]
    pub(crate) fn values(&self) -> &'a [i8] {
        self.values
    }

    /// Dequantizes the head to `out` in the layout of f32 pages: keys of all slots, values of the slots `positions`. Other
    /// values stay as they are.
    #[inline(always)]
    pub(crate) fn widen(&self, out: &mut [f32], positions: Range<usize>) {
        let (c, stride) = (self.layout.head_dim, self.layout.value_stride());
        let (keys, values) = out.split_at_mut(c * PAGE_LEN);
        let mut scales = [0.0; PAGE_LEN];
        for (channels, from, stored) in self.key_blocks() {
            stored.convert_to_f32_slice(&mut scales);
            let to = &mut keys[channels.start * PAGE_LEN..channels.end * PAGE_LEN];
            let (to, from) = (to.as_chunks_mut::<PAGE_LEN>().0, from.as_chunks::<PAGE_LEN>().0);
            for (to, from) in to.iter_mut().zip(from) {
                for p in 0..PAGE_LEN {
                    to[p] = f32::from(from[p]) * scales[p];
                }
            }
        }
        for (columns, stored) in self.value_blocks() {
            stored.convert_to_f32_slice(&mut scales);
            for p in positions.clone() {
                let row = p * stride + columns.start..p * stride + columns.end;
                for (to, &from) in values[row.clone()].iter_mut().zip(&self.values[row]) {
                    *to = f32::from(from) * scales[p];
                }
            }
        }
    }
}

/// Stores key `k` and value `v`, both `[C]`, at `slot` of the head in `bytes`.
pub(super) fn write(layout: KvLayout, bytes: &mut [u8], slot: usize, k: &[f32], v: &[f32]) {
    let (integers, scales) = bytes.split_at_mut(layout.head_len());
    let (keys, values) =
        bytemuck::cast_slice_mut::<u8, i8>(integers).split_at_mut(layout.head_dim * PAGE_LEN);
    let (key_scales, value_scales) =
        bytemuck::cast_slice_mut::<u8, f16>(scales).split_at_mut(layout.n_scales() / 2);
    let mut block = [0; Q8_BLOCK_LEN];
    for (b, k) in k.chunks(Q8_BLOCK_LEN).enumerate() {
        key_scales[b * PAGE_LEN + slot] = quantize(&mut block, k);
        for (i, &q) in block[..k.len()].iter().enumerate() {
            keys[(b * Q8_BLOCK_LEN + i) * PAGE_LEN + slot] = q;
        }
    }
    let row = &mut values[slot * layout.value_stride()..][..layout.head_dim];
    for (b, (v, to)) in v.chunks(Q8_BLOCK_LEN).zip(row.chunks_mut(Q8_BLOCK_LEN)).enumerate() {
        value_scales[b * PAGE_LEN + slot] = quantize(to, v);
    }
}

/// Quantizes a block: `out[i] = round(x[i] / scale)`, ties to even. Returns `scale = max |x| / 127`.
///
/// The scale is NaN or infinite if a value is, and infinite if it overflows f16.
fn quantize(out: &mut [i8], x: &[f32]) -> f16 {
    // As integers, the bits of NaN are above those of infinity, so that NaN is the maximum.
    let max = x.iter().fold(0, |max: u32, v| max.max(v.to_bits() & 0x7fff_ffff));
    let stored = f16::from_f32(f32::from_bits(max) / 127.0);
    let scale = stored.to_f32();
    if scale == 0.0 {
        out.fill(0);
        return stored;
    }
    for (q, v) in out.iter_mut().zip(x) {
        // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
        let rounded = (v / scale).clamp(-127.0, 127.0) + 12_582_912.0;
        *q = rounded.to_bits() as i8;
    }
    stored
}

#[cfg(test)]
mod tests {
    use super::quantize;

    #[test]
    fn the_scale_fits_the_largest_magnitude() {
        let mut q = [9; 4];
        let scale = quantize(&mut q, &[0.0, 1.0, -2.54, 0.03]).to_f32();
        assert!((scale - 0.02).abs() < 1e-5);
        assert_eq!(q, [0, 50, -127, 1]);
        assert_eq!(quantize(&mut q, &[0.0; 4]).to_f32(), 0.0);
        assert_eq!(q, [0; 4]);
        assert_eq!(quantize(&mut q, &[1e-9; 4]).to_f32(), 0.0);
        assert_eq!(q, [0; 4]);
    }

    #[test]
    fn non_finite_values_stay_visible() {
        let mut q = [0; 2];
        assert!(quantize(&mut q, &[1.0, f32::NAN]).is_nan());
        assert!(quantize(&mut q, &[1.0, f32::NEG_INFINITY]).is_infinite());
    }
}
