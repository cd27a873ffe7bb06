//! Logit filters: suppression of columns, one workgroup per row.

use super::kernel::{KernelSpec, check_len};
use crate::kernel_params;
use crate::wgpu::{Access, Bind, GpuBuffer, Recorder};

pub(super) const SPEC: KernelSpec = KernelSpec::new::<LogitFilterParams>(
    "logit_filter",
    &[Access::Read, Access::Write],
    &[include_str!("logit_filter.wgsl")],
);

kernel_params! {
    struct LogitFilterParams {
        rows: u32,
        cols: u32,
        /// First word of the filters of the rows, of 8 words: start and end of the first range, of the second range, and of the words of
        /// two lists of suppressed columns.
        filters: u32,
    }
}

/// Sets the logits of suppressed columns to −∞. Shape of `x`: `[rows, cols]`, packed. The filters of the rows are inputs
/// of the step, from word `filters` on, see `logit_filter.wgsl`.
///
/// # Panics
/// If the shape does not fit.
#[track_caller]
pub fn logit_filter(list: &mut Recorder, x: &GpuBuffer, [rows, cols]: [usize; 2], filters: usize) {
    check_len("logit_filter", x, rows * cols);
    let params =
        LogitFilterParams { rows: rows as u32, cols: cols as u32, filters: filters as u32 };
    let kernel = SPEC.kernel(list.gpu());
    list.dispatch_linear(&kernel, &params, [Bind::Step, Bind::Buffer(x)], rows);
}
