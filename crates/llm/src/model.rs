//! A loaded model: configuration, weights, tokenizer, chat template.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use stonechat_formats::ModelFile;
use stonechat_nn::sample::TokenTable;
use stonechat_nn::{
    Backend, LoadStats, MAX_TOP_K, MAX_TOP_K_COLS, TopKEntry, View, warmup_batch_sizes,
};
use stonechat_text::{ChatTemplate, Tokenizer};

use crate::forward::forward;
use crate::source::Source;
use crate::state::{Buffers, Part};
use crate::weights::{Stretch, Weights};
use crate::{Batch, Config, Devices, Error, Placement, State, StateOptions, vocabulary};

/// What stands before the next question in a text of the chat template `plain`.
pub const PLAIN_STOP: &str = "\nQuestion:";

/// An immutable language model on a device, or on two.
#[derive(Debug)]
pub struct Model<D: Devices> {
    devices: D,
    config: Config,
    /// The first layers, where they have a device of their own.
    lower: Option<Weights<D::Lower>>,
    upper: Weights<D::Upper>,
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

impl<D: Devices> Model<D> {
    /// Loads a GGUF file or a Hugging Face folder; `progress` is told the fraction done. No device is given weights
    /// of another's layers.
    ///
    /// # Errors
    /// If the architecture does not run here, a tensor is missing or misshapen, the tokenizer
    /// cannot be read, a device is full, or the lower one is to have more layers than there are.
    pub fn load(
        devices: D,
        file: &ModelFile,
        mut progress: impl FnMut(f32),
    ) -> Result<Self, Error> {
        let config = Config::from_file(file)?;
        let tokenizer = vocabulary::tokenizer(file)?;
        let template = vocabulary::template_source(file);
        let summary = ModelSummary::of(file, &config);
        let n_layers = config.n_layers;
        let (mut done, steps) = (0.0, (n_layers + 2) as f32);
        let mut step = || {
            done += 1.0;
            progress(done / steps);
        };
        let source = Source::new(file, &config);
        let (mut lower, mut first) = (None, 0);
        if let Some((backend, n_lower)) = devices.lower() {
            if n_lower > n_layers {
                let (expected, got) = (format!("0 to {n_layers}"), n_lower.to_string());
                return Err(Error::Option { option: "layers of the lower device", expected, got });
            }
            let stretch = Stretch { layers: 0..n_lower, has_input: true, has_output: false };
            lower = Some(Weights::load(backend, (file, &source), &config, stretch, &mut step)?);
            first = n_lower;
        }
        let stretch =
            Stretch { layers: first..n_layers, has_input: lower.is_none(), has_output: true };
        let upper = Weights::load(devices.upper(), (file, &source), &config, stretch, &mut step)?;
        source.check_read(&config)?;
        let token_table = OnceLock::new();
        Ok(Self { devices, config, lower, upper, tokenizer, template, summary, token_table })
    }

    /// The devices that the model is on.
    pub(crate) fn devices(&self) -> &D {
        &self.devices
    }

    /// Names of the kernels and devices in use, for logs and benchmarks.
    #[must_use]
    pub fn describe(&self) -> String {
        let upper = self.devices.upper().describe();
        match self.devices.lower() {
            Some((lower, _)) => format!("{} + {upper}", lower.describe()),
            None => upper,
        }
    }

    /// What weights have cost the devices so far.
    #[must_use]
    pub fn load_stats(&self) -> LoadStats {
        let upper = self.devices.upper().load_stats();
        self.devices.lower().map_or(upper, |(lower, _)| lower.load_stats() + upper)
    }

    /// What each device has, with a state of these sizes; the one that a pass begins on is the first.
    #[must_use]
    pub fn placements(&self, options: &StateOptions) -> Vec<Placement> {
        let lower = self.devices.lower().zip(self.lower.as_ref());
        let lower = lower.map(|((backend, _), weights)| self.placement(backend, weights, options));
        let upper = self.placement(self.devices.upper(), &self.upper, options);
        lower.into_iter().chain([upper]).collect()
    }

