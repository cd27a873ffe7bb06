//! Matmul of activations and a weight matrix of any format.
//!
//! | rows of activations | kernel |
//! |---|---|
//! | up to [`MAX_GEMV_ROWS`] | `gemv` |
//! | more | `gemm` (`gemm_coop.wgsl`) on devices with cooperative matrices, else `gemm.wgsl` |

use stonechat_compute::DType;
use stonechat_compute::wgpu::ops::check_len;
use stonechat_compute::wgpu::ops::operand::{GpuOutput, OperandFormat};
use stonechat_compute::wgpu::{Gpu, Recorder, Source, Variant};

use super::gemm;
use super::gemv::{self, MAX_GEMV_ROWS};
use super::matmul_args::{Activations, GpuEpilogue, GpuInput};
use super::matrix::GpuMatrix;
use super::planes::Format;

pub(super) fn sources(format: &'static Format, variant: Variant) -> Vec<Source> {
    let mut all = gemv::sources(format, variant);
    all.push(gemm::tiled_source(format, variant));
    all
}

/// Format in which matmuls with weights of `dtype` read `rows` rows of activations; `None` for f32.
#[must_use]
pub fn operand_format(gpu: &Gpu, dtype: DType, rows: usize) -> Option<OperandFormat> {
    let format = Format::of(dtype);
    if rows > MAX_GEMV_ROWS {
        // Types without kernels are stored as f16.
        let supports = format.is_none_or(|format| gemm::supports(gpu, format));
        (supports && gpu.matrices().is_some()).then_some(OperandFormat::F16)
    } else {
        format.filter(|format| format.is_quantized).map(|_| OperandFormat::Q8)
    }
}

/// `out[t, n] (+)= act(Σ_k x[t, k] w[n, k] + bias[n])`. Shapes: `x` = `[T, K]`, `w` = `[N, K]`, `out` = `[T, N]`. The result is
/// an operand only where [`writes_operand`] says so.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn matmul(
    list: &mut Recorder,
    out: GpuOutput<'_>,
    input: GpuInput<'_>,
    w: &GpuMatrix,
    epilogue: GpuEpilogue<'_>,
) {
    let rows = input.rows;
    out.values.inspect(|out| check_len("matmul", out, rows * w.n()));
    epilogue.bias.inspect(|bias| check_len("matmul", bias, w.n()));
    if rows == 0 || w.n() == 0 {
        return;
    }
    let format = operand_format(list.gpu(), w.dtype(), rows);
    let x = Activations::new(list, w, input, format);
    if rows <= MAX_GEMV_ROWS {
        gemv::gemv(list, out, (&x, rows), w, epilogue);
    } else {
        gemm::gemm(list, out, (&x, rows), w, epilogue);
    }
}

/// Whether [`matmul`] with `w`, of all numbers of rows up to `max_rows`, can write its result as an operand of `format`.
#[must_use]
pub fn writes_operand(gpu: &Gpu, w: &GpuMatrix, max_rows: usize, format: OperandFormat) -> bool {
    match format {
        OperandFormat::Q8 => gemv::writes_q8(w, max_rows),
        OperandFormat::F16 => max_rows > MAX_GEMV_ROWS && gemm::writes_f16(gpu, w),
    }
}
