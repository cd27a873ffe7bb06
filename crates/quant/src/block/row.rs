//! Formats without panels, by the quants of 32 elements at a time.

use stonechat_compute::simd::RowInt8;

use super::definition::{Block, Half};

/// Encoding of the bytes of a [`RowBlock`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Quants {
    /// `x = scale * (byte - offset)`.
    Unsigned { offset: i8 },
    /// `x = scale * byte`, or `-scale * byte` where its bit is set.
    Signed,
    /// `x = scale * levels[byte]`.
    Levels(&'static [i8; 16]),
}

/// A block of groups with one scale each.
pub(crate) trait RowBlock: Block {
    /// Elements of a group: 16 or 32.
    const GROUP_LEN: usize;
    /// Encoding of the quants.
    const QUANTS: Quants;

    /// Bytes of elements `32 * u ..`, below 128; for [`Quants::Signed`] also their signs, one bit each, 1 for negative.
    fn quants32(&self, u: usize) -> ([u8; 32], u32);

    /// Vector `part` of the quants of elements `32 * u ..`.
    #[inline(always)]
    fn load_quants<S: RowInt8>(&self, s: S, u: usize, part: usize) -> S::U32s {
        let (bytes, signs) = self.quants32(u);
        let q = s.load_u32s(&bytemuck::cast::<_, [u32; 8]>(bytes), part);
        match Self::QUANTS {
            Quants::Unsigned { .. } => q,
            Quants::Signed => s.negate(q, signs >> (4 * S::LANES * part)),
            Quants::Levels(levels) => s.lookup(bytemuck::cast_ref(levels), q),
        }
    }

    /// Scale of the scales; unused if the format has none.
    fn d(&self) -> Half;

    /// Scales of the groups, where `d` is [`d`](Self::d) widened; zeros beyond them.
    fn scales(&self, d: f32) -> [f32; 16];
}

/// [`Block::dequantize`] of [`Block::BLOCK_LEN`] elements.
#[inline(always)]
pub(super) fn dequantize<B: RowBlock>(block: &B, out: &mut [f32]) {
    let scales = block.scales(block.d().to_f32());
    for (u, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (bytes, signs) = block.quants32(u);
        for i in 0..32 {
            let q = i32::from(bytes[i]);
            let value = match B::QUANTS {
                Quants::Unsigned { offset } => q - i32::from(offset),
                Quants::Signed => q * (1 - (signs >> i & 1).cast_signed() * 2),
                Quants::Levels(levels) => i32::from(levels[usize::from(bytes[i])]),
            };
            out[i] = scales[(32 * u + i) / B::GROUP_LEN] * value as f32;
        }
    }
}

/// Implements [`Block`] for a [`RowBlock`] of `$len` elements.
macro_rules! row_block {
    ($Block:ty: $dtype:ident, $len:literal) => {
        impl $crate::block::Block for $Block {
            const DTYPE: stonechat_compute::DType = stonechat_compute::DType::$dtype;
            type Values = [f32; $len];

            #[inline(always)]
            fn dequantize(&self, out: &mut [f32; $len]) {
                $crate::block::row::dequantize(self, out);
            }
        }
    };
}
pub(super) use row_block;
