//! The table of architectures: each is a row of switches over the one forward pass.

use stonechat_nn::{Activation, GatedActivation, RopePairs};

/// What distinguishes an architecture from the others. Sizes are in [`Config`](crate::Config).
#[derive(Debug, PartialEq)]
pub struct Architecture {
    /// GGUF's `general.architecture`, and the prefix of its metadata keys.
    pub name: &'static str,
    /// Kind of every norm but those of query and key heads, which are RMS norms.
    pub norm: NormKind,
    /// How attention knows where a token stands.
    pub positions: Positions,
    /// Feed-forward network of a layer without experts, and the activation of experts.
    pub feed_forward: FeedForward,
    /// How attention and feed-forward join the residual stream.
    pub residual: Residual,
    /// GGUF's name of the norm before the feed-forward network.
    pub ffn_norm: &'static str,
    /// Query and key heads are RMS-normed before the rotation.
    pub qk_norm: bool,
    /// The results of attention and feed-forward are normed before they join the stream.
    pub post_norms: bool,
    /// Embeddings are multiplied by the square root of their width.
    pub scale_embeddings: bool,
    /// Embeddings are normed.
    pub norm_embeddings: bool,
    /// Every how many layers one attends to everything, the others to a sliding window; none when
    /// all layers attend to everything.
    pub window_pattern: Option<usize>,
    /// Windowed layers rotate with a base of their own and no scaling.
    pub local_rope: bool,
    /// Each head has a sink in its softmax.
    pub sinks: bool,
}

/// Kind of norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    /// RMS norm.
    Rms,
    /// Layer norm, with a bias where the file has one.
    Layer,
}

/// Position scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Positions {
    /// Rotary embedding with these pairs.
    Rope(RopePairs),
    /// Linear biases (Press et al. 2021).
    Alibi,
}

/// Feed-forward network.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FeedForward {
    /// `down(act(gate(x), up(x)))`.
    Gated(GatedActivation),
    /// `down(act(up(x)))`.
    Plain(Activation),
}

/// How the two branches of a layer join the residual stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Residual {
    /// Attention first; the feed-forward network sees its result.
    Sequential,
    /// Both see the layer's input.
    Parallel,
}

/// What most of them have in common.
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

// Falcon and MPT were trained with the exact GELU; llama.cpp runs them with this approximation of
// it, and tokens are to be the same as there.
const PHI2: Architecture = Architecture {
    name: "phi2",
    norm: NormKind::Layer,
    feed_forward: FeedForward::Plain(Activation::GeluTanh),
    residual: Residual::Parallel,
    ..QWEN2
};

/// Every architecture that runs.
pub static ARCHITECTURES: [Architecture; 13] = [
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
    /// The row called `name`.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        ARCHITECTURES.iter().find(|a| a.name == name)
    }

    /// All names, for messages.
    pub(crate) fn names() -> String {
        let names: Vec<&str> = ARCHITECTURES.iter().map(|a| a.name).collect();
        names.join(", ")
    }
}
