//! A weight matrix on the device.

use std::sync::Arc;

use half::f16;
use half::slice::HalfFloatSliceExt;
use stonechat_compute::wgpu::ops::halves::COLUMNS;
use stonechat_compute::wgpu::{Gpu, GpuBuffer};
use stonechat_compute::{DType, Result, SharedBytes};

use super::planes::Format;

/// Bytes of a file that are rearranged at a time, after which their pages may go.
const CHUNK_BYTES: usize = 8 << 20;

/// `[N, K]` weights. Clones share them.
#[derive(Debug, Clone)]
pub struct GpuMatrix {
    pub(super) format: &'static Format,
    n: usize,
    k: usize,
    padded_k: usize,
    pub(super) parts: Arc<[Part]>,
}

/// Adjacent rows that a kernel sees at once.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) buffer: GpuBuffer,
    /// The first of them.
    pub(super) first: usize,
    pub(super) rows: usize,
}

impl GpuMatrix {
    /// The type that weights of `dtype` have on the device: their own, or f16 where no kernel reads them.
    #[must_use]
    pub fn device_dtype(dtype: DType) -> DType {
        Format::of(dtype).map_or(DType::F16, |format| format.dtype)
    }

    /// Copies `n` rows of `k` weights to the device, rearranged and where needed converted, through little host
    /// memory; what was copied is released.
    ///
    /// # Errors
    /// If the device has no room.
    ///
    /// # Panics
    /// If `bytes` are not such rows.
    pub fn load(
        gpu: &Gpu,
        dtype: DType,
        (n, k): (usize, usize),
        bytes: &SharedBytes,
    ) -> Result<Self> {
        assert_eq!(dtype.bytes_for(n * k), Some(bytes.len()), "bytes of {n}x{k} {dtype}");
        let format = Format::of(Self::device_dtype(dtype)).expect("f16 has a format");
        let padded_k = k.next_multiple_of(COLUMNS);
        let n_blocks = padded_k / format.dtype.block_len();
        let row_bytes = format.row_bytes(n_blocks);
        let rows_in_part = (gpu.max_binding_bytes() / row_bytes.max(1)).clamp(1, n.max(1));
        let mut matrix = Self { format, n, k, padded_k, parts: Arc::default() };
        let mut parts = Vec::new();
        let file_row = bytes.len() / n.max(1);
        let at_once = (CHUNK_BYTES / row_bytes.max(file_row).max(1)).max(1);
        let mut device = Vec::new();
        for first in (0..n).step_by(rows_in_part) {
            let rows = rows_in_part.min(n - first);
            let buffer = GpuBuffer::new(gpu, rows * row_bytes)?;
            for from in (0..rows).step_by(at_once) {
                let count = at_once.min(rows - from);
                let start = (first + from) * file_row;
                let file = bytes.slice(start..start + count * file_row);
                device.clear();
                device.resize(count * row_bytes, 0);
                matrix.fill(dtype, &file, &mut device);
                gpu.upload(&buffer, from * row_bytes, &device)?;
                file.release();
            }
            parts.push(Part { buffer, first, rows });
        }
        matrix.parts = parts.into();
        Ok(matrix)
    }

    /// Writes rows of a file as the device has them.
    fn fill(&self, dtype: DType, file: &[u8], device: &mut [u8]) {
        let (k, padded_k, to) = (self.k, self.padded_k, self.format.dtype);
        let row_bytes = self.format.row_bytes(padded_k / to.block_len());
        if dtype != to {
            let mut values = vec![0.0; k];
            let mut halves = vec![f16::ZERO; k];
            let rows = file.chunks_exact(dtype.bytes_for(k).expect("whole blocks").max(1));
            for (row, out) in rows.zip(device.chunks_exact_mut(row_bytes)) {
                crate::dequantize_row(dtype, row, &mut values).expect("a type of weights");
                halves.convert_from_f32_slice(&values);
                out[..2 * k].copy_from_slice(bytemuck::cast_slice(&halves));
            }
        } else {
            let n_blocks = [k, padded_k].map(|len| len / to.block_len());
            self.format.rearrange(file, n_blocks, device);
        }
    }

    /// Output features `N`.
    #[must_use]
    pub fn n(&self) -> usize {
        self.n
    }

    /// Input features `K`.
    #[must_use]
    pub fn k(&self) -> usize {
        self.k
    }

    /// `K` rounded up to what kernels read at a time; the added weights are zero.
    #[must_use]
    pub fn padded_k(&self) -> usize {
        self.padded_k
    }

    /// Type of the weights on the device.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.format.dtype
    }

    /// Blocks of a row.
    pub(super) fn n_blocks(&self) -> usize {
        self.padded_k / self.format.dtype.block_len()
    }

    /// Vectors of 16 bytes of a row.
    pub(super) fn stride(&self) -> usize {
        self.format.row_bytes(self.n_blocks()) / 16
    }
}
