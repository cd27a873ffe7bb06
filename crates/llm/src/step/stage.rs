//! Pipeline stages of a model: weights on a device, and the program of a state.

use stonechat_nn::op::{Count, PoolId, Port, Rotation, RowTable, SlotTable};
use stonechat_nn::{
    AttentionRows, Counts, Device, Error as NnError, Executable, PAGE_LEN, PortRange, Program,
    QueryRow, SegmentName, Sequences, Slot, Step, StepInputs, warmup_batch_sizes,
};

use crate::model::info::ModelInfo;
use crate::model::rope::{RopeConfig, RopeFrequencies};
use crate::model::weights::Weights;
use crate::step::forward::{Rotations, record};
use crate::step::outputs::{OutputData, OutputLayout};
use crate::{Config, Error, OutputRequest, Placement, StateOptions};

/// Layers of a model on a device.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) device: Device,
    pub(crate) weights: Weights,
}

impl Stage {
    /// Layers and bytes on the device with a state of these sizes.
    pub(crate) fn placement(&self, config: &Config, options: &StateOptions) -> Placement {
        let Self { device, weights } = self;
        Placement {
            device: device.name(),
            layers: weights.layers.clone(),
            has_input: weights.input.is_some(),
            has_output: weights.output.is_some(),
            weight_bytes: weights.bytes,
            kv_bytes: options.kv_bytes_of(config, weights.layers.clone()),
        }
    }

    /// Records the program of a state.
    pub(crate) fn program(
        &self,
        info: &ModelInfo,
        options: StateOptions,
    ) -> Result<Program, NnError> {
        let (config, weights) = (&info.config, &self.weights);
        let mut rotations = Rotations::new();
        let layers = config.layers[weights.layers.clone()].iter();
        for rope in layers.flat_map(|layer| [layer.query_rope(), layer.rope]).flatten() {
            if !rotations.iter().any(|(known, _)| *known == rope) {
                rotations.push((rope, self.rotation(&rope, options)?));
            }
        }
        let kv = options.kv_shapes(config, weights.layers.clone());
        Ok(record(config, weights, &rotations, (&kv, info.max_top_k())))
    }

    /// Compiles the program of a state.
    fn compile(
        &self,
        info: &ModelInfo,
        options: StateOptions,
    ) -> Result<Box<dyn Executable>, NnError> {
        let program = self.program(info, options)?;
        let mut max = Counts::default();
        max[Count::Tokens] = options.n_batch;
        max[Count::Hidden] = options.n_hidden;
        max[Count::Logits] = options.n_outputs;
        max[Count::TopK] = options.n_outputs;
        max[Count::LogProbs] = options.n_outputs;
        self.device.compile(&program, &max)
    }

    fn rotation(&self, rope: &RopeConfig, options: StateOptions) -> Result<Rotation, NnError> {
        let frequencies =
            RopeFrequencies::new(rope, &self.weights.rope_freq_factors, options.n_ctx);
        let table = frequencies.table(&self.device, options.max_positions())?;
        Ok(Rotation { table, n_rot: rope.n_rot, pairs: rope.pairs })
    }
}

/// Programs of a state, one per stage.
#[derive(Debug)]
pub(crate) struct Runner {
    stages: Vec<StageProgram>,
    rows: WindowRows,
    /// `[T, D]`: the residual stream on its way to the next stage.
    stream: Vec<f32>,
    d_model: usize,
    vocab_size: usize,
}

/// Program of a stage.
#[derive(Debug)]
struct StageProgram {
    executable: Box<dyn Executable>,
    /// KV pool of each layer.
    pools: Vec<PoolId>,
    /// Bytes of a page in one layer of each pool.
    layer_bytes: Vec<usize>,
}

