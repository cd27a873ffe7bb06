//! The order of a row's bytes on the device.
//!
//! A block of GGML's has parts: packed values, high bits, scales. On the device a row holds the first part of
//! all its blocks, then the second part of all, and so on, so that the values of adjacent blocks are adjacent
//! and aligned, and a kernel reads 16 bytes of them at once. A row has as many bytes as its blocks, rounded up
//! to 16.

use std::ops::Range;

use stonechat_compute::DType;

/// A format that kernels can read.
#[derive(Debug)]
pub(super) struct Format {
    pub(super) dtype: DType,
    /// The parts of a block, in the order of the planes.
    pub(super) parts: &'static [Range<usize>],
    /// The file with its `codes16` or `dequantize16`.
    pub(super) file: &'static str,
    /// Whether weights are codes times scales.
    pub(super) has_codes: bool,
}

impl Format {
    /// The format of `dtype`, if kernels can read it.
    pub(super) fn of(dtype: DType) -> Option<&'static Self> {
        FORMATS.iter().find(|format| format.dtype == dtype)
    }

    /// Its number among all, for the keys of kernels.
    pub(super) fn code(&self) -> u32 {
        self.dtype.ggml_id()
    }

    /// Bytes of a row of `n_blocks` on the device.
    pub(super) fn row_bytes(&self, n_blocks: usize) -> usize {
        (n_blocks * self.dtype.block_bytes()).next_multiple_of(16)
    }

    /// Rearranges rows of `n_blocks` blocks each; a row on the device has room for `n_device`, and zeros
    /// beyond them.
    ///
    /// # Panics
    /// If `device` has not room for as many rows as `blocks` holds.
    pub(super) fn rearrange(
        &self,
        blocks: &[u8],
        [n_blocks, n_device]: [usize; 2],
        device: &mut [u8],
    ) {
        let block_bytes = self.dtype.block_bytes();
        let rows = blocks.chunks_exact(n_blocks * block_bytes);
        let to = device.chunks_exact_mut(self.row_bytes(n_device));
        for (row, to) in rows.zip(to) {
            let mut at = 0;
            for part in self.parts {
                let len = part.len();
                let plane = &mut to[at..at + n_blocks * len];
                if len == block_bytes {
                    plane.copy_from_slice(row);
                } else {
                    let from = row.chunks_exact(block_bytes);
                    for (to, block) in plane.chunks_exact_mut(len).zip(from) {
                        to.copy_from_slice(&block[part.clone()]);
                    }
                }
                at += n_device * len;
            }
        }
    }
}

macro_rules! formats {
    ($($dtype:ident: [$($part:expr),*], $file:literal;)*) => {
        /// Every format that kernels can read.
        pub(super) const FORMATS: &[Format] = &[$(Format {
            dtype: DType::$dtype,
            parts: &[$($part),*],
            file: include_str!($file),
            has_codes: !matches!(DType::$dtype, DType::F32 | DType::F16 | DType::BF16),
        }),*];
    };
}

formats! {
    F32: [0..4], "format_f32.wgsl";
    F16: [0..2], "format_f16.wgsl";
    BF16: [0..2], "format_bf16.wgsl";
    Q4_0: [2..18, 0..2], "format_q4_0.wgsl";
    Q4_1: [4..20, 0..4], "format_q4_1.wgsl";
    Q5_0: [6..22, 2..6, 0..2], "format_q5_0.wgsl";
    Q5_1: [8..24, 4..8, 0..4], "format_q5_1.wgsl";
    Q8_0: [2..34, 0..2], "format_q8_0.wgsl";
    Q2K: [16..80, 0..16, 80..84], "format_q2_k.wgsl";
    Q3K: [32..96, 0..32, 96..108, 108..110], "format_q3_k.wgsl";
    Q4K: [16..144, 0..16], "format_q4_k.wgsl";
    Q5K: [48..176, 16..48, 0..16], "format_q5_k.wgsl";
    Q6K: [0..128, 128..192, 192..208, 208..210], "format_q6_k.wgsl";
    Iq4Nl: [2..18, 0..2], "format_iq4_nl.wgsl";
    Iq4Xs: [8..136, 0..8], "format_iq4_xs.wgsl";
    Mxfp4: [1..17, 0..1], "format_mxfp4.wgsl";
}
