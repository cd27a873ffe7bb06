//! Names of no supported model: families that do not run here, addresses, and misspelled names.

use stonechat_llm::ARCHITECTURES;

use super::{CATALOG, CatalogEntry};
use crate::Error;

/// Families whose architectures do not run here: the start of their names, without `-` and `_`, and what they are.
#[rustfmt::skip]
const FAMILIES: &[(&str, &str)] = &[
    ("gemma4", "Gemma 4"), ("gemma3n", "Gemma 3n"), ("embeddinggemma", "EmbeddingGemma"), ("recurrentgemma", "RecurrentGemma"),
    ("qwen3.5", "Qwen3.5"), ("qwen3.6", "Qwen3.6"), ("qwen3next", "Qwen3-Next"), ("qwen3codernext", "Qwen3-Next"), ("qwen3omni", "Qwen3-Omni"),
    ("qwen2audio", "Qwen2-Audio"), ("lfm2", "LFM2"), ("glm4.", "GLM-4.5 and later"), ("glm5", "GLM-4.5 and later"), ("chatglm", "ChatGLM"),
    ("deepseekv", "DeepSeek V2 and later"), ("deepseekocr", "DeepSeek-OCR"), ("kimi", "Kimi"), ("minimax", "MiniMax"),
    ("nemotron", "Nemotron"), ("granite4", "Granite 4"), ("llama4", "Llama 4"),
    ("olmoe", "OLMoE"), ("smolvlm", "SmolVLM"), ("starcoder", "StarCoder"), ("exaone3", "EXAONE 3"), ("exaonemoe", "EXAONE MoE"),
    ("hunyuanmoe", "Hunyuan MoE"), ("minicpm3", "MiniCPM3"), ("internlm2", "InternLM2"),
    ("gpt2", "GPT-2"), ("gptj", "GPT-J"), ("gptneox", "GPT-NeoX"), ("pythia", "GPT-NeoX"), ("stablelm", "StableLM"),
    ("mamba", "Mamba"), ("rwkv", "RWKV"), ("jamba", "Jamba"), ("falconh1", "Falcon-H1"), ("dbrx", "DBRX"), ("grok", "Grok"),
    ("phi3.5moe", "Phi-3.5-MoE"), ("phimoe", "Phi-3.5-MoE"),
    ("bert", "BERT"), ("allminilm", "BERT"), ("nomicembed", "BERT"), ("mxbaiembed", "BERT"), ("bge", "BERT"),
    ("snowflakearctic", "BERT"), ("modernbert", "BERT"), ("t5", "T5"), ("flant5", "T5"),
    ("llava", "LLaVA"), ("bakllava", "LLaVA"), ("moondream", "Moondream"),
    ("parakeet", "Parakeet"), ("canary", "Canary"), ("moonshine", "Moonshine"), ("voxtral", "Voxtral"), ("wav2vec2", "wav2vec 2.0"),
];

/// Minimum similarity of a misspelled name.
const SIMILAR: f64 = 0.6;

/// The error of an address, or of a family that does not run here.
pub(crate) fn refusal(name: &str) -> Option<Error> {
    if name.contains("://") {
        return Some(Error::Address { address: name.to_owned() });
    }
    let family = family(name)?;
    let mut names: Vec<_> = ARCHITECTURES.iter().map(|architecture| architecture.name).collect();
    names.push("whisper");
    Some(Error::UnsupportedFamily { name: name.to_owned(), family, expected: names.join(", ") })
}

/// The family of a plain name, among those that do not run here.
fn family(name: &str) -> Option<&'static str> {
    let is_file = [".gguf", ".bin", ".safetensors"].iter().any(|end| name.ends_with(end));
    if is_file || name.contains(['/', '\\']) {
        return None;
    }
    let plain = name.to_ascii_lowercase().replace(['-', '_'], "");
    FAMILIES.iter().find(|(start, _)| plain.starts_with(start)).map(|(_, family)| *family)
}

