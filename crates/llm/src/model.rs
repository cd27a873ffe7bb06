//! A loaded model: configuration, weights, tokenizer, chat template.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use stonechat_formats::ModelFile;
use stonechat_nn::sample::TokenTable;
use stonechat_nn::{Backend, MAX_TOP_K, MAX_TOP_K_COLS, Ranked, View};
use stonechat_text::{ChatTemplate, Tokenizer};

use crate::forward::forward;
use crate::state::Buffers;
use crate::weights::Weights;
use crate::{Batch, Config, Error, State, StateOptions, vocabulary};

/// What stands before the next question in a text of the chat template `plain`.
pub const PLAIN_STOP: &str = "\nQuestion:";

/// An immutable language model on a device.
#[derive(Debug)]
pub struct Model<B: Backend> {
    backend: B,
    config: Config,
    weights: Weights<B>,
    tokenizer: Tokenizer,
    template: Option<String>,
    summary: ModelSummary,
    /// Made when the first grammar needs it.
    token_table: OnceLock<TokenTable>,
}

/// What a file holds, for tables and logs.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSummary {
    /// The model's own name, or its architecture's.
    pub name: String,
    /// The weight type that most bytes have.
    pub dtype: String,
    /// Weights.
    pub n_params: u64,
    /// Their bytes.
    pub weight_bytes: u64,
    /// Differs between models whose KV pages differ.
    pub(crate) fingerprint: u64,
}

impl<B: Backend> Model<B> {
    /// Loads a GGUF file or a Hugging Face folder; `progress` is told the fraction done.
    ///
    /// # Errors
    /// If the architecture does not run here, a tensor is missing or misshapen, the tokenizer
    /// cannot be read, or the device is full.
    pub fn load(backend: B, file: &ModelFile, progress: impl FnMut(f32)) -> Result<Self, Error> {
        let config = Config::from_file(file)?;
        let tokenizer = vocabulary::tokenizer(file)?;
        let template = vocabulary::template_source(file);
        let summary = ModelSummary::of(file, &config);
        let weights = Weights::load(&backend, file, &config, progress)?;
        let token_table = OnceLock::new();
        Ok(Self { backend, config, weights, tokenizer, template, summary, token_table })
    }

    /// The device that the model is on.
    #[must_use]
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// Sizes and constants.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The tokenizer.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Name, weight type, counts.
    #[must_use]
    pub fn summary(&self) -> &ModelSummary {
        &self.summary
    }

    /// The chat template: `replacement`, the name of a built-in one or Jinja; or the file's own; or
    /// `plain`, since a file without one is a base model: it goes on with text and knows no turns, even
    /// where its vocabulary has tokens for them. [`PLAIN_STOP`] ends its answers.
    ///
    /// # Errors
    /// If it does not compile.
    pub fn chat_template(&self, replacement: Option<&str>) -> Result<ChatTemplate, Error> {
        let source = replacement.or(self.template.as_deref()).unwrap_or("plain");
        vocabulary::template(source, &self.tokenizer)
    }

    /// Whether the file has a chat template.
    #[must_use]
    pub fn has_chat_template(&self) -> bool {
        self.template.is_some()
    }

    /// Tokens of a raw prompt: BOS where the vocabulary asks for it, special tokens recognized.
    #[must_use]
    pub fn tokenize_prompt(&self, text: &str) -> Vec<u32> {
        let mut tokens = self.tokenizer.tokenize(text, true, true);
        if self.tokenizer.adds_eos()
            && tokens.len() > 1
            && tokens.last().copied() == self.tokenizer.eos()
        {
            // A prompt is to be continued.
            tokens.pop();
        }
        tokens
    }

    /// Tokens of a rendered chat template, which may have written BOS itself.
    #[must_use]
    pub fn tokenize_chat(&self, rendered: &str) -> Vec<u32> {
        let bos = self.tokenizer.bos().filter(|_| self.tokenizer.adds_bos());
        let name = bos.map(|bos| self.tokenizer.token_piece(bos, true)).unwrap_or_default();
        let name = std::str::from_utf8(name).unwrap_or_default();
        let text = match rendered.strip_prefix(name) {
            Some(rest) if !name.is_empty() => rest,
            _ => rendered,
        };
        self.tokenize_prompt(text)
    }