impl Runner {
    /// Compiles the programs of a state.
    pub(crate) fn new(
        stages: &[Stage],
        info: &ModelInfo,
        options: StateOptions,
    ) -> Result<Self, Error> {
        let config = &info.config;
        let program = |stage: &Stage| {
            let executable = stage.compile(info, options)?;
            let layers = &config.layers[stage.weights.layers.clone()];
            let pools: Vec<PoolId> = layers.iter().map(|layer| PoolId(layer.kv_group)).collect();
            let bytes = |pool: PoolId| {
                let n_layers = pools.iter().filter(|&&other| other == pool).count();
                executable.page_bytes(pool) / n_layers.max(1)
            };
            let layer_bytes = (0..config.kv_groups.len()).map(PoolId).map(bytes).collect();
            Ok::<_, Error>(StageProgram { executable, pools, layer_bytes })
        };
        Ok(Self {
            stages: stages.iter().map(program).collect::<Result<_, _>>()?,
            rows: WindowRows { window: config.window(), rows: Vec::with_capacity(options.n_batch) },
            stream: Vec::new(),
            d_model: config.d_model,
            vocab_size: config.vocab_size,
        })
    }

    /// Whether [`run`](Self::run) enqueues all of a step. Otherwise [`read`](Self::read) completes it.
    pub(crate) fn is_whole(&self) -> bool {
        self.stages.len() == 1
    }

    /// Whether a step runs while the host plans the next one.
    pub(crate) fn async_scheduling(&self) -> bool {
        self.is_whole() && self.stages[0].executable.async_scheduling()
    }

    /// Enqueues the first stage of a step, and the copy of its outputs if it is the last one. `reads_now` ends the steps whose
    /// outputs are read together.
    pub(crate) fn run(&mut self, inputs: &StepInputs, layout: &OutputLayout, reads_now: bool) {
        self.rows.fill(inputs);
        self.stages[0].executable.run(&self.rows.step(inputs, layout));
        if self.is_whole() {
            self.fetch(layout, reads_now);
        }
    }

    /// Enqueues the copy of the outputs of the last stage.
    fn fetch(&mut self, layout: &OutputLayout, is_last: bool) {
        if layout.rows.is_empty() {
            return;
        }
        let [top_k, log_sum_exp, logits, hidden] = self.n_values(layout);
        // Rows of logits follow top-k rows.
        let offset = layout.n_top_k * self.vocab_size;
        let ranges = &[
            PortRange::first(Port::TOP_K, top_k),
            PortRange::first(Port::LOG_SUM_EXP, log_sum_exp),
            PortRange { port: Port::LOGITS, offset, len: logits },
            PortRange::first(Port::HIDDEN, hidden),
        ];
        let last = self.stages.last_mut().expect("a model has a stage");
        last.executable.fetch(ranges, is_last);
    }

    fn n_values(&self, layout: &OutputLayout) -> [usize; 4] {
        layout.n_values(self.vocab_size, self.d_model)
    }

    /// Completes a step of several stages. `inputs` are those of [`run`](Self::run).
    pub(crate) async fn complete(
        &mut self,
        inputs: &StepInputs,
        layout: &OutputLayout,
    ) -> Result<(), Error> {
        if inputs.n_tokens() == 0 || self.is_whole() {
            return Ok(());
        }
        let Self { stages, rows, stream, d_model, .. } = self;
        let step = rows.step(inputs, layout);
        for i in 1..stages.len() {
            let range = PortRange::first(Port::STREAM, inputs.n_tokens() * *d_model);
            stages[i - 1].executable.read(&[range], stream).await?;
            let executable = &mut stages[i].executable;
            executable.import(Port::STREAM, stream);
            executable.run(&step);
        }
        self.fetch(layout, true);
        Ok(())
    }

    /// Passes to the outputs of the next step that ran, and waits for them if they are not on the host.
    pub(crate) async fn read(
        &mut self,
        layout: &OutputLayout,
        data: &mut OutputData,
    ) -> Result<(), Error> {
        if data.is_used_up() && !layout.rows.is_empty() {
            let last = self.stages.last_mut().expect("a model has a stage");
            last.executable.wait(data.replace()).await?;
        }
        data.advance(layout, self.n_values(layout));
        Ok(())
    }

