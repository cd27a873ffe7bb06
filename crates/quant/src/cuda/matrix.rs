//! Weight matrices on the device.

use bytemuck::{Pod, Zeroable};
use half::f16;
use half::slice::HalfFloatSliceExt;
use stonechat_compute::cuda::{Buffer, CommandList, Gpu, Launch, Uploads};
use stonechat_compute::{DType, Result, SharedBytes};

use super::ARCHIVE;

/// Bytes of a file to upload at a time, before their pages are released.
const CHUNK_BYTES: usize = 16 << 20;
/// Rows of a strip.
const STRIP_ROWS: usize = 16;
/// Columns of a tile.
const TILE_COLUMNS: usize = 64;

/// A format of weights in strips: see `format.cuh`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Format {
    pub(super) dtype: DType,
    /// Modules of products and of the conversion.
    pub(super) module: &'static str,
    pub(super) repack: &'static str,
    /// Tiles of a chunk.
    pub(super) chunk_tiles: usize,
    /// Tiles of a unit, which a warp takes at once.
    pub(super) unit_tiles: usize,
    pub(super) chunk_bytes: usize,
}

impl Format {
    /// Bytes of a unit of tiles.
    pub(super) fn unit_bytes(&self) -> usize {
        self.unit_tiles.div_ceil(self.chunk_tiles) * self.chunk_bytes
    }

    /// Groups of 8 blocks of a unit that have integer minima.
    pub(super) fn minimum_groups(&self) -> usize {
        match self.dtype {
            DType::Q4K | DType::Q5K => 1,
            DType::Q2K => 2,
            _ => 0,
        }
    }
}

macro_rules! formats {
    ($($dtype:ident $module:literal $repack:literal $tiles:literal $unit:literal $bytes:expr;)*) => {
        pub(super) const FORMATS: &[Format] = &[$(Format {
            dtype: DType::$dtype,
            module: $module,
            repack: $repack,
            chunk_tiles: $tiles,
            unit_tiles: $unit,
            chunk_bytes: $bytes,
        }),*];
    };
}

// Type, modules, tiles of a chunk, tiles of a unit, bytes of a chunk: header, planes of 4, 2, 1 bits (of 8 and 16).
formats! {
    Q4_0 "q4_0" "repack_q4_0" 1 4 64 + 512;
    Q4_1 "q4_1" "repack_q4_1" 1 4 128 + 512;
    Q5_0 "q5_0" "repack_q5_0" 1 4 64 + 512 + 128;
    Q5_1 "q5_1" "repack_q5_1" 1 4 128 + 512 + 128;
    Q8_0 "q8_0" "repack_q8_0" 1 4 64 + 1024;
    Q2K "q2_k" "repack_q2_k" 4 4 320 + 4 * 256;
    Q3K "q3_k" "repack_q3_k" 4 4 288 + 4 * (256 + 128);
    Q4K "q4_k" "repack_q4_k" 4 4 256 + 4 * 512;
    Q5K "q5_k" "repack_q5_k" 4 4 256 + 4 * (512 + 128);
    Q6K "q6_k" "repack_q6_k" 4 4 288 + 4 * (512 + 256);
    Iq4Nl "iq4_nl" "repack_iq4_nl" 1 4 64 + 512;
    Iq4Xs "iq4_xs" "repack_iq4_xs" 4 4 288 + 4 * 512;
    Mxfp4 "mxfp4" "repack_mxfp4" 1 4 64 + 512;
    F16 "f16" "repack_f16" 1 2 2048;
}

/// Order of the weights.
#[derive(Debug)]
pub(super) enum Order {
    /// Rows of f32.
    Dense,
    Strips(&'static Format),
}

/// `[N, K]` weights.
#[derive(Debug)]
pub struct CudaMatrix {
    pub(super) order: Order,
    pub(super) buffer: Buffer,
    n: usize,
    k: usize,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct RepackParams {
    from: u64,
    to: u64,
    row_bytes: u64,
    n_rows: u32,
    n_strips: u32,
    n_chunks: u32,
    k: u32,
    first_strip: u32,
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
                n.div_ceil(STRIP_ROWS).saturating_mul(n_chunks).saturating_mul(format.chunk_bytes)
            }
        };
        let order = format.map_or(Order::Dense, Order::Strips);
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
        let Order::Strips(format) = matrix.order else {
            for first in (0..bytes.len()).step_by(CHUNK_BYTES) {
                let piece = bytes.slice(first..bytes.len().min(first + CHUNK_BYTES));
                gpu.upload(&matrix.buffer, first, &piece)?;
                piece.release();
            }
            return Ok(matrix);
        };
        let n_strips = n.div_ceil(STRIP_ROWS);
        let n_chunks = k.div_ceil(TILE_COLUMNS * format.chunk_tiles);
        let file_row = bytes.len() / n.max(1);
        let row_bytes = stored.bytes_for(k).expect("whole blocks");
        let max_row = row_bytes.max(file_row).max(1);
        let rows_per_piece = (CHUNK_BYTES / max_row / STRIP_ROWS).max(1) * STRIP_ROWS;
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
            let n_strips = if last { n_strips - first / STRIP_ROWS } else { rows / STRIP_ROWS };
            let params = RepackParams {
                from,
                to: matrix.buffer.address(),
                row_bytes: row_bytes as u64,
                n_rows: rows as u32,
                n_strips: n_strips as u32,
                n_chunks: n_chunks as u32,
                k: k as u32,
                first_strip: (first / STRIP_ROWS) as u32,
                unused: 0,
            };
            let mut list = CommandList::new(gpu);
            let kernel = gpu.kernel(&ARCHIVE, format.repack, "repack", 0);
            let grid = [(n_strips * n_chunks).div_ceil(8), 1, 1];
            list.launch(kernel, Launch { grid, threads: 256, shared_bytes: 0 }, &params);
            list.run()?;
        }
        Ok(matrix)
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

    /// Type of the weights on the device.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.format().map_or(DType::F32, |format| format.dtype)
    }

    /// Format of weights in strips.
    pub(super) fn format(&self) -> Option<&'static Format> {
        match self.order {
            Order::Dense => None,
            Order::Strips(format) => Some(format),
        }
    }

    /// Whether products read f16 operands.
    #[must_use]
    pub fn reads_operand(&self) -> bool {
        self.format().is_some()
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
