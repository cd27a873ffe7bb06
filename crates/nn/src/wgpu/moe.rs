//! Mixture of experts: routing on the device, one row of matmuls per choice of an expert, and the weighted sum of the
//! results in the order of the choices.

use stonechat_compute::Result;
use stonechat_compute::op::{MoeArgs, Routing};
use stonechat_compute::wgpu::ops::{GpuRows, gated, moe};
use stonechat_compute::wgpu::{Gpu, GpuBuffer};
use stonechat_quant::wgpu::{ExpertMatmul, matmul_experts};

use super::executable::{matrix, values};

/// `out[t] += Σ weight * expert(x[t])` over the top-k experts of the logits.
pub(super) fn run_experts(
    gpu: &Gpu,
    out: &GpuBuffer,
    (x, logits): (GpuRows<'_>, GpuRows<'_>),
    args: &MoeArgs,
) -> Result<()> {
    let MoeArgs { n_experts, n_used, .. } = *args;
    let [w_gate, w_up, w_down] = [&args.gate, &args.up, &args.down].map(matrix);
    let (d, f) = (x.cols, w_gate.n() / n_experts);
    let n_choices = x.rows * n_used;
    if n_choices == 0 {
        return Ok(());
    }
    let choices = gpu.scratch("moe choices", 8 * n_choices)?;
    let [gate, up, hidden] = [
        gpu.scratch("moe gate", 4 * n_choices * f)?,
        gpu.scratch("moe up", 4 * n_choices * f)?,
        gpu.scratch("moe hidden", 4 * n_choices * f)?,
    ];
    let results = gpu.scratch("moe results", 4 * n_choices * d)?;
    moe::route(gpu, &choices, logits, n_used, args.routing == Routing::NormalizedTopK);
    let expert_matmul = |n, bias, choices_per_row| ExpertMatmul {
        choices: &choices,
        n_choices,
        choices_per_row,
        n,
        bias,
    };
    let of_input = |bias| expert_matmul(f, bias, n_used);
    matmul_experts(gpu, &gate, x, w_gate, of_input(args.gate_bias.as_ref().map(values)));
    matmul_experts(gpu, &up, x, w_up, of_input(args.up_bias.as_ref().map(values)));
    let rows = |buffer| GpuRows::packed(buffer, n_choices, f);
    gated::gated(gpu, &hidden, rows(&gate), rows(&up), args.activation);
    let of_hidden = expert_matmul(d, args.down_bias.as_ref().map(values), 1);
    matmul_experts(gpu, &results, rows(&hidden), w_down, of_hidden);
    moe::combine(gpu, out, &choices, &results, [x.rows, d, n_used]);
    Ok(())
}
