//! Gated MLPs (`SwiGLU`, `GeGLU`).

use std::sync::PoisonError;

use stonechat_compute::cpu::{self, GatedActivation, MatMut, MatRef};
use stonechat_quant::{PackedProduct, PackedRows, gated_packed, matmul_packed};

use super::weights::Weights;
use super::{Cpu, MAX_INT_DOT_ROWS};

/// Weights of a gated MLP or of one expert.
#[derive(Debug)]
pub(super) struct MlpWeights<'a> {
    /// `[F, D]` and bias `[F]`.
    pub(super) gate: (Weights<'a>, Option<&'a [f32]>),
    /// `[F, D]` and bias `[F]`.
    pub(super) up: (Weights<'a>, Option<&'a [f32]>),
    /// `[D, F]`; bias and accumulation are in the epilogue.
    pub(super) down: (Weights<'a>, cpu::Epilogue<'a>),
    pub(super) activation: GatedActivation,
}

impl<'a> MlpWeights<'a> {
    /// Gate, up and down as panels, if the fused kernel takes them for `n_rows` rows of activations. It does in prefill
    /// only: decode is bound by memory bandwidth, where a thread reads a long run of one matrix faster than short runs
    /// of two in turn.
    pub(super) fn panels(&self, n_rows: usize) -> Option<[PackedRows<'a>; 3]> {
        if n_rows <= MAX_INT_DOT_ROWS {
            return None;
        }
        let rows = |(weights, bias)| match weights {
            Weights::Packed(w, start, end) => Some(PackedRows { w, rows: start..end, bias }),
            Weights::Dense(_) | Weights::Quant(_) => None,
        };
        let (down, epilogue) = self.down;
        let all = [rows(self.gate)?, rows(self.up)?, rows((down, epilogue.bias))?];
        all[..2].iter().all(PackedRows::are_whole_qblocks).then_some(all)
    }
}

impl Cpu {
    /// Gated MLP, see [`Backend::gated_mlp`](crate::Backend::gated_mlp); `scratch` holds `[T, F]` each, unused if
    /// [`MlpWeights::panels`] are given.
    ///
    /// ```text
    /// panels:  xq = quantize(x);  hq = quantize(act(gate · xq) * (up · xq));  out = down · hq
    /// else:    g = gate · x;  u = up · x;  h = act(g) * u;                    out = down · h
    /// ```
    /// `quantize` gives q8 blocks, or bf16 with AMX.
    pub(super) fn run_gated_mlp(
        &self,
        out: MatMut<'_>,
        x: MatRef<'_>,
        mlp: MlpWeights<'_>,
        scratch: [&mut [f32]; 3],
    ) {
        let panels = mlp.panels(x.rows);
        let MlpWeights { gate, up, down: (down, epilogue), activation } = mlp;
        if let Some([gate, up, down]) = panels {
            let mut hidden = self.hidden.lock().unwrap_or_else(PoisonError::into_inner);
            gated_packed(&self.device, &mut hidden, &self.quantize(x), [gate, up], activation);
            let down = PackedProduct { out, w: down.w, rows: down.rows, epilogue };
            matmul_packed(&self.device, &hidden, [Some(down)]);
            return;
        }
        let [gate_out, up_out, hidden] = scratch;
        let (rows, d_ff) = (x.rows, gate_out.len() / x.rows.max(1));
        let biased = |bias| cpu::Epilogue { bias, ..cpu::Epilogue::default() };
        let ops = [
            (MatMut::packed(gate_out, rows, d_ff), gate.0, biased(gate.1)),
            (MatMut::packed(up_out, rows, d_ff), up.0, biased(up.1)),
        ];
        self.matmul_all(x, ops);
        let [gate, up] = [&*gate_out, &*up_out].map(|values| MatRef::packed(values, rows, d_ff));
        cpu::gated(&self.device, MatMut::packed(hidden, rows, d_ff), gate, up, activation);
        self.matmul_all(MatRef::packed(hidden, rows, d_ff), [(out, down, epilogue)]);
    }
}
