//! State of a model: the paged KV cache and the activation buffers, allocated once. A step allocates nothing.
//!
//! A [`Batch`] is ragged: each of its sequences is continued by one or more tokens. [`StageState::prepare`] reserves
//! pages for them and fills the [`BatchInputs`], which kernels read:
//!
//! ```text
//! batch   tokens      a  b  c  d  e  f     adjacent tokens of a sequence, in order
//!         sequences   0  0  0  2  1  1
//! inputs  pos        62 63 64  0  7  8     position in the sequence
//!         kv_rows     4  4  9  2  7  7     page of the token's key and value, and the slot pos % PAGE_LEN in it
//!         page_table  4  9 | 2 | 7         pages of sequence 0, of 2, of 1
//!         query_rows  a token's range of page_table, and the positions kv_start..kv_len that it attends to
//! ```
//!
//! A page holds the keys and values of `PAGE_LEN` (64) positions in every layer of the stage. A fork shares pages
//! between sequences; the first write to a shared page copies it ([`KvCache`]).

use stonechat_nn::{
    Backend, Batch, KvCache, KvDType, KvRow, KvShape, MAX_TOP_K, PAGE_LEN, QueryRow, Sequence,
};

use crate::devices::Devices;
use crate::rope::RopeTable;
use crate::weights::Weights;
use crate::{Config, Error};

/// Sizes of a [`State`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateOptions {
    /// Maximum positions of a sequence.
    pub n_ctx: usize,
    /// Number of sequences.
    pub n_sequences: usize,
    /// KV pages shared by all sequences; `None`: enough for `n_ctx` positions of each.
    pub n_pages: Option<usize>,
    /// Maximum tokens of a forward pass.
    pub n_batch: usize,
    /// Maximum rows of logits of a forward pass.
    pub n_outputs: usize,
    /// Element type of cached keys and values.
    pub kv_dtype: KvDType,
}

impl StateOptions {
    /// One sequence of `n_ctx` positions.
    #[must_use]
    pub fn new(n_ctx: usize) -> Self {
        Self {
            n_ctx,
            n_sequences: 1,
            n_pages: None,
            n_batch: 512,
            n_outputs: 1,
            kv_dtype: KvDType::F16,
        }
    }
}

/// KV cache and activations of a model, for each pipeline stage.
#[derive(Debug)]
pub struct State<D: Devices> {
    options: StateOptions,
    /// None if the model is on one device.
    pub(crate) first: Option<StageState<D::First>>,
    /// Its sequences have the lengths and page ids of the first stage's.
    pub(crate) second: StageState<D::Second>,
    /// `[T, D]`: host copy of the residual stream on its way from the first stage to the second.
    pub(crate) hidden_states: Vec<f32>,
}

/// State of one pipeline stage.
#[derive(Debug)]
pub(crate) struct StageState<B: Backend> {
    pub(crate) options: StateOptions,
    pub(crate) kv: KvCache<B>,
    pub(crate) sequences: Vec<Sequence>,
    pub(crate) buffers: Buffers<B>,
    pub(crate) rope: Option<RopeTable>,
    pub(crate) local_rope: Option<RopeTable>,
    pub(crate) inputs: BatchInputs,
    /// Host copy of [`Buffers::top_k`].
    pub(crate) top_k: Vec<f32>,
}

/// Activations. `T` is `n_batch`, `F` is `d_ff`, `R` the rotated channels of a head.
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
    /// `[n_outputs, D]`: rows of `x` whose logits to compute.
    pub(crate) output: B::Buffer,
    /// `[n_outputs, V]`.
    pub(crate) logits: B::Buffer,
    /// `[n_outputs, 2k]`, `k <= MAX_TOP_K`: the top-k logits of a row, then their tokens.
    pub(crate) top_k: B::Buffer,
    /// `[T, R]`: `R/2` cosines, then `R/2` sines, of a token's position.
    pub(crate) cos_sin: Option<B::Buffer>,
    /// `[T, R]`: the same for sliding-window layers with a RoPE base of their own.
    pub(crate) local_cos_sin: Option<B::Buffer>,
}

/// Positions, KV rows and page tables of a batch; drawn at the top of this file.
#[derive(Debug)]
pub(crate) struct BatchInputs {
    pub(crate) pos: Vec<u32>,
    pub(crate) kv_rows: Vec<KvRow>,
    pub(crate) query_rows: Vec<QueryRow>,
    /// The same for sliding-window layers.
    pub(crate) local_query_rows: Vec<QueryRow>,
    pub(crate) page_table: Vec<u32>,
    /// Contents of [`Buffers::cos_sin`] or [`Buffers::local_cos_sin`] to upload.
    cos_sin: Vec<f32>,
}

impl StateOptions {
    /// Checks that sizes are in `1..=2^24`.
    fn check(&self) -> Result<(), Error> {
        for (option, value) in [
            ("context size", self.n_ctx),
            ("sequences", self.n_sequences),
            ("batch size", self.n_batch),
            ("outputs", self.n_outputs),
        ] {
            if value == 0 || value > 1 << 24 {
                let expected = format!("1 to {}", 1 << 24);
                return Err(Error::Option { option, expected, got: value.to_string() });
            }
        }
        Ok(())
    }

