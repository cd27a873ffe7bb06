//! A mixture of experts: the router chooses on the device, every choice is a row of products with its
//! expert's matrices, and the results are added in the order of the choices.

use stonechat_compute::Result;
use stonechat_compute::wgpu::GpuBuffer;
use stonechat_compute::wgpu::ops::{GpuRows, gated, moe};
use stonechat_quant::wgpu::{ExpertProduct, matmul_experts};

use super::Wgpu;
use crate::{Experts, Routing};

impl Wgpu {
    /// `out[t] += Σ weight * expert(x[t])` over the experts that the logits choose.
    pub(super) fn moe_experts(
        &self,
        out: &GpuBuffer,
        x: GpuRows<'_>,
        logits: GpuRows<'_>,
        experts: &Experts<Self>,
    ) -> Result<()> {
        let gpu = self.settled();
        let Experts { n_experts, n_used, .. } = *experts;
        assert_eq!((logits.rows, logits.cols), (x.rows, n_experts), "moe: shape of the logits");
        let (d, f) = (x.cols, experts.gate.n() / n_experts);
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
        let of_chosen = experts.routing == Routing::NormalizedTopK;
        moe::route(gpu, &choices, logits, n_used, of_chosen);
        let product = |n, bias, choices_per_row| ExpertProduct {
            choices: &choices,
            n_choices,
            choices_per_row,
            n,
            bias,
        };
        matmul_experts(
            gpu,
            &gate,
            x,
            &experts.gate,
            product(f, experts.gate_bias.as_ref(), n_used),
        );
        matmul_experts(gpu, &up, x, &experts.up, product(f, experts.up_bias.as_ref(), n_used));
        let rows = |buffer| GpuRows::packed(buffer, n_choices, f);
        gated::gated(gpu, &hidden, rows(&gate), rows(&up), experts.activation);
        let down = product(d, experts.down_bias.as_ref(), 1);
        matmul_experts(gpu, &results, rows(&hidden), &experts.down, down);
        moe::combine(gpu, out, &choices, &results, [x.rows, d, n_used]);
        Ok(())
    }
}
