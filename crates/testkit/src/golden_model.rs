//! Tiny language models of every architecture, with references of transformers and PyTorch.

use std::path::PathBuf;

use serde::Deserialize;
use stonechat_formats::ModelFile;

/// A model and its references, made by `test-data/golden/llm.py`.
#[derive(Debug, Clone, Deserialize)]
pub struct GoldenModel {
    /// Name of the references; some models have several.
    #[serde(skip)]
    pub name: String,
    /// Name of the GGUF file.
    pub model: String,
    /// Context size.
    pub n_ctx: usize,
    /// Prompt.
    pub tokens: Vec<u32>,
    /// Greedy tokens after the prompt.
    pub greedy: Vec<u32>,
    /// Positions of `logits`.
    pub positions: Vec<usize>,
    /// `[positions, V]`.
    pub logits: Vec<Vec<f32>>,
}

/// Folder of the models.
#[must_use]
pub fn golden_folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/golden/llm"))
}

impl GoldenModel {
    /// The references of this name.
    ///
    /// # Panics
    /// If the file cannot be read.
    #[must_use]
    pub fn read(name: &str) -> Self {
        let path = golden_folder().join(format!("{name}.json"));
        let text = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let golden = serde_json::from_slice(&text);
        let golden: Self = golden.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Self { name: name.to_owned(), ..golden }
    }

    /// All references, by name.
    ///
    /// # Panics
    /// If a file cannot be read, or their number differs from that of architectures.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let entries = golden_folder().read_dir().expect("the folder of golden models");
        let paths = entries.map(|entry| entry.expect("a file").path());
        let jsons = paths.filter(|path| path.extension().is_some_and(|e| e == "json"));
        let names = jsons.map(|path| path.file_stem().expect("a name").display().to_string());
        let mut names: Vec<String> = names.collect();
        names.sort();
        assert!(names.len() >= 19, "{} golden models", names.len());
        names.iter().map(|name| Self::read(name)).collect()
    }

    /// The file of the model.
    ///
    /// # Panics
    /// If the file cannot be read.
    #[must_use]
    pub fn file(&self) -> ModelFile {
        ModelFile::open(golden_folder().join(&self.model)).expect("a golden model")
    }
}
