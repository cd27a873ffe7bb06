//! Weight matrices in host memory: rows in the file's format, or repacked into panels.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use stonechat_compute::cpu::DenseWeight;
use stonechat_compute::op::Weight;
use stonechat_compute::{AlignedVec, DType, Isa, SharedBytes};
use stonechat_quant::{PackedMatrix, PackedRows, QuantMatrix, dequantize_rows};
use web_time::Instant;

use super::row_kernels;
use crate::device::MatrixSource;
use crate::weight_data::WeightData;
use crate::{Error, LoadStats};

/// Most rows of activations for which a quantized matrix of a type without panels is multiplied by int8 dot products.
/// With more rows, each row of weights is dequantized once and multiplied in f32.
pub(super) const MAX_INT_DOT_ROWS: usize = 16;

/// Bytes repacked at a time. The source pages of a chunk are released after it.
const CHUNK_BYTES: usize = 8 << 20;

/// Repacking of quantized weights at load.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Repack {
    /// Repacks weights into panels if their type has panels (fastest). Copies all others, so that the file is not needed
    /// after loading.
    #[default]
    On,
    /// Uses weights from the memory-mapped file, which is read at their first use; types with panels are dequantized in each
    /// product. Copies only tensors that the model joins, and unaligned f32, f16 and bf16 values.
    Off,
}

/// Weights on the CPU.
pub(super) type CpuWeight = WeightData<CpuMatrix, AlignedVec>;

pub(super) fn matrix(weight: &Weight) -> &CpuMatrix {
    CpuWeight::matrix(weight)
}

pub(super) fn values(weight: &Weight) -> &AlignedVec {
    CpuWeight::values(weight)
}

/// A weight matrix in host memory.
#[derive(Debug)]
pub(super) struct CpuMatrix {
    n: usize,
    k: usize,
    storage: Storage,
}

#[derive(Debug)]
enum Storage {
    /// `[N, K]` row-major in the file's format; floats are aligned.
    Rows(DType, SharedBytes),
    /// Panels of the backend's instruction set.
    Packed(PackedMatrix),
}