    /// Pages of a sequence of `n_ctx` positions.
    fn pages_each(&self) -> usize {
        self.n_ctx.div_ceil(PAGE_LEN)
    }

    /// Shape of the KV pool of `n_layers` layers.
    pub(crate) fn kv_shape(&self, config: &Config, n_layers: usize) -> KvShape {
        KvShape {
            n_layers,
            n_pages: self.n_pages.unwrap_or(self.n_sequences * self.pages_each()),
            n_kv_heads: config.n_kv_heads,
            head_dim: config.head_dim,
            dtype: self.kv_dtype,
        }
    }
}

impl<D: Devices> State<D> {
    pub(crate) fn new(
        devices: &D,
        config: &Config,
        (first, second): (Option<&Weights<D::First>>, &Weights<D::Second>),
        options: StateOptions,
    ) -> Result<Self, Error> {
        options.check()?;
        let first = match devices.first().zip(first) {
            Some(((backend, _), weights)) => {
                Some(StageState::new(backend, config, weights, options)?)
            }
            None => None,
        };
        let n_hidden = if first.is_some() { options.n_batch * config.d_model } else { 0 };
        Ok(Self {
            options,
            first,
            second: StageState::new(devices.second(), config, second, options)?,
            hidden_states: vec![0.0; n_hidden],
        })
    }

    /// Sizes of the state.
    #[must_use]
    pub fn options(&self) -> StateOptions {
        self.options
    }

    /// Cached positions of sequence `index`.
    ///
    /// # Panics
    /// If there is no such sequence.
    #[must_use]
    pub fn len(&self, index: usize) -> usize {
        self.second.sequences[index].len()
    }

    /// Whether every sequence is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.second.sequences.iter().all(Sequence::is_empty)
    }

    /// Drops the positions of sequence `index` from `len` on.
    ///
    /// # Panics
    /// If there is no such sequence.
    pub fn truncate(&mut self, index: usize, len: usize) {
        if let Some(first) = &mut self.first {
            first.truncate(index, len);
        }
        self.second.truncate(index, len);
    }

    /// Makes sequence `to` a copy of `from`; they share pages until one of them writes.
    ///
    /// # Panics
    /// If they are the same or there is no such sequence.
    pub fn fork(&mut self, from: usize, to: usize) {
        if let Some(first) = &mut self.first {
            first.fork(from, to);
        }
        self.second.fork(from, to);
    }

    /// Appends page `index` of a sequence, all layers in order, to `out`; the bytes do not depend on the split.
    pub(crate) async fn read_page(
        &self,
        devices: &D,
        sequence: usize,
        index: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        if let Some(((backend, _), stage)) = devices.first().zip(self.first.as_ref()) {
            let page = stage.sequences[sequence].pages()[index];
            backend.kv_read_page(stage.kv.pool(), page, out).await?;
        }
        let page = self.second.sequences[sequence].pages()[index];
        Ok(devices.second().kv_read_page(self.second.kv.pool(), page, out).await?)
    }

    /// Loads `n` positions into an empty sequence from pages of [`read_page`](Self::read_page). It stays empty on an
    /// error.
    pub(crate) fn restore(
        &mut self,
        devices: &D,
        sequence: usize,
        n: usize,
        pages: &[&[u8]],
    ) -> Result<(), Error> {
        let layers = |shape: KvShape| shape.n_layers;
        let n_second = layers(self.second.kv.shape());
        let n_first = self.first.as_ref().map_or(0, |first| layers(first.kv.shape()));
        let first_bytes = |page: &&'_ [u8]| page.len() / (n_first + n_second) * n_first;
        let restored = match devices.first().zip(self.first.as_mut()) {
            Some(((backend, _), stage)) => {
                let pages = pages.iter().map(|page| &page[..first_bytes(page)]);
                stage.restore(backend, sequence, n, pages)
            }
            None => Ok(()),
        };
        let pages = pages.iter().map(|page| &page[first_bytes(page)..]);
        let restored =
            restored.and_then(|()| self.second.restore(devices.second(), sequence, n, pages));
        if restored.is_err() {
            self.truncate(sequence, 0);
        }
        restored
    }
}

