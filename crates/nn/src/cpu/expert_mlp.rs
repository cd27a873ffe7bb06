//! Gated MLPs of a mixture of experts, one expert after the other, so that its weights are read once for all tokens that are
//! routed to it.
//!
//! ```text
//! for expert e:  gather x[t] of its choices -> [rows, D]
//!                gated MLP                  -> [rows, D]
//!                out[t] += weight * result
//! ```
//!
//! The products of an expert are no ops of their own: its hidden values stay in the cache, and the kernel of gate and up writes
//! them as an operand, whose layout depends on the expert's number of rows.

use std::ops::Range;

use stonechat_compute::cpu::{self, MatMut, MatRef, RoutedExpert};
use stonechat_compute::op::GatedActivation;
use stonechat_compute::op::{MoeArgs, Weight};
use stonechat_quant::{ActivationBuffer, PackedRows, gated_packed};

use super::matmul::{matmul_group, quantize_and_matmul};
use super::weights::{MAX_INT_DOT_ROWS, Weights, matrix, values};

/// Scratch, kept between calls; it only grows.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Gathered input of an expert, `[rows, D]`.
    tokens: Vec<f32>,
    /// Output of an expert, `[rows, D]`.
    results: Vec<f32>,
    mlp: MlpScratch,
}

impl Scratch {
    /// Reserves quantized rows of a decode step, which must not allocate.
    pub(super) fn reserve(&mut self, args: &MoeArgs) {
        let [d, f] = [&args.gate, &args.down].map(|weight| weight.info().cols);
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

/// `out[t] += Σ_e weight[t, e] * mlp_e(x[t])`, see [`Op::ExpertMlp`](stonechat_compute::op::Op::ExpertMlp).
pub(super) fn expert_mlp(
    device: &stonechat_compute::Cpu,
    scratch: &mut Scratch,
    mut out: MatMut<'_>,
    (x, routes, order): (MatRef<'_>, &[RoutedExpert], &[u32]),
    args: &MoeArgs,
) {
    let expert = |&i: &u32| routes[i as usize].expert;
    for group in order.chunk_by(|a, b| expert(a) == expert(b)) {
        run_expert(device, scratch, (&mut out, x), (group, routes), args);
    }
}

/// Runs one expert on the tokens of `group`, indexes of `routes` that share it.
fn run_expert(
    device: &stonechat_compute::Cpu,
    scratch: &mut Scratch,
    (out, x): (&mut MatMut<'_>, MatRef<'_>),
    (group, routes): (&[u32], &[RoutedExpert]),
    args: &MoeArgs,
) {
    let (rows, d, expert) = (group.len(), x.cols, routes[group[0] as usize].expert as usize);
    let f = args.gate.info().rows / args.n_experts;
    let token = |choice: u32| choice as usize / args.n_used;
    let tokens = grown(&mut scratch.tokens, rows * d);
    for (row, &choice) in tokens.chunks_exact_mut(d).zip(group) {
        row.copy_from_slice(x.row(token(choice)));
    }
    let rows_of = |n: usize| expert * n..(expert + 1) * n;
    let mlp = Mlp {
        gate: part(&args.gate, args.gate_bias.as_ref(), rows_of(f)),
        up: part(&args.up, args.up_bias.as_ref(), rows_of(f)),
        down: part(&args.down, args.down_bias.as_ref(), rows_of(d)),
        activation: args.activation,
    };
    let results = grown(&mut scratch.results, rows * d);
    let (x, results_rows) = (MatRef::packed(tokens, rows, d), MatMut::packed(results, rows, d));
    mlp.run(device, &mut scratch.mlp, results_rows, x, f);
    for (row, &choice) in results.chunks_exact(d).zip(group) {
        let weight = routes[choice as usize].weight;
        for (y, v) in out.row_mut(token(choice)).iter_mut().zip(row) {
            *y += weight * v;
        }
    }
}

/// Rows of a matrix and their bias.
fn part<'a>(
    weight: &'a Weight,
    bias: Option<&'a Weight>,
    rows: Range<usize>,
) -> (Weights<'a>, Option<&'a [f32]>) {
    (matrix(weight).rows(rows.clone()), bias.map(|bias| &values(bias)[rows]))
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
    /// Gate and up as panels, if the fused kernel takes them for `n_rows` rows of activations, and its result is what down
    /// reads. It does in prefill only: decode is bound by memory bandwidth, where a thread reads a long run of one matrix faster than short runs
    /// of two in turn.
    fn panels(&self, n_rows: usize) -> Option<[PackedRows<'a>; 2]> {
        let [gate, up, down] = [self.gate, self.up, self.down].map(|(w, bias)| w.panels(bias));
        let factors = [gate?, up?];
        let is_fused = n_rows > MAX_INT_DOT_ROWS && down.is_some();
        (is_fused && factors.iter().all(PackedRows::are_whole_qblocks)).then_some(factors)
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
        let (w, bias) = self.down;
        let down = [Some((out, w, biased(bias)))];
        if let Some(factors) = self.panels(x.rows) {
            quantized.prepare(device, x);
            gated_packed(device, quantized_hidden, quantized, factors, activation);
            return matmul_group(device, (None, Some(quantized_hidden)), down);
        }
        let (rows, len) = (x.rows, x.rows * d_ff);
        let [gate, up, hidden] = [gate, up, hidden].map(|memory| grown(memory, len));
        let product = |out, (w, bias)| Some((MatMut::packed(out, rows, d_ff), w, biased(bias)));
        let all = [product(&mut *gate, self.gate), product(&mut *up, self.up)];
        quantize_and_matmul(device, quantized, x, all);
        let [gate, up] = [&*gate, &*up].map(|values| MatRef::packed(values, rows, d_ff));
        cpu::gated(device, MatMut::packed(hidden, rows, d_ff), gate, up, activation);
        quantize_and_matmul(device, quantized_hidden, MatRef::packed(hidden, rows, d_ff), down);
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
