//! Mixture of experts: routing on the device, one row of matmuls per choice of an expert, and the weighted sum of the
//! results in the order of the choices.

use stonechat_compute::Result;
use stonechat_compute::wgpu::GpuBuffer;
use stonechat_compute::wgpu::ops::{GpuRows, gated, moe};
use stonechat_quant::wgpu::{ExpertMatmul, matmul_experts};

use super::Wgpu;
use crate::{Experts, Routing};

impl Wgpu {
    /// `out[t] += Σ weight * expert(x[t])` over the top-k experts of the logits.
    pub(super) fn moe_experts(
        &self,
        out: &GpuBuffer,
        x: GpuRows<'_>,
        logits: GpuRows<'_>,
        experts: &Experts<'_, Self>,
    ) -> Result<()> {
        let gpu = self.flush_pending();
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
        let normalize_top_k = experts.routing == Routing::NormalizedTopK;
        moe::route(gpu, &choices, logits, n_used, normalize_top_k);
        let expert_matmul = |n, bias, choices_per_row| ExpertMatmul {
            choices: &choices,
            n_choices,
            choices_per_row,
            n,
            bias,
        };
        let args = expert_matmul(f, experts.gate_bias, n_used);
        matmul_experts(gpu, &gate, x, experts.gate, args);
        let args = expert_matmul(f, experts.up_bias, n_used);
        matmul_experts(gpu, &up, x, experts.up, args);
        let rows = |buffer| GpuRows::packed(buffer, n_choices, f);
        gated::gated(gpu, &hidden, rows(&gate), rows(&up), experts.activation);
        let args = expert_matmul(d, experts.down_bias, 1);
        matmul_experts(gpu, &results, rows(&hidden), experts.down, args);
        moe::combine(gpu, out, &choices, &results, [x.rows, d, n_used]);
        Ok(())
    }
}
