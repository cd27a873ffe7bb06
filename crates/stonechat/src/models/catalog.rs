//! Models with short names, and their repositories on the Hugging Face hub.

use super::details::{MEMORY_TOKENS, kv_bytes};

/// Task of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelKind {
    /// Whisper: speech to text.
    Speech,
    /// Language model: text to text.
    Language,
}

/// A model with a short name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CatalogEntry {
    /// Short name, `base` or `qwen3:0.6b`.
    pub name: &'static str,
    /// Task.
    pub kind: ModelKind,
    /// Repository on the hub.
    pub repo: &'static str,
    /// Weight type of the GGUF file in the repository, `None` for a Hugging Face folder.
    pub weights: Option<&'static str>,
    /// Size of the download in MB, rounded.
    pub download_mb: u32,
    /// Approximate memory in MB: weights, and the KV cache of 4,096 tokens or one window of speech.
    pub memory_mb: u32,
}

/// Memory of a model in MB, as [`Details::memory_bytes`](super::Details::memory_bytes) has it: `shape` is the layers with keys
/// and values, and their width.
const fn memory_mb(download_mb: u32, shape: (usize, usize), n_tokens: usize) -> u32 {
    download_mb + (kv_bytes(shape.0, shape.1, n_tokens) / 1_000_000) as u32
}

/// Positions with keys and values of a window of speech: of text and of audio.
const SPEECH_TOKENS: usize = 448 + 1500;

const fn speech(
    name: &'static str,
    repo: &'static str,
    download_mb: u32,
    shape: (usize, usize),
) -> CatalogEntry {
    let memory_mb = memory_mb(download_mb, shape, SPEECH_TOKENS);
    CatalogEntry { name, kind: ModelKind::Speech, repo, weights: None, download_mb, memory_mb }
}

const fn language(
    name: &'static str,
    repo: &'static str,
    weights: &'static str,
    download_mb: u32,
    shape: (usize, usize),
) -> CatalogEntry {
    let weights = Some(weights);
    let memory_mb = memory_mb(download_mb, shape, MEMORY_TOKENS);
    CatalogEntry { name, kind: ModelKind::Language, repo, weights, download_mb, memory_mb }
}

