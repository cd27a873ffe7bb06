//! Table of architectures: each row is a set of switches of the one forward pass.

use stonechat_nn::{Activation, GatedActivation, RopePairs};

/// Switches of an architecture: for the whole model, and defaults for each [`LayerConfig`](crate::LayerConfig). Sizes are in
/// [`Config`](crate::Config).
#[derive(Debug, PartialEq)]
#[non_exhaustive]
pub struct Architecture {
    /// `general.architecture` of GGUF, and the prefix of its metadata keys.
    pub name: &'static str,
    /// Kind of all norms but those of query and key heads, which are RMS norms.
    pub norm: NormKind,
    /// Position encoding.
    pub positions: Positions,
    /// FFN of a dense layer, and the activation of experts.
    pub feed_forward: FeedForward,
    /// Order of attention and FFN.
    pub residual: Residual,
    /// GGUF name of the norm before the FFN.
    pub ffn_norm: &'static str,
    /// RMS norm of queries and keys.
    pub qk_norm: Option<QkNorm>,
    /// Norms of the inputs of attention and FFN.
    pub pre_norms: bool,
    /// Norms of the outputs of attention and FFN, before the residual addition.
    pub post_norms: bool,
    /// Embeddings are multiplied by `sqrt(D)`.
    pub scale_embeddings: bool,
    /// Factors of the file for embeddings, residual additions and logits.
    pub multipliers: Option<Multipliers>,
    /// Whether a norm follows the token embedding.
    pub norm_embeddings: bool,
    /// Period of full-attention layers, the others having a sliding window (default; a file may
    /// say otherwise); `None` if all layers have full attention.
    pub window_pattern: Option<usize>,
    /// RoPE of sliding-window layers.
    pub local_rope: LocalRope,
    /// Layers with RoPE.
    pub rope_layers: RopeLayers,
    /// Attention sinks: a learned logit for each head in its softmax.
    pub sinks: bool,
    /// Number of layers of the model size whose attention scale is `1/sqrt(D/H)`; it is `1/sqrt(C)` otherwise.
    pub wide_scale_layers: Option<usize>,
}

/// Kind of norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NormKind {
    /// RMS norm.
    Rms,
    /// Layer norm, with a bias if the file has one.
    Layer,
}

impl NormKind {
    /// Key of the epsilon in GGUF metadata, without the architecture's prefix.
    #[must_use]
    pub fn epsilon_key(self) -> &'static str {
        match self {
            Self::Rms => "attention.layer_norm_rms_epsilon",
            Self::Layer => "attention.layer_norm_epsilon",
        }
    }
}

/// Position encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Positions {
    /// RoPE with these pairs.
    Rope(RopePairs),
    /// ALiBi: linear biases of attention scores (Press et al. 2021).
    Alibi,
}

/// RMS norm of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum QkNorm {
    /// RMS norm of each head, before RoPE.
    Heads,
    /// RMS norm of each head, after RoPE.
    RotatedHeads,
    /// RMS norm over all heads, before RoPE.
    Width,
}

/// RoPE of sliding-window layers.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum LocalRope {
    /// RoPE of the other layers.
    Same,
    /// The base of the other layers, without RoPE scaling. A file may name another base.
    Unscaled,
    /// This base, without RoPE scaling. A file may name another base.
    Base(f32),
}

/// Layers with RoPE. A file may name others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RopeLayers {
    /// Every layer.
    All,
    /// Sliding-window layers, or every layer of a model without windows.
    Windowed,
    /// Every layer but each `n`-th.
    AllBut(usize),
}

/// Factors of embeddings, residual additions and logits that a file has.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Multipliers {
    /// Logits are divided by the factor of the file, not multiplied.
    pub divides_logits: bool,
    /// Factor of embeddings without one in the file.
    pub embedding: f32,
    /// Factor of residual additions without one in the file, times `sqrt(L)`; `None` for the factor 1.
    pub residual_depth: Option<f32>,
    /// Factor of logits without one in the file, times `D`; `None` for the factor 1.
    pub logit_width: Option<f32>,
}

/// FFN of a dense layer.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum FeedForward {
    /// `down(act(gate(x), up(x)))`.
    Gated(GatedActivation),
    /// `down(act(up(x)))`.
    Plain(Activation),
}

/// Order of attention and FFN in the residual stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Residual {
    /// `x += attention(norm(x)); x += ffn(norm(x))`.
    Sequential,
    /// `x += attention(norm(x)) + ffn(norm(x))`.
    Parallel,
}

/// Base row of the others.
const LLAMA: Architecture = Architecture {
    name: "llama",
    norm: NormKind::Rms,
    positions: Positions::Rope(RopePairs::Adjacent),
    feed_forward: FeedForward::Gated(GatedActivation::Silu),
    residual: Residual::Sequential,
    ffn_norm: "ffn_norm",
    qk_norm: None,
    pre_norms: true,
    post_norms: false,
    scale_embeddings: false,
    multipliers: None,
    norm_embeddings: false,
    window_pattern: None,
    local_rope: LocalRope::Same,
    rope_layers: RopeLayers::All,
    sinks: false,
    wide_scale_layers: None,
};

