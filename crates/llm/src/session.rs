//! Session: sequences of one caller with their cached tokens, and the output of the last forward pass.
//!
//! A [`Slot`] is a sequence of the [`State`]: 0 is the text, 1 the negative prompt of guidance; beam search uses all as
//! beams. `Session::tokens` lists the tokens whose keys and values the slot's pages hold, so a new prompt runs only the
//! tokens after the common prefix:
//!
//! ```text
//! cached tokens   A B C D E F
//! new prompt      A B C D X Y Z      truncate the slot to 4 tokens, reuse their pages
//! batches                 X Y Z      at most n_batch tokens each; then one token a step
//! ```
//!
//! A batch of a session continues one slot, but for beam search: one token of each beam, in one batch.

use std::ops::ControlFlow;

use stonechat_nn::{KvDType, MAX_TOP_K, TopKEntry};

use crate::{Batch, Config, Devices, Error, Model, State, StateOptions};

/// Limit of the default context size.
const DEFAULT_MAX_CTX: usize = 16_384;

/// Sizes of a [`Session`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionOptions {
    /// Context size in tokens; `None`: that of training, at most 16,384.
    pub n_ctx: Option<usize>,
    /// Maximum tokens of a forward pass.
    pub n_batch: usize,
    /// Element type of cached keys and values.
    pub kv_dtype: KvDType,
    /// Number of sequences: 2 for guidance, twice the beam width for beam search.
    pub n_sequences: usize,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self { n_ctx: None, n_batch: 512, kv_dtype: KvDType::F16, n_sequences: 1 }
    }
}

impl SessionOptions {
    /// Sizes of the session's state.
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

/// A text with its KV cache and the logits of its next token.
#[derive(Debug)]
pub struct Session<'m, D: Devices> {
    pub(crate) model: &'m Model<D>,
    pub(crate) state: State<D>,
    /// Cached tokens of each slot.
    pub(crate) tokens: Vec<Vec<u32>>,
    /// `[V]`: output of the last pass with [`RequiredOutput::Logits`].
    pub(crate) logits: Vec<f32>,
    /// Output of the last pass with [`RequiredOutput::TopK`].
    pub(crate) top_k: Vec<TopKEntry>,
    /// [`Batch::sequences`] of a pass.
    sequences: Vec<usize>,
}

/// Sequence of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot(usize);

impl Slot {
    /// The session's text.
    pub(crate) const TEXT: Self = Self(0);
    /// The negative prompt of classifier-free guidance.
    pub(crate) const NEGATIVE_PROMPT: Self = Self(1);

    pub(crate) fn new(index: usize) -> Self {
        Self(index)
    }

    /// Index into [`Session::tokens`], and of the sequence in the [`State`].
    pub(crate) fn index(self) -> usize {
        self.0
    }
}

/// Output to read from the device after a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequiredOutput {
    /// All logits.
    Logits,
    /// The top-k logits.
    TopK(usize),
}

/// The caller cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cancelled;

impl<'m, D: Devices> Session<'m, D> {
    /// An empty session.
    ///
    /// # Errors
    /// If a size is out of range or the device is out of memory.
    pub fn new(model: &'m Model<D>, options: SessionOptions) -> Result<Self, Error> {
        let state = model.state(options.state(model.config()))?;
        let n_ctx = state.options().n_ctx;
        Ok(Self {
            model,
            tokens: vec![Vec::with_capacity(n_ctx); options.n_sequences],
            logits: vec![0.0; model.config().vocab_size],
            top_k: Vec::with_capacity(MAX_TOP_K),
            sequences: Vec::with_capacity(state.options().n_batch),
            state,
        })
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &'m Model<D> {
        self.model
    }

    /// Cached tokens of the text.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.tokens[Slot::TEXT.index()]
    }

    /// Context size in tokens.
    #[must_use]
    pub fn n_ctx(&self) -> usize {
        self.state.options().n_ctx
    }

    /// Empties every slot.
    pub fn clear(&mut self) {
        for index in 0..self.tokens.len() {
            self.truncate(Slot(index), 0);
        }
    }

    pub(crate) fn truncate(&mut self, slot: Slot, len: usize) {
        self.state.truncate(slot.index(), len);
        self.tokens[slot.index()].truncate(len);
    }

    /// Makes `tokens` the content of `slot` and reads `required` of their last token. Runs only the tokens after the
    /// cached common prefix, in batches of `n_batch`; returns the length of that prefix.
    ///
    /// # Errors
    /// If the tokens do not fit the context.
    pub(crate) async fn feed(
        &mut self,
        slot: Slot,
        tokens: &[u32],
        required: RequiredOutput,
        on_progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Result<usize, Cancelled>, Error> {
        if tokens.len() > self.n_ctx() {
            return Err(Error::ContextFull { tokens: tokens.len(), n_ctx: self.n_ctx() });
        }
        let old = &self.tokens[slot.index()];
        let common = old.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        // The last token is always run, since the cache has no logits.
        let cached = common.min(tokens.len().saturating_sub(1));
        let mut done = cached;
        for chunk in tokens[cached..].chunks(self.state.options().n_batch) {
            if on_progress(done, tokens.len()).is_break() {
                return Ok(Err(Cancelled));
            }
            if done == cached {
                // Only now: a request that is cancelled before it begins leaves the cache of the others.
                self.truncate(slot, cached);
            }
            let is_last = done + chunk.len() == tokens.len();
            self.pass(slot, chunk, is_last).await?;
            done += chunk.len();
        }
        self.read_output(required).await?;
        Ok(Ok(cached))
    }

    /// Appends a token to `slot` and reads `required` of it.
    ///
    /// # Errors
    /// If the context is full.
    pub(crate) async fn step(
        &mut self,
        slot: Slot,
        token: u32,
        required: RequiredOutput,
    ) -> Result<(), Error> {
        self.pass(slot, &[token], true).await?;
        self.read_output(required).await
    }

    /// Runs `tokens` as the continuation of `slot`.
    async fn pass(&mut self, slot: Slot, tokens: &[u32], with_logits: bool) -> Result<(), Error> {
        self.sequences.clear();
        self.sequences.resize(tokens.len(), slot.index());
        let last = [tokens.len() - 1];
        let outputs = if with_logits { &last[..] } else { &[] };
        let batch = Batch { tokens, sequences: &self.sequences, outputs };
        self.model.forward(&mut self.state, batch).await?;
        self.tokens[slot.index()].extend_from_slice(tokens);
        Ok(())
    }

    async fn read_output(&mut self, required: RequiredOutput) -> Result<(), Error> {
        match required {
            RequiredOutput::Logits => self.read(0).await,
            RequiredOutput::TopK(k) => {
                self.model.read_top_k(&mut self.state, 1, k, &mut self.top_k).await
            }
        }
    }

    /// Reads the logits of output `index` of the last pass.
    pub(crate) async fn read(&mut self, index: usize) -> Result<(), Error> {
        self.model.read_logits(&self.state, index, &mut self.logits).await
    }
}
