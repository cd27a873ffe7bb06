//! State of a model: encoder, audio of windows, and decoder sequences that attend to it.
//!
//! ```text
//! encode(mel) ──► set_audio(window)      cross-attention keys and values of the window
//! plan().add(slot(window, i), tokens, outputs).run() ──► read_logits, read_outputs
//! ```

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use stonechat_nn::op::{Count, Port, RowTable, SlotTable};
use stonechat_nn::{
    AttentionRows, Counts, Executable, KvDType, KvRow, KvShape, PAGE_LEN, PortRange, Program,
    QueryRow, Recorder, SegmentName, Sequences, Slot, Step, StepInputs, StepLimits, StepPlan,
    warmup_batch_sizes,
};

use crate::WINDOW_FRAMES;
use crate::alignment_heads::AlignmentHeads;
use crate::config::Config;
use crate::decoder::{CROSS_POOL, SELF_POOL};
use crate::encoder::ENCODER_POOL;
use crate::error::Error;
use crate::logit_filters::LogitFilters;
use crate::model::Model;
use crate::options::Options;
use crate::ports::{
    AUDIO, CROSS_ROWS, CROSS_SLOTS, ENCODER_ROWS, ENCODER_SLOTS, MEL, captured_keys,
    captured_queries,
};
use crate::rules::Rules;
use crate::step_outputs::StepOutputs;
use crate::weights::Weights;

/// Sizes of a [`State`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateOptions {
    /// Windows of audio.
    pub n_windows: usize,
    /// Decoder sequences of each window.
    pub n_sequences: usize,
    /// Element type of cached keys and values.
    pub kv_dtype: KvDType,
    /// Whether words can be aligned with the audio.
    pub has_alignment: bool,
    /// Maximum windows of a pass of the encoder, limited to all windows.
    pub encoder_batch_size: usize,
}

impl Default for StateOptions {
    /// One window with one sequence, in f16, without alignment.
    fn default() -> Self {
        Self {
            n_windows: 1,
            n_sequences: 1,
            kv_dtype: KvDType::F16,
            has_alignment: false,
            encoder_batch_size: 1,
        }
    }
}

impl StateOptions {
    /// Whether recordings with `options` fit, `n_windows` windows of them at a time.
    #[must_use]
    pub fn fits(&self, options: &Options, n_windows: usize) -> bool {
        n_windows <= self.n_windows
            && options.n_sequences() <= self.n_sequences
            && (self.has_alignment || !options.needs_alignment())
    }

    /// Sequence `index` of window `window`.
    pub(crate) fn slot(&self, window: usize, index: usize) -> Slot {
        Slot::new(window * self.n_sequences + index)
    }

    /// Window of a sequence.
    fn window(&self, slot: Slot) -> usize {
        slot.index() / self.n_sequences
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
            n_checkpoints: None,
        }
    }

    /// The program of encoder and decoder.
    pub(crate) fn program(
        &self,
        config: &Config,
        weights: &Weights,
        heads: &AlignmentHeads,
    ) -> Program {
        let heads = Some(heads).filter(|_| self.has_alignment);
        let mut r = Recorder::new();
        let audio_pages = config.n_audio_ctx.div_ceil(PAGE_LEN);
        let text = KvShape {
            n_layers: config.n_text_layers,
            n_pages: self.limits(config).n_pages,
            n_kv_heads: config.n_text_heads,
            head_dim: config.text_head_dim(),
            dtype: self.kv_dtype,
        };
        let audio = KvShape {
            n_layers: 1,
            n_pages: self.encoder_batch_size * audio_pages,
            n_kv_heads: config.n_audio_heads,
            head_dim: config.audio_head_dim(),
            dtype: self.kv_dtype,
        };
        let cross = KvShape { n_pages: self.n_windows * audio_pages, ..text };
        let pools = [text, cross, audio].map(|shape| r.pool(shape));
        assert_eq!(pools, [SELF_POOL, CROSS_POOL, ENCODER_POOL], "order of the pools");
        let audio = weights.encoder.record(&mut r, config);
        weights.decoder.record_audio(&mut r, config, heads, audio);
        weights.decoder.record(&mut r, config, heads);
        r.finish()
    }
}

