//! Weight matrices in host memory: rows as a file has them, or panels.

use std::ops::Range;
use std::sync::PoisonError;

use stonechat_compute::cpu::DenseWeight;
use stonechat_compute::{DType, Isa, SharedBytes};
use stonechat_quant::{PackedMatrix, QuantMatrix, dequantize_rows};
use web_time::Instant;

use super::{Cpu, MAX_INTEGER_ROWS};
use crate::{Error, MatrixSource};

/// Bytes of weights that are rearranged at a time, after which the pages they came from are released.
const CHUNK_BYTES: usize = 8 << 20;

/// Whether quantized weights are rearranged when they are loaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Repack {
    /// Into panels, where the instruction set multiplies those: the fastest. The others are copied, so that
    /// the file is not needed any more.
    #[default]
    On,
    /// Weights stay in the file's map, which is read when they are first used. Only those that a model puts
    /// together are copied, and f32, f16 and bf16 values at odd addresses.
    Off,
}

/// A weight matrix in host memory.
#[derive(Debug)]
pub struct CpuMatrix {
    n: usize,
    k: usize,
    storage: Storage,
}

#[derive(Debug)]
enum Storage {
    /// `[N, K]` as in a file, aligned as the type is.
    Rows(DType, SharedBytes),
    /// Rearranged for this instruction set.
    Packed(PackedMatrix),
}

/// Some rows of a [`CpuMatrix`].
#[derive(Debug, Clone, Copy)]
pub(super) enum Weights<'a> {
    Dense(DenseWeight<'a>),
    Quant(QuantMatrix<'a>),
    Packed(&'a PackedMatrix, usize, usize),
}

impl Weights<'_> {
    /// Whether so many rows of activations are quantized before they are multiplied.
    pub(super) fn takes_integers(&self, n_rows: usize) -> bool {
        match self {
            Self::Dense(_) => false,
            Self::Quant(_) => n_rows <= MAX_INTEGER_ROWS,
            Self::Packed(..) => true,
        }
    }
}

impl CpuMatrix {
    pub(super) fn shape(&self) -> (usize, usize) {
        (self.n, self.k)
    }

    /// Type and shape, for the profile.
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
            Storage::Rows(dtype, bytes) => (*dtype, &bytes[self.range(bytes, rows.clone())]),
            Storage::Packed(matrix) => return Weights::Packed(matrix, rows.start, rows.end),
        };
        Weights::Dense(match dtype {
            DType::F32 => DenseWeight::F32(bytemuck::cast_slice(bytes)),
            DType::F16 => DenseWeight::F16(bytemuck::cast_slice(bytes)),
            DType::BF16 => DenseWeight::BF16(bytemuck::cast_slice(bytes)),
            _ => {
                let matrix = QuantMatrix::new(dtype, rows.len(), self.k, bytes);
                return Weights::Quant(matrix.expect("checked by `Cpu::load`"));
            }
        })
    }

    /// The values of row `row`, `[K]`.
    pub(super) fn dequantize_row(&self, isa: Isa, row: usize, out: &mut [f32]) {
        match &self.storage {
            Storage::Packed(matrix) => matrix.dequantize_row(isa, row, out),
            Storage::Rows(dtype, bytes) => {
                let bytes = &bytes[self.range(bytes, row..row + 1)];
                dequantize_rows(isa, *dtype, bytes, out).expect("checked by `Cpu::load`");
            }
        }
    }

    /// Where rows are among those of the whole matrix.
    fn range(&self, bytes: &[u8], rows: Range<usize>) -> Range<usize> {
        let row_bytes = bytes.len() / self.n.max(1);
        rows.start * row_bytes..rows.end * row_bytes
    }
}

