//! State of a model: encoder, audio of windows, and decoder sequences that attend to it.
//!
//! ```text
//! encode(mel) ──► set_audio(window)      cross-attention keys and values of the window
//! plan().add(slot(window, i), tokens, outputs).run() ──► read_logits
//! ```

use std::ops::Range;

use stonechat_nn::{
    KvDType, PAGE_LEN, QueryRow, Sequences, Slot, StepInputs, StepLimits, StepPlan,
};

use crate::config::Config;
use crate::decoder::DecoderStep;
use crate::error::Error;
use crate::model::Model;
use crate::runner::{CaptureData, Runner};

/// Sizes of a [`State`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateOptions {
    /// Windows of audio.
    pub n_windows: usize,
    /// Decoder sequences of each window.
    pub n_sequences: usize,
    /// Element type of cached keys and values.
    pub kv_dtype: KvDType,
}

impl StateOptions {
    /// Sequence `index` of window `window`.
    pub(crate) fn slot(&self, window: usize, index: usize) -> Slot {
        Slot::new(window * self.n_sequences + index)
    }

    pub(crate) fn limits(&self, config: &Config) -> StepLimits {
        let n_sequences = self.n_windows * self.n_sequences;
        StepLimits {
            n_sequences,
            n_ctx: config.n_text_ctx,
            n_pages: n_sequences * config.n_text_ctx.div_ceil(PAGE_LEN),
            // The longest prompt beside one token of every sequence.
            n_batch: config.n_text_ctx + n_sequences,
            // One row of each hypothesis, or two of each prompt.
            n_outputs: n_sequences.max(2 * self.n_windows),
        }
    }
}

/// KV pages and activations of a [`Model`], allocated once; a step allocates nothing.
#[derive(Debug)]
pub struct State {
    runner: Box<dyn Runner>,
    options: StateOptions,
    n_audio_ctx: usize,
    sequences: Sequences,
    /// Whether each window has audio.
    has_audio: Vec<bool>,
    cross_rows: Vec<QueryRow>,
}

impl State {
    pub(crate) fn new(model: &Model, options: StateOptions) -> Result<Self, Error> {
        let config = model.config();
        let limits = options.limits(config);
        let mut runner = model.runner(options)?;
        let mut sequences = Sequences::new(limits);
        runner.warm_up(&mut sequences)?;
        Ok(Self {
            runner,
            options,
            n_audio_ctx: config.n_audio_ctx,
            sequences,
            has_audio: vec![false; options.n_windows],
            cross_rows: Vec::with_capacity(limits.n_batch),
        })
    }

    /// The sizes.
    #[must_use]
    pub fn options(&self) -> StateOptions {
        self.options
    }

    /// Limits of a step.
    #[must_use]
    pub fn limits(&self) -> StepLimits {
        self.sequences.limits()
    }

    /// Sequence `index` of window `window`.
    #[must_use]
    pub fn slot(&self, window: usize, index: usize) -> Slot {
        self.options.slot(window, index)
    }

    /// Encodes one window of mel frames, `[WINDOW_FRAMES, n_mels]`.
    ///
    /// # Panics
    /// If `mel` has another length.
    pub fn encode(&mut self, mel: &[f32]) {
        self.runner.encode(mel);
    }

    /// Reads the output of the encoder, `[n_audio_ctx, d_model]`.
    ///
    /// # Errors
    /// If the device fails.
    pub async fn read_encoded(&mut self, out: &mut [f32]) -> Result<(), Error> {
        self.runner.read_encoded(out).await
    }

    /// Sets the audio of window `window` to the output of the encoder, and empties the window's
    /// sequences.
    ///
    /// # Panics
    /// If there is no such window.
    pub fn set_audio(&mut self, window: usize) {
        self.clear(window);
        self.runner.set_audio(window);
        self.has_audio[window] = true;
    }

    /// Empties the sequences of window `window`.
    ///
    /// # Panics
    /// If there is no such window.
    pub fn clear(&mut self, window: usize) {
        for index in 0..self.options.n_sequences {
            self.sequences.truncate(self.slot(window, index), 0);
        }
    }

    /// Makes sequence `to` a copy of `from`; they share KV pages until one of them writes.
    ///
    /// # Panics
    /// If they are equal or out of range.
    pub fn fork(&mut self, from: Slot, to: Slot) {
        self.sequences.fork(from, to);
    }