    /// Tokens that ask for what stands between `prefix` and `suffix`.
    ///
    /// # Errors
    /// If the vocabulary has no tokens for it.
    pub fn infill(&self, prefix: &str, suffix: &str) -> Result<Vec<u32>, Error> {
        let fim = self.tokenizer.fim().ok_or_else(|| Error::Option {
            option: "infill",
            expected: "a model whose vocabulary has fill-in-the-middle tokens".to_owned(),
            got: self.summary.name.clone(),
        })?;
        let mut tokens: Vec<u32> =
            self.tokenizer.bos().filter(|_| self.tokenizer.adds_bos()).into_iter().collect();
        tokens.push(fim.pre);
        tokens.extend(self.tokenizer.tokenize(prefix, false, false));
        tokens.push(fim.suf);
        tokens.extend(self.tokenizer.tokenize(suffix, false, false));
        tokens.push(fim.mid);
        Ok(tokens)
    }

    /// The vocabulary as grammars see it.
    pub(crate) fn token_table(&self) -> Result<&TokenTable, Error> {
        if let Some(table) = self.token_table.get() {
            return Ok(table);
        }
        let table = vocabulary::token_table(&self.tokenizer, self.config.vocab_size)?;
        Ok(self.token_table.get_or_init(|| table))
    }

    /// Buffers and KV pages for [`forward`](Self::forward).
    ///
    /// # Errors
    /// If a size is impossible or the device is full.
    pub fn state(&self, options: StateOptions) -> Result<State<B>, Error> {
        let mut state = State::new(&self.backend, &self.config, &self.weights, options)?;
        self.backend.rehearse(|| self.rehearse(&mut state))?;
        Ok(state)
    }

    /// Enqueues passes of every size that kernels are chosen by, where a text starts and where it ends.
    fn rehearse(&self, state: &mut State<B>) -> Result<(), Error> {
        let StateOptions { n_batch, n_outputs, n_sequences, .. } = state.options();
        let most = n_batch.min(state.most_positions());
        let (tokens, sequences) = (vec![0; most], vec![0; most]);
        let mut sizes: Vec<_> = (0..).map(|power| 1 << power).take_while(|n| *n < most).collect();
        sizes.push(most);
        for n in sizes {
            let outputs: Vec<_> = (n - n.min(n_outputs)..n).collect();
            for past in [0, state.most_positions() - n] {
                state.skip(&self.backend, 0, past)?;
                let (tokens, sequences) = (&tokens[..n], &sequences[..n]);
                self.forward(state, Batch { tokens, sequences, outputs: &outputs })?;
                if self.max_greatest() > 0 {
                    self.rank(state, outputs.len(), self.max_greatest());
                }
                state.truncate(0, 0);
            }
        }
        // A step of several sequences, all of which go on from one and copy its page.
        let n = most.min(n_outputs).min(n_sequences).min(state.kv.free_pages());
        let all: Vec<_> = (0..n).collect();
        if n > 1 {
            self.forward(state, Batch { tokens: &[0], sequences: &[0], outputs: &[0] })?;
            all[1..].iter().for_each(|&to| state.fork(0, to));
            self.forward(state, Batch { tokens: &tokens[..n], sequences: &all, outputs: &all })?;
            all.iter().for_each(|&sequence| state.truncate(sequence, 0));
        }
        Ok(())
    }

    /// Runs a ragged batch of tokens; the logits stay on the device until
    /// [`read_logits`](Self::read_logits) or [`read_greatest`](Self::read_greatest).
    ///
    /// # Errors
    /// [`Error::ContextFull`], or if the shared KV pages are used up. The state is as before.
    ///
    /// # Panics
    /// If the batch is larger than the state.
    pub fn forward(&self, state: &mut State<B>, batch: Batch<'_>) -> Result<(), Error> {
        let vocab_size = self.config.vocab_size;
        if let Some(token) = batch.tokens.iter().find(|&&t| t as usize >= vocab_size) {
            let expected = format!("0 to {}", vocab_size - 1);
            return Err(Error::Option { option: "token id", expected, got: token.to_string() });
        }
        forward(&self.backend, &self.config, &self.weights, state, batch)
    }