impl Cpu {
    /// Name of the kernel that multiplies `rows` rows of activations with `w`, for benches.
    #[must_use]
    pub fn matmul_kernel(&self, w: &CpuMatrix, rows: usize) -> String {
        let isa = self.device.isa;
        match w.all() {
            Weights::Dense(DenseWeight::F32(_)) => format!("f32-{isa}"),
            Weights::Dense(DenseWeight::F16(_)) => format!("f16-{isa}"),
            Weights::Dense(DenseWeight::BF16(_)) => format!("bf16-{isa}"),
            Weights::Packed(w, ..) => w.kernel_name(isa, rows),
            Weights::Quant(w) if rows <= MAX_INTEGER_ROWS => {
                stonechat_quant::kernel_name(isa, w.dtype())
            }
            Weights::Quant(w) => format!("{}-dequantized-f32-{isa}", w.dtype()),
        }
    }

    /// A matrix whose sizes are checked, and room for the activations that it will be multiplied with.
    pub(super) fn load(&self, source: MatrixSource<'_>) -> Result<CpuMatrix, Error> {
        let MatrixSource { name, rows, cols, dtype, bytes } = source;
        let expected =
            rows.checked_mul(cols).and_then(|n| dtype.bytes_for(n)).unwrap_or(usize::MAX);
        if bytes.len() != expected || !cols.is_multiple_of(dtype.block_len()) {
            let (name, shape) = (name.to_owned(), [rows, cols]);
            return Err(Error::WeightSize { name, dtype, shape, expected, got: bytes.len() });
        }
        let alignment = match dtype {
            DType::F32 => align_of::<f32>(),
            DType::F16 | DType::BF16 => align_of::<half::f16>(),
            _ if QuantMatrix::has_kernel(dtype) => {
                // Sized once: a decode step must not grow it.
                for buffer in [&self.activations, &self.hidden] {
                    let mut buffer = buffer.lock().unwrap_or_else(PoisonError::into_inner);
                    buffer.reserve(MAX_INTEGER_ROWS, cols);
                }
                1
            }
            _ => {
                let name = name.to_owned();
                return Err(Error::UnsupportedWeight { name, dtype, backend: "cpu" });
            }
        };
        let start = Instant::now();
        let mut cost = self.load_stats.lock().unwrap_or_else(PoisonError::into_inner);
        let n_bytes = bytes.len() as u64;
        let is_aligned = bytes.as_ptr().addr().is_multiple_of(alignment);
        let storage = match self.packed(&source) {
            Some(matrix) => {
                cost.repacked_bytes += n_bytes;
                cost.repacking += start.elapsed();
                Storage::Packed(matrix)
            }
            // Made for this matrix alone.
            None if is_aligned && bytes.is_whole() => {
                cost.copied_bytes += n_bytes;
                Storage::Rows(dtype, bytes.clone())
            }
            None if is_aligned && self.repack == Repack::Off => {
                cost.kept_bytes += n_bytes;
                Storage::Rows(dtype, bytes.clone())
            }
            None => {
                let copy = bytes.copied(&self.device.threads);
                let out_of_memory = Error::OutOfMemory { bytes: bytes.len(), backend: "cpu" };
                let copy = copy.ok_or(out_of_memory)?;
                cost.copied_bytes += n_bytes;
                cost.copying += start.elapsed();
                Storage::Rows(dtype, copy)
            }
        };
        Ok(CpuMatrix { n: rows, k: cols, storage })
    }

    /// The weights rearranged, if that is wanted and this instruction set has a kernel for it.
    fn packed(&self, source: &MatrixSource<'_>) -> Option<PackedMatrix> {
        let MatrixSource { rows, cols, dtype, bytes, .. } = *source;
        if self.repack == Repack::Off || !PackedMatrix::has_kernel(self.device.isa, dtype) {
            return None;
        }
        let mut matrix = PackedMatrix::zeroed(dtype, rows, cols)?;
        let row_bytes = matrix.row_bytes().max(1);
        // Whole panels, whatever their height.
        let rows_at_once = (CHUNK_BYTES / row_bytes).next_multiple_of(64).max(64);
        for first in (0..rows).step_by(rows_at_once) {
            let last = rows.min(first + rows_at_once);
            let piece = bytes.slice(first * row_bytes..last * row_bytes);
            matrix.pack(&self.device, first, &piece);
            piece.release();
        }
        Some(matrix)
    }
}
