//! The sizes of real models, as their published configurations state them.

use anyhow::{Result, ensure};

/// A model.
#[derive(Debug)]
pub(super) struct Shape {
    pub(super) name: &'static str,
    /// Type of the weights in the published file, or a common one.
    pub(super) types: &'static str,
    pub(super) sizes: Sizes,
}

/// Sizes by kind of model.
#[derive(Debug, Clone)]
pub(super) enum Sizes {
    Language(Language),
    Whisper(Whisper),
}

impl Sizes {
    /// The sizes with the first `n` layers only; of encoder and decoder each.
    pub(super) fn with_layers(&self, n: usize) -> Result<Self> {
        let mut sizes = self.clone();
        let stacks: &mut [&mut usize] = match &mut sizes {
            Self::Language(sizes) => &mut [&mut sizes.n_layers],
            Self::Whisper(sizes) => &mut [&mut sizes.n_audio_layers, &mut sizes.n_text_layers],
        };
        let n_layers = stacks.iter().map(|stack| **stack).max().unwrap_or(0);
        ensure!((1..=n_layers).contains(&n), "--layers: expected 1 to {n_layers}, got {n}");
        for stack in stacks {
            **stack = n.min(**stack);
        }
        Ok(sizes)
    }
}

/// A language model.
#[derive(Debug, Clone)]
pub(super) struct Language {
    /// GGUF's name of the architecture.
    pub(super) architecture: &'static str,
    /// Context length of training.
    pub(super) n_ctx: usize,
    pub(super) d_model: usize,
    pub(super) n_layers: usize,
    pub(super) n_heads: usize,
    pub(super) n_kv_heads: usize,
    pub(super) head_dim: usize,
    /// Rotated channels of a head.
    pub(super) n_rot: usize,
    /// Width of the FFN of a dense layer.
    pub(super) d_ff: usize,
    /// MoE sizes; `None` for a dense model.
    pub(super) experts: Option<Experts>,
    pub(super) vocab_size: usize,
    pub(super) norm_eps: f32,
    /// Base of the rotary frequencies.
    pub(super) freq_base: f32,
    /// YaRN scaling of the frequencies.
    pub(super) yarn: Option<Yarn>,
    /// Sliding window of the architectures that have one.
    pub(super) window: Option<usize>,
    /// Whether the embedding also makes the logits.
    pub(super) is_tied: bool,
    pub(super) biases: Biases,
    /// GGUF's name of the pre-tokenizer.
    pub(super) pre_tokenizer: &'static str,
}

/// Experts of a layer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Experts {
    pub(super) n_experts: usize,
    /// Experts of a token.
    pub(super) n_used: usize,
    /// Width of an expert.
    pub(super) d_ff: usize,
}

/// `YaRN` scaling.
#[derive(Debug, Clone, Copy)]
pub(super) struct Yarn {
    pub(super) factor: f32,
    /// Context length before scaling.
    pub(super) n_ctx_orig: usize,
}

/// Matrices with a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Biases {
    None,
    /// Query, key and value.
    Inputs,
    /// All of the layers, experts and routers included.
    Layers,
    /// All, the vocabulary projection included.
    All,
}

/// A Whisper model.
#[derive(Debug, Clone)]
pub(super) struct Whisper {
    pub(super) n_mels: usize,
    pub(super) d_model: usize,
    pub(super) n_heads: usize,
    pub(super) n_audio_layers: usize,
    pub(super) n_text_layers: usize,
    pub(super) vocab_size: usize,
}

const QWEN2_5_0_5B: Language = Language {
    architecture: "qwen2",
    n_ctx: 32768,
    d_model: 896,
    n_layers: 24,
    n_heads: 14,
    n_kv_heads: 2,
    head_dim: 64,
    n_rot: 64,
    d_ff: 4864,
    experts: None,
    vocab_size: 151_936,
    norm_eps: 1e-6,
    freq_base: 1e6,
    yarn: None,
    window: None,
    is_tied: true,
    biases: Biases::Inputs,
    pre_tokenizer: "qwen2",
};

const LLAMA_3_8B: Language = Language {
    architecture: "llama",
    n_ctx: 8192,
    d_model: 4096,
    n_layers: 32,
    n_heads: 32,
    n_kv_heads: 8,
    head_dim: 128,
    n_rot: 128,
    d_ff: 14336,
    experts: None,
    vocab_size: 128_256,
    norm_eps: 1e-5,
    freq_base: 5e5,
    yarn: None,
    window: None,
    is_tied: false,
    biases: Biases::None,
    pre_tokenizer: "llama-bpe",
};

const WHISPER_LARGE_V3: Whisper = Whisper {
    n_mels: 128,
    d_model: 1280,
    n_heads: 20,
    n_audio_layers: 32,
    n_text_layers: 32,
    vocab_size: 51866,
};

