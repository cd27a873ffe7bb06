//! Matmul of activations and a weight matrix of any format.
//!
//! | rows of activations | kernel |
//! |---|---|
//! | up to [`MAX_GEMV_ROWS`] | `gemv` |
//! | more | `gemm` (`gemm_coop.wgsl`) on devices with cooperative matrices, else `gemm.wgsl` |

use std::sync::Arc;

use stonechat_compute::DType;
use stonechat_compute::wgpu::ops::operand::{GpuOutput, OperandFormat};
use stonechat_compute::wgpu::ops::{ACTIVATIONS, check_len, kernel_source};
use stonechat_compute::wgpu::{Gpu, Kernel, KernelParams, Recorder, Source, Variant};

use super::gemm;
use super::gemv::{self, MAX_GEMV_ROWS};
use super::matmul_args::{
    ACCESS, Activations, GpuEpilogue, GpuInput, MatmulParams, binds, with_format,
};
use super::matrix::GpuMatrix;
use super::planes::Format;

/// Rows and columns of a tile of `gemm.wgsl`.
const TILE: usize = 64;
const GEMM_WORKGROUP: u32 = 256;
fn gemm_source(format: &Format, variant: Variant) -> Source {
    let name = format!("gemm-{}-tiled", format.dtype);
    let source = kernel_source(name, MatmulParams::LAYOUT, ACCESS, variant, GEMM_WORKGROUP)
        .file(include_str!("matmul_params.wgsl"))
        .file(include_str!("matrix_bindings.wgsl"));
    with_format(source, format).file(ACTIVATIONS).file(include_str!("gemm.wgsl"))
}

pub(super) fn sources(format: &'static Format, variant: Variant) -> Vec<Source> {
    let mut all = gemv::sources(format, variant);
    all.push(gemm_source(format, variant));
    all
}

fn gemm_kernel(gpu: &Gpu, format: &'static Format) -> Arc<Kernel> {
    gpu.kernel(("gemm", [format.code(), 0, 0, 0]), || gemm_source(format, gpu.variant()))
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
        return gemv::matmul(list, out, (&x, rows), w, epilogue);
    }
    if format.is_some() {
        return gemm::matmul(list, out, (&x, rows), w, epilogue);
    }
    let kernel = gemm_kernel(list.gpu(), w.format);
    for slice in w.slices.iter() {
        let params = MatmulParams::new(w, slice, &x, [rows, w.n()], epilogue);
        let binds = binds(slice, &x, epilogue.bias, out.values.into());
        let groups = [slice.rows.div_ceil(TILE) as u32, rows.div_ceil(TILE) as u32, 1];
        list.dispatch(&kernel, &params, binds, groups);
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
