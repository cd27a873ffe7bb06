//! Configuration of a layer. Layers of a model may differ in all of it.

use stonechat_nn::{GatedActivation, Routing};

use crate::Error;
use crate::model::arch::{Architecture, FeedForward};
use crate::model::rope::RopeConfig;

/// Attention and FFN of a layer.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct LayerConfig {
    /// Query heads, `H`.
    pub n_heads: usize,
    /// Index in [`Config::kv_groups`](crate::Config::kv_groups).
    pub kv_group: usize,
    /// Factor of attention scores.
    pub attn_scale: f32,
    /// Sliding window: positions that a token attends to, itself included; `None` for full attention.
    pub window: Option<usize>,
    /// RoPE; `None` for a layer without.
    pub rope: Option<RopeConfig>,
    /// RMS norm of query and key heads before RoPE.
    pub qk_norm: bool,
    /// Norms of the outputs of attention and FFN, before the residual addition.
    pub post_norms: bool,
    /// Attention sinks: a learned logit for each head in its softmax.
    pub sinks: bool,
    /// FFN.
    pub ffn: FfnConfig,
}

/// Shape of the keys and values of a group of layers, which share a KV pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct KvGroup {
    /// Key and value heads, `G`.
    pub n_kv_heads: usize,
    /// Width of a head, `C`.
    pub head_dim: usize,
}

/// FFN of a layer.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum FfnConfig {
    /// One FFN for all tokens.
    Dense {
        /// Width, `F`.
        d_ff: usize,
        /// Matrices and activation.
        kind: FeedForward,
    },
    /// Mixture of experts.
    Experts(ExpertsConfig),
}

/// Mixture of experts (MoE).
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct ExpertsConfig {
    /// Experts in a layer.
    pub n_experts: usize,
    /// Experts routed to for each token (top-k).
    pub n_used: usize,
    /// Normalization of the routing weights.
    pub routing: Routing,
    /// Width of an expert.
    pub d_ff: usize,
    /// Activation of an expert.
    pub activation: GatedActivation,
}

impl LayerConfig {
    /// A layer with the switches of an architecture, and full attention.
    pub(crate) fn new(architecture: &Architecture, ffn: FfnConfig) -> Self {
        let Architecture { qk_norm, post_norms, sinks, .. } = *architecture;
        let (n_heads, kv_group, attn_scale, window, rope) = (0, 0, 0.0, None, None);
        Self { n_heads, kv_group, attn_scale, window, rope, qk_norm, post_norms, sinks, ffn }
    }

    /// Checks ranges of sizes, and that they fit each other.
    pub(crate) fn validate(&self, kv: KvGroup) -> Result<(), Error> {
        let KvGroup { n_kv_heads, head_dim } = kv;
        check_size("heads", self.n_heads, 1 << 12)?;
        check_size("kv heads", n_kv_heads, 1 << 12)?;
        check_size("head_dim", head_dim, 1 << 12)?;
        check_size("d_ff", self.ffn.d_ff(), 1 << 24)?;
        if !self.n_heads.is_multiple_of(n_kv_heads) {
            let problem = format!("{n_kv_heads} do not divide {} heads", self.n_heads);
            return Err(Error::config("kv heads", problem));
        }
        if let Some(rope) = self.rope {
            if rope.n_rot == 0 || rope.n_rot % 2 != 0 || rope.n_rot > head_dim {
                let problem = format!("must be even and at most {head_dim}, got {}", rope.n_rot);
                return Err(Error::config("rotated channels", problem));
            }
            if !(rope.freq_base > 0.0 && rope.freq_base.is_finite()) {
                let problem = format!("must be positive, got {}", rope.freq_base);
                return Err(Error::config("rope base", problem));
            }
            #[expect(clippy::eq_op, reason = "NaN differs from itself")]
            let has_nan = rope != rope;
            if has_nan {
                return Err(Error::config("rope scaling", "must be numbers, got NaN"));
            }
        }
        if let FfnConfig::Experts(experts) = self.ffn
            && !(1..=experts.n_experts).contains(&experts.n_used)
        {
            let problem = format!("must be 1 to {}, got {}", experts.n_experts, experts.n_used);
            return Err(Error::config("experts used", problem));
        }
        Ok(())
    }
}

impl FfnConfig {
    /// Width of the FFN, or of one expert.
    #[must_use]
    pub fn d_ff(&self) -> usize {
        match self {
            Self::Dense { d_ff, .. } | Self::Experts(ExpertsConfig { d_ff, .. }) => *d_ff,
        }
    }

    /// Number of experts; 0 for a dense FFN.
    #[must_use]
    pub fn n_experts(&self) -> usize {
        match self {
            Self::Dense { .. } => 0,
            Self::Experts(experts) => experts.n_experts,
        }
    }
}

/// Checks that a size is in `1..=limit`.
pub(crate) fn check_size(key: &str, value: usize, limit: usize) -> Result<(), Error> {
    if value == 0 || value > limit {
        return Err(Error::config(key, format!("must be 1 to {limit}, got {value}")));
    }
    Ok(())
}

/// Activation of the experts of an architecture.
pub(crate) fn expert_activation(architecture: &Architecture) -> Result<GatedActivation, Error> {
    match architecture.feed_forward {
        FeedForward::Gated(activation) => Ok(activation),
        FeedForward::Plain(_) => {
            Err(Error::config("expert_count", "experts need a gated activation"))
        }
    }
}

/// Makes the layers of `is_local` sliding-window layers, with a RoPE of their own if they have one.
pub(crate) fn set_windows(
    layers: &mut [LayerConfig],
    is_local: impl Fn(usize) -> bool,
    window: Option<usize>,
    rope: Option<RopeConfig>,
) {
    for (_, layer) in layers.iter_mut().enumerate().filter(|(i, _)| is_local(*i)) {
        layer.window = window;
        layer.rope = rope.or(layer.rope);
    }
}

/// Whether layer `i` has a sliding window if every `pattern`-th has full attention.
pub(crate) fn is_local(i: usize, pattern: usize) -> bool {
    pattern > 0 && i % pattern != pattern - 1
}