    fn placement<B: Backend>(
        &self,
        backend: &B,
        weights: &Weights<B>,
        options: &StateOptions,
    ) -> Placement {
        Placement {
            device: backend.name(),
            layers: weights.layers.clone(),
            has_input: weights.input.is_some(),
            has_output: weights.output.is_some(),
            weight_bytes: weights.bytes,
            kv_bytes: options.kv_shape(&self.config, weights.layers.len()).bytes(),
        }
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
    /// If a size is impossible or a device is full.
    pub fn state(&self, options: StateOptions) -> Result<State<D>, Error> {
        let weights = (self.lower.as_ref(), &self.upper);
        let mut state = State::new(&self.devices, &self.config, weights, options)?;
        let lower = self.devices.lower().zip(self.lower.as_ref());
        if let Some((((backend, _), weights), part)) = lower.zip(state.lower.as_mut()) {
            backend.warm_up(|| self.warm_up(backend, weights, part))?;
        }
        let upper = self.devices.upper();
        upper.warm_up(|| self.warm_up(upper, &self.upper, &mut state.upper))?;
        Ok(state)
    }

    /// Enqueues passes of every size that kernels are chosen by, where a text starts and where it ends.
    fn warm_up<B: Backend>(
        &self,
        backend: &B,
        weights: &Weights<B>,
        part: &mut Part<B>,
    ) -> Result<(), Error> {
        let StateOptions { n_batch, n_outputs, n_sequences, .. } = part.options;
        let most = n_batch.min(part.most_positions());
        let (tokens, sequences) = (vec![0; most], vec![0; most]);
        let between =
            vec![0.0; if weights.input.is_some() { 0 } else { most * self.config.d_model }];
        let run = |part: &mut Part<B>, batch: Batch<'_>| {
            if weights.input.is_none() {
                let n = batch.tokens.len() * self.config.d_model;
                backend.write(&mut part.buffers.x, 0, &between[..n]);
            }
            forward(backend, &self.config, weights, part, batch)
        };
        for n in warmup_batch_sizes(most) {
            let outputs: Vec<_> = (n - n.min(n_outputs)..n).collect();
            for past in [0, part.most_positions() - n] {
                part.skip(backend, 0, past)?;
                let (tokens, sequences) = (&tokens[..n], &sequences[..n]);
                run(part, Batch { tokens, sequences, outputs: &outputs })?;
                if weights.output.is_some() && self.max_greatest() > 0 {
                    self.rank(backend, part, outputs.len(), self.max_greatest());
                }
                part.truncate(0, 0);
            }
        }
        // A step of several sequences, all of which go on from one and copy its page.
        let n = most.min(n_outputs).min(n_sequences).min(part.kv.free_pages());
        let all: Vec<_> = (0..n).collect();
        if n > 1 {
            run(part, Batch { tokens: &[0], sequences: &[0], outputs: &[0] })?;
            all[1..].iter().for_each(|&to| part.fork(0, to));
            run(part, Batch { tokens: &tokens[..n], sequences: &all, outputs: &all })?;
            all.iter().for_each(|&sequence| part.truncate(sequence, 0));
        }
        Ok(())
    }

    /// Runs a ragged batch of tokens; the logits stay on the device until [`read_logits`](Self::read_logits) or
    /// [`read_top_k`](Self::read_top_k). Waits only where the residual stream goes from device to device.
    ///
    /// # Errors
    /// [`Error::ContextFull`], if the shared KV pages are used up, or the lower device fails. The state is as before.
    ///
    /// # Panics
    /// If the batch is larger than the state.
    pub async fn forward(&self, state: &mut State<D>, batch: Batch<'_>) -> Result<(), Error> {
        let vocab_size = self.config.vocab_size;
        if let Some(token) = batch.tokens.iter().find(|&&t| t as usize >= vocab_size) {
            let expected = format!("0 to {}", vocab_size - 1);
            return Err(Error::Option { option: "token id", expected, got: token.to_string() });
        }
        self.forward_lower(state, batch).await?;
        // Cannot fail after a lower part, which holds the same positions in the same pages.
        forward(self.devices.upper(), &self.config, &self.upper, &mut state.upper, batch)
    }