/// Suggestion for an unknown name: other sizes of its family, or the nearest name of the catalog and of `installed`.
pub(crate) fn suggestion(name: &str, installed: &[String]) -> Option<String> {
    let lower = name.to_ascii_lowercase();
    if let Some(entry) = lower.strip_prefix("whisper-").and_then(CatalogEntry::find) {
        return Some(format!("did you mean `{}`?", entry.name));
    }
    if let Some((family, _)) = lower.split_once(':') {
        let sizes = CATALOG.iter().filter(|entry| entry.name.split(':').next() == Some(family));
        let sizes: Vec<_> = sizes.map(|e| e.name).filter(|name| name.contains(':')).collect();
        if !sizes.is_empty() {
            return Some(format!("expected one of {}", sizes.join(", ")));
        }
    }
    let families = CATALOG.iter().map(|entry| entry.name.split(':').next().unwrap_or_default());
    let names = families.chain(CATALOG.iter().map(|entry| entry.name)).chain(["turbo", "large"]);
    let all = names.chain(installed.iter().map(String::as_str));
    let scored = all.map(|other| {
        (strsim::normalized_damerau_levenshtein(&lower, &other.to_ascii_lowercase()), other)
    });
    let best = scored.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|(score, _)| *score >= SIMILAR);
    best.map(|(_, other)| format!("did you mean `{other}`?"))
}

#[cfg(test)]
mod tests {
    use super::{CATALOG, family, refusal, suggestion};
    use crate::models::Name;

    #[test]
    fn families_that_do_not_run_are_named() {
        for (name, expected) in [
            ("gemma4", "Gemma 4"),
            ("gemma4:e2b", "Gemma 4"),
            ("Gemma-4-12B-it", "Gemma 4"),
            ("qwen3.5", "Qwen3.5"),
            ("qwen3.6:27b", "Qwen3.6"),
            ("qwen3-next:80b", "Qwen3-Next"),
            ("lfm2", "LFM2"),
            ("lfm2.5:1.2b", "LFM2"),
            ("glm-4.7-flash", "GLM-4.5 and later"),
            ("deepseek-v3", "DeepSeek V2 and later"),
            ("deepseek-v3.2", "DeepSeek V2 and later"),
            ("nemotron", "Nemotron"),
            ("nemotron-3-nano", "Nemotron"),
            ("granite4:3b", "Granite 4"),
            ("bert", "BERT"),
            ("nomic-embed-text", "BERT"),
            ("all-minilm", "BERT"),
            ("t5-small", "T5"),
            ("parakeet", "Parakeet"),
        ] {
            assert_eq!(family(name), Some(expected), "{name}");
            let text = refusal(name).map(|error| error.to_string()).unwrap_or_default();
            assert!(text.contains("does not run here yet") && text.contains("gpt-oss"), "{text}");
        }
        for name in ["gemma5", "qwen3:5b", "nosuch", "u/gemma4", "gemma4.gguf", "", "gpt-oss"] {
            assert_eq!(family(name), None, "{name}");
        }
        for entry in CATALOG {
            assert_eq!(family(entry.name), None, "{}", entry.name);
        }
    }

    #[test]
    fn addresses_of_no_hub_are_refused() {
        for address in [
            "https://example.org/x.gguf",
            "https://example.org/u/r/resolve/main/x.gguf",
            "https://huggingface.co/u/r/resolve/other/x.gguf",
            "https://ollama.com/library/qwen3",
            "s3://bucket/x.gguf",
        ] {
            assert_eq!(Name::parse(address), None, "{address}");
            let text = refusal(address).map(|error| error.to_string()).unwrap_or_default();
            assert!(text.starts_with(&format!("`{address}` is an address")), "{text}");
        }
    }

    #[test]
    fn misspelled_names_are_corrected() {
        let installed = ["my-finetune".to_owned()];
        for (name, expected) in [
            ("bsae", "did you mean `base`?"),
            ("lama3.2", "did you mean `llama3.2`?"),
            ("whisper-large-v3", "did you mean `large-v3`?"),
            ("largev3", "did you mean `large-v3`?"),
            ("my-fintune", "did you mean `my-finetune`?"),
            ("tinyllama:7b", "expected one of tinyllama:1.1b"),
        ] {
            assert_eq!(suggestion(name, &installed).as_deref(), Some(expected), "{name}");
        }
        assert_eq!(suggestion("nosuch", &installed), None);
    }
}
