//! Sum of two matrices.

use super::{CopyWriter, GpuRows, KernelSpec, check_len};
use crate::kernel_params;
use crate::wgpu::{Access, Bind, Gpu, GpuBuffer, KernelParams, WORKGROUP};

pub(super) const SPEC: KernelSpec = KernelSpec {
    name: "add",
    params: AddParams::LAYOUT,
    access: &[Access::Read, Access::Write],
    workgroup: WORKGROUP,
    files: &[include_str!("add.wgsl")],
    copy_writer: CopyWriter::None,
};

kernel_params! {
    struct AddParams {
        rows: u32,
        cols: u32,
        offset: u32,
        stride: u32,
    }
}

/// `out[t] += x[t]`. Shapes: both `[T, D]`, `out` packed.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn add(gpu: &Gpu, out: &GpuBuffer, x: GpuRows<'_>) {
    let x = x.checked();
    check_len("add", out, x.rows * x.cols);
    let params = AddParams {
        rows: x.rows as u32,
        cols: x.cols as u32,
        offset: x.offset as u32,
        stride: x.stride as u32,
    };
    let groups = (x.rows * x.cols).div_ceil(WORKGROUP as usize);
    let kernel = SPEC.kernel(gpu);
    let binds = [x.buffer.into(), Bind::Buffer(out)];
    gpu.record(0).dispatch_linear(&kernel, &params, binds, groups);
}
