//! A loaded model: configuration, weights, tokenizer, chat template.

use std::sync::OnceLock;

use stonechat_formats::ModelFile;
use stonechat_nn::sample::TokenTable;
use stonechat_nn::{
    Backend, LoadStats, MAX_TOP_K, MAX_TOP_K_COLS, TopKEntry, View, warmup_batch_sizes,
};
use stonechat_text::Tokenizer;
use web_time::Instant;

use crate::forward::forward;
use crate::source::Source;
use crate::state::{Buffers, StageState};
use crate::weights::{StageLayers, Weights};
use crate::{Batch, Config, Devices, Error, Placement, State, StateOptions, vocabulary};

/// Immutable language model on one or two devices: configuration, weights, tokenizer and chat template.
#[derive(Debug)]
pub struct Model<D: Devices> {
    devices: D,
    config: Config,
    /// Weights of the first pipeline stage; `None` if the model is on one device.
    first: Option<Weights<D::First>>,
    second: Weights<D::Second>,
    tokenizer: Tokenizer,
    template: Option<String>,
    summary: ModelSummary,
    /// Built for the first grammar.
    token_table: OnceLock<TokenTable>,
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

impl<D: Devices> Model<D> {
    /// Loads a GGUF file or a Hugging Face folder; `progress` gets the fraction done. Each device loads only the
    /// weights of its own layers.
    ///
    /// # Errors
    /// If the architecture is unknown, a tensor is missing or misshapen, the tokenizer cannot be
    /// read, a device is out of memory, or the first stage has more layers than the model.
    pub fn load(
        devices: D,
        file: &ModelFile,
        mut progress: impl FnMut(f32),
    ) -> Result<Self, Error> {
        let started = Instant::now();
        let config = Config::from_file(file)?;
        let tokenizer = vocabulary::tokenizer(file)?;
        let template = vocabulary::chat_template(file);
        let summary = ModelSummary::of(file, &config);
        let n_layers = config.n_layers;
        let (mut done, steps) = (0.0, (n_layers + 2) as f32);
        let mut step = || {
            done += 1.0;
            progress(done / steps);
        };
        let source = Source::new(file, &config);
        let (mut first, mut start) = (None, 0);
        if let Some((backend, n_first)) = devices.first() {
            if n_first > n_layers {
                let (expected, got) = (format!("0 to {n_layers}"), n_first.to_string());
                return Err(Error::Option { option: "layers of the first device", expected, got });
            }
            let stage = StageLayers { layers: 0..n_first, has_input: true, has_output: false };
            first = Some(Weights::load(backend, (file, &source), &config, stage, &mut step)?);
            start = n_first;
        }
        let stage =
            StageLayers { layers: start..n_layers, has_input: first.is_none(), has_output: true };
        let second = Weights::load(devices.second(), (file, &source), &config, stage, &mut step)?;
        source.check_read(&config)?;
        let token_table = OnceLock::new();
        let model =
            Self { devices, config, first, second, tokenizer, template, summary, token_table };
        tracing::info!(
            name = model.summary.name,
            architecture = model.config.architecture.name,
            dtype = model.summary.dtype,
            device = model.describe(),
            bytes = model.summary.weight_bytes,
            seconds = started.elapsed().as_secs_f64(),
            "language model loaded"
        );
        Ok(model)
    }

    /// Devices of the model.
    pub(crate) fn devices(&self) -> &D {
        &self.devices
    }

    /// Names of the kernels and devices in use, for logs and benchmarks.
    #[must_use]
    pub fn describe(&self) -> String {
        let second = self.devices.second().describe();
        match self.devices.first() {
            Some((first, _)) => format!("{} + {second}", first.describe()),
            None => second,
        }
    }

    /// Load statistics of the weights, summed over the devices.
    #[must_use]
    pub fn load_stats(&self) -> LoadStats {
        let second = self.devices.second().load_stats();
        self.devices.first().map_or(second, |(first, _)| first.load_stats() + second)
    }