    /// Appends a page, all layers in order, to `out`.
    pub(crate) async fn read_page(&mut self, page: u32, out: &mut Vec<u8>) -> Result<(), Error> {
        for stage in &mut self.stages {
            stage.read_page(page, out).await?;
        }
        Ok(())
    }

    /// Replaces a page by the bytes of [`read_page`](Self::read_page).
    pub(crate) fn write_page(&mut self, page: u32, bytes: &[u8]) -> Result<(), Error> {
        let expected = self.stages.iter().map(StageProgram::page_bytes).sum();
        if bytes.len() != expected {
            return Err(NnError::KvPage { expected, got: bytes.len() }.into());
        }
        let mut rest = bytes;
        for stage in &mut self.stages {
            let (head, tail) = rest.split_at(stage.page_bytes());
            stage.write_page(page, head)?;
            rest = tail;
        }
        Ok(())
    }

    /// Compiles kernels and allocates device memory for steps of empty `sequences`, which are empty again afterwards.
    pub(crate) fn warm_up(
        &mut self,
        info: &ModelInfo,
        options: StateOptions,
        (sequences, layout): (&mut Sequences, &mut OutputLayout),
    ) -> Result<(), Error> {
        let Self { stages, rows, d_model, .. } = self;
        let stream = vec![0.0; if stages.len() > 1 { options.n_batch * *d_model } else { 0 }];
        for (i, StageProgram { executable, .. }) in stages.iter_mut().enumerate() {
            let mut result = Ok(());
            executable.warm_up(&mut |executable| {
                let mut run = |inputs: &StepInputs, layout: &OutputLayout| {
                    if i > 0 {
                        executable.import(Port::STREAM, &stream[..inputs.n_tokens() * *d_model]);
                    }
                    rows.fill(inputs);
                    executable.run(&rows.step(inputs, layout));
                };
                result = run_all_sizes(info, options, (sequences, layout), &mut run);
            })?;
            result?;
        }
        Ok(())
    }
}

impl StageProgram {
    /// Bytes of a page in all layers.
    fn page_bytes(&self) -> usize {
        self.pools.iter().map(|pool| self.layer_bytes[pool.0]).sum()
    }

    /// Appends a page, all layers in order, to `out`.
    async fn read_page(&mut self, page: u32, out: &mut Vec<u8>) -> Result<(), Error> {
        let Self { executable, pools, layer_bytes } = self;
        if layer_bytes.len() == 1 {
            return Ok(executable.read_page(PoolId(0), page, out).await?);
        }
        let mut by_pool = vec![Vec::new(); layer_bytes.len()];
        for (index, bytes) in by_pool.iter_mut().enumerate() {
            executable.read_page(PoolId(index), page, bytes).await?;
        }
        let mut rest: Vec<&[u8]> = by_pool.iter().map(Vec::as_slice).collect();
        for pool in pools {
            let (layer, tail) = rest[pool.0].split_at(layer_bytes[pool.0]);
            out.extend_from_slice(layer);
            rest[pool.0] = tail;
        }
        Ok(())
    }

    /// Replaces a page by the bytes of [`read_page`](Self::read_page).
    fn write_page(&mut self, page: u32, bytes: &[u8]) -> Result<(), Error> {
        let Self { executable, pools, layer_bytes } = self;
        if layer_bytes.len() == 1 {
            return Ok(executable.write_page(PoolId(0), page, bytes)?);
        }
        let (mut by_pool, mut rest) = (vec![Vec::new(); layer_bytes.len()], bytes);
        for pool in pools {
            let (layer, tail) = rest.split_at(layer_bytes[pool.0]);
            by_pool[pool.0].extend_from_slice(layer);
            rest = tail;
        }
        for (index, bytes) in by_pool.iter().enumerate() {
            executable.write_page(PoolId(index), page, bytes)?;
        }
        Ok(())
    }
}

