//! One conversation with a model: what the KV holds, and the logits after it.

use std::ops::ControlFlow;

use stonechat_nn::{KvDType, MAX_TOP_K, TopKEntry};

use crate::{Batch, Config, Devices, Error, Model, State, StateOptions};

/// The sequence of a session's text; others are beams or guidance.
pub(crate) const MAIN: usize = 0;
/// Largest context that is taken without being asked for.
const DEFAULT_MAX_CTX: usize = 16_384;

/// Sizes of a [`Session`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionOptions {
    /// Tokens that the context holds; none takes that of training, at most 16,384.
    pub n_ctx: Option<usize>,
    /// Tokens of one forward pass.
    pub n_batch: usize,
    /// Element type of cached keys and values.
    pub kv_dtype: KvDType,
    /// Texts that are held at once: 2 for guidance, twice the width for beams.
    pub n_sequences: usize,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self { n_ctx: None, n_batch: 512, kv_dtype: KvDType::F16, n_sequences: 1 }
    }
}

impl SessionOptions {
    /// The sizes of a session's state.
    #[must_use]
    pub fn state(&self, config: &Config) -> StateOptions {
        let n_ctx = self.n_ctx.unwrap_or(config.n_ctx_train.min(DEFAULT_MAX_CTX));
        StateOptions {
            n_ctx,
            n_sequences: self.n_sequences,
            n_pages: None,
            n_batch: self.n_batch.min(n_ctx),
            n_outputs: self.n_sequences,
            kv_dtype: self.kv_dtype,
        }
    }
}

/// A text that grows: its tokens, their keys and values, and the logits of what comes next.
#[derive(Debug)]
pub struct Session<'m, D: Devices> {
    pub(crate) model: &'m Model<D>,
    pub(crate) state: State<D>,
    /// The tokens of each sequence whose keys and values are stored.
    pub(crate) tokens: Vec<Vec<u32>>,
    /// `[V]`, after the last pass of which all were wanted.
    pub(crate) logits: Vec<f32>,
    /// After the last pass of which only these were wanted.
    pub(crate) greatest: Vec<TopKEntry>,
    sequences: Vec<usize>,
}

/// What is read after a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// All logits.
    Logits,
    /// The greatest, so many.
    Greatest(usize),
}

/// The caller asked to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cancelled;

impl<'m, D: Devices> Session<'m, D> {
    /// An empty session.
    ///
    /// # Errors
    /// If a size is impossible or the device is full.
    pub fn new(model: &'m Model<D>, options: SessionOptions) -> Result<Self, Error> {
        let state = model.state(options.state(model.config()))?;
        let n_ctx = state.options().n_ctx;
        Ok(Self {
            model,
            tokens: vec![Vec::with_capacity(n_ctx); options.n_sequences],
            logits: vec![0.0; model.config().vocab_size],
            greatest: Vec::with_capacity(MAX_TOP_K),
            sequences: Vec::with_capacity(state.options().n_batch),
            state,
        })
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &'m Model<D> {
        self.model
    }

    /// The tokens whose keys and values are stored.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.tokens[MAIN]
    }

    /// Tokens that the context holds.
    #[must_use]
    pub fn n_ctx(&self) -> usize {
        self.state.options().n_ctx
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        for sequence in 0..self.tokens.len() {
            self.truncate(sequence, 0);
        }
    }

    pub(crate) fn truncate(&mut self, sequence: usize, len: usize) {
        self.state.truncate(sequence, len);
        self.tokens[sequence].truncate(len);
    }

    /// Makes `sequence` hold exactly `tokens`, with what is wanted after them read; keeps what it
    /// already holds of them and returns how many those are.
    ///
    /// # Errors
    /// If the tokens do not fit the context.
    pub(crate) async fn feed(
        &mut self,
        sequence: usize,
        tokens: &[u32],
        wanted: Wanted,
        on_progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Result<usize, Cancelled>, Error> {
        if tokens.len() > self.n_ctx() {
            return Err(Error::ContextFull { tokens: tokens.len(), n_ctx: self.n_ctx() });
        }
        let held = &self.tokens[sequence];
        let common = held.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        // The last token is always run: its logits are wanted.
        let kept = common.min(tokens.len().saturating_sub(1));
        self.truncate(sequence, kept);
        let mut done = kept;
        for chunk in tokens[kept..].chunks(self.state.options().n_batch) {
            if on_progress(done, tokens.len()).is_break() {
                return Ok(Err(Cancelled));
            }
            let is_last = done + chunk.len() == tokens.len();
            self.pass(sequence, chunk, is_last).await?;
            done += chunk.len();
        }
        self.read_wanted(wanted).await?;
        Ok(Ok(kept))
    }

    /// Appends a token to `sequence` and reads what is wanted after it.
    ///
    /// # Errors
    /// If the context is full.
    pub(crate) async fn step(
        &mut self,
        sequence: usize,
        token: u32,
        wanted: Wanted,
    ) -> Result<(), Error> {
        self.pass(sequence, &[token], true).await?;
        self.read_wanted(wanted).await
    }

    async fn pass(
        &mut self,
        sequence: usize,
        tokens: &[u32],
        with_logits: bool,
    ) -> Result<(), Error> {
        self.sequences.clear();
        self.sequences.resize(tokens.len(), sequence);
        let last = [tokens.len() - 1];
        let outputs = if with_logits { &last[..] } else { &[] };
        let batch = Batch { tokens, sequences: &self.sequences, outputs };
        self.model.forward(&mut self.state, batch).await?;
        self.tokens[sequence].extend_from_slice(tokens);
        Ok(())
    }

    async fn read_wanted(&mut self, wanted: Wanted) -> Result<(), Error> {
        match wanted {
            Wanted::Logits => self.read(0).await,
            Wanted::Greatest(k) => {
                self.model.read_top_k(&mut self.state, 1, k, &mut self.greatest).await
            }
        }
    }

    /// Reads the logits of output `index` of the last pass.
    pub(crate) async fn read(&mut self, index: usize) -> Result<(), Error> {
        self.model.read_logits(&self.state, index, &mut self.logits).await
    }
}
