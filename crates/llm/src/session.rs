//! Session: texts one at a time, on a scheduler of their own. Its prefix cache keeps the earlier texts, so a new prompt runs
//! only the tokens after the longest common prefix:
//!
//! ```text
//! cached tokens   A B C D E F
//! new prompt      A B C D X Y Z      shares the pages of 4 tokens
//! steps                   X Y Z      at most n_batch tokens each; then one token per step
//! ```

pub(crate) mod beam;
mod embed;

use std::ops::ControlFlow;
use std::path::Path;

use stonechat_nn::KvDType;

use crate::drafts::drafter::Drafter;
use crate::text::completion::Completion;
use crate::text::options::GenerateOptions;
use crate::{
    Config, Error, Model, Request, RequestEvent, RequestId, Scheduler, SchedulerOptions,
    StateOptions,
};

/// Limit of the default context size.
const DEFAULT_MAX_CTX: usize = 16_384;
/// Slot of the text: the first one, where a scheduler without other requests runs it.
const TEXT: usize = 0;

/// Event during generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// Progress of the prompt.
    Prompt {
        /// Tokens cached or run.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// Generated text in whole code points: one event per token, and one at the end for text that was held back. Empty for a
    /// token without text, and while a stop string or a code point is incomplete.
    Text(&'a str),
}

/// Callback of a generation; a break cancels it. `Send`, but on wasm32.
#[cfg(not(target_arch = "wasm32"))]
pub type OnEvent<'a> = dyn FnMut(Event<'_>) -> ControlFlow<()> + Send + 'a;

/// Callback of a generation; a break cancels it. `Send`, but on wasm32.
#[cfg(target_arch = "wasm32")]
pub type OnEvent<'a> = dyn FnMut(Event<'_>) -> ControlFlow<()> + 'a;

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
    model: Model,
    scheduler: Scheduler,
}

impl Session {
    /// An empty session.
    ///
    /// # Errors
    /// If a size is out of range or the device is out of memory.
    pub fn new(model: &Model, options: SessionOptions) -> Result<Self, Error> {
        let state = options.state(model.config());
        let scheduler = Scheduler::new(model, SchedulerOptions::new(state))?;
        Ok(Self { model: model.clone(), scheduler })
    }

    /// Sets the source of drafts for speculative decoding, which changes no text. Drafts have at most
    /// [`n_draft`](SessionOptions::n_draft) tokens.
    pub fn set_drafter(&mut self, drafter: Option<Drafter>) {
        self.scheduler.drafter = drafter;
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Cached tokens of the last text.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.scheduler.last_texts[TEXT].0
    }

    /// Sizes of the state.
    #[must_use]
    pub fn options(&self) -> StateOptions {
        self.scheduler.options()
    }

    /// Context size in tokens.
    #[must_use]
    pub fn n_ctx(&self) -> usize {
        self.options().n_ctx
    }

    /// Drops all cached tokens, and a text whose generation did not come to its end.
    pub fn clear(&mut self) {
        self.scheduler.reset();
        self.scheduler.last_texts[TEXT] = Default::default();
    }

    /// Saves the tokens of the last text and their KV pages; replaces a file of that name once the new one is complete.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub async fn save(&mut self, path: &Path) -> Result<(), Error> {
        self.scheduler.save_slot(TEXT, path).await.map(|_| ())
    }

    /// Replaces the content of the session by a saved text; returns its number of tokens.
    ///
    /// # Errors
    /// If the file cannot be read, is damaged, was saved with another model or KV type, or is longer
    /// than the context. The session is empty then.
    pub async fn restore(&mut self, path: &Path) -> Result<usize, Error> {
        self.clear();
        Ok(self.scheduler.restore_slot(TEXT, path).await?.n_tokens)
    }

    /// Generates a continuation of `prompt`; its longest cached prefix is not run again. If `on_event` breaks, the text ends
    /// with [`Finish::Cancelled`](crate::Finish::Cancelled) and the session stays usable.
    ///
    /// # Errors
    /// If the prompt is empty or longer than the context, an option is out of range, or the device fails. If a step fails, the
    /// session is empty.
    pub async fn generate(
        &mut self,
        prompt: &[u32],
        options: &GenerateOptions,
        on_event: &mut OnEvent<'_>,
    ) -> Result<Completion, Error> {
        // A dropped generation or search leaves its sequences.
        if !self.scheduler.is_idle() || !self.scheduler.state.is_empty() {
            self.clear();
        }
        let task = Request::new(prompt.to_vec(), options.clone()).prepare(self.model.info())?;
        let done = match task.reads_cache() {
            true => self.scheduler.cache.cached_len(task.pending(), task.cache_salt),
            false => 0,
        };
        let total = task.n_input();
        let id = self.scheduler.add_task(task)?;
        let mut is_cancelled = on_event(Event::Prompt { done, total }).is_break();
        let mut events = Vec::new();
        loop {
            self.step(id, is_cancelled, &mut events).await?;
            for event in events.drain(..) {
                match event {
                    RequestEvent::Prompt { done, total } if done < total => {
                        is_cancelled |= on_event(Event::Prompt { done, total }).is_break();
                    }
                    RequestEvent::Text { tokens, text, .. } => {
                        let shown = tokens.last().map_or(0, |token| token.text.end);
                        let mut texts = tokens.into_iter().map(|token| &text[token.text]);
                        is_cancelled |= texts.any(|text| on_event(Event::Text(text)).is_break());
                        if !is_cancelled && shown < text.len() {
                            is_cancelled |= on_event(Event::Text(&text[shown..])).is_break();
                        }
                    }
                    RequestEvent::Ended { completion, .. } => {
                        // Healing takes a token from the prompt of the task.
                        return Ok(Completion { prompt_tokens: prompt.len(), ..completion });
                    }
                    RequestEvent::Failed(error) => return Err(error),
                    _ => {}
                }
            }
        }
    }

    /// Runs a step, or ends the text; appends the events.
    async fn step(
        &mut self,
        id: RequestId,
        is_cancelled: bool,
        events: &mut Vec<RequestEvent>,
    ) -> Result<(), Error> {
        let mut on_event = |_: RequestId, event: RequestEvent| events.push(event);
        if is_cancelled {
            self.scheduler.cancel(id, &mut on_event);
            return Ok(());
        }
        let stepped = self.scheduler.step(&mut on_event).await;
        if stepped.is_err() {
            self.clear();
        }
        stepped.map(|_| ())
    }
}