/// Sizes, and the pages of the audio, which do not change.
#[derive(Debug)]
struct AudioPages {
    config: Config,
    options: StateOptions,
    /// Whether each window has audio.
    has_audio: Vec<bool>,
    /// `[encoded windows, n_audio_ctx]`.
    encoder_slots: Vec<KvRow>,
    encoder_rows: Vec<QueryRow>,
    /// `[windows, n_audio_ctx]`.
    cross_slots: Vec<KvRow>,
    /// Pages of all windows: window `w` has `w * n .. (w + 1) * n`.
    page_table: Vec<u32>,
    /// `[T]`: audio of each token of the step.
    cross_rows: Vec<QueryRow>,
}

impl AudioPages {
    fn new(config: Config, options: StateOptions, max_tokens: usize) -> Self {
        let t = config.n_audio_ctx;
        let n_pages = t.div_ceil(PAGE_LEN);
        let slot = |i: usize| {
            let (window, pos) = (i / t, i % t);
            let page = (window * n_pages + pos / PAGE_LEN) as u32;
            KvRow { page, slot: (pos % PAGE_LEN) as u32 }
        };
        let row = |i: usize| {
            let first_page = (i / t * n_pages) as u32;
            QueryRow { first_page, n_pages: n_pages as u32, kv_start: 0, kv_len: t as u32 }
        };
        let n_encoder_rows = options.encoder_batch_size * t;
        Self {
            config,
            options,
            has_audio: vec![false; options.n_windows],
            encoder_slots: (0..n_encoder_rows).map(slot).collect(),
            encoder_rows: (0..n_encoder_rows).map(row).collect(),
            cross_slots: (0..options.n_windows * t).map(slot).collect(),
            page_table: (0..(options.n_windows * n_pages) as u32).collect(),
            cross_rows: Vec::with_capacity(max_tokens),
        }
    }

    /// The pass of the encoder over `n` windows.
    fn encoder_step(&self, n: usize) -> Step<'_> {
        let t = self.config.n_audio_ctx;
        let page_table = &self.page_table[..n * t.div_ceil(PAGE_LEN)];
        let mut step = Step { segments: &[SegmentName::Encoder], ..Step::default() };
        step.counts[Count::Windows] = n;
        step.slots[ENCODER_SLOTS.index()] = &self.encoder_slots[..n * t];
        let rows = AttentionRows { rows: &self.encoder_rows[..n * t], page_table };
        step.rows[ENCODER_ROWS.index()] = rows;
        step
    }

    /// The pass that makes the encoder's output the audio of windows.
    fn audio_step(&self, windows: Range<usize>) -> Step<'_> {
        let t = self.config.n_audio_ctx;
        let segments = &[SegmentName::CrossKv];
        let mut step = Step { segments, first_window: windows.start, ..Step::default() };
        step.counts[Count::Windows] = windows.len();
        step.counts[Count::CapturedWindows] =
            if self.options.has_alignment { windows.len() } else { 0 };
        step.slots[CROSS_SLOTS.index()] = &self.cross_slots[windows.start * t..windows.end * t];
        step
    }

    /// Sets the audio of each token: that of the window of its sequence.
    fn set_rows(&mut self, inputs: &StepInputs) {
        let t = self.config.n_audio_ctx;
        let n_pages = t.div_ceil(PAGE_LEN) as u32;
        self.cross_rows.clear();
        for run in &inputs.runs {
            let first_page = self.options.window(run.slot) as u32 * n_pages;
            let row = QueryRow { first_page, n_pages, kv_start: 0, kv_len: t as u32 };
            self.cross_rows.extend(run.rows.clone().map(|_| row));
        }
    }

    /// A decoder step.
    fn text_step<'a>(
        &'a self,
        inputs: &'a StepInputs,
        filters: &'a LogitFilters,
        outputs: &StepOutputs,
        has_capture: bool,
    ) -> Step<'a> {
        let mut step = Step {
            segments: &[SegmentName::Body, SegmentName::Logits],
            tokens: &inputs.tokens,
            positions: &inputs.pos,
            output_rows: &inputs.outputs,
            logit_filters: filters.rows(),
            suppressed: filters.suppressed(),
            k: outputs.k(),
            copies: &inputs.copies,
            ..Step::default()
        };
        step.counts[Count::Tokens] = inputs.n_tokens();
        step.counts[Count::Logits] = inputs.outputs.len();
        outputs.set_counts(&mut step.counts);
        step.counts[Count::CapturedTokens] = if has_capture { inputs.n_tokens() } else { 0 };
        step.slots[SlotTable::TOKENS.index()] = &inputs.kv_rows;
        let own = AttentionRows { rows: &inputs.query_rows, page_table: &inputs.page_table };
        let audio = AttentionRows { rows: &self.cross_rows, page_table: &self.page_table };
        step.rows[RowTable::FULL.index()] = own;
        step.rows[CROSS_ROWS.index()] = audio;
        step
    }
}

