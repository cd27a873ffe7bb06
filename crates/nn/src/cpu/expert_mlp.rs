//! Mixture of experts (`MoE`), with tokens grouped by expert, so that an expert's weights are read once for all tokens
//! that are routed to it.
//!
//! ```text
//! for token t:   route(logits[t])          -> (expert, t, weight) x n_used
//! sort by expert
//! for expert e:  gather x[t] of its tokens -> [rows, D]
//!                gated MLP                 -> [rows, D]
//!                out[t] += weight * result
//! ```

use std::ops::Range;

use stonechat_compute::AlignedVec;
use stonechat_compute::cpu::{self, GatedActivation, MatMut, MatRef};
use stonechat_quant::{ActivationBuffer, PackedProduct, PackedRows, gated_packed, matmul_packed};

use super::products::{MAX_INT_DOT_ROWS, quantized_products};
use super::weights::CpuMatrix;
use super::weights::Weights;
use crate::Routing;

/// Weights of all experts, stacked as in [`MoeArgs`](stonechat_compute::op::MoeArgs).
#[derive(Debug, Clone, Copy)]
pub(super) struct Experts<'a> {
    pub(super) gate: (&'a CpuMatrix, Option<&'a AlignedVec>),
    pub(super) up: (&'a CpuMatrix, Option<&'a AlignedVec>),
    pub(super) down: (&'a CpuMatrix, Option<&'a AlignedVec>),
    pub(super) n_experts: usize,
    pub(super) n_used: usize,
    pub(super) routing: Routing,
    pub(super) activation: GatedActivation,
}

/// Scratch, kept between calls; it only grows.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// `[T * n_used]`.
    routed: Vec<RoutedExpert>,
    /// Gathered input of an expert, `[rows, D]`.
    tokens: Vec<f32>,
    /// Output of an expert, `[rows, D]`.
    results: Vec<f32>,
    mlp: MlpScratch,
}

impl Scratch {
    /// Reserves quantized rows of a decode step, which must not allocate.
    pub(super) fn reserve(&mut self, experts: &Experts<'_>) {
        let (_, d) = experts.gate.0.shape();
        let (_, f) = experts.down.0.shape();
        self.mlp.quantized.reserve(MAX_INT_DOT_ROWS, d);
        self.mlp.quantized_hidden.reserve(MAX_INT_DOT_ROWS, f);
    }
}

/// Scratch of a gated MLP.
#[derive(Debug, Default)]
struct MlpScratch {
    /// Quantized input, `[rows, D]`; without panels, then the intermediate activations, `[rows, F]`.
    quantized: ActivationBuffer,
    /// Quantized intermediate activations, `[rows, F]`.
    quantized_hidden: ActivationBuffer,
    /// `[rows, F]`, like `up` and `hidden`; unused by the fused kernel.
    gate: Vec<f32>,
    up: Vec<f32>,
    hidden: Vec<f32>,
}

/// An expert that a token is routed to.
#[derive(Debug, Clone, Copy, PartialEq)]
struct RoutedExpert {
    expert: usize,
    /// Row of the batch.
    token: usize,
    /// Routing weight; its logit until [`route`] is done.
    weight: f32,
}

/// `out[t] += Σ_e weight[t, e] * mlp_e(x[t])`, see [`Op::Moe`](stonechat_compute::op::Op::Moe).
pub(super) fn run_experts(
    device: &stonechat_compute::Cpu,
    scratch: &mut Scratch,
    mut out: MatMut<'_>,
    (x, logits): (MatRef<'_>, MatRef<'_>),
    experts: &Experts<'_>,
) {
    let mut routed = std::mem::take(&mut scratch.routed);
    routed.clear();
    for t in 0..x.rows {
        route(&mut routed, t, logits.row(t), experts.n_used, experts.routing);
    }
    routed.sort_unstable_by_key(|r| (r.expert, r.token));
    for group in routed.chunk_by(|a, b| a.expert == b.expert) {
        run_expert(device, scratch, (&mut out, x), group, experts);
    }
    scratch.routed = routed;
}

