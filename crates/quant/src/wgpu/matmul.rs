//! Matmul of activations and a weight matrix of any format.
//!
//! | rows of activations | kernel |
//! |---|---|
//! | up to [`MAX_GEMV_ROWS`] | `gemv` |
//! | more | `gemm` (`gemm_coop.wgsl`) on devices with cooperative matrices, else `gemm.wgsl` |

use stonechat_compute::op::Epilogue;
use stonechat_compute::wgpu::ops::check_len;
use stonechat_compute::wgpu::ops::operand::{GpuOutput, OperandFormat};
use stonechat_compute::wgpu::{Gpu, GpuBuffer, Recorder, Source, Variant};

use super::gemm;
use super::gemv::{self, MAX_GEMV_ROWS};
use super::matmul_args::{Activations, GpuInput};
use super::matrix::GpuMatrix;
use super::planes::Format;

pub(super) fn sources(format: &'static Format, variant: Variant) -> Vec<Source> {
    let mut all = gemv::sources(format, variant);
    all.push(gemm::tiled_source(format, variant));
    all
}

/// Format in which matmuls read `rows` rows of activations; `None` for f32.
fn operand_format(gpu: &Gpu, format: &Format, rows: usize) -> Option<OperandFormat> {
    if rows > MAX_GEMV_ROWS {
        gemm::supports(gpu, format).then_some(OperandFormat::F16)
    } else {
        format.is_quantized.then_some(OperandFormat::Q8)
    }
}

/// `out[t, n] (+)= act(Σ_k x[t, k] w[n, k] + bias[n])`. Shapes: `x` = `[T, K]`, `w` = `[N, K]`, `out` = `[T, N]`. The result can
/// be an operand: q8 of up to [`Q8_OUTPUT_MAX_ROWS`](super::Q8_OUTPUT_MAX_ROWS) rows with a matrix in one slice, f16 of more than
/// [`MAX_GEMV_ROWS`] rows on devices with cooperative matrices.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn matmul(
    list: &mut Recorder,
    out: GpuOutput<'_>,
    input: GpuInput<'_>,
    w: &GpuMatrix,
    epilogue: Epilogue<&GpuBuffer>,
) {
    let rows = input.rows;
    out.values.inspect(|out| check_len("matmul", out, rows * w.n));
    epilogue.bias.inspect(|bias| check_len("matmul", bias, w.n));
    if rows == 0 || w.n == 0 {
        return;
    }
    let format = operand_format(list.gpu(), w.format, rows);
    let x = Activations::new(list, w, input, format);
    if rows <= MAX_GEMV_ROWS {
        gemv::gemv(list, out, (&x, rows), w, epilogue);
    } else {
        gemm::gemm(list, out, (&x, rows), w, epilogue);
    }
}
