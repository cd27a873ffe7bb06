//! KV pages and buffers of a model, made once; a step allocates nothing.

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
    /// Positions that one sequence can hold.
    pub n_ctx: usize,
    /// Sequences that can be held at once.
    pub n_sequences: usize,
    /// Pages of KV that all sequences share; none gives every sequence its `n_ctx`.
    pub n_pages: Option<usize>,
    /// Tokens of one forward pass.
    pub n_batch: usize,
    /// Rows of logits of one forward pass.
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

/// Everything of a model that changes.
#[derive(Debug)]
pub struct State<D: Devices> {
    options: StateOptions,
    /// Of the first layers, where they have a device of their own.
    pub(crate) lower: Option<Part<D::Lower>>,
    /// Holds the same positions in the same pages.
    pub(crate) upper: Part<D::Upper>,
    /// `[T, D]`: the residual stream between the two.
    pub(crate) between: Vec<f32>,
}

/// What changes of a stretch of a model.
#[derive(Debug)]
pub(crate) struct Part<B: Backend> {
    pub(crate) options: StateOptions,
    pub(crate) kv: KvCache<B>,
    pub(crate) sequences: Vec<Sequence>,
    pub(crate) buffers: Buffers<B>,
    pub(crate) rope: Option<RopeTable>,
    pub(crate) local_rope: Option<RopeTable>,
    pub(crate) plan: Plan,
}

/// Activations. `T` is the batch size.
#[derive(Debug)]
pub(crate) struct Buffers<B: Backend> {
    /// `[T, D]`: the residual stream.
    pub(crate) x: B::Buffer,
    /// `[T, D]`: a branch's normed input, or the result of attention where that is normed.
    pub(crate) h: B::Buffer,
    /// `[T, D]`: the result of the feed-forward network where that is normed.
    pub(crate) result: B::Buffer,
    /// `[T, H*C]`.
    pub(crate) q: B::Buffer,
    /// `[T, G*C]`.
    pub(crate) k: B::Buffer,
    /// `[T, G*C]`.
    pub(crate) v: B::Buffer,
    /// `[T, H*C]`.
    pub(crate) attn: B::Buffer,
    /// `[T, F]`; also the router's logits.
    pub(crate) gate: B::Buffer,
    /// `[T, F]`.
    pub(crate) up: B::Buffer,
    /// `[T, F]`.
    pub(crate) hidden: B::Buffer,
    /// `[n_outputs, D]`.
    pub(crate) output: B::Buffer,
    /// `[n_outputs, V]`.
    pub(crate) logits: B::Buffer,
    /// `[n_outputs, 2 * MAX_TOP_K]`: the greatest logits and their tokens.
    pub(crate) greatest: B::Buffer,
    /// `[T, R]`.
    pub(crate) cos_sin: Option<B::Buffer>,
    /// `[T, R]`.
    pub(crate) local_cos_sin: Option<B::Buffer>,
}

/// Bookkeeping of one pass.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) pos: Vec<u32>,
    pub(crate) slots: Vec<KvRow>,
    pub(crate) rows: Vec<QueryRow>,
    pub(crate) local_rows: Vec<QueryRow>,
    pub(crate) page_table: Vec<u32>,
    angles: Vec<f32>,
    /// What is read of [`Buffers::greatest`].
    pub(crate) greatest: Vec<f32>,
}

impl StateOptions {
    /// Refuses sizes that no device has.
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

    /// Pages of one sequence.
    fn pages_each(&self) -> usize {
        self.n_ctx.div_ceil(PAGE_LEN)
    }

    /// Keys and values of `n_layers` layers.
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
        (lower, upper): (Option<&Weights<D::Lower>>, &Weights<D::Upper>),
        options: StateOptions,
    ) -> Result<Self, Error> {
        options.check()?;
        let lower = match devices.lower().zip(lower) {
            Some(((backend, _), weights)) => Some(Part::new(backend, config, weights, options)?),
            None => None,
        };
        let n_between = if lower.is_some() { options.n_batch * config.d_model } else { 0 };
        Ok(Self {
            options,
            lower,
            upper: Part::new(devices.upper(), config, upper, options)?,
            between: vec![0.0; n_between],
        })
    }

    /// The sizes it was made with.
    #[must_use]
    pub fn options(&self) -> StateOptions {
        self.options
    }

    /// Positions that sequence `index` holds.
    ///
    /// # Panics
    /// If there is no such sequence.
    #[must_use]
    pub fn len(&self, index: usize) -> usize {
        self.upper.sequences[index].len()
    }

    /// Whether no sequence holds anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.upper.sequences.iter().all(Sequence::is_empty)
    }

    /// Drops the positions of sequence `index` from `len` on.
    ///
    /// # Panics
    /// If there is no such sequence.
    pub fn truncate(&mut self, index: usize, len: usize) {
        if let Some(lower) = &mut self.lower {
            lower.truncate(index, len);
        }
        self.upper.truncate(index, len);
    }

    /// Makes sequence `to` continue where `from` stands; they share pages until one writes.
    ///
    /// # Panics
    /// If they are the same or there is no such sequence.
    pub fn fork(&mut self, from: usize, to: usize) {
        if let Some(lower) = &mut self.lower {
            lower.fork(from, to);
        }
        self.upper.fork(from, to);
    }

    /// Appends what page `index` of a sequence holds in every layer to `out`; the bytes are those of a single device.
    pub(crate) async fn read_page(
        &self,
        devices: &D,
        sequence: usize,
        index: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        if let Some(((backend, _), part)) = devices.lower().zip(self.lower.as_ref()) {
            let page = part.sequences[sequence].pages()[index];
            backend.kv_read_page(part.kv.pool(), page, out).await?;
        }
        let page = self.upper.sequences[sequence].pages()[index];
        Ok(devices.upper().kv_read_page(self.upper.kv.pool(), page, out).await?)
    }

    /// Makes an empty sequence hold `n` positions of such pages; it stays empty on an error.
    pub(crate) fn restore(
        &mut self,
        devices: &D,
        sequence: usize,
        n: usize,
        pages: &[&[u8]],
    ) -> Result<(), Error> {
        let layers = |shape: KvShape| shape.n_layers;
        let n_upper = layers(self.upper.kv.shape());
        let n_lower = self.lower.as_ref().map_or(0, |lower| layers(lower.kv.shape()));
        let lower_part = |page: &&'_ [u8]| page.len() / (n_lower + n_upper) * n_lower;
        let restored = match devices.lower().zip(self.lower.as_mut()) {
            Some(((backend, _), part)) => {
                let pages = pages.iter().map(|page| &page[..lower_part(page)]);
                part.restore(backend, sequence, n, pages)
            }
            None => Ok(()),
        };
        let pages = pages.iter().map(|page| &page[lower_part(page)..]);
        let restored =
            restored.and_then(|()| self.upper.restore(devices.upper(), sequence, n, pages));
        if restored.is_err() {
            self.truncate(sequence, 0);
        }
        restored
    }
}