impl Model {
    /// Allocates and warms up a state.
    ///
    /// # Errors
    /// If the device is out of memory.
    pub fn state(&self, options: StateOptions) -> Result<State, Error> {
        let sizes = 1..=options.n_windows;
        assert!(sizes.contains(&options.encoder_batch_size), "a pass encodes {sizes:?} windows");
        let config = self.config();
        let limits = options.limits(config);
        let program = self.program(options);
        let mut max = Counts::default();
        max[Count::Tokens] = limits.n_batch;
        max[Count::CapturedTokens] = limits.n_batch;
        for count in [Count::Logits, Count::TopK, Count::LogProbs] {
            max[count] = limits.n_outputs;
        }
        max[Count::Windows] = options.encoder_batch_size;
        max[Count::CapturedWindows] = options.n_windows;
        let mut state = State {
            executable: self.device().compile(&program, &max)?,
            pages: AudioPages::new(*config, options, limits.n_batch),
            sequences: Sequences::new(limits),
            filters: LogitFilters::new(config.vocab_size),
            outputs: StepOutputs::default(),
            n_last_encoded: 0,
        };
        state.warm_up()?;
        Ok(state)
    }

    /// Recorded program of a state, before fusion, for inspection and tests.
    #[must_use]
    pub fn program(&self, options: StateOptions) -> Program {
        options.program(self.config(), self.weights(), self.alignment_heads())
    }
}

/// KV pages and activations of a [`Model`], allocated once; a step allocates nothing.
#[derive(Debug)]
pub struct State {
    executable: Box<dyn Executable>,
    pages: AudioPages,
    sequences: Sequences,
    filters: LogitFilters,
    outputs: StepOutputs,
    /// Windows of the last pass of the encoder.
    n_last_encoded: usize,
}

impl State {
    /// Compiles kernels and allocates device memory for the passes of one window and of as many as there can be, and for decoder
    /// steps of every size that selects kernels.
    fn warm_up(&mut self) -> Result<(), Error> {
        let Self { executable, pages, sequences, filters, outputs, .. } = self;
        let (config, options) = (pages.config, pages.options);
        let mut result = Ok(());
        executable.warm_up(&mut |executable| {
            for n in BTreeSet::from([1, options.encoder_batch_size]) {
                executable.import(MEL, &vec![0.0; n * WINDOW_FRAMES * config.n_mels]);
                executable.run(&pages.encoder_step(n));
                executable.run(&pages.audio_step(0..n));
            }
            result = run_all_sizes(sequences, options.n_sequences, &mut |inputs| {
                pages.set_rows(inputs);
                filters.resize(inputs.outputs.len());
                outputs.request_stats(inputs.outputs.len(), options.n_sequences + 1);
                executable.run(&pages.text_step(inputs, filters, outputs, false));
            });
        })?;
        result
    }

    /// The sizes.
    #[must_use]
    pub fn options(&self) -> StateOptions {
        self.pages.options
    }

    /// Limits of a step.
    #[must_use]
    pub fn limits(&self) -> StepLimits {
        self.sequences.limits()
    }

    /// Sequence `index` of window `window`.
    #[must_use]
    pub fn slot(&self, window: usize, index: usize) -> Slot {
        self.pages.options.slot(window, index)
    }