/// Every model with a short name: speech models in the order of preference for the default model, then language
/// models by family, the default size of a family first. The last column is the shape of keys and values.
#[rustfmt::skip]
pub static CATALOG: &[CatalogEntry] = &[
    speech("base", "Systran/faster-whisper-base", 148, (6, 512)),
    speech("tiny.en", "Systran/faster-whisper-tiny.en", 78, (4, 384)),
    speech("base.en", "Systran/faster-whisper-base.en", 148, (6, 512)),
    speech("tiny", "Systran/faster-whisper-tiny", 78, (4, 384)),
    speech("small", "Systran/faster-whisper-small", 486, (12, 768)),
    speech("small.en", "Systran/faster-whisper-small.en", 486, (12, 768)),
    speech("medium", "Systran/faster-whisper-medium", 1531, (24, 1024)),
    speech("medium.en", "Systran/faster-whisper-medium.en", 1531, (24, 1024)),
    speech("large-v3-turbo", "openai/whisper-large-v3-turbo", 1618, (4, 1280)),
    speech("large-v3", "openai/whisper-large-v3", 3087, (32, 1280)),
    speech("large-v2", "Systran/faster-whisper-large-v2", 3090, (32, 1280)),
    speech("large-v1", "Systran/faster-whisper-large-v1", 3090, (32, 1280)),
    speech("distil-large-v3.5", "distil-whisper/distil-large-v3.5", 3026, (2, 1280)),
    speech("distil-large-v3", "distil-whisper/distil-large-v3", 1513, (2, 1280)),
    speech("distil-medium.en", "distil-whisper/distil-medium.en", 789, (2, 1024)),
    speech("distil-small.en", "distil-whisper/distil-small.en", 332, (4, 768)),
    language("smollm2:135m", "bartowski/SmolLM2-135M-Instruct-GGUF", "Q4_K_M", 105, (30, 192)),
    language("smollm2:360m", "bartowski/SmolLM2-360M-Instruct-GGUF", "Q4_K_M", 271, (32, 320)),
    language("smollm2:1.7b", "bartowski/SmolLM2-1.7B-Instruct-GGUF", "Q4_K_M", 1056, (24, 2048)),
    language("qwen3:0.6b", "unsloth/Qwen3-0.6B-GGUF", "Q4_K_M", 397, (28, 1024)),
    language("qwen3:1.7b", "unsloth/Qwen3-1.7B-GGUF", "Q4_K_M", 1107, (28, 1024)),
    language("qwen3:4b", "Qwen/Qwen3-4B-GGUF", "Q4_K_M", 2497, (36, 1024)),
    language("qwen3:8b", "Qwen/Qwen3-8B-GGUF", "Q4_K_M", 5028, (36, 1024)),
    language("qwen3:14b", "Qwen/Qwen3-14B-GGUF", "Q4_K_M", 9002, (40, 1024)),
    language("qwen3:30b", "Qwen/Qwen3-30B-A3B-GGUF", "Q4_K_M", 18_557, (48, 512)),
    language("qwen3:32b", "Qwen/Qwen3-32B-GGUF", "Q4_K_M", 19_762, (64, 1024)),
    language("qwen3:4b-instruct", "unsloth/Qwen3-4B-Instruct-2507-GGUF", "Q4_K_M", 2497, (36, 1024)),
    language("qwen3:4b-thinking", "unsloth/Qwen3-4B-Thinking-2507-GGUF", "Q4_K_M", 2497, (36, 1024)),
    language("qwen3:30b-instruct", "unsloth/Qwen3-30B-A3B-Instruct-2507-GGUF", "Q4_K_M", 18_557, (48, 512)),
    language("qwen3:30b-thinking", "unsloth/Qwen3-30B-A3B-Thinking-2507-GGUF", "Q4_K_M", 18_557, (48, 512)),
    language("qwen3-coder:30b", "unsloth/Qwen3-Coder-30B-A3B-Instruct-GGUF", "Q4_K_M", 18_557, (48, 512)),
    language("qwen2.5:1.5b", "Qwen/Qwen2.5-1.5B-Instruct-GGUF", "Q4_K_M", 1117, (28, 256)),
    language("qwen2.5:0.5b", "Qwen/Qwen2.5-0.5B-Instruct-GGUF", "Q4_K_M", 491, (24, 128)),
    language("qwen2.5:3b", "Qwen/Qwen2.5-3B-Instruct-GGUF", "Q4_K_M", 2105, (36, 256)),
    language("qwen2.5:7b", "Qwen/Qwen2.5-7B-Instruct-GGUF", "Q4_K_M", 4683, (28, 512)),
    language("qwen2.5:14b", "bartowski/Qwen2.5-14B-Instruct-GGUF", "Q4_K_M", 8988, (48, 1024)),
    language("qwen2.5:32b", "bartowski/Qwen2.5-32B-Instruct-GGUF", "Q4_K_M", 19_851, (64, 1024)),
    language("qwen2.5-coder:1.5b", "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", "Q4_K_M", 1117, (28, 256)),
    language("qwen2.5-coder:7b", "Qwen/Qwen2.5-Coder-7B-Instruct-GGUF", "Q4_K_M", 4683, (28, 512)),
    language("qwen2.5-coder:0.5b", "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", "Q4_K_M", 491, (24, 128)),
    language("qwen2.5-coder:3b", "Qwen/Qwen2.5-Coder-3B-Instruct-GGUF", "Q4_K_M", 2105, (36, 256)),
    language("qwen2.5-coder:14b", "bartowski/Qwen2.5-Coder-14B-Instruct-GGUF", "Q4_K_M", 8988, (48, 1024)),
    language("qwen2.5-coder:32b", "bartowski/Qwen2.5-Coder-32B-Instruct-GGUF", "Q4_K_M", 19_851, (64, 1024)),
    language("llama3.2:3b", "bartowski/Llama-3.2-3B-Instruct-GGUF", "Q4_K_M", 2019, (28, 1024)),
    language("llama3.2:1b", "bartowski/Llama-3.2-1B-Instruct-GGUF", "Q4_K_M", 808, (16, 512)),
    language("llama3.1:8b", "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", "Q4_K_M", 4921, (32, 1024)),
    language("llama3.3:70b", "bartowski/Llama-3.3-70B-Instruct-GGUF", "Q4_K_M", 42_520, (80, 1024)),
    language("llama3:8b", "bartowski/Meta-Llama-3-8B-Instruct-GGUF", "Q4_K_M", 4921, (32, 1024)),
    language("gemma3:1b", "ggml-org/gemma-3-1b-it-GGUF", "Q4_K_M", 806, (26, 256)),
    language("gemma3:270m", "ggml-org/gemma-3-270m-it-GGUF", "Q8_0", 292, (18, 256)),
    language("gemma3:4b", "ggml-org/gemma-3-4b-it-GGUF", "Q4_K_M", 2490, (34, 1024)),
    language("gemma3:12b", "ggml-org/gemma-3-12b-it-GGUF", "Q4_K_M", 7300, (48, 2048)),
    language("gemma3:27b", "ggml-org/gemma-3-27b-it-GGUF", "Q4_K_M", 16_547, (62, 2048)),
    language("gemma2:2b", "bartowski/gemma-2-2b-it-GGUF", "Q4_K_M", 1709, (26, 1024)),
    language("gemma2:9b", "bartowski/gemma-2-9b-it-GGUF", "Q4_K_M", 5761, (42, 2048)),
    language("gemma2:27b", "bartowski/gemma-2-27b-it-GGUF", "Q4_K_M", 16_645, (46, 2048)),
    language("mistral:7b", "bartowski/Mistral-7B-Instruct-v0.3-GGUF", "Q4_K_M", 4373, (32, 1024)),
    language("mistral-nemo:12b", "bartowski/Mistral-Nemo-Instruct-2407-GGUF", "Q4_K_M", 7477, (40, 1024)),
    language("mistral-small:24b", "bartowski/Mistral-Small-24B-Instruct-2501-GGUF", "Q4_K_M", 14_334, (40, 1024)),
    language("phi3:3.8b", "bartowski/Phi-3.1-mini-4k-instruct-GGUF", "Q4_K_M", 2393, (32, 3072)),
    language("phi3.5:3.8b", "bartowski/Phi-3.5-mini-instruct-GGUF", "Q4_K_M", 2393, (32, 3072)),
    language("phi4:14b", "bartowski/phi-4-GGUF", "Q4_K_M", 9053, (40, 1280)),
    language("phi4-mini:3.8b", "bartowski/microsoft_Phi-4-mini-instruct-GGUF", "Q4_K_M", 2492, (32, 1024)),
    language("tinyllama:1.1b", "TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF", "Q4_K_M", 669, (22, 256)),
    language("deepseek-r1:1.5b", "bartowski/DeepSeek-R1-Distill-Qwen-1.5B-GGUF", "Q4_K_M", 1117, (28, 256)),
    language("deepseek-r1:7b", "bartowski/DeepSeek-R1-Distill-Qwen-7B-GGUF", "Q4_K_M", 4683, (28, 512)),
    language("deepseek-r1:8b", "bartowski/DeepSeek-R1-Distill-Llama-8B-GGUF", "Q4_K_M", 4921, (32, 1024)),
    language("deepseek-r1:14b", "bartowski/DeepSeek-R1-Distill-Qwen-14B-GGUF", "Q4_K_M", 8988, (48, 1024)),
    language("deepseek-r1:32b", "bartowski/DeepSeek-R1-Distill-Qwen-32B-GGUF", "Q4_K_M", 19_851, (64, 1024)),
    language("deepseek-r1:70b", "bartowski/DeepSeek-R1-Distill-Llama-70B-GGUF", "Q4_K_M", 42_520, (80, 1024)),
    language("gpt-oss:20b", "ggml-org/gpt-oss-20b-GGUF", "MXFP4", 12_110, (24, 512)),
    language("gpt-oss:120b", "ggml-org/gpt-oss-120b-GGUF", "MXFP4", 63_387, (36, 512)),
];