/// Rows of a [`CpuMatrix`].
#[derive(Debug, Clone, Copy)]
pub(super) enum Weights<'a> {
    /// f32, f16 or bf16.
    Dense(DenseWeight<'a>),
    /// Quantized blocks in the file's format.
    Quant(QuantMatrix<'a>),
    /// Panels; first row and one past the last.
    Packed(&'a PackedMatrix, usize, usize),
}

impl<'a> Weights<'a> {
    /// Whether `n_rows` rows of activations are quantized for the matmul.
    pub(super) fn reads_quantized(&self, n_rows: usize) -> bool {
        match self {
            Self::Dense(_) => false,
            Self::Quant(w) => row_kernels::has(w.dtype()) && n_rows <= MAX_INT_DOT_ROWS,
            Self::Packed(..) => true,
        }
    }

    /// The panels with a bias of their rows; `None` without panels.
    pub(super) fn panels(self, bias: Option<&'a [f32]>) -> Option<PackedRows<'a>> {
        let Self::Packed(w, start, end) = self else { return None };
        Some(PackedRows { w, rows: start..end, bias })
    }
}

impl CpuMatrix {
    /// Whether the weights are repacked into panels.
    pub(super) fn is_packed(&self) -> bool {
        matches!(self.storage, Storage::Packed(_))
    }

    /// Profile label: type and shape.
    pub(super) fn label(&self) -> String {
        let dtype = match &self.storage {
            Storage::Rows(dtype, _) => *dtype,
            Storage::Packed(matrix) => matrix.dtype(),
        };
        format!("{dtype} {}x{}", self.n, self.k)
    }

    pub(super) fn all(&self) -> Weights<'_> {
        self.rows(0..self.n)
    }

    pub(super) fn rows(&self, rows: Range<usize>) -> Weights<'_> {
        let (dtype, bytes) = match &self.storage {
            Storage::Rows(dtype, bytes) => (*dtype, &bytes[self.byte_range(bytes, rows.clone())]),
            Storage::Packed(matrix) => return Weights::Packed(matrix, rows.start, rows.end),
        };
        Weights::Dense(match dtype {
            DType::F32 => DenseWeight::F32(bytemuck::cast_slice(bytes)),
            DType::F16 => DenseWeight::F16(bytemuck::cast_slice(bytes)),
            DType::BF16 => DenseWeight::BF16(bytemuck::cast_slice(bytes)),
            _ => {
                let matrix = QuantMatrix::new(dtype, rows.len(), self.k, bytes);
                return Weights::Quant(matrix.expect("checked by `load`"));
            }
        })
    }

    /// Dequantizes row `row` to `out`, `[K]`.
    pub(super) fn dequantize_row(&self, isa: Isa, row: usize, out: &mut [f32]) {
        match &self.storage {
            Storage::Packed(matrix) => matrix.dequantize_row(isa, row, out),
            Storage::Rows(dtype, bytes) => {
                let bytes = &bytes[self.byte_range(bytes, row..row + 1)];
                dequantize_rows(isa, *dtype, bytes, out).expect("checked by `load`");
            }
        }
    }

    /// Byte range of `rows`.
    fn byte_range(&self, bytes: &[u8], rows: Range<usize>) -> Range<usize> {
        let row_bytes = bytes.len() / self.n.max(1);
        rows.start * row_bytes..rows.end * row_bytes
    }
}

/// Name of the matmul kernel for `rows` rows of activations and `w`.
pub(super) fn matmul_kernel(isa: Isa, w: &Weight, rows: usize) -> String {
    let weights = matrix(w).all();
    match weights {
        Weights::Dense(DenseWeight::F32(_)) => format!("f32-{isa}"),
        Weights::Dense(DenseWeight::F16(_)) => format!("f16-{isa}"),
        Weights::Dense(DenseWeight::BF16(_)) => format!("bf16-{isa}"),
        Weights::Packed(w, ..) => w.kernel_name(rows),
        Weights::Quant(w) if weights.reads_quantized(rows) => row_kernels::name(isa, w.dtype()),
        Weights::Quant(w) => format!("{}-dequantized-f32-{isa}", w.dtype()),
    }
}

/// Checks the size of a matrix and stores it by [`Repack`].
pub(super) fn load(
    device: &stonechat_compute::Cpu,
    repack: Repack,
    stats: &Mutex<LoadStats>,
    source: MatrixSource<'_>,
) -> Result<CpuMatrix, Error> {
    source.check("cpu")?;
    let MatrixSource { rows, cols, dtype, bytes, .. } = source;
    let alignment = match dtype {
        DType::F32 => align_of::<f32>(),
        DType::F16 | DType::BF16 => align_of::<half::f16>(),
        _ => 1,
    };
    let start = Instant::now();
    let mut stats = stats.lock().unwrap_or_else(PoisonError::into_inner);
    let n_bytes = bytes.len() as u64;
    let is_aligned = bytes.as_ptr().addr().is_multiple_of(alignment);
    let storage = match repacked(device, repack, &source)? {
        Some(matrix) => {
            stats.repacked_bytes += n_bytes;
            stats.repack_time += start.elapsed();
            Storage::Packed(matrix)
        }
        // The model allocated these bytes for this matrix alone: no copy needed.
        None if is_aligned && bytes.is_whole() => {
            stats.copied_bytes += n_bytes;
            Storage::Rows(dtype, bytes.clone())
        }
        None if is_aligned && repack == Repack::Off => {
            stats.mapped_bytes += n_bytes;
            Storage::Rows(dtype, bytes.clone())
        }
        None => {
            let copy = bytes.copied(&device.threads);
            let out_of_memory = Error::OutOfMemory { bytes: bytes.len(), backend: "cpu" };
            let copy = copy.ok_or(out_of_memory)?;
            stats.copied_bytes += n_bytes;
            stats.copy_time += start.elapsed();
            Storage::Rows(dtype, copy)
        }
    };
    Ok(CpuMatrix { n: rows, k: cols, storage })
}

/// Repacks the weights, if enabled and the type has panels.
fn repacked(
    device: &stonechat_compute::Cpu,
    repack: Repack,
    source: &MatrixSource<'_>,
) -> Result<Option<PackedMatrix>, Error> {
    let MatrixSource { rows, cols, dtype, bytes, .. } = *source;
    if repack == Repack::Off {
        return Ok(None);
    }
    let no_memory = Error::OutOfMemory { bytes: bytes.len(), backend: "cpu" };
    let matrix = PackedMatrix::zeroed(device.isa, dtype, rows, cols);
    let Some(mut matrix) = matrix.map_err(|_| no_memory)? else { return Ok(None) };
    let row_bytes = matrix.row_bytes().max(1);
    // A multiple of every panel height.
    let chunk_rows = (CHUNK_BYTES / row_bytes).next_multiple_of(64).max(64);
    for first in (0..rows).step_by(chunk_rows) {
        let end = rows.min(first + chunk_rows);
        let chunk = bytes.slice(first * row_bytes..end * row_bytes);
        matrix.pack(device, first, &chunk);
        chunk.release();
    }
    Ok(Some(matrix))
}
