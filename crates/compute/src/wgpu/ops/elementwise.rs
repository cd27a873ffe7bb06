//! Elementwise ops in place: sum of two matrices, soft cap.

use super::kernel::{ACTIVATIONS, GpuRows, KernelSpec, check_len};
use crate::kernel_params;
use crate::wgpu::{Access, Bind, GpuBuffer, Recorder, WORKGROUP};

pub(super) const SPEC: KernelSpec = KernelSpec::new::<ElementwiseParams>(
    "elementwise",
    &[Access::Read, Access::Write],
    &[ACTIVATIONS, include_str!("elementwise.wgsl")],
);

/// Values of the parameter `op`, equal to the constants of `elementwise.wgsl`.
const ADD: u32 = 0;
const SOFT_CAP: u32 = 1;

kernel_params! {
    struct ElementwiseParams {
        op: u32,
        rows: u32,
        cols: u32,
        offset: u32,
        stride: u32,
        cap: f32,
    }
}

/// `out[t] += x[t]`. Shapes: both `[T, D]`, `out` packed.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn add(list: &mut Recorder, out: &GpuBuffer, x: GpuRows<'_>) {
    let x = x.checked();
    check_len("add", out, x.rows * x.cols);
    let params = ElementwiseParams {
        op: ADD,
        rows: x.rows as u32,
        cols: x.cols as u32,
        offset: x.offset as u32,
        stride: x.stride as u32,
        cap: 0.0,
    };
    dispatch(list, params, [x.buffer.into(), Bind::Buffer(out)]);
}

/// `x[t] = cap * tanh(x[t] / cap)`. Shape: `[rows, cols]`, packed.
///
/// # Panics
/// If the shape does not fit.
#[track_caller]
pub fn soft_cap(list: &mut Recorder, x: &GpuBuffer, [rows, cols]: [usize; 2], cap: f32) {
    check_len("soft_cap", x, rows * cols);
    let (rows, cols) = (rows as u32, cols as u32);
    let params = ElementwiseParams { op: SOFT_CAP, rows, cols, offset: 0, stride: 0, cap };
    dispatch(list, params, [Bind::Unused, Bind::Buffer(x)]);
}

fn dispatch(list: &mut Recorder, params: ElementwiseParams, binds: [Bind<'_>; 2]) {
    let groups = (params.rows as usize * params.cols as usize).div_ceil(WORKGROUP as usize);
    let kernel = SPEC.kernel(list.gpu());
    list.dispatch_linear(&kernel, &params, binds, groups);
}