impl CatalogEntry {
    /// The entry of a name: one of [`CATALOG`], also with `-` for `:`, a family (its default size; also with `:latest`), or openai-whisper's
    /// `turbo` or `large`.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        let name = match name {
            "turbo" => "large-v3-turbo",
            "large" => "large-v3",
            // Ollama's tag of the default.
            name => name.strip_suffix(":latest").unwrap_or(name),
        };
        let exact = CATALOG.iter().find(|entry| entry.name.eq_ignore_ascii_case(name));
        let is_dashed = |entry: &&Self| entry.name.replace(':', "-").eq_ignore_ascii_case(name);
        let exact = exact.or_else(|| CATALOG.iter().find(is_dashed));
        let of_family = |entry: &&Self| {
            entry.name.split_once(':').is_some_and(|(family, _)| family.eq_ignore_ascii_case(name))
        };
        exact.or_else(|| CATALOG.iter().find(of_family))
    }
}

/// Names of the speech models, in the order of preference.
pub(crate) fn speech_names() -> impl Iterator<Item = &'static str> {
    CATALOG.iter().filter(|entry| entry.kind == ModelKind::Speech).map(|entry| entry.name)
}

#[cfg(test)]
mod tests {
    use super::{CATALOG, CatalogEntry, ModelKind};

