//! Causal convolution of each channel with state.

use super::kernel::{ACTIVATIONS, GpuRows, KernelSpec, check_len};
use crate::kernel_params;
use crate::op::ConvStateArgs;
use crate::wgpu::{Access, Bind, GpuBuffer, Recorder, WORKGROUP};

pub(super) const SPEC: KernelSpec = KernelSpec::new::<ConvStateParams>(
    "conv_state",
    &[Access::Read, Access::Read, Access::Read, Access::Read, Access::Write, Access::Write],
    &[ACTIVATIONS, include_str!("conv_state.wgsl")],
);

kernel_params! {
    struct ConvStateParams {
        rows: u32,
        cols: u32,
        offset: u32,
        stride: u32,
        kernel: u32,
        has_bias: u32,
        has_silu: u32,
        // First word of the rows: first row and end of the run, slot before it, slot after it.
        words: u32,
    }
}

/// Convolves the rows of `x`, see [`Op::ConvState`](crate::op::Op::ConvState). The runs of the rows are inputs of the step, from
/// word `words` on; `states` are all slots.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn conv_state(
    list: &mut Recorder,
    out: &GpuBuffer,
    x: GpuRows<'_>,
    args: ConvStateArgs<&GpuBuffer>,
    (states, words): (&GpuBuffer, usize),
) {
    let x = x.checked();
    check_len("conv_state", out, x.rows * x.cols);
    check_len("conv_state", args.weight, args.kernel * x.cols);
    check_len("conv_state", states, args.states.n_slots * args.states.len);
    let params = ConvStateParams {
        rows: x.rows as u32,
        cols: x.cols as u32,
        offset: x.offset as u32,
        stride: x.stride as u32,
        kernel: args.kernel as u32,
        has_bias: u32::from(args.bias.is_some()),
        has_silu: u32::from(args.silu),
        words: words as u32,
    };
    let bias = args.bias.map_or(Bind::Unused, Bind::Buffer);
    let binds = [Bind::Step, x.buffer.into(), args.weight.into(), bias, out.into(), states.into()];
    let groups = x.rows * x.cols.div_ceil(WORKGROUP as usize);
    list.dispatch_linear(&SPEC.kernel(list.gpu()), &params, binds, groups);
}