impl<B: Backend> StageState<B> {
    fn new(
        backend: &B,
        config: &Config,
        weights: &Weights<B>,
        options: StateOptions,
    ) -> Result<Self, Error> {
        let StateOptions { n_ctx, n_sequences, n_batch: t, .. } = options;
        let n_outputs = if weights.output.is_some() { options.n_outputs } else { 0 };
        let kv = KvCache::new(backend, options.kv_shape(config, weights.layers.len()))?;
        let table = |rope: &_| RopeTable::new(rope, &weights.rope_freq_factors, n_ctx);
        let rope = config.rope.as_ref().map(table);
        let local_rope = config.local_rope.as_ref().map(table);
        let alloc_cos_sin = |table: &Option<RopeTable>| match table {
            Some(table) => backend.alloc(t * table.n_rot()).map(Some),
            None => Ok(None),
        };
        let n_rot = rope.as_ref().map_or(0, RopeTable::n_rot);
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
            output: backend.alloc(n_outputs * config.d_model)?,
            logits: backend.alloc(n_outputs * config.vocab_size)?,
            top_k: backend.alloc(n_outputs * 2 * MAX_TOP_K)?,
            cos_sin: alloc_cos_sin(&rope)?,
            local_cos_sin: alloc_cos_sin(&local_rope)?,
        };
        let inputs = BatchInputs {
            pos: Vec::with_capacity(t),
            kv_rows: Vec::with_capacity(t),
            query_rows: Vec::with_capacity(t),
            local_query_rows: Vec::with_capacity(t),
            page_table: Vec::with_capacity(n_sequences * options.pages_each()),
            cos_sin: Vec::with_capacity(t * n_rot),
        };
        let sequences = (0..n_sequences).map(|_| Sequence::with_capacity(n_ctx)).collect();
        let top_k = Vec::with_capacity(n_outputs * 2 * MAX_TOP_K);
        Ok(Self { options, kv, sequences, buffers, rope, local_rope, inputs, top_k })
    }

    pub(crate) fn truncate(&mut self, index: usize, len: usize) {
        self.kv.truncate(&mut self.sequences[index], len);
    }

    pub(crate) fn fork(&mut self, from: usize, to: usize) {
        let [from, to] =
            self.sequences.get_disjoint_mut([from, to]).expect("two sequences of this state");
        self.kv.fork(from, to);
    }

    /// Maximum positions of one sequence while the others are empty.
    pub(crate) fn max_positions(&self) -> usize {
        self.options.n_ctx.min(self.kv.shape().n_pages * PAGE_LEN)
    }

    /// Appends `n` positions with undefined keys and values to sequence `index`.
    pub(crate) fn skip(&mut self, backend: &B, index: usize, n: usize) -> Result<(), Error> {
        let sequence = &mut self.sequences[index];
        self.kv.reserve(backend, sequence, n)?;
        sequence.advance(n);
        Ok(())
    }

    fn restore<'a>(
        &mut self,
        backend: &B,
        sequence: usize,
        n: usize,
        pages: impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), Error> {
        self.skip(backend, sequence, n)?;
        for (bytes, &page) in pages.zip(self.sequences[sequence].pages()) {
            backend.kv_write_page(self.kv.pool_mut(), page, bytes)?;
        }
        Ok(())
    }

    /// Reserves the pages of a batch, advances its sequences, fills [`BatchInputs`], and uploads cosines and sines. On
    /// an error the sequences are as before.
    pub(crate) fn prepare(
        &mut self,
        backend: &B,
        batch: Batch<'_>,
        window: Option<usize>,
    ) -> Result<(), Error> {
        let Self { options, kv, sequences, inputs, .. } = self;
        for run in batch.sequences.chunk_by(|a, b| a == b) {
            let tokens = sequences[run[0]].len() + run.len();
            if tokens > options.n_ctx {
                return Err(Error::ContextFull { tokens, n_ctx: options.n_ctx });
            }
        }
        inputs.pos.clear();
        inputs.kv_rows.clear();
        inputs.query_rows.clear();
        inputs.local_query_rows.clear();
        inputs.page_table.clear();
        for run in batch.sequences.chunk_by(|a, b| a == b) {
            let sequence = &mut sequences[run[0]];
            let past = sequence.len();
            if let Err(full) = kv.reserve(backend, sequence, run.len()) {
                let done = inputs.pos.len();
                for run in batch.sequences[..done].chunk_by(|a, b| a == b) {
                    let sequence = &mut sequences[run[0]];
                    kv.truncate(sequence, sequence.len() - run.len());
                }
                return Err(full.into());
            }
            let first_page = inputs.page_table.len() as u32;
            inputs.page_table.extend_from_slice(sequence.pages());
            let n_pages = sequence.pages().len() as u32;
            for pos in past..past + run.len() {
                inputs.pos.push(pos as u32);
                inputs.kv_rows.push(sequence.slot(pos));
                let kv_len = pos as u32 + 1;
                inputs.query_rows.push(QueryRow { first_page, n_pages, kv_start: 0, kv_len });
                let kv_start = kv_len.saturating_sub(window.map_or(kv_len, |w| w as u32));
                inputs.local_query_rows.push(QueryRow { first_page, n_pages, kv_start, kv_len });
            }
            sequence.advance(run.len());
        }
        let Buffers { cos_sin, local_cos_sin, .. } = &mut self.buffers;
        for (table, buffer) in [(&self.rope, cos_sin), (&self.local_rope, local_cos_sin)] {
            if let (Some(table), Some(buffer)) = (table, buffer) {
                table.fill(&inputs.pos, &mut inputs.cos_sin);
                backend.write(buffer, 0, &inputs.cos_sin);
            }
        }
        Ok(())
    }
}
