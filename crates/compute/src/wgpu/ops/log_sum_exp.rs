//! Log-sum-exp of rows, for log-probabilities: one workgroup per row, sums in f32.

use super::kernel::{GpuRows, KernelSpec, check_len};
use crate::kernel_params;
use crate::wgpu::{Access, GpuBuffer, Recorder};

pub(super) const SPEC: KernelSpec = KernelSpec::new::<LogSumExpParams>(
    "log_sum_exp",
    &[Access::Read, Access::Write],
    &[include_str!("log_sum_exp.wgsl")],
);

kernel_params! {
    struct LogSumExpParams {
        rows: u32,
        cols: u32,
        offset: u32,
        stride: u32,
    }
}

/// `out[t] = ln(sum_c exp(x[t, c]))`; −∞ of a row of −∞ alone. Shapes: `x` = `[T, N]`, `out` = `[T]`.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn log_sum_exp(list: &mut Recorder, out: &GpuBuffer, x: GpuRows<'_>) {
    let x = x.checked();
    check_len("log_sum_exp", out, x.rows);
    let params = LogSumExpParams {
        rows: x.rows as u32,
        cols: x.cols as u32,
        offset: x.offset as u32,
        stride: x.stride as u32,
    };
    let kernel = SPEC.kernel(list.gpu());
    list.dispatch_linear(&kernel, &params, [x.buffer.into(), out.into()], x.rows);
}