    /// Starts the plan of the next step.
    pub fn plan(&mut self) -> BatchPlan<'_> {
        let Self { runner, options, n_audio_ctx, sequences, has_audio, cross_rows } = self;
        BatchPlan {
            plan: sequences.plan(),
            runner: &mut **runner,
            sequences_per_window: options.n_sequences,
            n_audio_ctx: *n_audio_ctx,
            has_audio,
            cross_rows,
            has_capture: false,
        }
    }

    /// Reads the logits of the first outputs of the last step, `[n, vocab_size]`.
    ///
    /// # Errors
    /// If the device fails.
    pub async fn read_logits(&mut self, logits: &mut [f32]) -> Result<(), Error> {
        // Without the future on the heap where no device has to be awaited.
        match self.runner.read_logits_now(logits) {
            Some(result) => result,
            None => self.runner.read_logits(logits).await,
        }
    }

    /// Computes the logits of `rows` of the last step for [`read_logits`](Self::read_logits).
    pub(crate) fn project(&mut self, rows: &[usize]) {
        let max_rows = self.limits().n_outputs;
        assert!(rows.len() <= max_rows, "{} rows of logits of {max_rows}", rows.len());
        self.runner.project(self.sequences.inputs().n_tokens(), rows);
    }

    /// Allocates what [`BatchPlan::add_captured`] needs; before audio is set.
    pub(crate) fn enable_alignment(&mut self) -> Result<(), Error> {
        self.runner.enable_alignment()
    }

    /// Reads the cross-attention keys of `window` and the queries of `rows` of the last step with capture.
    pub(crate) async fn read_capture(
        &mut self,
        window: usize,
        rows: Range<usize>,
        out: CaptureData<'_>,
    ) -> Result<(), Error> {
        self.runner.read_capture(window, rows, out).await
    }
}

/// Plan of a decoder step. Dropping it gives back all that it took.
#[derive(Debug)]
pub struct BatchPlan<'a> {
    plan: StepPlan<'a>,
    runner: &'a mut dyn Runner,
    sequences_per_window: usize,
    n_audio_ctx: usize,
    has_audio: &'a [bool],
    cross_rows: &'a mut Vec<QueryRow>,
    has_capture: bool,
}

impl BatchPlan<'_> {
    /// Adds tokens that continue a sequence. `outputs` are the indexes among them whose logits are computed, ascending.
    ///
    /// # Errors
    /// [`Error::ContextFull`] or [`Error::KvFull`]; the plan is as before.
    ///
    /// # Panics
    /// If the step would exceed its limits, an output is no index of `tokens`, there is no such sequence, the plan has a run
    /// of it, or its window has no audio.
    pub fn add(
        &mut self,
        slot: Slot,
        tokens: &[u32],
        outputs: impl IntoIterator<Item = usize>,
    ) -> Result<(), Error> {
        let window = slot.index() / self.sequences_per_window;
        assert!(self.has_audio[window], "`set_audio` of window {window} comes before its steps");
        Ok(self.plan.add(slot, tokens, outputs)?)
    }

    /// Adds tokens whose cross-attention queries are copied for alignment.
    pub(crate) fn add_captured(&mut self, slot: Slot, tokens: &[u32]) -> Result<(), Error> {
        self.has_capture = true;
        self.add(slot, tokens, [])
    }

    /// Number of tokens added.
    #[must_use]
    pub fn n_tokens(&self) -> usize {
        self.plan.n_tokens()
    }

    /// Number of rows of logits.
    #[must_use]
    pub fn n_outputs(&self) -> usize {
        self.plan.n_outputs()
    }

    /// Enqueues the step.
    pub fn run(self) {
        let Self { plan, runner, cross_rows: cross, has_capture, .. } = self;
        if plan.n_tokens() > 0 {
            cross_rows(plan.inputs(), self.sequences_per_window, self.n_audio_ctx, cross);
            runner.run(DecoderStep { inputs: plan.inputs(), cross_rows: cross, has_capture });
        }
        plan.commit();
    }
}

/// Cross-attention pages of each token: those of the window of its sequence.
pub(crate) fn cross_rows(
    inputs: &StepInputs,
    sequences_per_window: usize,
    n_audio_ctx: usize,
    rows: &mut Vec<QueryRow>,
) {
    let n_pages = n_audio_ctx.div_ceil(PAGE_LEN) as u32;
    rows.clear();
    for run in &inputs.runs {
        let window = (run.slot.index() / sequences_per_window) as u32;
        let first_page = window * n_pages;
        let row = QueryRow { first_page, n_pages, kv_start: 0, kv_len: n_audio_ctx as u32 };
        rows.extend(run.rows.clone().map(|_| row));
    }
}