/// Every shape, smallest first of each kind.
pub(super) static SHAPES: [Shape; 13] = [
    Shape {
        name: "smollm2-135m",
        types: "q4_k_m",
        sizes: Sizes::Language(Language {
            d_model: 576,
            n_layers: 30,
            n_heads: 9,
            n_kv_heads: 3,
            head_dim: 64,
            n_rot: 64,
            d_ff: 1536,
            vocab_size: 49152,
            freq_base: 1e5,
            is_tied: true,
            pre_tokenizer: "smollm",
            ..LLAMA_3_8B
        }),
    },
    Shape {
        name: "gemma3-270m",
        types: "q4_k_m",
        sizes: Sizes::Language(Language {
            architecture: "gemma3",
            d_model: 640,
            n_layers: 18,
            n_heads: 4,
            n_kv_heads: 1,
            head_dim: 256,
            n_rot: 256,
            d_ff: 2048,
            vocab_size: 262_144,
            window: Some(512),
            biases: Biases::None,
            pre_tokenizer: "default",
            ..QWEN2_5_0_5B
        }),
    },
    Shape { name: "qwen2.5-0.5b", types: "q4_k_m", sizes: Sizes::Language(QWEN2_5_0_5B) },
    Shape {
        name: "qwen2.5-1.5b",
        types: "q4_k_m",
        sizes: Sizes::Language(Language {
            d_model: 1536,
            n_layers: 28,
            n_heads: 12,
            head_dim: 128,
            n_rot: 128,
            d_ff: 8960,
            ..QWEN2_5_0_5B
        }),
    },
    Shape {
        name: "phi-2",
        types: "q4_k_m",
        sizes: Sizes::Language(Language {
            architecture: "phi2",
            n_ctx: 2048,
            d_model: 2560,
            n_kv_heads: 32,
            head_dim: 80,
            n_rot: 32,
            d_ff: 10240,
            vocab_size: 51200,
            freq_base: 1e4,
            biases: Biases::All,
            pre_tokenizer: "gpt-2",
            ..LLAMA_3_8B
        }),
    },
    Shape { name: "llama-3-8b", types: "q4_k_m", sizes: Sizes::Language(LLAMA_3_8B) },
    Shape {
        name: "gpt-oss-20b",
        types: "mxfp4_moe",
        sizes: Sizes::Language(Language {
            architecture: "gpt-oss",
            n_ctx: 131_072,
            d_model: 2880,
            n_layers: 24,
            n_heads: 64,
            n_kv_heads: 8,
            head_dim: 64,
            n_rot: 64,
            d_ff: 2880,
            experts: Some(Experts { n_experts: 32, n_used: 4, d_ff: 2880 }),
            vocab_size: 201_088,
            norm_eps: 1e-5,
            freq_base: 1.5e5,
            yarn: Some(Yarn { factor: 32.0, n_ctx_orig: 4096 }),
            window: Some(128),
            is_tied: false,
            biases: Biases::Layers,
            pre_tokenizer: "gpt-4o",
        }),
    },
    Shape {
        name: "qwen3-30b-a3b",
        types: "q4_k_m",
        sizes: Sizes::Language(Language {
            architecture: "qwen3moe",
            n_ctx: 40960,
            d_model: 2048,
            n_layers: 48,
            n_heads: 32,
            n_kv_heads: 4,
            head_dim: 128,
            n_rot: 128,
            d_ff: 6144,
            experts: Some(Experts { n_experts: 128, n_used: 8, d_ff: 768 }),
            is_tied: false,
            biases: Biases::None,
            ..QWEN2_5_0_5B
        }),
    },
    Shape {
        name: "llama-3-70b",
        types: "q4_k_m",
        sizes: Sizes::Language(Language {
            d_model: 8192,
            n_layers: 80,
            n_heads: 64,
            d_ff: 28672,
            ..LLAMA_3_8B
        }),
    },
    Shape {
        name: "tiny.en",
        types: "q4_k_m",
        sizes: Sizes::Whisper(Whisper {
            n_mels: 80,
            d_model: 384,
            n_heads: 6,
            n_audio_layers: 4,
            n_text_layers: 4,
            vocab_size: 51864,
        }),
    },
    Shape {
        name: "base",
        types: "q4_k_m",
        sizes: Sizes::Whisper(Whisper {
            n_mels: 80,
            d_model: 512,
            n_heads: 8,
            n_audio_layers: 6,
            n_text_layers: 6,
            vocab_size: 51865,
        }),
    },
    Shape {
        name: "large-v3-turbo",
        types: "q4_k_m",
        sizes: Sizes::Whisper(Whisper { n_text_layers: 4, ..WHISPER_LARGE_V3 }),
    },
    Shape { name: "large-v3", types: "q4_k_m", sizes: Sizes::Whisper(WHISPER_LARGE_V3) },
];
