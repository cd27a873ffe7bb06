//! A model on its device behind object-safe traits: one type of [`Model`](crate::Model) and [`State`](crate::State) for
//! all devices.

use std::fmt::Debug;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use stonechat_nn::{
    Backend, BoxFuture, LoadStats, QueryRow, Read, Sequences, Slot, warmup_batch_sizes,
};

use crate::WINDOW_FRAMES;
use crate::alignment_heads::AlignmentHeads;
use crate::capture::CrossAttentionCapture;
use crate::config::Config;
use crate::decoder::{DecoderBuffers, DecoderStep};
use crate::encoder::EncoderBuffers;
use crate::error::Error;
use crate::state::{StateOptions, cross_rows};
use crate::weights::Weights;

/// Work of one host thread.
pub(crate) type HostTask<'a> = &'a mut (dyn FnMut() + Send);

/// Weights of a model on a device.
pub(crate) trait LoadedModel: Debug + Send + Sync {
    /// Names of the kernels and device in use.
    fn describe(&self) -> String;

    /// Load statistics of the device.
    fn load_stats(&self) -> LoadStats;

    /// Divides the device into 1 to `n` for concurrent use, which share the weights.
    fn divide(&self, n: usize) -> Result<Vec<Arc<dyn LoadedModel>>, Error>;

    /// Runs `tasks` on the device's host threads, if it has any.
    fn run_on_host(&self, tasks: &mut [HostTask<'_>]);

    /// Allocates pools and buffers of these sizes.
    fn runner(self: Arc<Self>, options: StateOptions) -> Result<Box<dyn Runner>, Error>;
}

/// Runs passes of one state.
pub(crate) trait Runner: Debug + Send {
    /// Allocates the copies of cross-attention that alignment reads.
    fn enable_alignment(&mut self) -> Result<(), Error>;

    /// Compiles kernels and allocates device memory for passes over window 0 and empty `sequences`, which are empty again
    /// afterwards.
    fn warm_up(&mut self, sequences: &mut Sequences) -> Result<(), Error>;

    /// Encodes one window of mel frames, `[WINDOW_FRAMES, n_mels]`.
    fn encode(&mut self, mel: &[f32]);

    /// Reads the output of the encoder, `[n_audio_ctx, D]`.
    fn read_encoded<'a>(&'a self, out: &'a mut [f32]) -> BoxFuture<'a, Result<(), Error>>;

    /// Sets the audio of window `window` to the output of the encoder.
    fn set_audio(&mut self, window: usize);

    /// Enqueues a decoder step.
    fn run(&mut self, step: DecoderStep<'_>);

    /// Computes the logits of `rows` of the last step, of `n_tokens` tokens.
    fn project(&mut self, n_tokens: usize, rows: &[usize]);

    /// Reads the first rows of the logits, if no device has to be awaited.
    fn read_logits_now(&self, logits: &mut [f32]) -> Option<Result<(), Error>>;

    /// Reads the first rows of the logits, `[outputs, V]`.
    fn read_logits<'a>(&'a self, logits: &'a mut [f32]) -> BoxFuture<'a, Result<(), Error>>;

    /// Reads the copies of cross-attention: the keys of `window` and the queries of `rows` of the last step with capture.
    fn read_capture<'a>(
        &'a self,
        window: usize,
        rows: Range<usize>,
        out: CaptureData<'a>,
    ) -> BoxFuture<'a, Result<(), Error>>;
}

/// Copies of cross-attention of the alignment heads.
#[derive(Debug)]
pub(crate) struct CaptureData<'a> {
    /// `[heads, n_audio_ctx, C]`.
    pub(crate) keys: &'a mut [f32],
    /// `[heads, rows, C]`.
    pub(crate) queries: &'a mut [f32],
}

/// Weights on one device.
#[derive(Debug)]
pub(crate) struct DeviceModel<B: Backend> {
    pub(crate) backend: B,
    pub(crate) config: Config,
    pub(crate) weights: Arc<Weights<B>>,
    pub(crate) alignment_heads: Arc<AlignmentHeads>,
}

/// State of a [`DeviceModel`].
#[derive(Debug)]
struct DeviceState<B: Backend> {
    model: Arc<DeviceModel<B>>,
    options: StateOptions,
    encoder: EncoderBuffers<B>,
    decoder: DecoderBuffers<B>,
}

impl<B: Backend> LoadedModel for DeviceModel<B> {
    fn describe(&self) -> String {
        self.backend.describe()
    }

    fn load_stats(&self) -> LoadStats {
        self.backend.load_stats()
    }

    fn divide(&self, n: usize) -> Result<Vec<Arc<dyn LoadedModel>>, Error> {
        let on = |backend| {
            let model: Arc<dyn LoadedModel> = Arc::new(Self {
                backend,
                config: self.config,
                weights: Arc::clone(&self.weights),
                alignment_heads: Arc::clone(&self.alignment_heads),
            });
            model
        };
        Ok(self.backend.divide(n)?.into_iter().map(on).collect())
    }

