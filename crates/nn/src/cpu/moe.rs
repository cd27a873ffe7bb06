//! A mixture of experts: tokens are grouped by expert, so that an expert's weights are read once
//! for all tokens that chose it.

use std::ops::Range;
use std::sync::PoisonError;

use stonechat_compute::AlignedVec;
use stonechat_compute::cpu::{self, MatMut, MatRef};

use super::Cpu;
use super::network::Network;
use crate::{Experts, Routing};

/// Memory that is kept between calls; it only grows.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    choices: Vec<Choice>,
    /// `[rows, D]`: the tokens of an expert, and what it makes of them.
    tokens: Vec<f32>,
    results: Vec<f32>,
    /// `[rows, F]`, as the next two; empty while they are not used.
    gate: Vec<f32>,
    up: Vec<f32>,
    hidden: Vec<f32>,
}

/// A token's use of an expert.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Choice {
    expert: usize,
    token: usize,
    weight: f32,
}

impl Cpu {
    /// `out[t] += Σ weight * expert(x[t])` over the experts that the logits choose.
    #[track_caller]
    pub(super) fn moe_experts(
        &self,
        mut out: MatMut<'_>,
        x: MatRef<'_>,
        logits: MatRef<'_>,
        experts: &Experts<Self>,
    ) {
        let (n_experts, n_used) = (experts.n_experts, experts.n_used);
        assert_eq!((logits.rows, logits.cols), (x.rows, n_experts), "moe: shape of the logits");
        assert!(n_used <= n_experts, "moe: {n_used} of {n_experts} experts");
        let mut scratch = self.moe.lock().unwrap_or_else(PoisonError::into_inner);
        let mut choices = std::mem::take(&mut scratch.choices);
        choices.clear();
        for t in 0..x.rows {
            route(&mut choices, t, logits.row(t), n_used, experts.routing);
        }
        choices.sort_unstable_by_key(|choice| (choice.expert, choice.token));
        for group in choices.chunk_by(|a, b| a.expert == b.expert) {
            self.run_expert(&mut scratch, &mut out, x, group, experts);
        }
        scratch.choices = choices;
    }

    /// Adds what one expert makes of the tokens of `group`.
    fn run_expert(
        &self,
        scratch: &mut Scratch,
        out: &mut MatMut<'_>,
        x: MatRef<'_>,
        group: &[Choice],
        experts: &Experts<Self>,
    ) {
        let (rows, d, expert) = (group.len(), x.cols, group[0].expert);
        let f = experts.gate.shape().0 / experts.n_experts;
        let (inner, outer) = (expert * f..(expert + 1) * f, expert * d..(expert + 1) * d);
        let tokens = first(&mut scratch.tokens, rows * d);
        for (row, choice) in tokens.chunks_exact_mut(d).zip(group) {
            row.copy_from_slice(x.row(choice.token));
        }
        let network = Network {
            gate: (
                experts.gate.rows(inner.clone()),
                part(experts.gate_bias.as_ref(), inner.clone()),
            ),
            up: (experts.up.rows(inner.clone()), part(experts.up_bias.as_ref(), inner)),
            down: (
                experts.down.rows(outer.clone()),
                cpu::Epilogue {
                    bias: part(experts.down_bias.as_ref(), outer),
                    ..cpu::Epilogue::default()
                },
            ),
            activation: experts.activation,
        };
        let len = if network.panels(rows).is_some() { 0 } else { rows * f };
        let results = first(&mut scratch.results, rows * d);
        let inside = [&mut scratch.gate, &mut scratch.up, &mut scratch.hidden];
        self.network(
            MatMut::packed(results, rows, d),
            MatRef::packed(tokens, rows, d),
            network,
            inside.map(|memory| first(memory, len)),
        );
        for (row, choice) in results.chunks_exact(d).zip(group) {
            for (y, v) in out.row_mut(choice.token).iter_mut().zip(row) {
                *y += choice.weight * v;
            }
        }
    }
}

fn part(bias: Option<&AlignedVec>, rows: Range<usize>) -> Option<&[f32]> {
    bias.map(|bias| &bias[rows])
}

/// The first `len` values, with more memory if there are fewer.
fn first(memory: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if memory.len() < len {
        memory.resize(len, 0.0);
    }
    &mut memory[..len]
}

/// Appends the `n_used` experts with the largest logits, of equals the lower ones first, with
/// their weights.
fn route(choices: &mut Vec<Choice>, token: usize, logits: &[f32], n_used: usize, routing: Routing) {
    let start = choices.len();
    for (expert, &logit) in logits.iter().enumerate() {
        let chosen = &choices[start..];
        let at = chosen.iter().position(|c| c.weight < logit).unwrap_or(chosen.len());
        if at < n_used {
            if chosen.len() == n_used {
                choices.pop();
            }
            choices.insert(start + at, Choice { expert, token, weight: logit });
        }
    }
    let chosen = &mut choices[start..];
    let Some(max) = chosen.first().map(|c| c.weight) else { return };
    chosen.iter_mut().for_each(|c| c.weight = (c.weight - max).exp());
    let total: f32 = match routing {
        Routing::Softmax => logits.iter().map(|l| (l - max).exp()).sum(),
        Routing::NormalizedTopK => chosen.iter().map(|c| c.weight).sum(),
    };
    chosen.iter_mut().for_each(|c| c.weight /= total);
}

#[cfg(test)]
mod tests {
    use super::{Choice, Routing, route};

    fn chosen(logits: &[f32], n_used: usize, routing: Routing) -> Vec<(usize, f32)> {
        let mut choices = vec![Choice { expert: 9, token: 0, weight: 0.5 }];
        route(&mut choices, 1, logits, n_used, routing);
        assert!(choices[1..].iter().all(|c| c.token == 1));
        choices[1..].iter().map(|c| (c.expert, c.weight)).collect()
    }

    #[test]
    fn the_largest_logits_are_chosen_and_the_lower_of_equals() {
        let experts = |logits: &[f32], n| -> Vec<usize> {
            chosen(logits, n, Routing::Softmax).iter().map(|c| c.0).collect()
        };
        assert_eq!(experts(&[1.0, 3.0, 2.0, 3.0], 2), [1, 3]);
        assert_eq!(experts(&[0.0; 5], 3), [0, 1, 2]);
        assert_eq!(experts(&[-1.0, f32::NEG_INFINITY], 2), [0, 1]);
        assert_eq!(experts(&[f32::NAN; 3], 2).len(), 2);
    }

    #[test]
    fn weights_are_shares_of_all_or_of_the_chosen() {
        let logits = [0.0, 2f32.ln(), 5f32.ln()];
        let close = |got: Vec<(usize, f32)>, expected: [(usize, f32); 2]| {
            for (got, expected) in got.iter().zip(expected) {
                assert_eq!(got.0, expected.0);
                assert!((got.1 - expected.1).abs() < 1e-6, "{got:?} {expected:?}");
            }
        };
        close(chosen(&logits, 2, Routing::Softmax), [(2, 0.625), (1, 0.25)]);
        close(chosen(&logits, 2, Routing::NormalizedTopK), [(2, 5.0 / 7.0), (1, 2.0 / 7.0)]);
    }
}
