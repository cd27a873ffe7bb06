//! Weight matrices on the device.

use std::sync::Arc;

use half::f16;
use half::slice::HalfFloatSliceExt;
use stonechat_compute::check_eq;
use stonechat_compute::wgpu::ops::operand::COLUMNS;
use stonechat_compute::wgpu::{Gpu, GpuBuffer};
use stonechat_compute::{DType, Result, SharedBytes};

use super::planes::Format;

/// Bytes of a file to repack at a time, before their pages are released.
const CHUNK_BYTES: usize = 8 << 20;

/// `[N, K]` weights. Clones share them.
#[derive(Debug, Clone)]
pub struct GpuMatrix {
    pub(super) format: &'static Format,
    /// Output features `N`.
    pub(super) n: usize,
    /// Input features `K`.
    pub(super) k: usize,
    /// `K` rounded up to a multiple of [`COLUMNS`]; the added weights are zero.
    pub(super) padded_k: usize,
    pub(super) slices: Arc<[RowSlice]>,
}

/// Adjacent rows of a matrix in one buffer.
#[derive(Debug)]
pub(super) struct RowSlice {
    pub(super) buffer: GpuBuffer,
    /// First row.
    pub(super) first: usize,
    pub(super) rows: usize,
}

impl GpuMatrix {
    /// Type of weights of `dtype` on the device: the same, or f16 if no kernel reads it.
    #[must_use]
    pub fn device_dtype(dtype: DType) -> DType {
        Format::of(dtype).map_or(DType::F16, |format| format.dtype)
    }

    /// Uploads `[n, k]` weights, repacked into planes or converted to f16, in chunks of 8 MiB; releases the pages of uploaded
    /// bytes. Splits matrices that exceed [`Gpu::max_binding_bytes`] by rows.
    ///
    /// # Errors
    /// If the device is out of memory or lost.
    ///
    /// # Panics
    /// If `bytes` are not those of `n * k` weights.
    pub fn load(
        gpu: &Gpu,
        dtype: DType,
        (n, k): (usize, usize),
        bytes: &SharedBytes,
    ) -> Result<Self> {
        check_eq!(Some(bytes.len()), dtype.bytes_for(n * k), "bytes of {n}x{k} {dtype}");
        let format = Format::of(Self::device_dtype(dtype)).expect("f16 has a format");
        let padded_k = k.next_multiple_of(COLUMNS);
        let n_blocks = padded_k / format.dtype.block_len();
        let row_bytes = format.row_bytes(n_blocks);
        let rows_per_slice = (gpu.max_binding_bytes() / row_bytes.max(1)).clamp(1, n.max(1));
        let mut matrix = Self { format, n, k, padded_k, slices: Arc::default() };
        let mut slices = Vec::new();
        let file_row = bytes.len() / n.max(1);
        let rows_per_chunk = (CHUNK_BYTES / row_bytes.max(file_row).max(1)).max(1);
        let mut device = Vec::new();
        for first in (0..n).step_by(rows_per_slice) {
            let rows = rows_per_slice.min(n - first);
            let buffer = GpuBuffer::new(gpu, rows * row_bytes)?;
            for from in (0..rows).step_by(rows_per_chunk) {
                let count = rows_per_chunk.min(rows - from);
                let start = (first + from) * file_row;
                let file = bytes.slice(start..start + count * file_row);
                device.clear();
                device.resize(count * row_bytes, 0);
                matrix.fill(dtype, &file, &mut device);
                gpu.upload(&buffer, from * row_bytes, &device)?;
                file.release();
            }
            slices.push(RowSlice { buffer, first, rows });
        }
        matrix.slices = slices.into();
        Ok(matrix)
    }

    /// Converts or repacks rows of a file for the device.
    fn fill(&self, dtype: DType, file: &[u8], device: &mut [u8]) {
        let (k, padded_k, to) = (self.k, self.padded_k, self.format.dtype);
        let row_bytes = self.format.row_bytes(padded_k / to.block_len());
        if dtype != to {
            let mut values = vec![0.0; k];
            let mut f16_values = vec![f16::ZERO; k];
            let rows = file.chunks_exact(dtype.bytes_for(k).expect("whole blocks").max(1));
            for (row, out) in rows.zip(device.chunks_exact_mut(row_bytes)) {
                crate::dequantize_row(dtype, row, &mut values).expect("a type of weights");
                f16_values.convert_from_f32_slice(&values);
                out[..2 * k].copy_from_slice(bytemuck::cast_slice(&f16_values));
            }
        } else {
            let n_blocks = [k, padded_k].map(|len| len / to.block_len());
            self.format.repack(file, n_blocks, device);
        }
    }

    /// Type of the weights on the device.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.format.dtype
    }

    /// Whether kernels read weights of `dtype` as integers with scales.
    #[must_use]
    pub fn is_quantized(dtype: DType) -> bool {
        Format::of(dtype).is_some_and(|format| format.is_quantized)
    }

    /// Rows of a slice; `None` if the matrix is in one buffer.
    #[must_use]
    pub fn slice_rows(&self) -> Option<usize> {
        match &self.slices[..] {
            [_] => None,
            slices => Some(slices.first().map_or(0, |slice| slice.rows)),
        }
    }

    /// Blocks in a row.
    pub(super) fn n_blocks(&self) -> usize {
        self.padded_k / self.format.dtype.block_len()
    }

    /// Row length in vectors of 16 bytes.
    pub(super) fn stride(&self) -> usize {
        self.format.row_bytes(self.n_blocks()) / 16
    }
}
