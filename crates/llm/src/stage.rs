//! State of one pipeline stage: KV pool, activation buffers, `RoPE` tables. A step allocates nothing.

use stonechat_nn::{Backend, KvShape, MAX_TOP_K, PageCopy, QueryRow, StepInputs};

use crate::config::RopeConfig;
use crate::rope::RopeFrequencies;
use crate::weights::Weights;
use crate::{Config, Error, StateOptions};

/// State of one pipeline stage.
#[derive(Debug)]
pub(crate) struct StageState<B: Backend> {
    pub(crate) options: StateOptions,
    pub(crate) kv: B::Kv,
    pub(crate) kv_shape: KvShape,
    pub(crate) buffers: Buffers<B>,
    /// [`StepInputs::query_rows`] of sliding-window layers.
    pub(crate) local_query_rows: Vec<QueryRow>,
}

/// Activations and `RoPE` tables. `T` is `n_batch`, `F` is `d_ff`, `R` the rotated channels of a head.
#[derive(Debug)]
pub(crate) struct Buffers<B: Backend> {
    /// `[T, D]`: the residual stream.
    pub(crate) x: B::Buffer,
    /// `[T, D]`: normed input of attention or the FFN; output of attention before a post-norm.
    pub(crate) h: B::Buffer,
    /// `[T, D]`: output of the FFN before a post-norm.
    pub(crate) result: B::Buffer,
    /// `[T, H*C]`.
    pub(crate) q: B::Buffer,
    /// `[T, G*C]`.
    pub(crate) k: B::Buffer,
    /// `[T, G*C]`.
    pub(crate) v: B::Buffer,
    /// `[T, H*C]`.
    pub(crate) attn: B::Buffer,
    /// `[T, F]`; logits of the MoE router, `[T, n_experts]`.
    pub(crate) gate: B::Buffer,
    /// `[T, F]`.
    pub(crate) up: B::Buffer,
    /// `[T, F]`.
    pub(crate) hidden: B::Buffer,
    /// `[n_outputs + n_hidden, D]`: rows of `x` whose results are wanted.
    pub(crate) output: B::Buffer,
    /// `[n_outputs, V]`.
    pub(crate) logits: B::Buffer,
    /// `[n_outputs, 2k]`, `k <= MAX_TOP_K`: the top-k logits of a row, then their tokens.
    pub(crate) top_k: B::Buffer,
    /// `[max_positions, R]`: `R/2` cosines, then `R/2` sines, of a position.
    pub(crate) rope_table: Option<B::Buffer>,
    /// `[max_positions, R]`: the same for sliding-window layers with a RoPE base of their own.
    pub(crate) local_rope_table: Option<B::Buffer>,
}

impl<B: Backend> StageState<B> {
    pub(crate) fn new(
        backend: &B,
        config: &Config,
        weights: &Weights<B>,
        options: StateOptions,
    ) -> Result<Self, Error> {
        let StateOptions { n_ctx, n_batch: t, .. } = options;
        let (mut n_outputs, mut n_hidden) = (0, 0);
        if weights.output.is_some() {
            (n_outputs, n_hidden) = (options.n_outputs, options.n_hidden);
        }
        let kv_shape = options.kv_shape(config, weights.layers.len());
        let rope_table = |rope: &RopeConfig| {
            let frequencies = RopeFrequencies::new(rope, &weights.rope_freq_factors, n_ctx);
            frequencies.table(backend, options.max_positions())
        };
        let n_experts = config.experts.map_or(0, |e| e.n_experts);
        let d_ff = if n_experts > 0 { 0 } else { config.d_ff };
        let buffers = Buffers {
            x: backend.alloc(t * config.d_model)?,
            h: backend.alloc(t * config.d_model)?,
            result: backend.alloc(t * config.d_model)?,
            q: backend.alloc(t * config.q_width())?,
            k: backend.alloc(t * config.kv_width())?,
            v: backend.alloc(t * config.kv_width())?,
            attn: backend.alloc(t * config.q_width())?,
            gate: backend.alloc(t * d_ff.max(n_experts))?,
            up: backend.alloc(t * d_ff)?,
            hidden: backend.alloc(t * d_ff)?,
            output: backend.alloc((n_outputs + n_hidden) * config.d_model)?,
            logits: backend.alloc(n_outputs * config.vocab_size)?,
            top_k: backend.alloc(n_outputs * 2 * MAX_TOP_K)?,
            rope_table: config.rope.as_ref().map(rope_table).transpose()?,
            local_rope_table: config.local_rope.as_ref().map(rope_table).transpose()?,
        };
        Ok(Self {
            options,
            kv: backend.kv(kv_shape)?,
            kv_shape,
            buffers,
            local_query_rows: Vec::with_capacity(t),
        })
    }

    /// Copies shared pages and derives the rows of sliding-window layers.
    pub(crate) fn prepare(&mut self, backend: &B, inputs: &StepInputs, window: Option<usize>) {
        for &PageCopy { from, to } in &inputs.copies {
            backend.kv_copy_page(&mut self.kv, from, to);
        }
        self.local_query_rows.clear();
        self.local_query_rows.extend(inputs.query_rows.iter().map(|row| {
            let kv_start = row.kv_len.saturating_sub(window.map_or(row.kv_len, |w| w as u32));
            QueryRow { kv_start, ..*row }
        }));
    }
}