impl<B: Backend> Part<B> {
    fn new(
        backend: &B,
        config: &Config,
        weights: &Weights<B>,
        options: StateOptions,
    ) -> Result<Self, Error> {
        let StateOptions { n_ctx, n_sequences, n_batch: t, .. } = options;
        let n_outputs = if weights.output.is_some() { options.n_outputs } else { 0 };
        let kv = KvCache::new(backend, options.kv_shape(config, weights.layers.len()))?;
        let table = |rope: &_| RopeTable::new(rope, &weights.rope_divisors, n_ctx);
        let rope = config.rope.as_ref().map(table);
        let local_rope = config.local_rope.as_ref().map(table);
        let angles = |table: &Option<RopeTable>| match table {
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
            greatest: backend.alloc(n_outputs * 2 * MAX_TOP_K)?,
            cos_sin: angles(&rope)?,
            local_cos_sin: angles(&local_rope)?,
        };
        let plan = Plan {
            pos: Vec::with_capacity(t),
            slots: Vec::with_capacity(t),
            rows: Vec::with_capacity(t),
            local_rows: Vec::with_capacity(t),
            page_table: Vec::with_capacity(n_sequences * options.pages_each()),
            angles: Vec::with_capacity(t * n_rot),
            greatest: Vec::with_capacity(n_outputs * 2 * MAX_TOP_K),
        };
        let sequences = (0..n_sequences).map(|_| Sequence::with_capacity(n_ctx)).collect();
        Ok(Self { options, kv, sequences, buffers, rope, local_rope, plan })
    }

    pub(crate) fn truncate(&mut self, index: usize, len: usize) {
        self.kv.truncate(&mut self.sequences[index], len);
    }

    pub(crate) fn fork(&mut self, from: usize, to: usize) {
        let [from, to] =
            self.sequences.get_disjoint_mut([from, to]).expect("two sequences of this state");
        self.kv.fork(from, to);
    }

    /// Positions that one sequence can hold while the others hold nothing.
    pub(crate) fn most_positions(&self) -> usize {
        self.options.n_ctx.min(self.kv.shape().n_pages * PAGE_LEN)
    }

    /// Makes sequence `index` longer by `n` positions of which nobody knows what they hold.
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

    /// Fills the bookkeeping of a pass and takes the pages it needs.
    pub(crate) fn prepare(
        &mut self,
        backend: &B,
        batch: Batch<'_>,
        window: Option<usize>,
    ) -> Result<(), Error> {
        let Self { options, kv, sequences, plan, .. } = self;
        for run in batch.sequences.chunk_by(|a, b| a == b) {
            let tokens = sequences[run[0]].len() + run.len();
            if tokens > options.n_ctx {
                return Err(Error::ContextFull { tokens, n_ctx: options.n_ctx });
            }
        }
        plan.pos.clear();
        plan.slots.clear();
        plan.rows.clear();
        plan.local_rows.clear();
        plan.page_table.clear();
        for run in batch.sequences.chunk_by(|a, b| a == b) {
            let sequence = &mut sequences[run[0]];
            let past = sequence.len();
            if let Err(full) = kv.reserve(backend, sequence, run.len()) {
                let done = plan.pos.len();
                for run in batch.sequences[..done].chunk_by(|a, b| a == b) {
                    let sequence = &mut sequences[run[0]];
                    kv.truncate(sequence, sequence.len() - run.len());
                }
                return Err(full.into());
            }
            let first_page = plan.page_table.len() as u32;
            plan.page_table.extend_from_slice(sequence.pages());
            let n_pages = sequence.pages().len() as u32;
            for pos in past..past + run.len() {
                plan.pos.push(pos as u32);
                plan.slots.push(sequence.slot(pos));
                let kv_len = pos as u32 + 1;
                plan.rows.push(QueryRow { first_page, n_pages, kv_start: 0, kv_len });
                let kv_start = kv_len.saturating_sub(window.map_or(kv_len, |w| w as u32));
                plan.local_rows.push(QueryRow { first_page, n_pages, kv_start, kv_len });
            }
            sequence.advance(run.len());
        }
        let Buffers { cos_sin, local_cos_sin, .. } = &mut self.buffers;
        for (table, buffer) in [(&self.rope, cos_sin), (&self.local_rope, local_cos_sin)] {
            if let (Some(table), Some(buffer)) = (table, buffer) {
                table.fill(&plan.pos, &mut plan.angles);
                backend.write(buffer, 0, &plan.angles);
            }
        }
        Ok(())
    }
}
