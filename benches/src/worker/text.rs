//! A language model's phases: prompts, tokens one at a time, several sequences side by side.

use std::path::Path;

use anyhow::{Result, ensure};
use stonechat_benches::protocol::{PeakKind, PeakWork, Stage, Unit};
use stonechat_formats::{ModelFile, TensorView};
use stonechat_llm::{FfnConfig, LayerConfig, Model, OutputRequest, Slot, State, StateOptions};
use stonechat_nn::{Device, KvDType};
use stonechat_sampling::SamplingOptions;

use super::files::main_dtype;
use super::{Work, timed};

/// Tokens of one forward pass: llama.cpp's default.
const N_BATCH: usize = 512;
/// Steps of sequences side by side.
const BATCH_STEPS: usize = 16;

/// Sizes of the job.
#[derive(Debug)]
pub(super) struct Sizes {
    /// Prompt lengths.
    pub(super) prefill: Vec<usize>,
    /// Tokens decoded one at a time, after the shortest prompt.
    pub(super) decode: Vec<usize>,
    /// Sequences side by side, after the shortest prompt.
    pub(super) batch: Vec<usize>,
}

/// A model with a context for the largest of its sizes.
pub(super) struct Text {
    model: Model,
    state: State,
    sizes: Sizes,
    costs: Costs,
    random: u32,
}

/// Weights that tokens meet.
struct Costs {
    /// Read for each pass, wherever its rows come from.
    bytes: f64,
    /// Layer weights, which each token reads.
    layers: f64,
    /// Output projection, which tokens with logits read.
    projection: f64,
    is_quantized: bool,
}

impl Text {
    /// Loads the model.
    pub(super) fn new(device: impl Into<Device>, path: &Path, mut sizes: Sizes) -> Result<Self> {
        let Sizes { prefill, decode, batch } = &mut sizes;
        ensure!(
            prefill.iter().chain(&*decode).chain(&*batch).all(|&n| n > 0),
            "sizes: expected at least 1, got 0"
        );
        prefill.sort_unstable();
        let file = ModelFile::open(path)?;
        let model = Model::load(device.into(), &file, |_| {})?;
        let costs = Costs::new(&file, &model);
        drop(file);
        let start = prefill.first().copied().unwrap_or(0);
        let most = |list: &[usize]| list.iter().copied().max().unwrap_or(0);
        let n_ctx = most(prefill).max(start + most(decode)).max(start + BATCH_STEPS + 1);
        let n_sequences = most(batch).max(1);
        let state = model.state(StateOptions {
            n_ctx,
            n_sequences,
            n_pages: None,
            n_batch: N_BATCH.min(n_ctx).max(n_sequences),
            n_outputs: n_sequences,
            n_hidden: 0,
            kv_dtype: KvDType::F16,
        })?;
        Ok(Self { model, state, sizes, costs, random: 1 })
    }

    /// Random tokens, the same in every engine.
    fn tokens(&mut self, n: usize) -> Vec<u32> {
        let vocab_size = self.model.config().vocab_size as u32;
        let next = || {
            self.random = self.random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (self.random >> 8) % vocab_size
        };
        std::iter::repeat_with(next).take(n).collect()
    }

    /// Outputs of a row that a sampler with default options needs.
    fn output(&self) -> OutputRequest {
        match SamplingOptions::default().top_k {
            k if k <= self.model.max_top_k() => OutputRequest::TopK(k),
            _ => OutputRequest::Logits,
        }
    }

    /// One step of the i-th token for sequence i; the outputs of all are read.
    fn step(&mut self, tokens: &[u32]) -> Result<()> {
        let output = self.output();
        let mut plan = self.state.plan();
        for (index, token) in tokens.chunks(1).enumerate() {
            plan.add(Slot::new(index), token, output, 1)?;
        }
        let ticket = plan.run()?;
        pollster::block_on(self.state.outputs(ticket))?;
        Ok(())
    }

    /// Cuts sequence 0 to `len` positions, empties the others.
    fn truncate(&mut self, len: usize) {
        for index in 0..self.state.options().n_sequences {
            self.state.truncate(Slot::new(index), if index == 0 { len } else { 0 });
        }
    }

