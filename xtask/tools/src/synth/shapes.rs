//! The sizes of real models, as their published configurations state them.

/// A model.
#[derive(Debug)]
pub(super) struct Shape {
    pub(super) name: &'static str,
    pub(super) sizes: Sizes,
}

/// Sizes by kind of model.
#[derive(Debug)]
pub(super) enum Sizes {
    Language(Language),
    Whisper(Whisper),
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
    pub(super) d_ff: usize,
    pub(super) vocab_size: usize,
    pub(super) norm_eps: f32,
    /// Base of the rotary frequencies.
    pub(super) freq_base: f32,
    /// Sliding window of the architectures that have one.
    pub(super) window: Option<usize>,
    /// Whether the embedding also makes the logits.
    pub(super) is_tied: bool,
    pub(super) biases: Biases,
    /// GGUF's name of the pre-tokenizer.
    pub(super) pre_tokenizer: &'static str,
}

/// Matrices with a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Biases {
    None,
    /// Query, key and value.
    Inputs,
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
    vocab_size: 151_936,
    norm_eps: 1e-6,
    freq_base: 1e6,
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
    vocab_size: 128_256,
    norm_eps: 1e-5,
    freq_base: 5e5,
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
pub(super) static SHAPES: [Shape; 10] = [
    Shape {
        name: "smollm2-135m",
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
    Shape { name: "qwen2.5-0.5b", sizes: Sizes::Language(QWEN2_5_0_5B) },
    Shape {
        name: "qwen2.5-1.5b",
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
    Shape { name: "llama-3-8b", sizes: Sizes::Language(LLAMA_3_8B) },
    Shape {
        name: "tiny.en",
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
        sizes: Sizes::Whisper(Whisper { n_text_layers: 4, ..WHISPER_LARGE_V3 }),
    },
    Shape { name: "large-v3", sizes: Sizes::Whisper(WHISPER_LARGE_V3) },
];
