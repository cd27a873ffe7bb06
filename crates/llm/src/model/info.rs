//! Properties of a model that do not depend on its devices: configuration, tokenizer, chat template, fingerprints.

use std::sync::Arc;

use sha2::{Digest, Sha256};
use stonechat_formats::ModelFile;
use stonechat_nn::{MAX_TOP_K, MAX_TOP_K_COLS};
use stonechat_sampling::{CompiledGrammar, GrammarSource};
use stonechat_text::{MarkedText, Tokenizer};

use crate::Error;
use crate::model::config::Config;
use crate::model::grammars::Grammars;
use crate::model::rope::RopeScaling;
use crate::model::{hugging_face, vocabulary};

/// Properties of a model that do not depend on its devices: configuration, tokenizer, chat template.
#[derive(Debug)]
pub struct ModelInfo {
    pub(crate) config: Config,
    tokenizer: Arc<Tokenizer>,
    template: Option<String>,
    summary: ModelSummary,
    grammars: Grammars,
}

/// Name, weight type and sizes of a model, for tables and logs.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ModelSummary {
    /// `general.name` of the file, else the name of the architecture.
    pub name: String,
    /// Weight type with the most bytes.
    pub dtype: String,
    /// Number of weights.
    pub n_params: u64,
    /// Bytes of the weights in the file.
    pub weight_bytes: u64,
    /// Hash of tensor names and data: tells saved KV pages of different models apart.
    pub(crate) fingerprint: u64,
}

impl ModelInfo {
    /// Reads tokenizer, chat template and summary of a file.
    pub(crate) fn new(file: &ModelFile, config: Config) -> Result<Self, Error> {
        Ok(Self {
            tokenizer: Arc::new(vocabulary::tokenizer(file)?),
            template: vocabulary::chat_template(file),
            summary: ModelSummary::of(file, &config)?,
            grammars: Grammars::default(),
            config,
        })
    }

    /// Sizes and constants of the model.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The tokenizer.
    #[must_use]
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// Name, weight type, counts.
    #[must_use]
    pub fn summary(&self) -> &ModelSummary {
        &self.summary
    }

    /// Jinja source of the file's chat template.
    #[must_use]
    pub fn chat_template(&self) -> Option<&str> {
        self.template.as_deref()
    }

    /// Tokens of a raw prompt, with BOS if the vocabulary adds it; special tokens are parsed.
    #[must_use]
    pub fn tokenize_prompt(&self, text: &str) -> Vec<u32> {
        self.without_eos(self.tokenizer.tokenize(text, true, true))
    }

    /// Tokens without the EOS at the end: it would end the text that continues the prompt.
    fn without_eos(&self, mut tokens: Vec<u32>) -> Vec<u32> {
        if self.tokenizer.adds_eos()
            && tokens.len() > 1
            && tokens.last().copied() == self.tokenizer.eos()
        {
            tokens.pop();
        }
        tokens
    }

    /// Tokens of a rendered chat template, in which only unmarked special tokens are tokens; a BOS that the template
    /// wrote is not added twice.
    #[must_use]
    pub fn tokenize_marked_chat(&self, rendered: &MarkedText) -> Vec<u32> {
        let bos = self.tokenizer.bos().filter(|_| self.tokenizer.adds_bos());
        let name = bos.map(|bos| self.tokenizer.token_piece(bos, true)).unwrap_or_default();
        let name = std::str::from_utf8(name).unwrap_or_default();
        let tokens = self.tokenizer.tokenize_marked(&rendered.without_prefix(name), true);
        self.without_eos(tokens)
    }

    /// Fill-in-the-middle prompt for the text between `prefix` and `suffix`.
    ///
    /// # Errors
    /// If the vocabulary has no fill-in-the-middle tokens.
    pub fn infill(&self, prefix: &str, suffix: &str) -> Result<Vec<u32>, Error> {
        let fim = self
            .tokenizer
            .fim()
            .ok_or_else(|| Error::NoInfill { model: self.summary.name.clone() })?;
        let mut tokens: Vec<u32> =
            self.tokenizer.bos().filter(|_| self.tokenizer.adds_bos()).into_iter().collect();
        tokens.push(fim.pre);
        tokens.extend(self.tokenizer.tokenize(prefix, false, false));
        tokens.push(fim.suf);
        tokens.extend(self.tokenizer.tokenize(suffix, false, false));
        tokens.push(fim.mid);
        Ok(tokens)
    }

