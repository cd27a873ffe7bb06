//! Mixture of experts: routing on the device, one row of matmuls per choice of an expert, and the weighted sum of the
//! results in the order of the choices.

use stonechat_compute::op::{MoeArgs, Routing};
use stonechat_compute::wgpu::ops::operand::{COLUMNS, GpuOperand, GpuOutput};
use stonechat_compute::wgpu::ops::{GpuRows, gated, moe};
use stonechat_compute::wgpu::{GpuBuffer, Recorder};
use stonechat_quant::wgpu::{ExpertMatmul, GpuInput, GpuMatrix, matmul_experts, operand_format};

use super::conv1d::with_operand;
use super::executable::{matrix, values};

/// `out[t] (+)= Σ weight * expert(x[t])` over the top-k experts of the logits.
pub(super) fn run_experts(
    list: &mut Recorder,
    (out, accumulate): (&GpuBuffer, bool),
    (x, logits): (GpuOperand<'_>, GpuRows<'_>),
    args: &MoeArgs,
) {
    let MoeArgs { n_experts, n_used, .. } = *args;
    let [w_gate, w_up, w_down] = [&args.gate, &args.up, &args.down].map(matrix);
    let (d, f) = (w_gate.k(), w_gate.n() / n_experts);
    let n_choices = logits.rows * n_used;
    let choices = list.scratch("moe choices", 8 * n_choices);
    let [gate, up] = ["moe gate", "moe up"].map(|name| list.scratch(name, 4 * n_choices * f));
    let results = list.scratch("moe results", 4 * n_choices * d);
    moe::route(list, &choices, logits, n_used, args.routing == Routing::NormalizedTopK);
    let expert_matmul = |n, bias, choices_per_row| ExpertMatmul {
        choices: &choices,
        n_choices,
        choices_per_row,
        n,
        bias,
    };
    let input = (x, logits.rows);
    let (gate_bias, up_bias) = (args.gate_bias.as_ref(), args.up_bias.as_ref());
    products(list, &gate, w_gate, input, expert_matmul(f, gate_bias.map(values), n_used));
    products(list, &up, w_up, input, expert_matmul(f, up_bias.map(values), n_used));
    let rows = |buffer| GpuRows::packed(buffer, n_choices, f);
    let (gate, up) = (rows(&gate), rows(&up));
    let format = operand_format(list.gpu(), w_down.dtype(), 1);
    let format = format.filter(|_| f.is_multiple_of(COLUMNS));
    let bytes = format.map_or(4 * n_choices * f, |format| format.bytes(n_choices, f));
    let hidden = list.scratch("moe hidden", bytes);
    let (out_hidden, hidden) = match format {
        Some(format) => {
            let operand = Some((format, &hidden));
            (GpuOutput { values: None, operand }, GpuOperand::Converted(format, &hidden))
        }
        None => (GpuOutput::from(&hidden), GpuOperand::Values(rows(&hidden))),
    };
    gated::gated(list, out_hidden, gate, up, args.activation);
    let of_hidden = expert_matmul(d, args.down_bias.as_ref().map(values), 1);
    products(list, &results, w_down, (hidden, n_choices), of_hidden);
    moe::combine(list, out, &choices, &results, ([logits.rows, d, n_used], accumulate));
}

/// Matmuls with the experts of all choices, whose operand is converted if it has to be.
fn products(
    list: &mut Recorder,
    out: &GpuBuffer,
    w: &GpuMatrix,
    (x, rows): (GpuOperand<'_>, usize),
    args: ExpertMatmul<'_>,
) {
    let format = operand_format(list.gpu(), w.dtype(), 1);
    with_operand(list, "moe operand", (x, format), |list, x| {
        matmul_experts(list, out, GpuInput { x, rows, norm: None }, w, args);
    });
}
