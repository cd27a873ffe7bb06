//! Feed-forward networks with a gate.

use std::sync::PoisonError;

use stonechat_compute::cpu::{self, GatedActivation, MatMut, MatRef};
use stonechat_quant::{PackedProduct, PackedRows, gated_packed, matmul_packed};

use super::weights::Weights;
use super::{Cpu, MAX_INTEGER_ROWS};

/// Weights of a network or of an expert.
#[derive(Debug)]
pub(super) struct Network<'a> {
    /// `[F, D]` and `[F]`.
    pub(super) gate: (Weights<'a>, Option<&'a [f32]>),
    /// `[F, D]` and `[F]`.
    pub(super) up: (Weights<'a>, Option<&'a [f32]>),
    /// `[D, F]`.
    pub(super) down: (Weights<'a>, cpu::Epilogue<'a>),
    pub(super) activation: GatedActivation,
}

impl<'a> Network<'a> {
    /// The weights, where the results of the first two products are made the activations of the last one at
    /// once: all are panels, and rows are many. With few, weights come from memory, and a thread had better
    /// read a long run of one matrix than short ones of two in turns.
    pub(super) fn panels(&self, n_rows: usize) -> Option<[PackedRows<'a>; 3]> {
        if n_rows <= MAX_INTEGER_ROWS {
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
    /// `out[t] = down · gated(gate · x[t], up · x[t])`; `scratch` has `[T, F]` each.
    pub(super) fn network(
        &self,
        out: MatMut<'_>,
        x: MatRef<'_>,
        network: Network<'_>,
        scratch: [&mut [f32]; 3],
    ) {
        let panels = network.panels(x.rows);
        let Network { gate, up, down: (down, epilogue), activation } = network;
        if let Some([gate, up, down]) = panels {
            let mut hidden = self.hidden.lock().unwrap_or_else(PoisonError::into_inner);
            gated_packed(&self.device, &mut hidden, &self.quantize(x), [gate, up], activation);
            let down = PackedProduct { out, w: down.w, rows: down.rows, epilogue };
            matmul_packed(&self.device, &hidden, [Some(down)]);
            return;
        }
        let [gate_out, up_out, hidden] = scratch;
        let (rows, width) = (x.rows, gate_out.len() / x.rows.max(1));
        let biased = |bias| cpu::Epilogue { bias, ..cpu::Epilogue::default() };
        let products = [
            (MatMut::packed(gate_out, rows, width), gate.0, biased(gate.1)),
            (MatMut::packed(up_out, rows, width), up.0, biased(up.1)),
        ];
        self.products(x, products);
        let [gate, up] = [&*gate_out, &*up_out].map(|values| MatRef::packed(values, rows, width));
        cpu::gated(&self.device, MatMut::packed(hidden, rows, width), gate, up, activation);
        self.products(MatRef::packed(hidden, rows, width), [(out, down, epilogue)]);
    }
}
