//! The draft model of a server: the models that it drafts for, and its memory.

use std::path::{Path, PathBuf};

use stonechat::formats::ModelFile;
use stonechat::llm::{Config, same_vocabulary, tokenizer};
use stonechat::text::Tokenizer;

use crate::{EngineOptions, LoadError};

/// Headers of a draft model.
#[derive(Debug)]
pub(super) struct DraftHeaders {
    path: PathBuf,
    tokenizer: Tokenizer,
    config: Config,
    weight_bytes: u64,
}

impl DraftHeaders {
    /// Reads the headers of a file or folder.
    pub(super) fn read(path: &Path) -> Result<Self, LoadError> {
        let read = || {
            let file = ModelFile::open(path)?;
            Ok::<_, stonechat::llm::Error>(Self {
                path: path.to_owned(),
                tokenizer: tokenizer(&file)?,
                config: Config::from_file(&file)?,
                weight_bytes: file.weight_bytes(),
            })
        };
        read().map_err(|error| load_error(path, &error.to_string()))
    }

    /// Error of this model.
    pub(super) fn error(&self, reason: &str) -> LoadError {
        load_error(&self.path, reason)
    }

    /// Bytes of weights and KV cache beside the language model in `target`; `None` if its vocabulary differs.
    pub(super) fn bytes_for(&self, target: &ModelFile, options: &EngineOptions) -> Option<u64> {
        let config = Config::from_file(target).ok()?;
        let tokenizer = tokenizer(target).ok()?;
        let is_same = same_vocabulary(
            (&self.tokenizer, self.config.vocab_size),
            (&tokenizer, config.vocab_size),
        );
        is_same.then(|| self.weight_bytes + options.draft_kv_bytes(&config, &self.config))
    }
}

fn load_error(path: &Path, reason: &str) -> LoadError {
    LoadError { name: path.display().to_string(), reason: reason.to_owned() }
}
