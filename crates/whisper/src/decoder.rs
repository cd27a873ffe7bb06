//! The text decoder: a ragged batch of tokens to logits.

use stonechat_nn::{
    Activation, Attention, Backend, Batch, Embed, Error, KvCache, KvDType, KvRow, KvShape,
    LayerNorm, Linear, PAGE_LEN, Precision, QueryRow, Rows, Sequence, View,
};

use crate::Config;
use crate::align::Tap;

/// Weights of the decoder.
#[derive(Debug)]
pub(crate) struct Decoder<B: Backend> {
    /// `[V, D]`: the token embedding and, transposed, the vocabulary projection.
    pub(crate) tokens: Linear<B>,
    /// `[n_text_ctx, D]`.
    pub(crate) positions: B::Buffer,
    pub(crate) blocks: Vec<DecoderBlock<B>>,
    pub(crate) norm: LayerNorm<B>,
}

/// Weights of one decoder layer.
#[derive(Debug)]
pub(crate) struct DecoderBlock<B: Backend> {
    pub(crate) attn_norm: LayerNorm<B>,
    /// Query, key and value stacked: `[3D, D]`.
    pub(crate) attn_qkv: Linear<B>,
    pub(crate) attn_out: Linear<B>,
    pub(crate) cross_norm: LayerNorm<B>,
    pub(crate) cross_q: Linear<B>,
    /// Key and value stacked: `[2D, D]`.
    pub(crate) cross_kv: Linear<B>,
    pub(crate) cross_out: Linear<B>,
    pub(crate) ffn_norm: LayerNorm<B>,
    pub(crate) ffn_up: Linear<B>,
    pub(crate) ffn_down: Linear<B>,
}

/// KV pages and buffers of the decoder, made once; a step allocates nothing.
#[derive(Debug)]
pub struct DecoderState<B: Backend> {
    self_kv: KvCache<B>,
    cross_kv: KvCache<B>,
    sequences: Vec<Sequence>,
    /// Pages of the windows' cross-attention; empty before `set_audio`.
    windows: Vec<Sequence>,
    /// Sequences that listen to each window.
    sequences_each: usize,
    max_tokens: usize,
    max_outputs: usize,
    x: B::Buffer,
    h: B::Buffer,
    qkv: B::Buffer,
    ffn: B::Buffer,
    output: B::Buffer,
    logits: B::Buffer,
    /// `[n_audio_ctx, 2D]`: keys and values of one layer on their way into the pages.
    cross: B::Buffer,
    pos: Vec<u32>,
    slots: Vec<KvRow>,
    cross_slots: Vec<KvRow>,
    /// The pages of all windows.
    cross_table: Vec<u32>,
    self_rows: Vec<QueryRow>,
    cross_rows: Vec<QueryRow>,
    page_table: Vec<u32>,
    /// What word times need, where they are wanted.
    pub(crate) tap: Option<Tap<B>>,
}

impl<B: Backend> DecoderState<B> {
    /// State for `n_windows` windows of audio and up to `n_sequences` sequences over each:
    /// sequences `w * n_sequences .. (w + 1) * n_sequences` listen to window `w`.
    ///
    /// # Errors
    /// If the device has no room.
    pub fn new(
        backend: &B,
        config: &Config,
        n_windows: usize,
        n_sequences: usize,
        kv_dtype: KvDType,
    ) -> Result<Self, Error> {
        let (d, t) = (config.d_model, config.n_audio_ctx);
        let sequences_each = n_sequences;
        let n_sequences = n_windows * sequences_each;
        let max_tokens = config.n_text_ctx.max(n_sequences);
        let max_outputs = n_sequences.max(2 * n_windows);
        let pages_each = config.n_text_ctx.div_ceil(PAGE_LEN);
        let shape = KvShape {
            n_layers: config.n_text_layers,
            n_pages: n_sequences * pages_each,
            n_kv_heads: config.n_text_heads,
            head_dim: config.text_head_dim(),
            dtype: kv_dtype,
        };
        let n_pages = n_windows * t.div_ceil(PAGE_LEN);
        let mut cross_kv = KvCache::new(backend, KvShape { n_pages, ..shape })?;
        let mut windows = Vec::with_capacity(n_windows);
        for _ in 0..n_windows {
            let mut window = Sequence::with_capacity(t);
            cross_kv.reserve(backend, &mut window, t)?;
            windows.push(window);
        }
        let slots = |window: &Sequence| (0..t).map(|pos| window.slot(pos)).collect::<Vec<_>>();
        Ok(Self {
            self_kv: KvCache::new(backend, shape)?,
            cross_slots: windows.iter().flat_map(slots).collect(),
            cross_table: windows.iter().flat_map(Sequence::pages).copied().collect(),
            cross_kv,
            sequences: (0..n_sequences)
                .map(|_| Sequence::with_capacity(config.n_text_ctx))
                .collect(),
            windows,
            sequences_each,
            max_tokens,
            max_outputs,
            x: backend.alloc(max_tokens * d)?,
            h: backend.alloc(max_tokens * d)?,
            qkv: backend.alloc(max_tokens * 3 * d)?,
            ffn: backend.alloc(max_tokens * 4 * d)?,
            output: backend.alloc(max_outputs * d)?,
            logits: backend.alloc(max_outputs * config.vocab_size)?,
            cross: backend.alloc(t * 2 * d)?,
            pos: Vec::with_capacity(max_tokens),
            slots: Vec::with_capacity(max_tokens),
            self_rows: Vec::with_capacity(max_tokens),
            cross_rows: Vec::with_capacity(max_tokens),
            page_table: Vec::with_capacity(n_sequences * pages_each),
            tap: None,
        })
    }

