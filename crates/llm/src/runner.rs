//! A model on its devices behind object-safe traits: one type of [`Model`](crate::Model) and [`State`](crate::State) for
//! all devices.

use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use stonechat_nn::{
    Backend, BoxFuture, LoadStats, Read, Sequences, Slot, StepInputs, warmup_batch_sizes,
};

use crate::forward::forward;
use crate::model::ModelInfo;
use crate::outputs::{OutputData, OutputLayout};
use crate::stage::StageState;
use crate::weights::Weights;
use crate::{Devices, Error, OutputRequest, Placement, StateOptions};

/// Weights of a model on its devices.
pub(crate) trait LoadedModel: Debug + Send + Sync {
    /// Names of the kernels and devices in use.
    fn describe(&self) -> String;

    /// Load statistics, summed over the devices.
    fn load_stats(&self) -> LoadStats;

    /// Layers and bytes of each device, in pipeline order.
    fn placements(&self, options: &StateOptions) -> Vec<Placement>;

    /// Allocates pools and buffers of these sizes.
    fn runner(self: Arc<Self>, options: StateOptions) -> Result<Box<dyn Runner>, Error>;
}

/// Runs steps of one state.
pub(crate) trait Runner: Debug + Send {
    /// Whether [`run`](Self::run) enqueues all of a step. Otherwise [`read`](Self::read) completes it.
    fn is_whole(&self) -> bool;

    /// Compiles kernels and allocates device memory for steps of empty `sequences`, which are empty again afterwards.
    fn warm_up(
        &mut self,
        sequences: &mut Sequences,
        layout: &mut OutputLayout,
    ) -> Result<(), Error>;

    /// Enqueues a step.
    fn run(&mut self, inputs: &StepInputs, layout: &OutputLayout) -> Result<(), Error>;

    /// Completes a step and reads its outputs, if no device has to be awaited.
    fn read_now(
        &mut self,
        inputs: &StepInputs,
        layout: &OutputLayout,
        data: &mut OutputData,
    ) -> Option<Result<(), Error>>;

    /// Completes a step and reads its outputs.
    fn read<'a>(
        &'a mut self,
        inputs: &'a StepInputs,
        layout: &'a OutputLayout,
        data: &'a mut OutputData,
    ) -> BoxFuture<'a, Result<(), Error>>;

    /// Appends a page, all layers in order, to `out`.
    fn read_page<'a>(&'a self, page: u32, out: &'a mut Vec<u8>)
    -> BoxFuture<'a, Result<(), Error>>;

    /// Replaces a page by the bytes of [`read_page`](Self::read_page).
    fn write_page(&mut self, page: u32, bytes: &[u8]) -> Result<(), Error>;
}

/// Weights on one device or on a pipeline of two.
#[derive(Debug)]
pub(crate) struct Pipeline<D: Devices> {
    pub(crate) info: Arc<ModelInfo>,
    pub(crate) devices: D,
    /// Weights of the first stage; `None` if the model is on one device.
    pub(crate) first: Option<Weights<D::First>>,
    pub(crate) second: Weights<D::Second>,
}

/// State of a [`Pipeline`].
#[derive(Debug)]
struct PipelineState<D: Devices> {
    model: Arc<Pipeline<D>>,
    first: Option<StageState<D::First>>,
    second: StageState<D::Second>,
    /// `[T, D]`: host copy of the residual stream on its way from the first stage to the second.
    hidden_states: Vec<f32>,
}

impl<D: Devices> Pipeline<D> {
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
            kv_bytes: options.kv_shape(&self.info.config, weights.layers.len()).bytes(),
        }
    }
}

impl<D: Devices> LoadedModel for Pipeline<D> {
    fn describe(&self) -> String {
        let second = self.devices.second().describe();
        match self.devices.first() {
            Some((first, _)) => format!("{} + {second}", first.describe()),
            None => second,
        }
    }

    fn load_stats(&self) -> LoadStats {
        let second = self.devices.second().load_stats();
        self.devices.first().map_or(second, |(first, _)| first.load_stats() + second)
    }

    fn placements(&self, options: &StateOptions) -> Vec<Placement> {
        let first = self.devices.first().zip(self.first.as_ref());
        let first = first.map(|((backend, _), weights)| self.placement(backend, weights, options));
        let second = self.placement(self.devices.second(), &self.second, options);
        first.into_iter().chain([second]).collect()
    }

    fn runner(self: Arc<Self>, options: StateOptions) -> Result<Box<dyn Runner>, Error> {
        let config = &self.info.config;
        let first = match self.devices.first().zip(self.first.as_ref()) {
            Some(((backend, _), weights)) => {
                Some(StageState::new(backend, config, weights, options)?)
            }
            None => None,
        };
        let second = StageState::new(self.devices.second(), config, &self.second, options)?;
        let n_hidden = if first.is_some() { options.n_batch * config.d_model } else { 0 };
        let hidden_states = vec![0.0; n_hidden];
        Ok(Box::new(PipelineState { model: self, first, second, hidden_states }))
    }
}

