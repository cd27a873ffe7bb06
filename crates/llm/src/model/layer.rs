//! Configuration of a layer. Layers of a model may differ in all of it.

use stonechat_nn::{GatedActivation, Routing};

use crate::Error;
use crate::model::arch::{Architecture, FeedForward, LocalRope, QkNorm, RopeLayers};
use crate::model::rope::{RopeConfig, RopeScaling, Temperature};

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
    /// Growth of queries with their position; `None` for none.
    pub temperature: Option<Temperature>,
    /// RMS norm of queries and keys.
    pub qk_norm: Option<QkNorm>,
    /// Norms of the inputs of attention and FFN.
    pub pre_norms: bool,
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
        let Architecture { qk_norm, pre_norms, post_norms, sinks, .. } = *architecture;
        Self {
            n_heads: 0,
            kv_group: 0,
            attn_scale: 0.0,
            window: None,
            rope: None,
            temperature: None,
            qk_norm,
            pre_norms,
            post_norms,
            sinks,
            ffn,
        }
    }

    /// RoPE of queries: that of keys, with the growth by position.
    pub(crate) fn query_rope(&self) -> Option<RopeConfig> {
        self.rope.map(|rope| RopeConfig { temperature: self.temperature, ..rope })
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
            if self.temperature.is_some() && rope.n_rot != head_dim {
                let problem = format!("needs {head_dim} rotated channels, got {}", rope.n_rot);
                return Err(Error::config("attention temperature", problem));
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

/// Makes the layers of `is_local` sliding-window layers, with a RoPE of their own if the architecture has one, whose base a
/// file may name.
pub(crate) fn set_windows(
    layers: &mut [LayerConfig],
    is_local: impl Fn(usize) -> bool,
    window: Option<usize>,
    (rope, freq_base): (LocalRope, Option<f32>),
) {
    for (_, layer) in layers.iter_mut().enumerate().filter(|(i, _)| is_local(*i)) {
        layer.window = window;
        let Some(all) = &mut layer.rope else { continue };
        let default = match rope {
            LocalRope::Same => continue,
            LocalRope::Unscaled => all.freq_base,
            LocalRope::Base(base) => base,
        };
        let freq_base = freq_base.unwrap_or(default);
        *all = RopeConfig { freq_base, scaling: RopeScaling::None, ..*all };
    }
}

/// Removes RoPE from the layers that have none. Windows are known.
pub(crate) fn set_rope_layers(layers: &mut [LayerConfig], rope_layers: RopeLayers) {
    let has_windows = layers.iter().any(|layer| layer.window.is_some());
    for (i, layer) in layers.iter_mut().enumerate() {
        let has_rope = match rope_layers {
            RopeLayers::All => true,
            RopeLayers::Windowed => layer.window.is_some() || !has_windows,
            RopeLayers::AllBut(period) => is_local(i, period),
        };
        layer.rope = layer.rope.filter(|_| has_rope);
    }
}

/// Whether layer `i` has a sliding window if every `pattern`-th has full attention.
pub(crate) fn is_local(i: usize, pattern: usize) -> bool {
    pattern > 0 && i % pattern != pattern - 1
}