    /// Most rows of logits that a step gives.
    pub(crate) fn max_outputs(&self) -> usize {
        self.max_outputs
    }

    /// Windows that it has room for.
    #[must_use]
    pub fn n_windows(&self) -> usize {
        self.windows.len()
    }

    /// Sequences that can listen to each window.
    #[must_use]
    pub fn n_sequences(&self) -> usize {
        self.sequences_each
    }

    /// Most tokens of one batch.
    #[must_use]
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// Logits of the last step, one row of `vocab_size` for each of its outputs.
    #[must_use]
    pub fn logits(&self) -> &B::Buffer {
        &self.logits
    }

    /// Forgets every sequence.
    pub fn clear(&mut self) {
        for sequence in &mut self.sequences {
            self.self_kv.truncate(sequence, 0);
        }
    }

    /// Forgets every sequence and the audio of window `window`.
    pub(crate) fn forget_audio(&mut self, backend: &B, window: usize) -> Result<(), Error> {
        self.clear();
        let window = &mut self.windows[window];
        let n = window.len();
        self.cross_kv.truncate(window, 0);
        // The same pages again, which `cross_slots` names.
        self.cross_kv.reserve(backend, window, n)
    }

    /// Makes sequence `to` continue where `from` stands; they share pages until one writes.
    ///
    /// # Panics
    /// If they are the same or there is no such sequence.
    pub fn fork(&mut self, from: usize, to: usize) {
        let [from, to] =
            self.sequences.get_disjoint_mut([from, to]).expect("two sequences of this state");
        self.self_kv.fork(from, to);
    }

    /// Fills the bookkeeping of a step: positions, KV slots, visible ranges.
    fn plan(&mut self, backend: &B, batch: Batch<'_>, n_text_ctx: usize) -> Result<(), Error> {
        for list in [&mut self.self_rows, &mut self.cross_rows] {
            list.clear();
        }
        self.pos.clear();
        self.slots.clear();
        self.page_table.clear();
        let mut start = 0;
        for run in batch.sequences.chunk_by(|a, b| a == b) {
            let sequence = &mut self.sequences[run[0]];
            let window = run[0] / self.sequences_each;
            let kv_len = self.windows[window].len() as u32;
            assert!(kv_len > 0, "`set_audio` of window {window} comes before the first step");
            let window_pages = self.windows[window].pages().len() as u32;
            let past = sequence.len();
            assert!(past + run.len() <= n_text_ctx, "{past}+{} of {n_text_ctx}", run.len());
            self.self_kv.reserve(backend, sequence, run.len())?;
            let first_page = self.page_table.len() as u32;
            self.page_table.extend_from_slice(sequence.pages());
            let n_pages = sequence.pages().len() as u32;
            for pos in past..past + run.len() {
                self.pos.push(pos as u32);
                self.slots.push(sequence.slot(pos));
                self.self_rows.push(QueryRow {
                    first_page,
                    n_pages,
                    kv_start: 0,
                    kv_len: pos as u32 + 1,
                });
                self.cross_rows.push(QueryRow {
                    first_page: window as u32 * window_pages,
                    n_pages: window_pages,
                    kv_start: 0,
                    kv_len,
                });
            }
            sequence.advance(run.len());
            start += run.len();
        }
        debug_assert_eq!(start, batch.tokens.len());
        Ok(())
    }
}