impl<D: Devices> PipelineState<D> {
    /// Completes a step: on two devices, copies the residual stream from the first to the second and runs that.
    async fn read_outputs(
        &mut self,
        inputs: &StepInputs,
        layout: &OutputLayout,
        data: &mut OutputData,
    ) -> Result<(), Error> {
        let Self { model, first, second, hidden_states } = self;
        let config = &model.info.config;
        let backend = model.devices.second();
        if inputs.n_tokens() == 0 {
            return Ok(());
        }
        if let (Some((first_backend, _)), Some(stage)) = (model.devices.first(), first) {
            let hidden_states = &mut hidden_states[..inputs.n_tokens() * config.d_model];
            first_backend.read(&stage.buffers.x, 0, hidden_states).await?;
            backend.write(&mut second.buffers.x, 0, hidden_states);
            forward(backend, config, &model.second, second, (inputs, layout));
        }
        let buffers = &second.buffers;
        let offset = layout.n_top_k * config.vocab_size;
        // Device order: hidden states lie behind the rows of the projection.
        let hidden_offset = layout.n_projected() * config.d_model;
        let OutputData { top_k, logits, hidden, .. } = data;
        if layout.rows.is_empty() {
            return Ok(());
        }
        let reads = &mut [
            Read { src: &buffers.top_k, offset: 0, out: top_k },
            Read { src: &buffers.logits, offset, out: logits },
            Read { src: &buffers.h, offset: hidden_offset, out: hidden },
        ];
        Ok(backend.read_all(reads).await?)
    }
}

impl<D: Devices> Runner for PipelineState<D> {
    fn is_whole(&self) -> bool {
        self.first.is_none()
    }

    fn warm_up(
        &mut self,
        sequences: &mut Sequences,
        layout: &mut OutputLayout,
    ) -> Result<(), Error> {
        let Self { model, first, second, .. } = self;
        let first = model.devices.first().zip(model.first.as_ref()).zip(first.as_mut());
        if let Some((((backend, _), weights), stage)) = first {
            backend
                .warm_up(|| warm_up(backend, &model.info, weights, stage, (sequences, layout)))?;
        }
        let (backend, weights) = (model.devices.second(), &model.second);
        backend.warm_up(|| warm_up(backend, &model.info, weights, second, (sequences, layout)))
    }

    fn run(&mut self, inputs: &StepInputs, layout: &OutputLayout) -> Result<(), Error> {
        let Self { model, first, second, .. } = self;
        let config = &model.info.config;
        match (model.devices.first(), &model.first, first) {
            (Some((backend, _)), Some(weights), Some(stage)) => {
                forward(backend, config, weights, stage, (inputs, layout));
            }
            _ => forward(model.devices.second(), config, &model.second, second, (inputs, layout)),
        }
        Ok(())
    }

    fn read_now(
        &mut self,
        inputs: &StepInputs,
        layout: &OutputLayout,
        data: &mut OutputData,
    ) -> Option<Result<(), Error>> {
        if !D::First::READS_AT_ONCE || !D::Second::READS_AT_ONCE {
            return None;
        }
        let read = pin!(self.read_outputs(inputs, layout, data));
        match read.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => unreachable!("`READS_AT_ONCE`"),
        }
    }

    fn read<'a>(
        &'a mut self,
        inputs: &'a StepInputs,
        layout: &'a OutputLayout,
        data: &'a mut OutputData,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(self.read_outputs(inputs, layout, data))
    }

    fn read_page<'a>(
        &'a self,
        page: u32,
        out: &'a mut Vec<u8>,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            if let Some(((backend, _), stage)) = self.model.devices.first().zip(self.first.as_ref())
            {
                backend.kv_read_page(&stage.kv, page, out).await?;
            }
            Ok(self.model.devices.second().kv_read_page(&self.second.kv, page, out).await?)
        })
    }

    fn write_page(&mut self, page: u32, bytes: &[u8]) -> Result<(), Error> {
        let n_second = self.second.kv_shape.n_layers;
        let n_first = self.first.as_ref().map_or(0, |first| first.kv_shape.n_layers);
        let (head, tail) = bytes.split_at(bytes.len() / (n_first + n_second) * n_first);
        if let Some(((backend, _), stage)) = self.model.devices.first().zip(self.first.as_mut()) {
            backend.kv_write_page(&mut stage.kv, page, head)?;
        }
        Ok(self.model.devices.second().kv_write_page(&mut self.second.kv, page, tail)?)
    }
}

/// Enqueues a step of every batch size that selects kernels, at the start and at the end of the context.
fn warm_up<B: Backend>(
    backend: &B,
    info: &ModelInfo,
    weights: &Weights<B>,
    stage: &mut StageState<B>,
    (sequences, layout): (&mut Sequences, &mut OutputLayout),
) -> Result<(), Error> {
    let StateOptions { n_batch, n_outputs, n_sequences, .. } = stage.options;
    let max_positions = stage.options.max_positions();
    let max_batch = n_batch.min(max_positions);
    let tokens = vec![0; max_batch];
    let n_hidden = if weights.input.is_some() { 0 } else { max_batch * info.config.d_model };
    let hidden_states = vec![0.0; n_hidden];
    let request = match info.max_top_k() {
        0 => OutputRequest::Logits,
        k => OutputRequest::TopK(k),
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
        let inputs = sequences.inputs();
        if weights.input.is_none() {
            let n_values = inputs.n_tokens() * info.config.d_model;
            backend.write(&mut stage.buffers.x, 0, &hidden_states[..n_values]);
        }
        forward(backend, &info.config, weights, stage, (inputs, layout));
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
        (0..n).for_each(|slot| sequences.truncate(Slot::new(slot), 0));
    }
    layout.clear();
    Ok(())
}