const QWEN2: Architecture =
    Architecture { name: "qwen2", positions: Positions::Rope(RopePairs::Neox), ..LLAMA };

const QWEN3: Architecture = Architecture { name: "qwen3", qk_norm: Some(QkNorm::Heads), ..QWEN2 };

const GEMMA: Architecture = Architecture {
    name: "gemma",
    feed_forward: FeedForward::Gated(GatedActivation::GeluTanh),
    scale_embeddings: true,
    ..QWEN2
};

// Falcon and MPT were trained with the exact GELU. The tanh approximation gives llama.cpp's tokens.
const PHI2: Architecture = Architecture {
    name: "phi2",
    norm: NormKind::Layer,
    feed_forward: FeedForward::Plain(Activation::GeluTanh),
    residual: Residual::Parallel,
    ..QWEN2
};

const OLMO2: Architecture = Architecture {
    name: "olmo2",
    qk_norm: Some(QkNorm::Width),
    pre_norms: false,
    post_norms: true,
    window_pattern: Some(4),
    local_rope: LocalRope::Unscaled,
    ..QWEN2
};

const FACTORS: Multipliers =
    Multipliers { divides_logits: false, embedding: 1.0, residual_depth: None, logit_width: None };

const GRANITE: Architecture = Architecture {
    name: "granite",
    multipliers: Some(Multipliers { divides_logits: true, ..FACTORS }),
    ..LLAMA
};

/// Supported architectures.
pub static ARCHITECTURES: &[Architecture] = &[
    LLAMA,
    QWEN2,
    // Rotation by sections is that of one position for text.
    Architecture { name: "qwen2vl", ..QWEN2 },
    QWEN3,
    Architecture { name: "qwen3vl", ..QWEN3 },
    Architecture { name: "qwen3moe", ..QWEN3 },
    Architecture { name: "qwen3vlmoe", ..QWEN3 },
    GEMMA,
    Architecture {
        name: "gemma2",
        post_norms: true,
        window_pattern: Some(2),
        // 27B.
        wide_scale_layers: Some(46),
        ..GEMMA
    },
    Architecture {
        name: "gemma3",
        qk_norm: Some(QkNorm::Heads),
        post_norms: true,
        window_pattern: Some(6),
        local_rope: LocalRope::Base(10_000.0),
        // 27B.
        wide_scale_layers: Some(62),
        ..GEMMA
    },
    PHI2,
    Architecture { name: "phi3", ..QWEN2 },
    Architecture {
        name: "gpt-oss",
        feed_forward: FeedForward::Gated(GatedActivation::ClampedSwiglu {
            alpha: 1.702,
            limit: 7.0,
        }),
        ffn_norm: "post_attention_norm",
        window_pattern: Some(2),
        sinks: true,
        ..QWEN2
    },
    Architecture { name: "falcon", ..PHI2 },
    Architecture {
        name: "bloom",
        positions: Positions::Alibi,
        residual: Residual::Sequential,
        norm_embeddings: true,
        ..PHI2
    },
    Architecture {
        name: "mpt",
        positions: Positions::Alibi,
        residual: Residual::Sequential,
        ..PHI2
    },
    Architecture { name: "mistral3", ..LLAMA },
    Architecture { name: "smollm3", rope_layers: RopeLayers::AllBut(4), ..LLAMA },
    Architecture { name: "ernie4_5", ..LLAMA },
    Architecture { name: "seed_oss", ffn_norm: "post_attention_norm", ..QWEN2 },
    Architecture { name: "hunyuan-dense", qk_norm: Some(QkNorm::RotatedHeads), ..QWEN2 },
    Architecture { name: "glm4", post_norms: true, ..LLAMA },
    OLMO2,
    Architecture {
        name: "exaone4",
        qk_norm: Some(QkNorm::Heads),
        local_rope: LocalRope::Same,
        rope_layers: RopeLayers::Windowed,
        ..OLMO2
    },
    Architecture {
        name: "cohere2",
        norm: NormKind::Layer,
        residual: Residual::Parallel,
        multipliers: Some(FACTORS),
        window_pattern: Some(4),
        rope_layers: RopeLayers::Windowed,
        ..LLAMA
    },
    GRANITE,
    Architecture { name: "granitemoe", ..GRANITE },
    Architecture {
        name: "minicpm",
        multipliers: Some(Multipliers {
            embedding: 12.0,
            residual_depth: Some(1.4),
            logit_width: Some(256.0),
            divides_logits: true,
        }),
        ..LLAMA
    },
];

impl Architecture {
    /// Looks up an architecture by its GGUF name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        ARCHITECTURES.iter().find(|a| a.name == name)
    }

    /// Default factor of attention scores, for query heads `(H, C)`.
    pub(crate) fn attn_scale(
        &self,
        d_model: usize,
        n_layers: usize,
        (n_heads, head_dim): (usize, usize),
    ) -> f32 {
        let is_wide = self.wide_scale_layers == Some(n_layers);
        let width = if is_wide { d_model / n_heads } else { head_dim };
        1.0 / (width as f32).sqrt()
    }

    /// Names of all architectures, for error texts.
    pub(crate) fn names() -> String {
        let names: Vec<&str> = ARCHITECTURES.iter().map(|a| a.name).collect();
        names.join(", ")
    }
}