    /// Encodes windows of mel frames, `[windows, WINDOW_FRAMES, n_mels]`.
    ///
    /// # Panics
    /// If `mel` has no whole windows, none, or more than [`StateOptions::encoder_batch_size`].
    pub fn encode(&mut self, mel: &[f32]) {
        let AudioPages { config, options, .. } = &self.pages;
        let n_values = WINDOW_FRAMES * config.n_mels;
        let (n, is_whole) = (mel.len() / n_values, mel.len().is_multiple_of(n_values));
        let max = options.encoder_batch_size;
        assert!(is_whole && (1..=max).contains(&n), "windows of mel frames");
        self.executable.import(MEL, mel);
        self.executable.run(&self.pages.encoder_step(n));
        self.n_last_encoded = n;
    }

    /// Reads the last output of the encoder, `[windows, n_audio_ctx, d_model]`, into `out`.
    ///
    /// # Errors
    /// If the device fails.
    pub async fn read_encoded(&mut self, out: &mut Vec<f32>) -> Result<(), Error> {
        let Config { n_audio_ctx, d_model, .. } = self.pages.config;
        let len = self.n_last_encoded * n_audio_ctx * d_model;
        Ok(self.executable.read(&[PortRange::first(AUDIO, len)], out).await?)
    }

    /// Sets the audio of as many windows as were encoded, from `first` on, to the output of the encoder, and empties their
    /// sequences.
    ///
    /// # Panics
    /// If there are no such windows, or none were encoded.
    pub fn set_audio(&mut self, first: usize) {
        let windows = first..first + self.n_last_encoded;
        assert!(!windows.is_empty(), "`encode` comes before `set_audio`");
        windows.clone().for_each(|window| self.clear(window));
        self.executable.run(&self.pages.audio_step(windows.clone()));
        self.pages.has_audio[windows].fill(true);
    }