/// Rows of sliding-window layers.
#[derive(Debug)]
struct WindowRows {
    window: Option<usize>,
    /// [`StepInputs::query_rows`] that see the window alone.
    rows: Vec<QueryRow>,
}

impl WindowRows {
    fn fill(&mut self, inputs: &StepInputs) {
        let Self { window, rows } = self;
        rows.clear();
        rows.extend(inputs.query_rows.iter().map(|row| {
            let kv_start = row.kv_len.saturating_sub(window.map_or(row.kv_len, |w| w as u32));
            QueryRow { kv_start, ..*row }
        }));
    }

    /// A step of the inputs that these rows are of.
    fn step<'a>(&'a self, inputs: &'a StepInputs, layout: &'a OutputLayout) -> Step<'a> {
        let page_table = &inputs.page_table[..];
        let mut step = Step {
            segments: &[SegmentName::Body, SegmentName::Logits, SegmentName::Hidden],
            tokens: &inputs.tokens,
            positions: &inputs.pos,
            output_rows: &layout.rows,
            k: layout.k,
            copies: &inputs.copies,
            states: &inputs.states,
            ..Step::default()
        };
        step.counts[Count::Tokens] = inputs.n_tokens();
        step.counts[Count::Hidden] = layout.n_hidden;
        step.counts[Count::Logits] = layout.n_projected();
        step.counts[Count::TopK] = layout.n_top_k;
        step.counts[Count::LogProbs] = layout.n_log_probs;
        step.slots[SlotTable::TOKENS.index()] = &inputs.kv_rows;
        let full = AttentionRows { rows: &inputs.query_rows, page_table };
        step.rows[RowTable::FULL.index()] = full;
        step.rows[RowTable::WINDOW.index()] = AttentionRows { rows: &self.rows, page_table };
        step
    }
}

/// Runs steps of every batch size that selects kernels, at the start and at the end of the context.
fn run_all_sizes(
    info: &ModelInfo,
    options: StateOptions,
    (sequences, layout): (&mut Sequences, &mut OutputLayout),
    run: &mut dyn FnMut(&StepInputs, &OutputLayout),
) -> Result<(), Error> {
    let StateOptions { n_ctx, n_batch, n_outputs, n_sequences, .. } = options;
    let max_positions = n_ctx.min(sequences.limits().n_pages * PAGE_LEN);
    let max_batch = n_batch.min(max_positions);
    let tokens = vec![0; max_batch];
    let request = match info.max_top_k() {
        0 => OutputRequest::Logits,
        k => OutputRequest::LogProbs(k),
    };
    // Runs `n` tokens of each of the first sequences, `n_outputs` of them with outputs.
    let mut run = |sequences: &mut Sequences, slots: usize, n: usize, n_outputs: usize| {
        layout.clear();
        let mut plan = sequences.plan();
        for slot in (0..slots).map(Slot::new) {
            plan.add(slot, &tokens[..n], n - n_outputs..n)?;
            layout.push(request, n_outputs);
        }
        layout.arrange(&plan.inputs().outputs);
        plan.commit();
        run(sequences.inputs(), layout);
        Ok::<_, Error>(())
    };
    for n in warmup_batch_sizes(max_batch) {
        for past in [0, max_positions - n] {
            sequences.fill(Slot::new(0), past)?;
            run(sequences, 1, n, n.min(n_outputs))?;
            sequences.truncate(Slot::new(0), 0);
        }
    }
    // A step of several sequences forked from one: each copies the shared page.
    let n_pages = sequences.pages().n_pages();
    let n = max_batch.min(n_outputs).min(n_sequences).min(n_pages);
    if n > 1 {
        run(sequences, 1, 1, 1)?;
        (1..n).for_each(|to| sequences.fork(Slot::new(0), Slot::new(to)));
        run(sequences, n, 1, 1)?;
        (0..n).map(Slot::new).for_each(|slot| _ = sequences.truncate(slot, 0));
    }
    layout.clear();
    Ok(())
}
