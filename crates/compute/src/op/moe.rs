//! Mixture of experts.

use super::{GatedActivation, Weight};

/// Arguments of [`Op::Moe`](super::Op::Moe). Expert weights are stacked: expert `e` is rows `e * N .. (e + 1) * N`.
#[derive(Debug, Clone)]
pub struct MoeArgs {
    /// `[E * F, D]`.
    pub gate: Weight,
    /// `[E * F, D]`.
    pub up: Weight,
    /// `[E * D, F]`.
    pub down: Weight,
    /// `[E * F]`.
    pub gate_bias: Option<Weight>,
    /// `[E * F]`.
    pub up_bias: Option<Weight>,
    /// `[E * D]`.
    pub down_bias: Option<Weight>,
    /// Experts `E`.
    pub n_experts: usize,
    /// Experts per token (top-k).
    pub n_used: usize,
    /// Weights of the routed experts.
    pub routing: Routing,
    /// Combines gate and up.
    pub activation: GatedActivation,
}

/// Weights of the routed experts, from the router logits. A token goes to the experts of its `n_used` largest
/// logits; of equal logits the lower expert comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Routing {
    /// Softmax over all experts, not renormalized over the top-k.
    Softmax,
    /// Softmax over all experts, renormalized over the top-k, which equals a softmax over the top-k logits
    /// (Mixtral, Qwen 3, gpt-oss).
    NormalizedTopK,
}

/// Arguments of [`Op::MoeRoute`](super::Op::MoeRoute).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoeRouteArgs {
    /// Experts per token (top-k).
    pub n_used: usize,
    /// Weights of the routed experts.
    pub routing: Routing,
}

/// Arguments of [`Op::MoeSort`](super::Op::MoeSort).
#[derive(Debug, Clone)]
pub struct MoeSortArgs {
    /// Experts `E`.
    pub n_experts: usize,
    /// Weights of the products that read the order, by which a device selects the length of its blocks.
    pub weights: Vec<Weight>,
}

/// Arguments of [`Op::ExpertMatmul`](super::Op::ExpertMatmul).
#[derive(Debug, Clone)]
pub struct ExpertMatmulArgs {
    /// `[E * N, K]`: expert `e` is rows `e * N .. (e + 1) * N`.
    pub weight: Weight,
    /// `[E * N]`.
    pub bias: Option<Weight>,
    /// Experts `E`.
    pub n_experts: usize,
    /// Arguments of the [`Op::MoeSort`](super::Op::MoeSort) whose order is the third operand; `None` without that operand.
    pub order: Option<MoeSortArgs>,
}

/// Routes of a product with the weights of experts. `W` holds values of a device.
#[derive(Debug, Clone, Copy)]
pub struct ExpertRoutes<W> {
    /// `[T * n_used]` pairs of words: expert and weight.
    pub routes: W,
    /// Number of routes, `T * n_used`.
    pub n_routes: usize,
    /// Routes of a row of the operand.
    pub routes_per_row: usize,
    /// Rows of the matrix of an expert.
    pub n: usize,
    /// `[E * n]`.
    pub bias: Option<W>,
}