    #[test]
    fn families_and_short_forms_name_an_entry() {
        for (name, expected) in [
            ("base", "base"),
            ("turbo", "large-v3-turbo"),
            ("qwen3", "qwen3:0.6b"),
            ("Qwen3:0.6B", "qwen3:0.6b"),
            ("qwen3-0.6b", "qwen3:0.6b"),
            ("smollm2-135m", "smollm2:135m"),
            ("phi4", "phi4:14b"),
            ("qwen3-coder", "qwen3-coder:30b"),
            ("llama3.2", "llama3.2:3b"),
            ("llama3.2:latest", "llama3.2:3b"),
        ] {
            assert_eq!(CatalogEntry::find(name).map(|entry| entry.name), Some(expected), "{name}");
        }
        for name in ["", "qwen", "qwen3:", "qwen3:5b", ":0.6b"] {
            assert_eq!(CatalogEntry::find(name), None, "{name}");
        }
    }

    #[test]
    fn entries_are_complete_and_unique() {
        for (i, entry) in CATALOG.iter().enumerate() {
            assert!(CATALOG[i + 1..].iter().all(|other| other.name != entry.name));
            assert_eq!(entry.repo.split('/').count(), 2, "{}", entry.repo);
            assert_eq!(entry.weights.is_some(), entry.kind == ModelKind::Language);
            assert_eq!(entry.name.contains(':'), entry.kind == ModelKind::Language);
            assert!(entry.download_mb > 50 && entry.memory_mb > entry.download_mb);
        }
    }

    #[test]
    fn speech_models_are_not_larger_than_those_of_whisper_cpp() {
        // Sizes of the f16 files in MB.
        for (name, ggml_mb) in
            [("tiny", 78), ("base", 148), ("small", 488), ("medium", 1533), ("large-v2", 3095)]
        {
            let download_mb = CatalogEntry::find(name).unwrap().download_mb;
            assert!(download_mb <= ggml_mb, "{name}: {download_mb} MB");
        }
    }

    #[test]
    fn memory_is_that_of_the_details() {
        // Weights of 105 MB, and 30 layers x 4,096 tokens x 192 x 2 x 2 bytes.
        let smollm2 = CatalogEntry::find("smollm2:135m").unwrap();
        assert_eq!((smollm2.download_mb, smollm2.memory_mb), (105, 105 + 94));
        let base = CatalogEntry::find("base").unwrap();
        assert_eq!((base.download_mb, base.memory_mb), (148, 148 + 23));
    }
}