    /// The layers that have a device of their own; what comes out of them is then on the other.
    async fn forward_lower(&self, state: &mut State<D>, batch: Batch<'_>) -> Result<(), Error> {
        let State { lower, upper, between, .. } = state;
        let (Some((backend, _)), Some(weights), Some(part)) =
            (self.devices.lower(), &self.lower, lower)
        else {
            return Ok(());
        };
        // A pass that failed or was dropped between the devices has left positions here that the other lacks.
        for (sequence, held) in upper.sequences.iter().enumerate() {
            part.truncate(sequence, held.len());
        }
        forward(backend, &self.config, weights, part, batch)?;
        let between = &mut between[..batch.tokens.len() * self.config.d_model];
        backend.read(&part.buffers.x, 0, between).await?;
        self.devices.upper().write(&mut upper.buffers.x, 0, between);
        Ok(())
    }

    /// Copies the logits of output `index` of the last batch to `logits`, `[vocab_size]`.
    ///
    /// # Errors
    /// If the device fails.
    pub async fn read_logits(
        &self,
        state: &State<D>,
        index: usize,
        logits: &mut [f32],
    ) -> Result<(), Error> {
        let offset = index * self.config.vocab_size;
        self.devices.upper().read(&state.upper.buffers.logits, offset, logits).await?;
        if let Some(cap) = self.config.final_soft_cap {
            logits.iter_mut().for_each(|l| *l = cap * (*l / cap).tanh());
        }
        Ok(())
    }

    /// Most logits of an output that [`read_top_k`](Self::read_top_k) finds; 0 where logits are capped, since
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
    pub async fn read_top_k(
        &self,
        state: &mut State<D>,
        n: usize,
        k: usize,
        greatest: &mut Vec<TopKEntry>,
    ) -> Result<(), Error> {
        assert!((1..=self.max_greatest()).contains(&k), "{k} logits of {}", self.max_greatest());
        let (backend, part) = (self.devices.upper(), &mut state.upper);
        self.rank(backend, part, n, k);
        let values = &mut part.plan.greatest;
        values.resize(2 * k * n, 0.0);
        backend.read(&part.buffers.greatest, 0, values).await?;
        greatest.clear();
        for row in values.chunks_exact(2 * k) {
            let (values, tokens) = row.split_at(k);
            let ranked = |(&value, &token): (&f32, &f32)| TopKEntry { index: token as u32, value };
            greatest.extend(values.iter().zip(tokens).map(ranked));
        }
        Ok(())
    }

    /// Enqueues the search for the `k` greatest logits of the first `n` outputs.
    fn rank<B: Backend>(&self, backend: &B, part: &mut Part<B>, n: usize, k: usize) {
        let Buffers { logits, greatest, .. } = &mut part.buffers;
        backend.top_k(greatest, View::packed(logits, n, self.config.vocab_size), k);
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use pollster::block_on;
    use stonechat_nn::Cpu;

    use super::*;
    use crate::Split;

    #[test]
    fn a_pass_that_ended_between_the_devices_leaves_nothing() {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test-data/golden/llm/llama.gguf");
        let cpu = Cpu::new(1).unwrap();
        let devices = Split::new(cpu.clone(), cpu.clone(), 1);
        let model = Model::load(devices, &ModelFile::open(path).unwrap(), |_| {}).unwrap();
        let run = |is_broken: bool| {
            let mut state = model.state(StateOptions::new(128)).unwrap();
            let mut logits = vec![0.0; model.config.vocab_size];
            for tokens in [&[1, 2, 3][..], &[4, 5]] {
                if is_broken {
                    let batch = Batch { tokens: &[9; 70], sequences: &[0; 70], outputs: &[] };
                    let (Some(weights), Some(part)) = (&model.lower, &mut state.lower) else {
                        panic!("a model on two devices");
                    };
                    forward(&cpu, &model.config, weights, part, batch).unwrap();
                }
                let sequences = vec![0; tokens.len()];
                let batch = Batch { tokens, sequences: &sequences, outputs: &[tokens.len() - 1] };
                block_on(model.forward(&mut state, batch)).unwrap();
            }
            block_on(model.read_logits(&state, 0, &mut logits)).unwrap();
            (state.len(0), logits)
        };
        assert_eq!(run(true), run(false));
    }
}