    /// Empties the sequences of window `window`.
    ///
    /// # Panics
    /// If there is no such window.
    pub fn clear(&mut self, window: usize) {
        for index in 0..self.pages.options.n_sequences {
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
        let Self { executable, pages, sequences, filters, outputs, .. } = self;
        filters.clear();
        outputs.clear();
        BatchPlan {
            plan: sequences.plan(),
            executable: &mut **executable,
            pages,
            filters,
            outputs,
            has_capture: false,
        }
    }

    /// Reads the logits of the first `n` outputs of the last step, `[n, vocab_size]`, into `out`.
    ///
    /// # Errors
    /// If the device fails.
    pub async fn read_logits(&mut self, n: usize, out: &mut Vec<f32>) -> Result<(), Error> {
        let len = n * self.pages.config.vocab_size;
        Ok(self.executable.read(&[PortRange::first(Port::LOGITS, len)], out).await?)
    }

    /// Reads the outputs that the plan of the last step requested.
    pub(crate) async fn read_outputs(&mut self) -> Result<(), Error> {
        self.outputs.read(&mut *self.executable).await
    }

    /// Outputs of the last step, see [`read_outputs`](Self::read_outputs).
    pub(crate) fn outputs(&self) -> &StepOutputs {
        &self.outputs
    }

    /// Computes the logits of `rows` of the last step for [`read_logits`](Self::read_logits).
    pub(crate) fn project(&mut self, rows: &[usize]) {
        let max_rows = self.limits().n_outputs;
        assert!(rows.len() <= max_rows, "{} rows of logits of {max_rows}", rows.len());
        self.filters.clear();
        self.filters.resize(rows.len());
        let segments = &[SegmentName::Logits];
        let logit_filters = self.filters.rows();
        let mut step = Step { segments, output_rows: rows, logit_filters, ..Step::default() };
        step.counts[Count::Tokens] = self.sequences.inputs().n_tokens();
        step.counts[Count::Logits] = rows.len();
        self.executable.run(&step);
    }

    /// Reads the cross-attention keys of `window`, `[heads, n_audio_ctx, C]`, then the queries of `rows` of the last step with
    /// capture, `[heads, rows, C]`, into `out`.
    pub(crate) async fn read_capture(
        &mut self,
        window: usize,
        rows: Range<usize>,
        (n_heads, out): (usize, &mut Vec<f32>),
    ) -> Result<(), Error> {
        let config = &self.pages.config;
        let c = config.text_head_dim();
        let (n_keys, n_queries) = (config.n_audio_ctx * c, rows.len() * c);
        let keys = |i| PortRange { port: captured_keys(i), offset: window * n_keys, len: n_keys };
        let queries =
            |i| PortRange { port: captured_queries(i), offset: rows.start * c, len: n_queries };
        let ranges: Vec<_> = (0..n_heads).map(keys).chain((0..n_heads).map(queries)).collect();
        Ok(self.executable.read(&ranges, out).await?)
    }
}

/// Runs decoder steps over window 0 of every size that selects kernels; the sequences are empty before and after.
fn run_all_sizes(
    sequences: &mut Sequences,
    n_sequences: usize,
    run: &mut dyn FnMut(&StepInputs),
) -> Result<(), Error> {
    let StepLimits { n_ctx: max_tokens, n_outputs: max_outputs, .. } = sequences.limits();
    let tokens = vec![0; max_tokens];
    let mut run = |sequences: &mut Sequences, slots: usize, n: usize| {
        let mut plan = sequences.plan();
        // Logits of the maximum number of rows of a step, since their matmul has kernels for its own sizes.
        let n_outputs = (max_outputs / slots).clamp(1, n);
        for slot in (0..slots).map(Slot::new) {
            plan.add(slot, &tokens[..n], n - n_outputs..n)?;
        }
        plan.commit();
        run(sequences.inputs());
        Ok::<_, Error>(())
    };
    for n in warmup_batch_sizes(max_tokens) {
        run(sequences, 1, n)?;
        sequences.truncate(Slot::new(0), 0);
    }
    // One step of all sequences after forks of one, with copies of its KV page.
    run(sequences, 1, 1)?;
    (1..n_sequences).for_each(|to| sequences.fork(Slot::new(0), Slot::new(to)));
    run(sequences, n_sequences, 1)?;
    (0..n_sequences).map(Slot::new).for_each(|slot| _ = sequences.truncate(slot, 0));
    Ok(())
}

/// Plan of a decoder step. Dropping it gives back all that it took.
#[derive(Debug)]
pub struct BatchPlan<'a> {
    plan: StepPlan<'a>,
    executable: &'a mut dyn Executable,
    pages: &'a mut AudioPages,
    filters: &'a mut LogitFilters,
    outputs: &'a mut StepOutputs,
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
        let window = self.pages.options.window(slot);
        assert!(
            self.pages.has_audio[window],
            "`set_audio` of window {window} comes before its steps"
        );
        self.plan.add(slot, tokens, outputs)?;
        self.filters.resize(self.plan.n_outputs());
        Ok(())
    }

    /// Filters the logits of the last output, which follows `sampled`, the tokens of the window so far. Requests its log-sum-exp
    /// and its `k` largest logits.
    pub(crate) fn filter_last(
        &mut self,
        rules: &Arc<Rules>,
        sampled: &[u32],
        min_end_timestamp: Option<u32>,
        k: usize,
    ) {
        self.filters.set_last(rules, sampled, min_end_timestamp);
        self.outputs.request_stats(self.plan.n_outputs(), k);
    }

    /// Requests logits of tokens of an output; returns their place in [`StepOutputs::logits`].
    pub(crate) fn request_logits(&mut self, output: usize, tokens: Range<u32>) -> Range<usize> {
        let first = output * self.pages.config.vocab_size;
        let range = first + tokens.start as usize..first + tokens.end as usize;
        self.outputs.request_logits(range)
    }

    /// Adds tokens whose cross-attention queries are copied for alignment.
    pub(crate) fn add_captured(&mut self, slot: Slot, tokens: &[u32]) -> Result<(), Error> {
        assert!(self.pages.options.has_alignment, "a state with alignment");
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
        let Self { plan, executable, pages, filters, outputs, has_capture, .. } = self;
        if plan.n_tokens() > 0 {
            pages.set_rows(plan.inputs());
            executable.run(&pages.text_step(plan.inputs(), filters, outputs, has_capture));
        }
        plan.commit();
    }
}
