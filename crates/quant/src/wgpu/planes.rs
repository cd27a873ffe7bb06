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

/// Format that kernels can read.
#[derive(Debug)]
pub(super) struct Format {
    pub(super) dtype: DType,
    /// Byte range in a block of each field, in the order of the planes.
    pub(super) fields: &'static [Range<usize>],
    /// WGSL of its `load_quants16` or `dequantize16`.
    pub(super) file: &'static str,
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

macro_rules! formats {
    ($($dtype:ident: [$($field:expr),*], $file:literal;)*) => {
        /// Every format that kernels can read.
        pub(super) const FORMATS: &[Format] = &[$(Format {
            dtype: DType::$dtype,
            fields: &[$($field),*],
            file: include_str!($file),
            is_quantized: !matches!(DType::$dtype, DType::F32 | DType::F16 | DType::BF16),
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