    /// Layers, weight bytes and KV bytes of each device for a state of these sizes, in pipeline order.
    #[must_use]
    pub fn placements(&self, options: &StateOptions) -> Vec<Placement> {
        let first = self.devices.first().zip(self.first.as_ref());
        let first = first.map(|((backend, _), weights)| self.placement(backend, weights, options));
        let second = self.placement(self.devices.second(), &self.second, options);
        first.into_iter().chain([second]).collect()
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

    /// Sizes and constants of the model.
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

    /// Jinja source of the file's chat template.
    pub(crate) fn chat_template(&self) -> Option<&str> {
        self.template.as_deref()
    }

    /// Tokens of a raw prompt, with BOS if the vocabulary adds it; special tokens are parsed.
    #[must_use]
    pub fn tokenize_prompt(&self, text: &str) -> Vec<u32> {
        let mut tokens = self.tokenizer.tokenize(text, true, true);
        if self.tokenizer.adds_eos()
            && tokens.len() > 1
            && tokens.last().copied() == self.tokenizer.eos()
        {
            // EOS would end the text that the prompt starts.
            tokens.pop();
        }
        tokens
    }

    /// Tokens of a rendered chat template; a BOS that the template wrote is not added twice.
    pub(crate) fn tokenize_chat(&self, rendered: &str) -> Vec<u32> {
        let bos = self.tokenizer.bos().filter(|_| self.tokenizer.adds_bos());
        let name = bos.map(|bos| self.tokenizer.token_piece(bos, true)).unwrap_or_default();
        let name = std::str::from_utf8(name).unwrap_or_default();
        let text = match rendered.strip_prefix(name) {
            Some(rest) if !name.is_empty() => rest,
            _ => rendered,
        };
        self.tokenize_prompt(text)
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

    /// Token table of grammars, built once.
    pub(crate) fn token_table(&self) -> Result<&TokenTable, Error> {
        if let Some(table) = self.token_table.get() {
            return Ok(table);
        }
        let table = vocabulary::token_table(&self.tokenizer, self.config.vocab_size)?;
        Ok(self.token_table.get_or_init(|| table))
    }

    /// Allocates the buffers and KV pages for [`forward`](Self::forward), and warms up the devices.
    ///
    /// # Errors
    /// If a size is out of range or a device is out of memory.
    pub fn state(&self, options: StateOptions) -> Result<State<D>, Error> {
        let weights = (self.first.as_ref(), &self.second);
        let mut state = State::new(&self.devices, &self.config, weights, options)?;
        let first = self.devices.first().zip(self.first.as_ref());
        if let Some((((backend, _), weights), stage)) = first.zip(state.first.as_mut()) {
            backend.warm_up(|| self.warm_up(backend, weights, stage))?;
        }
        let second = self.devices.second();
        second.warm_up(|| self.warm_up(second, &self.second, &mut state.second))?;
        Ok(state)
    }

    /// Enqueues a pass of every batch size that selects kernels, at the start and at the end of the context.
    fn warm_up<B: Backend>(
        &self,
        backend: &B,
        weights: &Weights<B>,
        stage: &mut StageState<B>,
    ) -> Result<(), Error> {
        let StateOptions { n_batch, n_outputs, n_sequences, .. } = stage.options;
        let max_batch = n_batch.min(stage.max_positions());
        let (tokens, sequences) = (vec![0; max_batch], vec![0; max_batch]);
        let n_hidden = if weights.input.is_some() { 0 } else { max_batch * self.config.d_model };
        let hidden_states = vec![0.0; n_hidden];
        let run = |stage: &mut StageState<B>, batch: Batch<'_>| {
            if weights.input.is_none() {
                let n = batch.tokens.len() * self.config.d_model;
                backend.write(&mut stage.buffers.x, 0, &hidden_states[..n]);
            }
            forward(backend, &self.config, weights, stage, batch)
        };
        for n in warmup_batch_sizes(max_batch) {
            let outputs: Vec<_> = (n - n.min(n_outputs)..n).collect();
            for past in [0, stage.max_positions() - n] {
                stage.skip(backend, 0, past)?;
                let (tokens, sequences) = (&tokens[..n], &sequences[..n]);
                run(stage, Batch { tokens, sequences, outputs: &outputs })?;
                if weights.output.is_some() && self.max_top_k() > 0 {
                    self.enqueue_top_k(backend, stage, outputs.len(), self.max_top_k());
                }
                stage.truncate(0, 0);
            }
        }
        // A step of several sequences forked from one: each copies the shared page.
        let n = max_batch.min(n_outputs).min(n_sequences).min(stage.kv.free_pages());
        let all: Vec<_> = (0..n).collect();
        if n > 1 {
            run(stage, Batch { tokens: &[0], sequences: &[0], outputs: &[0] })?;
            all[1..].iter().for_each(|&to| stage.fork(0, to));
            run(stage, Batch { tokens: &tokens[..n], sequences: &all, outputs: &all })?;
            all.iter().for_each(|&sequence| stage.truncate(sequence, 0));
        }
        Ok(())
    }

    /// Runs a ragged batch of tokens; the logits stay on the device until [`read_logits`](Self::read_logits) or
    /// [`read_top_k`](Self::read_top_k). Awaits only the transfer of the residual stream between two devices.
    ///
    /// # Errors
    /// [`Error::UnknownToken`] if a token id is not in the vocabulary, [`Error::ContextFull`] if a sequence exceeds `n_ctx`. Also if
    /// the shared KV pages are used up or the first device fails. The state is as before.
    ///
    /// # Panics
    /// If the batch exceeds `n_batch` or `n_outputs` of the state.
    pub async fn forward(&self, state: &mut State<D>, batch: Batch<'_>) -> Result<(), Error> {
        let vocab_size = self.config.vocab_size;
        if let Some(&token) = batch.tokens.iter().find(|&&t| t as usize >= vocab_size) {
            return Err(Error::UnknownToken { token, vocab_size });
        }
        self.forward_first(state, batch).await?;
        // Cannot fail after the first stage, which has reserved the same positions in the same pages.
        forward(self.devices.second(), &self.config, &self.second, &mut state.second, batch)
    }

    /// Runs the first pipeline stage, if there is one, and copies the residual stream to the second device.
    async fn forward_first(&self, state: &mut State<D>, batch: Batch<'_>) -> Result<(), Error> {
        let State { first, second, hidden_states, .. } = state;
        let (Some((backend, _)), Some(weights), Some(stage)) =
            (self.devices.first(), &self.first, first)
        else {
            return Ok(());
        };
        // A pass that failed or was dropped between the stages has left positions here that the second stage lacks.
        for (index, sequence) in second.sequences.iter().enumerate() {
            stage.truncate(index, sequence.len());
        }
        forward(backend, &self.config, weights, stage, batch)?;
        let hidden_states = &mut hidden_states[..batch.tokens.len() * self.config.d_model];
        backend.read(&stage.buffers.x, 0, hidden_states).await?;
        self.devices.second().write(&mut second.buffers.x, 0, hidden_states);
        Ok(())
    }

    /// Reads the logits of output `index` of the last batch, `[V]`, and applies the soft cap.
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
        self.devices.second().read(&state.second.buffers.logits, offset, logits).await?;
        if let Some(cap) = self.config.final_soft_cap {
            logits.iter_mut().for_each(|l| *l = cap * (*l / cap).tanh());
        }
        Ok(())
    }

