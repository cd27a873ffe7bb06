//! Planes: the layout of a weight row on the device.
//!
//! A GGML block has fields: packed values, high bits, scales. A row on the device has one plane a field, with that field of
//! all blocks, so that values are aligned and a kernel loads 16 bytes of them at once:
//!
//! ```text
//! GGML   = scale 0 | values 0 | scale 1 | values 1 | ... | scale n-1 | values n-1
//! device = values 0 | values 1 | ... | values n-1 | scale 0 | scale 1 | ... | scale n-1 | padding to 16 bytes
//! ```

use std::ops::Range;

use stonechat_compute::DType;

use crate::block::block_formats;

/// Weights of one `dequantize16`.
pub(super) const CHUNK: usize = 16;

/// Format that kernels can read.
#[derive(Debug)]
pub(super) struct Format {
    pub(super) dtype: DType,
    /// Byte range in a block of each field, in the order of the planes.
    pub(super) fields: &'static [Range<usize>],
    /// WGSL of its `load_quants16` or `dequantize16`.
    pub(super) files: &'static [&'static str],
    /// Values of 4-bit codes, if they are indices of a codebook.
    pub(super) codebook: Option<[i8; 16]>,
    /// Chunks between the two chunks of a step of GEMV.
    pub(super) chunk_stride: u32,
    /// Whether weights are `scale * quant + offset`.
    pub(super) is_quantized: bool,
}

impl Format {
    /// Format of `dtype`, if kernels can read it.
    pub(super) fn of(dtype: DType) -> Option<&'static Self> {
        FORMATS.iter().find(|format| format.dtype == dtype)
    }

    /// Number of the format in kernel keys.
    pub(super) fn code(&self) -> u32 {
        self.dtype.ggml_id()
    }

    /// Bytes of a row of `n_blocks` on the device.
    pub(super) fn row_bytes(&self, n_blocks: usize) -> usize {
        (n_blocks * self.dtype.block_bytes()).next_multiple_of(16)
    }

    /// Repacks rows of `n_blocks` GGML blocks into planes of `n_device` blocks. Does not write the planes beyond `n_blocks`.
    /// Stops at the shorter of `blocks` and `device`.
    pub(super) fn repack(
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
            for field in self.fields {
                let len = field.len();
                let plane = &mut to[at..at + n_blocks * len];
                if len == block_bytes {
                    plane.copy_from_slice(row);
                } else {
                    let from = row.chunks_exact(block_bytes);
                    for (to, block) in plane.chunks_exact_mut(len).zip(from) {
                        to.copy_from_slice(&block[field.clone()]);
                    }
                }
                at += n_device * len;
            }
        }
    }
}

const fn float(
    dtype: DType,
    field: &'static [Range<usize>],
    file: &'static [&'static str],
) -> Format {
    let (chunk_stride, codebook, is_quantized) = (1, None, false);
    Format { dtype, fields: field, files: file, codebook, chunk_stride, is_quantized }
}

/// The only element of a list of at most one.
const fn first(codebooks: &[[i8; 16]]) -> Option<[i8; 16]> {
    match codebooks {
        [codebook, ..] => Some(*codebook),
        [] => None,
    }
}

macro_rules! formats {
    ([]
        panels {
            $($variant:ident: $Block:ident {
                fallback: $fallback:ident, panel: $panel:ty { $($layout:tt)* },
                planes: [$($field:expr),*], wgsl: [$($file:literal),*], chunk_stride: $stride:literal,
                codebook: [$($codebook:ident)?], $($cuda:tt)*
            };)*
        }
        $($rest:tt)*
    ) => {
        &[
            float(DType::F32, &[0..4], &[include_str!("format_f32.wgsl")]),
            float(DType::F16, &[0..2], &[include_str!("format_f16.wgsl")]),
            float(DType::BF16, &[0..2], &[include_str!("format_bf16.wgsl")]),
            $(Format {
                dtype: DType::$variant,
                fields: &[$($field),*],
                files: &[$(include_str!($file)),*],
                codebook: first(&[$(crate::block::$codebook)?]),
                chunk_stride: $stride,
                is_quantized: true,
            },)*
        ]
    };
}

/// Every format that kernels can read.
pub(super) const FORMATS: &[Format] = block_formats!(formats []);