impl<B: Backend> Decoder<B> {
    /// Projects the encoder's output to the keys and values of every layer's cross-attention in
    /// window `window`, and forgets its sequences.
    pub(crate) fn set_audio(
        &self,
        backend: &B,
        config: &Config,
        state: &mut DecoderState<B>,
        window: usize,
        audio: &B::Buffer,
    ) {
        let (t, d) = (config.n_audio_ctx, config.d_model);
        let each = state.sequences_each;
        for sequence in &mut state.sequences[window * each..(window + 1) * each] {
            state.self_kv.truncate(sequence, 0);
        }
        let slots = &state.cross_slots[window * t..(window + 1) * t];
        for (layer, block) in self.blocks.iter().enumerate() {
            block.cross_kv.forward(backend, &mut state.cross, View::packed(audio, t, d));
            if let Some(tap) = &mut state.tap {
                tap.set_keys(backend, config, (window, layer), &state.cross);
            }
            let all = Rows::packed(t, 2 * d);
            let part = |i| View::new(&state.cross, all.columns(i * d, d));
            let pool = state.cross_kv.pool_mut();
            backend.kv_write(pool, layer, part(0), part(1), slots);
        }
        if state.windows[window].is_empty() {
            state.windows[window].advance(t);
        }
    }

    /// Runs `batch` and leaves the wanted logits in [`DecoderState::logits`].
    pub(crate) fn forward(
        &self,
        backend: &B,
        config: &Config,
        state: &mut DecoderState<B>,
        batch: Batch<'_>,
    ) -> Result<(), Error> {
        let (t, d) = (batch.tokens.len(), config.d_model);
        assert!(t <= state.max_tokens, "{t} tokens of {}", state.max_tokens);
        let scale = 1.0 / (config.text_head_dim() as f32).sqrt();
        state.plan(backend, batch, config.n_text_ctx)?;

        let DecoderState { self_kv, cross_kv, x, h, qkv, ffn, tap, .. } = state;
        let embed = Embed {
            tokens: batch.tokens,
            scale: 1.0,
            positions: Some((&self.positions, &state.pos)),
        };
        backend.embed(x, &self.tokens.weight, embed);
        for (layer, block) in self.blocks.iter().enumerate() {
            block.attn_norm.forward(backend, h, View::packed(x, t, d));
            block.attn_qkv.forward(backend, qkv, View::packed(h, t, d));
            let all = Rows::packed(t, 3 * d);
            let part = |i| View::new(&*qkv, all.columns(i * d, d));
            backend.kv_write(self_kv.pool_mut(), layer, part(1), part(2), &state.slots);
            let n_heads = config.n_text_heads;
            backend.attention(
                h,
                Attention {
                    q: part(0),
                    kv: self_kv.pool(),
                    layer,
                    n_heads,
                    scale,
                    soft_cap: None,
                    slopes: None,
                    sinks: None,
                    rows: &state.self_rows,
                    page_table: &state.page_table,
                    precision: Precision::F32,
                },
            );
            block.attn_out.accumulate(backend, x, View::packed(h, t, d));

            block.cross_norm.forward(backend, h, View::packed(x, t, d));
            block.cross_q.forward(backend, qkv, View::packed(h, t, d));
            if let Some(tap) = tap {
                tap.set_queries(backend, config, layer, View::packed(qkv, t, d));
            }
            backend.attention(
                h,
                Attention {
                    q: View::packed(qkv, t, d),
                    kv: cross_kv.pool(),
                    layer,
                    n_heads,
                    scale,
                    soft_cap: None,
                    slopes: None,
                    sinks: None,
                    rows: &state.cross_rows,
                    page_table: &state.cross_table,
                    precision: Precision::F32,
                },
            );
            block.cross_out.accumulate(backend, x, View::packed(h, t, d));

            block.ffn_norm.forward(backend, h, View::packed(x, t, d));
            let next = (Activation::Gelu, &block.ffn_down);
            block.ffn_up.forward_activated(backend, ffn, View::packed(h, t, d), next);
            block.ffn_down.accumulate(backend, x, View::packed(ffn, t, 4 * d));
        }
        self.project(backend, config, state, t, batch.outputs);
        Ok(())
    }

    /// Leaves the logits of `rows` of the last step, which had `t` tokens, in
    /// [`DecoderState::logits`].
    ///
    /// Only these rows go through the last norm and the vocabulary projection, the largest matrix
    /// of the small models.
    pub(crate) fn project(
        &self,
        backend: &B,
        config: &Config,
        state: &mut DecoderState<B>,
        t: usize,
        rows: &[usize],
    ) {
        let (n, d) = (rows.len(), config.d_model);
        assert!(n <= state.max_outputs, "{n} rows of logits of {}", state.max_outputs);
        if n == 0 {
            return;
        }
        let DecoderState { x, h, output, logits, .. } = state;
        for (i, &row) in rows.iter().enumerate() {
            let from = View::new(&*x, Rows::packed(t, d).slice(row, 1));
            backend.copy(output, i * d, from);
        }
        self.norm.forward(backend, h, View::packed(output, n, d));
        self.tokens.forward(backend, logits, View::packed(h, n, d));
    }
}