    /// Copies the logits of output `index` of the last batch to `logits`, `[vocab_size]`.
    ///
    /// # Errors
    /// If the device fails.
    pub async fn read_logits(
        &self,
        state: &State<B>,
        index: usize,
        logits: &mut [f32],
    ) -> Result<(), Error> {
        let offset = index * self.config.vocab_size;
        self.backend.read(&state.buffers.logits, offset, logits).await?;
        if let Some(cap) = self.config.final_soft_cap {
            logits.iter_mut().for_each(|l| *l = cap * (*l / cap).tanh());
        }
        Ok(())
    }

    /// Most logits of an output that [`read_greatest`](Self::read_greatest) finds; 0 where logits are capped, since
    /// the device ranks them before that and a cap may make equals of them.
    #[must_use]
    pub fn max_greatest(&self) -> usize {
        let vocab_size = self.config.vocab_size;
        let is_ranked = self.config.final_soft_cap.is_none() && vocab_size <= MAX_TOP_K_COLS;
        if is_ranked { MAX_TOP_K.min(vocab_size) } else { 0 }
    }

    /// Finds the `k` greatest logits of each of the first `n` outputs of the last batch on the device, and copies
    /// only these: `greatest` gets `n` times `k` tokens, each in descending order, of equals the lower token first.
    ///
    /// # Errors
    /// If the device fails.
    ///
    /// # Panics
    /// If `k` is 0 or more than [`max_greatest`](Self::max_greatest).
    pub async fn read_greatest(
        &self,
        state: &mut State<B>,
        n: usize,
        k: usize,
        greatest: &mut Vec<Ranked>,
    ) -> Result<(), Error> {
        assert!((1..=self.max_greatest()).contains(&k), "{k} logits of {}", self.max_greatest());
        self.rank(state, n, k);
        let values = &mut state.plan.greatest;
        values.resize(2 * k * n, 0.0);
        self.backend.read(&state.buffers.greatest, 0, values).await?;
        greatest.clear();
        for row in values.chunks_exact(2 * k) {
            let (values, tokens) = row.split_at(k);
            let ranked = |(&value, &token): (&f32, &f32)| Ranked { index: token as u32, value };
            greatest.extend(values.iter().zip(tokens).map(ranked));
        }
        Ok(())
    }

    /// Enqueues the search for the `k` greatest logits of the first `n` outputs.
    fn rank(&self, state: &mut State<B>, n: usize, k: usize) {
        let Buffers { logits, greatest, .. } = &mut state.buffers;
        self.backend.top_k(greatest, View::packed(logits, n, self.config.vocab_size), k);
    }
}

impl ModelSummary {
    fn of(file: &ModelFile, config: &Config) -> Self {
        let mut by_type: BTreeMap<String, u64> = BTreeMap::new();
        let (mut n_params, mut fingerprint) = (0, Fnv::default());
        for tensor in file.tensors() {
            *by_type.entry(tensor.dtype.to_string()).or_default() += tensor.data.len() as u64;
            n_params += tensor.n_elements() as u64;
            fingerprint.add(tensor.name.as_bytes());
            // The head of each tensor tells fine-tuned models apart without reading the file.
            fingerprint.add(&tensor.data[..tensor.data.len().min(64)]);
        }
        let weight_bytes = by_type.values().sum();
        let largest = by_type.into_iter().max_by_key(|&(_, bytes)| bytes);
        let named = file.metadata().str("general.name").ok().filter(|name| !name.is_empty());
        Self {
            name: named.unwrap_or(config.architecture.name).to_owned(),
            dtype: largest.map_or_else(String::new, |(dtype, _)| dtype),
            n_params,
            weight_bytes,
            fingerprint: fingerprint.0,
        }
    }
}

/// Fowler, Noll and Vo's hash, 1a: stable across builds, unlike the standard library's.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}
