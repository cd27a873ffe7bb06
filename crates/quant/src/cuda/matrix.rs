//! Weight matrices on the device.

use bytemuck::{Pod, Zeroable};
use half::f16;
use half::slice::HalfFloatSliceExt;
use stonechat_compute::cuda::{Buffer, CommandList, Gpu, Launch, Uploads};
use stonechat_compute::{DType, Result, SharedBytes};

use super::ARCHIVE;
use super::format::{FORMATS, Format};

/// Bytes of a file to upload at a time, before their pages are released.
const CHUNK_BYTES: usize = 16 << 20;
/// Rows of a panel.
pub(super) const PANEL_ROWS: usize = 16;
/// Columns of a tile.
const TILE_COLUMNS: usize = 64;

/// Order of the weights.
#[derive(Debug)]
pub(super) enum Order {
    /// Rows of f32.
    Dense,
    Panels(&'static Format),
}

/// `[N, K]` weights.
#[derive(Debug)]
pub struct CudaMatrix {
    pub(super) order: Order,
    pub(super) buffer: Buffer,
    /// Output features `N`.
    pub(super) n: usize,
    /// Input features `K`.
    pub(super) k: usize,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct RepackParams {
    from: u64,
    to: u64,
    row_bytes: u64,
    n_rows: u32,
    n_panels: u32,
    n_chunks: u32,
    k: u32,
    first_panel: u32,
    unused: u32,
}

impl CudaMatrix {
    /// Type of weights of `dtype` on the device: the same, or f16 if no kernel reads it.
    #[must_use]
    pub fn device_dtype(dtype: DType) -> DType {
        let is_own = dtype == DType::F32 || FORMATS.iter().any(|format| format.dtype == dtype);
        if is_own { dtype } else { DType::F16 }
    }

    /// `[n, k]` weights of a type of the device, all bytes zeros.
    pub(super) fn zeroed(gpu: &Gpu, dtype: DType, (n, k): (usize, usize)) -> Result<Self> {
        let format = FORMATS.iter().find(|format| format.dtype == dtype);
        let bytes = match format {
            None => n.saturating_mul(k).saturating_mul(size_of::<f32>()),
            Some(format) => {
                let n_chunks = k.div_ceil(TILE_COLUMNS * format.chunk_tiles);
                n.div_ceil(PANEL_ROWS).saturating_mul(n_chunks).saturating_mul(format.chunk_bytes)
            }
        };
        let order = format.map_or(Order::Dense, Order::Panels);
        Ok(Self { order, buffer: Buffer::new(gpu, bytes)?, n, k })
    }

    /// Uploads `[n, k]` weights and repacks them on the device, in pieces of 16 MiB; releases the pages of uploaded bytes.
    ///
    /// # Errors
    /// If the device is out of memory or lost.
    ///
    /// # Panics
    /// If `bytes` are not those of `n * k` weights.
    pub fn load(
        gpu: &Gpu,
        uploads: &mut Uploads,
        dtype: DType,
        (n, k): (usize, usize),
        bytes: &SharedBytes,
    ) -> Result<Self> {
        assert_eq!(dtype.bytes_for(n * k), Some(bytes.len()), "bytes of {n}x{k} {dtype}");
        let stored = Self::device_dtype(dtype);
        let matrix = Self::zeroed(gpu, stored, (n, k))?;
        let Order::Panels(format) = matrix.order else {
            for first in (0..bytes.len()).step_by(CHUNK_BYTES) {
                let piece = bytes.slice(first..bytes.len().min(first + CHUNK_BYTES));
                gpu.upload(&matrix.buffer, first, &piece)?;
                piece.release();
            }
            return Ok(matrix);
        };
        let n_chunks = k.div_ceil(TILE_COLUMNS * format.chunk_tiles);
        let file_row = bytes.len() / n.max(1);
        let row_bytes = stored.bytes_for(k).expect("whole blocks");
        let max_row = row_bytes.max(file_row).max(1);
        let rows_per_piece = (CHUNK_BYTES / max_row / PANEL_ROWS).max(1) * PANEL_ROWS;
        let mut converted = Vec::new();
        for first in (0..n).step_by(rows_per_piece) {
            let rows = rows_per_piece.min(n - first);
            let file = bytes.slice(first * file_row..(first + rows) * file_row);
            let from = if stored == dtype {
                uploads.send(&file)?
            } else {
                to_f16(dtype, &file, rows * k, k, &mut converted);
                uploads.send(bytemuck::cast_slice(&converted))?
            };
            file.release();
            let last = first + rows == n;
            let n_panels =
                if last { matrix.n_panels() - first / PANEL_ROWS } else { rows / PANEL_ROWS };
            let params = RepackParams {
                from,
                to: matrix.buffer.address(),
                row_bytes: row_bytes as u64,
                n_rows: rows as u32,
                n_panels: n_panels as u32,
                n_chunks: n_chunks as u32,
                k: k as u32,
                first_panel: (first / PANEL_ROWS) as u32,
                unused: 0,
            };
            let mut list = CommandList::new(gpu);
            let kernel = gpu.kernel(&ARCHIVE, format.module(), "repack", 0);
            let grid = [(n_panels * n_chunks).div_ceil(8), 1, 1];
            list.launch(kernel, Launch { grid, threads: 256, shared_bytes: 0 }, &params);
            list.run()?;
        }
        Ok(matrix)
    }

    /// Type of the weights on the device.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.format().map_or(DType::F32, |format| format.dtype)
    }

    /// Format of weights in panels.
    pub(super) fn format(&self) -> Option<&'static Format> {
        match self.order {
            Order::Dense => None,
            Order::Panels(format) => Some(format),
        }
    }

    /// Whether products read f16 operands.
    #[must_use]
    pub fn reads_operand(&self) -> bool {
        self.format().is_some()
    }

    /// Panels of the matrix.
    pub(super) fn n_panels(&self) -> usize {
        self.n.div_ceil(PANEL_ROWS)
    }

    /// Tiles of a row.
    pub(super) fn k_tiles(&self) -> usize {
        self.k.div_ceil(TILE_COLUMNS)
    }
}

/// Converts rows of a file to f16.
fn to_f16(dtype: DType, file: &[u8], n: usize, k: usize, out: &mut Vec<f16>) {
    out.resize(n, f16::ZERO);
    let mut values = vec![0.0; k];
    if n == 0 {
        return;
    }
    let rows = file.chunks_exact(dtype.bytes_for(k).expect("whole blocks"));
    for (row, out) in rows.zip(out.chunks_exact_mut(k)) {
        crate::dequantize_row(dtype, row, &mut values).expect("a type of weights");
        // Largest finite f16: models have values beyond it as markers at most.
        values.iter_mut().for_each(|value| *value = value.clamp(-65504.0, 65504.0));
        out.convert_from_f32_slice(&values);
    }
}