    fn prefill(&mut self, n: usize) -> Result<f64> {
        self.truncate(0);
        let (tokens, output) = (self.tokens(n), self.output());
        let (seconds, done) = timed(|| {
            let mut left = n;
            for chunk in tokens.chunks(N_BATCH) {
                left -= chunk.len();
                let n_outputs = usize::from(left == 0);
                pollster::block_on(self.state.run(Slot::new(0), chunk, output, n_outputs))?;
            }
            anyhow::Ok(())
        });
        done.map(|()| seconds)
    }

    /// `steps` tokens of each of `n` sequences that share the shortest prompt.
    fn decode(&mut self, n: usize, steps: usize) -> Result<f64> {
        self.truncate(self.sizes.prefill.first().copied().unwrap_or(0));
        (1..n).for_each(|to| self.state.fork(Slot::new(0), Slot::new(to)));
        if n > 1 {
            // Here sequences part, which copies what they share.
            let tokens = self.tokens(n);
            self.step(&tokens)?;
        }
        let tokens = self.tokens(n * steps);
        let (seconds, done) = timed(|| tokens.chunks(n).try_for_each(|tokens| self.step(tokens)));
        done.map(|()| seconds)
    }

    fn measure(&mut self) -> Result<Vec<f64>> {
        let mut seconds = Vec::new();
        for n in self.sizes.prefill.clone() {
            seconds.push(self.prefill(n)?);
        }
        for n in self.sizes.decode.clone() {
            seconds.push(self.decode(1, n)?);
        }
        for n in self.sizes.batch.clone() {
            seconds.push(self.decode(n, BATCH_STEPS)?);
        }
        Ok(seconds)
    }
}

impl Work for Text {
    fn stages(&self) -> Vec<Stage> {
        let stage = |name: String, n: usize, peak| Stage {
            name,
            amount: n as f64,
            unit: Unit::Tokens,
            peak: vec![peak],
            kernel: None,
        };
        let Sizes { prefill, decode, batch } = &self.sizes;
        let prefill =
            prefill.iter().map(|&n| stage(format!("prefill {n}"), n, self.costs.products(n)));
        let decode = decode.iter().map(|&n| stage(format!("decode {n}"), n, self.costs.passes(n)));
        let batch = batch.iter().map(|&n| {
            stage(format!("batch of {n}"), n * BATCH_STEPS, self.costs.passes(BATCH_STEPS))
        });
        prefill.chain(decode).chain(batch).collect()
    }

    fn settings(&self) -> String {
        format!("random tokens, KV f16, passes of up to {N_BATCH}")
    }

    fn sample(&mut self) -> Result<Vec<f64>> {
        self.measure()
    }
}

impl Costs {
    fn new(file: &ModelFile, model: &Model) -> Self {
        let is_embedding = |t: &TensorView<'_>| {
            matches!(t.name, "token_embd.weight" | "model.embed_tokens.weight")
        };
        let is_projection =
            |t: &TensorView<'_>| matches!(t.name, "output.weight" | "lm_head.weight");
        let is_tied = !file.tensors().any(|t| is_projection(&t));
        let experts = |layer: &LayerConfig| match layer.ffn {
            FfnConfig::Experts(experts) => Some(experts.n_used as f64 / experts.n_experts as f64),
            _ => None,
        };
        let used = model.config().layers.iter().find_map(experts).unwrap_or(1.0);
        let mut costs = Self {
            bytes: 0.0,
            layers: 0.0,
            projection: 0.0,
            is_quantized: main_dtype(file).is_quantized(),
        };
        for tensor in file.tensors() {
            let part = if tensor.name.contains("exps") { used } else { 1.0 };
            if is_embedding(&tensor) && !is_tied {
                continue;
            }
            costs.bytes += part * tensor.data.len() as f64;
            if is_embedding(&tensor) || is_projection(&tensor) {
                costs.projection += tensor.n_elements() as f64;
            } else if tensor.shape.len() > 1 {
                costs.layers += part * tensor.n_elements() as f64;
            }
        }
        costs
    }

    /// Products of `n` tokens with the layers, of one with the projection, without attention.
    fn products(&self, n: usize) -> PeakWork {
        let kind = if self.is_quantized { PeakKind::Int8 } else { PeakKind::F32 };
        PeakWork { kind, amount: 2.0 * (n as f64 * self.layers + self.projection) }
    }

    /// Bytes to read all weights `n` times, without keys and values.
    fn passes(&self, n: usize) -> PeakWork {
        PeakWork { kind: PeakKind::Read, amount: n as f64 * self.bytes }
    }
}