/// Runs one expert on the tokens of `group`, which share it.
fn run_expert(
    device: &stonechat_compute::Cpu,
    scratch: &mut Scratch,
    (out, x): (&mut MatMut<'_>, MatRef<'_>),
    group: &[RoutedExpert],
    experts: &Experts<'_>,
) {
    let (rows, d, expert) = (group.len(), x.cols, group[0].expert);
    let f = experts.gate.0.shape().0 / experts.n_experts;
    let tokens = grown(&mut scratch.tokens, rows * d);
    for (row, r) in tokens.chunks_exact_mut(d).zip(group) {
        row.copy_from_slice(x.row(r.token));
    }
    let rows_of = |n: usize| expert * n..(expert + 1) * n;
    let mlp = Mlp {
        gate: part(experts.gate, rows_of(f)),
        up: part(experts.up, rows_of(f)),
        down: part(experts.down, rows_of(d)),
        activation: experts.activation,
    };
    let results = grown(&mut scratch.results, rows * d);
    let (x, results_rows) = (MatRef::packed(tokens, rows, d), MatMut::packed(results, rows, d));
    mlp.run(device, &mut scratch.mlp, results_rows, x, f);
    for (row, r) in results.chunks_exact(d).zip(group) {
        for (y, v) in out.row_mut(r.token).iter_mut().zip(row) {
            *y += r.weight * v;
        }
    }
}

/// Rows of a matrix and their bias.
fn part<'a>(
    (w, bias): (&'a CpuMatrix, Option<&'a AlignedVec>),
    rows: Range<usize>,
) -> (Weights<'a>, Option<&'a [f32]>) {
    (w.rows(rows.clone()), bias.map(|bias| &bias[rows]))
}

/// Gated MLP of one expert: weights and biases.
#[derive(Debug)]
struct Mlp<'a> {
    /// `[F, D]`, `[F]`.
    gate: (Weights<'a>, Option<&'a [f32]>),
    /// `[F, D]`, `[F]`.
    up: (Weights<'a>, Option<&'a [f32]>),
    /// `[D, F]`, `[D]`.
    down: (Weights<'a>, Option<&'a [f32]>),
    activation: GatedActivation,
}

impl<'a> Mlp<'a> {
    /// Gate, up and down as panels, if the fused kernel takes them for `n_rows` rows of activations. It does in prefill
    /// only: decode is bound by memory bandwidth, where a thread reads a long run of one matrix faster than short runs
    /// of two in turn.
    fn panels(&self, n_rows: usize) -> Option<[PackedRows<'a>; 3]> {
        if n_rows <= MAX_INT_DOT_ROWS {
            return None;
        }
        let rows = |(weights, bias)| match weights {
            Weights::Packed(w, start, end) => Some(PackedRows { w, rows: start..end, bias }),
            Weights::Dense(_) | Weights::Quant(_) => None,
        };
        let all = [rows(self.gate)?, rows(self.up)?, rows(self.down)?];
        all[..2].iter().all(PackedRows::are_whole_qblocks).then_some(all)
    }

    /// `out[t] = down · (act(gate · x[t]) * (up · x[t]))`.
    ///
    /// ```text
    /// panels:  xq = quantize(x);  hq = quantize(act(gate · xq) * (up · xq));  out = down · hq
    /// else:    g = gate · x;  u = up · x;  h = act(g) * u;                    out = down · h
    /// ```
    fn run(
        &self,
        device: &stonechat_compute::Cpu,
        scratch: &mut MlpScratch,
        out: MatMut<'_>,
        x: MatRef<'_>,
        d_ff: usize,
    ) {
        let MlpScratch { quantized, quantized_hidden, gate, up, hidden } = scratch;
        let activation = self.activation;
        if let Some([gate, up, down]) = self.panels(x.rows) {
            quantized.prepare(device, x);
            gated_packed(device, quantized_hidden, quantized, [gate, up], activation);
            let epilogue = biased(down.bias);
            let down = PackedProduct { out, w: down.w, rows: down.rows, epilogue };
            matmul_packed(device, quantized_hidden, [Some(down)]);
            return;
        }
        let (rows, len) = (x.rows, x.rows * d_ff);
        let [gate, up, hidden] = [gate, up, hidden].map(|memory| grown(memory, len));
        let product = |out, (w, bias)| Some((MatMut::packed(out, rows, d_ff), w, biased(bias)));
        let all = [product(&mut *gate, self.gate), product(&mut *up, self.up)];
        quantized_products(device, quantized, x, all);
        let [gate, up] = [&*gate, &*up].map(|values| MatRef::packed(values, rows, d_ff));
        cpu::gated(device, MatMut::packed(hidden, rows, d_ff), gate, up, activation);
        let (w, bias) = self.down;
        let x = MatRef::packed(hidden, rows, d_ff);
        quantized_products(device, quantized_hidden, x, [Some((out, w, biased(bias)))]);
    }
}

