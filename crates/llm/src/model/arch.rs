//! Table of architectures: each row is a set of switches of the one forward pass.

use stonechat_nn::{Activation, GatedActivation, RopePairs};

/// Switches of an architecture. Sizes are in [`Config`](crate::Config).
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
    /// RMS norm of query and key heads before RoPE.
    pub qk_norm: bool,
    /// Norms of the outputs of attention and FFN, before the residual addition.
    pub post_norms: bool,
    /// Embeddings are multiplied by `sqrt(D)`.
    pub scale_embeddings: bool,
    /// Whether a norm follows the token embedding.
    pub norm_embeddings: bool,
    /// Period of full-attention layers, the others having a sliding window (default; a file may
    /// say otherwise); `None` if all layers have full attention.
    pub window_pattern: Option<usize>,
    /// Sliding-window layers have a RoPE base of their own and no RoPE scaling.
    pub local_rope: bool,
    /// Attention sinks: a learned logit for each head in its softmax.
    pub sinks: bool,
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
    qk_norm: false,
    post_norms: false,
    scale_embeddings: false,
    norm_embeddings: false,
    window_pattern: None,
    local_rope: false,
    sinks: false,
};

const QWEN2: Architecture =
    Architecture { name: "qwen2", positions: Positions::Rope(RopePairs::Neox), ..LLAMA };

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

/// Supported architectures.
pub static ARCHITECTURES: &[Architecture] = &[
    LLAMA,
    QWEN2,
    Architecture { name: "qwen3", qk_norm: true, ..QWEN2 },
    Architecture { name: "qwen3moe", qk_norm: true, ..QWEN2 },
    GEMMA,
    Architecture { name: "gemma2", post_norms: true, window_pattern: Some(2), ..GEMMA },
    Architecture {
        name: "gemma3",
        qk_norm: true,
        post_norms: true,
        window_pattern: Some(6),
        local_rope: true,
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
];

impl Architecture {
    /// Looks up an architecture by its GGUF name.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        ARCHITECTURES.iter().find(|a| a.name == name)
    }

    /// Names of all architectures, for error texts.
    pub(crate) fn names() -> String {
        let names: Vec<&str> = ARCHITECTURES.iter().map(|a| a.name).collect();
        names.join(", ")
    }
}