    /// Hash of all that keys and values depend on, apart from the tokens: the weights, the configuration of every layer with its
    /// RoPE, and the RoPE scaling that follows from the context size.
    pub(crate) fn kv_fingerprint(&self, n_ctx: usize) -> u64 {
        kv_fingerprint(self.summary.fingerprint, &self.config, n_ctx)
    }

    /// Compiles a grammar for the vocabulary of the model.
    ///
    /// # Errors
    /// If the grammar is invalid.
    pub fn compile_grammar(&self, source: &GrammarSource) -> Result<CompiledGrammar, Error> {
        self.grammars.compile(source, (&self.tokenizer, self.config.vocab_size))
    }

    /// Grammars that are kept.
    pub(crate) fn grammars(&self) -> &Grammars {
        &self.grammars
    }

    /// Maximum `k` of [`OutputRequest::TopK`](crate::OutputRequest::TopK); 0 for a vocabulary of more than 16 million tokens.
    #[must_use]
    pub fn max_top_k(&self) -> usize {
        let vocab_size = self.config.vocab_size;
        if vocab_size <= MAX_TOP_K_COLS { MAX_TOP_K.min(vocab_size) } else { 0 }
    }
}

impl ModelSummary {
    fn of(file: &ModelFile, config: &Config) -> Result<Self, Error> {
        let (mut n_params, mut fingerprint) = (0, Sha256::new());
        for tensor in file.tensors() {
            n_params += tensor.n_elements() as u64;
            fingerprint.update(tensor.name);
            // The first bytes of each tensor tell fine-tuned models apart without reading the file.
            fingerprint.update(&*tensor.data.slice(0..tensor.data.len().min(64)).load()?);
        }
        for kind in ["short_factor", "long_factor"] {
            let factors = hugging_face::freq_factors(file, kind).unwrap_or_default();
            factors.iter().for_each(|factor| fingerprint.update(factor.to_le_bytes()));
        }
        let named = file.metadata().str("general.name").ok().filter(|name| !name.is_empty());
        Ok(Self {
            name: named.unwrap_or(config.architecture.name).to_owned(),
            dtype: file.dtypes().first().map_or_else(String::new, ToString::to_string),
            n_params,
            weight_bytes: file.weight_bytes(),
            fingerprint: first_word(fingerprint),
        })
    }
}

fn kv_fingerprint(weights: u64, config: &Config, n_ctx: usize) -> u64 {
    let mut hash = Sha256::new();
    hash.update(weights.to_le_bytes());
    hash.update(format!("{config:?}"));
    for rope in config.layers.iter().filter_map(|layer| layer.rope) {
        // LongRoPE has other frequencies for long contexts.
        let is_long =
            matches!(rope.scaling, RopeScaling::Long { n_ctx_orig, .. } if n_ctx > n_ctx_orig);
        hash.update([u8::from(is_long)]);
    }
    first_word(hash)
}

/// First 64 bits of a hash.
fn first_word(hash: Sha256) -> u64 {
    let bytes: [u8; 32] = hash.finalize().into();
    bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use stonechat_formats::ModelFile;

    use super::kv_fingerprint;
    use crate::Config;
    use crate::model::rope::{RopeConfig, RopeScaling};

    #[test]
    fn pages_of_other_rotary_embeddings_are_told_apart() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/golden/llm/llama.gguf");
        let config = Config::from_file(&ModelFile::open(path).unwrap()).unwrap();
        let hash = |change: &dyn Fn(&mut Config), n_ctx| {
            let mut config = config.clone();
            change(&mut config);
            kv_fingerprint(1, &config, n_ctx)
        };
        fn rope_of(config: &mut Config) -> &mut RopeConfig {
            config.layers[1].rope.as_mut().unwrap()
        }
        let rope = |config: &mut Config, scaling| rope_of(config).scaling = scaling;
        let plain = hash(&|_| {}, 4096);
        assert_eq!(hash(&|_| {}, 16_384), plain);
        assert_ne!(kv_fingerprint(2, &config, 4096), plain);
        assert_ne!(hash(&|c| rope_of(c).freq_base *= 2.0, 4096), plain);
        assert_ne!(hash(&|c| rope(c, RopeScaling::Linear { factor: 2.0 }), 4096), plain);
        assert_ne!(hash(&|c| c.layers[1].window = Some(7), 4096), plain);
        let long = RopeScaling::Long { n_ctx_orig: 4096, attn_factor: 1.0 };
        let short = hash(&|c| rope(c, long), 4096);
        assert_eq!(hash(&|c| rope(c, long), 100), short);
        assert_ne!(hash(&|c| rope(c, long), 4097), short);
        assert_eq!(hash(&|c| rope(c, long), 16_384), hash(&|c| rope(c, long), 4097));
    }
}