    fn run_on_host(&self, tasks: &mut [HostTask<'_>]) {
        self.backend.for_each(tasks, |task| task());
    }

    fn runner(self: Arc<Self>, options: StateOptions) -> Result<Box<dyn Runner>, Error> {
        let StateOptions { n_windows, kv_dtype, .. } = options;
        let (backend, config) = (&self.backend, &self.config);
        let encoder = EncoderBuffers::new(backend, config, kv_dtype)?;
        let limits = options.limits(config);
        let decoder = DecoderBuffers::new(backend, config, limits, n_windows, kv_dtype)?;
        Ok(Box::new(DeviceState { model: self, options, encoder, decoder }))
    }
}

impl<B: Backend> DeviceState<B> {
    async fn read(&self, logits: &mut [f32]) -> Result<(), Error> {
        Ok(self.model.backend.read(&self.decoder.logits, 0, logits).await?)
    }

    async fn read_attention(
        &self,
        window: usize,
        rows: Range<usize>,
        out: CaptureData<'_>,
    ) -> Result<(), Error> {
        let capture = self.decoder.capture.as_ref().expect("alignment is enabled");
        let CaptureData { keys, queries } = out;
        let c = self.model.config.text_head_dim();
        let mut reads = Vec::with_capacity(1 + capture.heads.len());
        for (head, out) in queries.chunks_exact_mut(rows.len() * c).enumerate() {
            let offset = (head * capture.max_tokens + rows.start) * c;
            reads.push(Read { src: &capture.queries, offset, out });
        }
        reads.push(Read { src: &capture.keys, offset: window * keys.len(), out: keys });
        Ok(self.model.backend.read_all(&mut reads).await?)
    }

    /// Enqueues the passes of one window and of decoder steps of every size that selects kernels.
    fn run_all_sizes(&mut self, sequences: &mut Sequences) -> Result<(), Error> {
        let config = self.model.config;
        self.encode(&vec![0.0; WINDOW_FRAMES * config.n_mels]);
        self.set_audio(0);
        let max_tokens = config.n_text_ctx;
        let tokens = vec![0; max_tokens];
        let mut cross: Vec<QueryRow> = Vec::with_capacity(max_tokens);
        let n_sequences = self.options.n_sequences;
        let mut run = |sequences: &mut Sequences, slots: usize, n: usize| {
            let mut plan = sequences.plan();
            for slot in (0..slots).map(Slot::new) {
                plan.add(slot, &tokens[..n], [n - 1])?;
            }
            cross_rows(plan.inputs(), n_sequences, config.n_audio_ctx, &mut cross);
            let step =
                DecoderStep { inputs: plan.inputs(), cross_rows: &cross, has_capture: false };
            self.run(step);
            plan.commit();
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
        (0..n_sequences).for_each(|slot| sequences.truncate(Slot::new(slot), 0));
        Ok(())
    }
}

impl<B: Backend> Runner for DeviceState<B> {
    fn enable_alignment(&mut self) -> Result<(), Error> {
        if self.decoder.capture.is_none() {
            let DeviceModel { backend, config, alignment_heads, .. } = &*self.model;
            let sizes = (self.options.n_windows, self.options.limits(config).n_batch);
            let heads = AlignmentHeads::clone(alignment_heads);
            let capture = CrossAttentionCapture::new(backend, config, sizes, heads)?;
            self.decoder.capture = Some(capture);
        }
        Ok(())
    }

    fn warm_up(&mut self, sequences: &mut Sequences) -> Result<(), Error> {
        let backend = self.model.backend.clone();
        backend.warm_up(|| self.run_all_sizes(sequences))
    }

    fn encode(&mut self, mel: &[f32]) {
        let DeviceModel { backend, config, weights, .. } = &*self.model;
        weights.encoder.forward(backend, config, &mut self.encoder, mel);
    }

    fn read_encoded<'a>(&'a self, out: &'a mut [f32]) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move { Ok(self.model.backend.read(self.encoder.output(), 0, out).await?) })
    }

    fn set_audio(&mut self, window: usize) {
        let DeviceModel { backend, config, weights, .. } = &*self.model;
        let audio = self.encoder.output();
        weights.decoder.set_audio(backend, config, &mut self.decoder, window, audio);
    }

    fn run(&mut self, step: DecoderStep<'_>) {
        let DeviceModel { backend, config, weights, .. } = &*self.model;
        weights.decoder.forward(backend, config, &mut self.decoder, step);
    }

    fn project(&mut self, n_tokens: usize, rows: &[usize]) {
        let DeviceModel { backend, config, weights, .. } = &*self.model;
        weights.decoder.project(backend, config, &mut self.decoder, n_tokens, rows);
    }

    fn read_logits_now(&self, logits: &mut [f32]) -> Option<Result<(), Error>> {
        if !B::READS_AT_ONCE {
            return None;
        }
        let read = pin!(self.read(logits));
        match read.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => unreachable!("`READS_AT_ONCE`"),
        }
    }

    fn read_logits<'a>(&'a self, logits: &'a mut [f32]) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(self.read(logits))
    }

    fn read_capture<'a>(
        &'a self,
        window: usize,
        rows: Range<usize>,
        out: CaptureData<'a>,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(self.read_attention(window, rows, out))
    }
}