fn biased(bias: Option<&[f32]>) -> cpu::Epilogue<'_> {
    cpu::Epilogue { bias, ..cpu::Epilogue::default() }
}

/// The first `len` values; grows `memory` if it is shorter.
fn grown(memory: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if memory.len() < len {
        memory.resize(len, 0.0);
    }
    &mut memory[..len]
}

/// Appends the top `n_used` experts of `logits` (`[E]`) by descending logit, equal ones by ascending id, with their
/// routing weights.
fn route(
    routed: &mut Vec<RoutedExpert>,
    token: usize,
    logits: &[f32],
    n_used: usize,
    routing: Routing,
) {
    let start = routed.len();
    // Insertion into a sorted list: `n_used` is small.
    for (expert, &logit) in logits.iter().enumerate() {
        let top_k = &routed[start..];
        let at = top_k.iter().position(|r| r.weight < logit).unwrap_or(top_k.len());
        if at < n_used {
            if top_k.len() == n_used {
                routed.pop();
            }
            routed.insert(start + at, RoutedExpert { expert, token, weight: logit });
        }
    }
    let top_k = &mut routed[start..];
    let Some(max) = top_k.first().map(|r| r.weight) else { return };
    top_k.iter_mut().for_each(|r| r.weight = (r.weight - max).exp());
    let total: f32 = match routing {
        Routing::Softmax => logits.iter().map(|l| (l - max).exp()).sum(),
        Routing::NormalizedTopK => top_k.iter().map(|r| r.weight).sum(),
    };
    top_k.iter_mut().for_each(|r| r.weight /= total);
}

#[cfg(test)]
mod tests {
    use super::{RoutedExpert, Routing, route};

    fn routed(logits: &[f32], n_used: usize, routing: Routing) -> Vec<(usize, f32)> {
        let mut routed = vec![RoutedExpert { expert: 9, token: 0, weight: 0.5 }];
        route(&mut routed, 1, logits, n_used, routing);
        assert!(routed[1..].iter().all(|r| r.token == 1));
        routed[1..].iter().map(|r| (r.expert, r.weight)).collect()
    }

    #[test]
    fn tokens_are_routed_to_the_largest_logits_and_the_lower_of_equal_ones() {
        let experts = |logits: &[f32], n| -> Vec<usize> {
            routed(logits, n, Routing::Softmax).iter().map(|r| r.0).collect()
        };
        assert_eq!(experts(&[1.0, 3.0, 2.0, 3.0], 2), [1, 3]);
        assert_eq!(experts(&[0.0; 5], 3), [0, 1, 2]);
        assert_eq!(experts(&[-1.0, f32::NEG_INFINITY], 2), [0, 1]);
        assert_eq!(experts(&[f32::NAN; 3], 2).len(), 2);
    }

    #[test]
    fn weights_are_normalized_over_all_experts_or_over_the_top_k() {
        let logits = [0.0, 2f32.ln(), 5f32.ln()];
        let close = |got: Vec<(usize, f32)>, expected: [(usize, f32); 2]| {
            for (got, expected) in got.iter().zip(expected) {
                assert_eq!(got.0, expected.0);
                assert!((got.1 - expected.1).abs() < 1e-6, "{got:?} {expected:?}");
            }
        };
        close(routed(&logits, 2, Routing::Softmax), [(2, 0.625), (1, 0.25)]);
        close(routed(&logits, 2, Routing::NormalizedTopK), [(2, 5.0 / 7.0), (1, 2.0 / 7.0)]);
    }
}
