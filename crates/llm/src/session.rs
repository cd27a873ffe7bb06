//! Session: the sequences of one caller with their cached tokens.
//!
//! Slot 0 is the text, 1 the negative prompt of guidance; beam search uses all as beams. `Session::tokens` lists the tokens
//! whose keys and values the slot's pages hold, so a new prompt runs only the tokens after the common prefix:
//!
//! ```text
//! cached tokens   A B C D E F
//! new prompt      A B C D X Y Z      truncate the slot to 4 tokens, reuse their pages
//! steps                   X Y Z      at most n_batch tokens each; then one token per step
//! ```

pub(crate) mod beam;
pub(crate) mod generate;

use std::path::Path;

use stonechat_nn::{KvDType, Slot};

use crate::cache::prefix_cache::common_prefix;
use crate::cache::prompt_cache::{self, Restored, SaltedText};
use crate::drafts::draft::DraftText;
use crate::drafts::drafter::Drafter;
use crate::drafts::gate::{DraftGate, StepCost};
use crate::text::generation::{Accepted, GenerationScratch};
use crate::{Config, Error, Generation, Model, State, StateOptions};

/// Limit of the default context size.
const DEFAULT_MAX_CTX: usize = 16_384;

/// The session's text.
pub(crate) const TEXT: Slot = Slot::new(0);
/// The negative prompt of classifier-free guidance.
pub(crate) const NEGATIVE_PROMPT: Slot = Slot::new(1);

/// Sizes of a [`Session`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionOptions {
    /// Context size in tokens; `None`: that of training, at most 16,384.
    pub n_ctx: Option<usize>,
    /// Maximum tokens per step.
    pub n_batch: usize,
    /// Element type of cached keys and values.
    pub kv_dtype: KvDType,
    /// Number of sequences: 2 for guidance, twice the beam width for beam search.
    pub n_sequences: usize,
    /// Maximum tokens of a draft of speculative decoding.
    pub n_draft: usize,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self { n_ctx: None, n_batch: 512, kv_dtype: KvDType::F16, n_sequences: 1, n_draft: 0 }
    }
}

impl SessionOptions {
    /// Sizes of the session's state.
    #[must_use]
    pub fn state(&self, config: &Config) -> StateOptions {
        let n_ctx = self.n_ctx.unwrap_or(config.n_ctx_train.min(DEFAULT_MAX_CTX));
        // A step runs a draft, or one token of each sequence.
        let n_outputs = self.n_sequences.max(1 + self.n_draft);
        StateOptions {
            n_ctx,
            n_sequences: self.n_sequences,
            n_pages: None,
            n_batch: self.n_batch.min(n_ctx).max(n_outputs),
            n_outputs,
            n_hidden: 0,
            kv_dtype: self.kv_dtype,
        }
    }
}

/// A text with its KV cache.
#[derive(Debug)]
pub struct Session {
    pub(crate) model: Model,
    pub(crate) state: State,
    /// Cached tokens of each slot.
    pub(crate) tokens: Vec<Vec<u32>>,
    pub(crate) scratch: GenerationScratch,
    pub(crate) accepted: Accepted,
    drafter: Option<Drafter>,
    pub(crate) gate: DraftGate,
    pub(crate) cost: StepCost,
}

impl Session {
    /// An empty session.
    ///
    /// # Errors
    /// If a size is out of range or the device is out of memory.
    pub fn new(model: &Model, options: SessionOptions) -> Result<Self, Error> {
        let state = model.state(options.state(model.config()))?;
        let n_ctx = state.options().n_ctx;
        Ok(Self {
            model: model.clone(),
            tokens: vec![Vec::with_capacity(n_ctx); options.n_sequences],
            scratch: GenerationScratch::new(model),
            accepted: Accepted::default(),
            drafter: None,
            gate: DraftGate::default(),
            cost: StepCost::default(),
            state,
        })
    }

    /// Sets the source of drafts for speculative decoding, which changes no text. Drafts have at most
    /// [`n_draft`](SessionOptions::n_draft) tokens.
    pub fn set_drafter(&mut self, drafter: Option<Drafter>) {
        self.drafter = drafter;
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Cached tokens of the text.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.tokens[TEXT.index()]
    }

    /// Sizes of the state.
    #[must_use]
    pub fn options(&self) -> StateOptions {
        self.state.options()
    }

    /// Context size in tokens.
    #[must_use]
    pub fn n_ctx(&self) -> usize {
        self.state.options().n_ctx
    }

    /// Whether steps may be enqueued before the outputs of the step before are read.
    pub(crate) fn async_scheduling(&self) -> bool {
        self.state.async_scheduling() && self.drafter.is_none()
    }

    /// Empties every slot.
    pub fn clear(&mut self) {
        for index in 0..self.tokens.len() {
            self.truncate(Slot::new(index), 0);
        }
    }

    /// Saves the session's tokens and their KV pages; replaces a file of that name once the new one
    /// is complete.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub async fn save(&mut self, path: &Path) -> Result<(), Error> {
        let Self { model, state, tokens, .. } = self;
        let text = SaltedText { tokens: &tokens[TEXT.index()], salt: 0 };
        prompt_cache::save(model, state, TEXT, text, path).await.map(|_| ())
    }

    /// Replaces the content of the session by a saved text; returns its number of tokens.
    ///
    /// # Errors
    /// If the file cannot be read, is damaged, was saved with another model or KV type, or is longer
    /// than the context. The session is empty then.
    pub fn restore(&mut self, path: &Path) -> Result<usize, Error> {
        self.clear();
        let Restored { tokens, .. } =
            prompt_cache::restore(&self.model, &mut self.state, TEXT, path)?;
        let n = tokens.len();
        self.tokens[TEXT.index()] = tokens;
        Ok(n)
    }

    /// Truncates a slot, if the session has it, to `len` positions. Returns the length that it reached, as
    /// [`State::truncate`] does.
    pub(crate) fn truncate(&mut self, slot: Slot, len: usize) -> usize {
        let Some(tokens) = self.tokens.get_mut(slot.index()) else { return 0 };
        let len = self.state.truncate(slot, len);
        tokens.truncate(len);
        len
    }

    /// Number of cached tokens of `slot` that `tokens` start with. The last token is never one of them: it is always run,
    /// since the cache has no logits.
    pub(crate) fn common_prefix(&self, slot: Slot, tokens: &[u32]) -> usize {
        let cached = self.tokens.get(slot.index()).map_or(0, |old| common_prefix(old, tokens));
        cached.min(tokens.len().saturating_sub(1))
    }

    /// Proposes a draft that fits a step and the context.
    pub(crate) async fn propose(&mut self, generation: &mut Generation) -> Result<(), Error> {
        let Some(drafter) = &mut self.drafter else { return Ok(()) };
        let options = self.state.options();
        let context = generation.context();
        let room = (options.n_outputs - 1).min(options.n_ctx.saturating_sub(context.len()));
        let max = self.gate.limit(room);
        if max == 0 || self.cost.needs_plain_step() {
            return Ok(());
        }
        let known = std::mem::replace(&mut self.gate.known, context.len());
        let mut texts = [DraftText { slot: TEXT, context, known, max, draft: Vec::new() }];
        let seconds = drafter.draft(&mut texts, room, options.n_batch).await?;
        let [DraftText { draft, .. }] = texts;
        self.cost.record_drafts(draft.len(), seconds);
        generation.propose(&draft);
        Ok(())
    }
}
