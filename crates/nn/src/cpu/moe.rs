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
use std::sync::PoisonError;

use stonechat_compute::AlignedVec;
use stonechat_compute::cpu::{self, MatMut, MatRef};

use super::Cpu;
use super::gated_mlp::MlpWeights;
use crate::{Experts, Routing};

/// Scratch, kept between calls; it only grows.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// `[T * n_used]`.
    routed: Vec<RoutedExpert>,
    /// Gathered input of an expert, `[rows, D]`.
    tokens: Vec<f32>,
    /// Output of an expert, `[rows, D]`.
    results: Vec<f32>,
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

impl Cpu {
    /// `out[t] += Σ_e weight[t, e] * mlp_e(x[t])`, see [`Backend::moe`](crate::Backend::moe).
    #[track_caller]
    pub(super) fn moe_experts(
        &self,
        mut out: MatMut<'_>,
        x: MatRef<'_>,
        logits: MatRef<'_>,
        experts: &Experts<'_, Self>,
    ) {
        let (n_experts, n_used) = (experts.n_experts, experts.n_used);
        assert_eq!((logits.rows, logits.cols), (x.rows, n_experts), "moe: shape of the logits");
        assert!(n_used <= n_experts, "moe: {n_used} of {n_experts} experts");
        let mut scratch = self.moe.lock().unwrap_or_else(PoisonError::into_inner);
        let mut routed = std::mem::take(&mut scratch.routed);
        routed.clear();
        for t in 0..x.rows {
            route(&mut routed, t, logits.row(t), n_used, experts.routing);
        }
        routed.sort_unstable_by_key(|r| (r.expert, r.token));
        for group in routed.chunk_by(|a, b| a.expert == b.expert) {
            self.run_expert(&mut scratch, &mut out, x, group, experts);
        }
        scratch.routed = routed;
    }

    /// Runs one expert on the tokens of `group`, which share it.
    fn run_expert(
        &self,
        scratch: &mut Scratch,
        out: &mut MatMut<'_>,
        x: MatRef<'_>,
        group: &[RoutedExpert],
        experts: &Experts<'_, Self>,
    ) {
        let (rows, d, expert) = (group.len(), x.cols, group[0].expert);
        let f = experts.gate.shape().0 / experts.n_experts;
        let (inner, outer) = (expert * f..(expert + 1) * f, expert * d..(expert + 1) * d);
        let tokens = grown(&mut scratch.tokens, rows * d);
        for (row, r) in tokens.chunks_exact_mut(d).zip(group) {
            row.copy_from_slice(x.row(r.token));
        }
        let mlp = MlpWeights {
            gate: (experts.gate.rows(inner.clone()), bias_rows(experts.gate_bias, inner.clone())),
            up: (experts.up.rows(inner.clone()), bias_rows(experts.up_bias, inner)),
            down: (
                experts.down.rows(outer.clone()),
                cpu::Epilogue {
                    bias: bias_rows(experts.down_bias, outer),
                    ..cpu::Epilogue::default()
                },
            ),
            activation: experts.activation,
        };
        let len = if mlp.panels(rows).is_some() { 0 } else { rows * f };
        let results = grown(&mut scratch.results, rows * d);
        let intermediate = [&mut scratch.gate, &mut scratch.up, &mut scratch.hidden];
        self.run_gated_mlp(
            MatMut::packed(results, rows, d),
            MatRef::packed(tokens, rows, d),
            mlp,
            intermediate.map(|memory| grown(memory, len)),
        );
        for (row, r) in results.chunks_exact(d).zip(group) {
            for (y, v) in out.row_mut(r.token).iter_mut().zip(row) {
                *y += r.weight * v;
            }
        }
    }
}

fn bias_rows(bias: Option<&AlignedVec>, rows: Range<usize>) -> Option<&[f32]> {
    bias.map(|bias| &bias[rows])
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