    /// Maximum `k` of [`read_top_k`](Self::read_top_k). 0 if logits have a soft cap: the device ranks them before the
    /// cap, which may round different logits to equal ones.
    #[must_use]
    pub fn max_top_k(&self) -> usize {
        let vocab_size = self.config.vocab_size;
        let has_top_k = self.config.final_soft_cap.is_none() && vocab_size <= MAX_TOP_K_COLS;
        if has_top_k { MAX_TOP_K.min(vocab_size) } else { 0 }
    }

    /// Reads the top-k logits of the first `n` outputs of the last batch, found on the device: `n * k` entries, in
    /// descending order for each output; of equal logits the lower token id comes first.
    ///
    /// # Errors
    /// If the device fails.
    ///
    /// # Panics
    /// If `k` is 0 or more than [`max_top_k`](Self::max_top_k).
    pub async fn read_top_k(
        &self,
        state: &mut State<D>,
        n: usize,
        k: usize,
        top_k: &mut Vec<TopKEntry>,
    ) -> Result<(), Error> {
        assert!((1..=self.max_top_k()).contains(&k), "{k} logits of {}", self.max_top_k());
        let (backend, stage) = (self.devices.second(), &mut state.second);
        self.enqueue_top_k(backend, stage, n, k);
        let values = &mut stage.top_k;
        values.resize(2 * k * n, 0.0);
        backend.read(&stage.buffers.top_k, 0, values).await?;
        top_k.clear();
        for row in values.chunks_exact(2 * k) {
            let (values, tokens) = row.split_at(k);
            let entry = |(&value, &token): (&f32, &f32)| TopKEntry { index: token as u32, value };
            top_k.extend(values.iter().zip(tokens).map(entry));
        }
        Ok(())
    }

    /// Enqueues the top-k of the first `n` outputs into `Buffers::top_k`.
    fn enqueue_top_k<B: Backend>(
        &self,
        backend: &B,
        stage: &mut StageState<B>,
        n: usize,
        k: usize,
    ) {
        let Buffers { logits, top_k, .. } = &mut stage.buffers;
        backend.top_k(top_k, View::packed(logits, n, self.config.vocab_size), k);
    }
}

impl ModelSummary {
    fn of(file: &ModelFile, config: &Config) -> Self {
        let (mut n_params, mut fingerprint) = (0, Fnv::default());
        for tensor in file.tensors() {
            n_params += tensor.n_elements() as u64;
            fingerprint.add(tensor.name.as_bytes());
            // The first bytes of each tensor tell fine-tuned models apart without reading the file.
            fingerprint.add(&tensor.data[..tensor.data.len().min(64)]);
        }
        let named = file.metadata().str("general.name").ok().filter(|name| !name.is_empty());
        Self {
            name: named.unwrap_or(config.architecture.name).to_owned(),
            dtype: file.dtypes().first().map_or_else(String::new, ToString::to_string),
            n_params,
            weight_bytes: file.weight_bytes(),
            fingerprint: fingerprint.0,
        }
    }
}

/// FNV-1a, 64 bits: stable across builds, unlike the standard library's hash.
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
                    let (Some(weights), Some(stage)) = (&model.first, &mut state.first) else {
                        panic!("a model on two devices");
                    };
                    forward(&cpu, &model.config, weights, stage, batch).unwrap();
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
