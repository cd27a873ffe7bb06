//! Models with short names, and their repositories on the Hugging Face hub.

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

const fn speech(
    name: &'static str,
    repo: &'static str,
    download_mb: u32,
    memory_mb: u32,
) -> CatalogEntry {
    CatalogEntry { name, kind: ModelKind::Speech, repo, weights: None, download_mb, memory_mb }
}

const fn language(
    name: &'static str,
    repo: &'static str,
    weights: &'static str,
    download_mb: u32,
    memory_mb: u32,
) -> CatalogEntry {
    let weights = Some(weights);
    CatalogEntry { name, kind: ModelKind::Language, repo, weights, download_mb, memory_mb }
}

/// Every model with a short name: speech models in the order of preference for the default model, then language
/// models by family, the default size of a family first.
#[rustfmt::skip]
pub static CATALOG: &[CatalogEntry] = &[
    speech("base", "openai/whisper-base", 290, 330),
    speech("tiny.en", "openai/whisper-tiny.en", 151, 180),
    speech("base.en", "openai/whisper-base.en", 290, 330),
    speech("tiny", "openai/whisper-tiny", 151, 180),
    speech("small", "openai/whisper-small", 967, 900),
    speech("small.en", "openai/whisper-small.en", 967, 900),
    speech("medium", "openai/whisper-medium", 3056, 2400),
    speech("medium.en", "openai/whisper-medium.en", 3056, 2400),
    speech("large-v3-turbo", "openai/whisper-large-v3-turbo", 1618, 2200),
    speech("large-v3", "openai/whisper-large-v3", 3087, 4400),
    speech("large-v2", "openai/whisper-large-v2", 6173, 4400),
    speech("large-v1", "openai/whisper-large", 6173, 4400),
    speech("distil-large-v3.5", "distil-whisper/distil-large-v3.5", 3026, 2100),
    speech("distil-large-v3", "distil-whisper/distil-large-v3", 1513, 2100),
    speech("distil-medium.en", "distil-whisper/distil-medium.en", 789, 1100),
    speech("distil-small.en", "distil-whisper/distil-small.en", 332, 500),
    language("smollm2:135m", "bartowski/SmolLM2-135M-Instruct-GGUF", "Q4_K_M", 105, 220),
    language("smollm2:360m", "bartowski/SmolLM2-360M-Instruct-GGUF", "Q4_K_M", 271, 450),
    language("smollm2:1.7b", "bartowski/SmolLM2-1.7B-Instruct-GGUF", "Q4_K_M", 1056, 1900),
    language("qwen3:0.6b", "unsloth/Qwen3-0.6B-GGUF", "Q4_K_M", 397, 900),
    language("qwen3:1.7b", "unsloth/Qwen3-1.7B-GGUF", "Q4_K_M", 1107, 1700),
    language("qwen3:4b", "Qwen/Qwen3-4B-GGUF", "Q4_K_M", 2497, 3300),
    language("qwen3:8b", "Qwen/Qwen3-8B-GGUF", "Q4_K_M", 5028, 5900),
    language("qwen3:14b", "Qwen/Qwen3-14B-GGUF", "Q4_K_M", 9002, 10_000),
    language("qwen3:30b", "Qwen/Qwen3-30B-A3B-GGUF", "Q4_K_M", 18_557, 19_500),
    language("qwen2.5:1.5b", "Qwen/Qwen2.5-1.5B-Instruct-GGUF", "Q4_K_M", 1117, 1400),
    language("qwen2.5:0.5b", "Qwen/Qwen2.5-0.5B-Instruct-GGUF", "Q4_K_M", 491, 650),
    language("qwen2.5:3b", "Qwen/Qwen2.5-3B-Instruct-GGUF", "Q4_K_M", 2105, 2500),
    language("qwen2.5:7b", "Qwen/Qwen2.5-7B-Instruct-GGUF", "Q4_K_M", 4683, 5200),
    language("qwen2.5-coder:1.5b", "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", "Q4_K_M", 1117, 1400),
    language("qwen2.5-coder:7b", "Qwen/Qwen2.5-Coder-7B-Instruct-GGUF", "Q4_K_M", 4683, 5200),
    language("llama3.2:3b", "bartowski/Llama-3.2-3B-Instruct-GGUF", "Q4_K_M", 2019, 2700),
    language("llama3.2:1b", "bartowski/Llama-3.2-1B-Instruct-GGUF", "Q4_K_M", 808, 1100),
    language("llama3.1:8b", "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", "Q4_K_M", 4921, 5700),
    language("gemma3:1b", "ggml-org/gemma-3-1b-it-GGUF", "Q4_K_M", 806, 1100),
    language("gemma3:270m", "ggml-org/gemma-3-270m-it-GGUF", "Q8_0", 292, 400),
    language("gemma3:4b", "ggml-org/gemma-3-4b-it-GGUF", "Q4_K_M", 2490, 3300),
    language("gemma3:12b", "ggml-org/gemma-3-12b-it-GGUF", "Q4_K_M", 7300, 9000),
    language("mistral:7b", "bartowski/Mistral-7B-Instruct-v0.3-GGUF", "Q4_K_M", 4373, 5200),
    language("tinyllama:1.1b", "TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF", "Q4_K_M", 669, 850),
    language("deepseek-r1:1.5b", "bartowski/DeepSeek-R1-Distill-Qwen-1.5B-GGUF", "Q4_K_M", 1117, 1400),
    language("deepseek-r1:7b", "bartowski/DeepSeek-R1-Distill-Qwen-7B-GGUF", "Q4_K_M", 4683, 5200),
    language("deepseek-r1:8b", "bartowski/DeepSeek-R1-Distill-Llama-8B-GGUF", "Q4_K_M", 4921, 5700),
    language("gpt-oss:20b", "ggml-org/gpt-oss-20b-GGUF", "MXFP4", 12_110, 12_900),
];

impl CatalogEntry {
    /// The entry of a name: one of [`CATALOG`], a family (its default size; also with `:latest`), or openai-whisper's
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
            assert!(entry.download_mb > 50 && entry.memory_mb > 50);
        }
    }
}
