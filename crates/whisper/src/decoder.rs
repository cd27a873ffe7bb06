//! The text decoder: a ragged batch of tokens to logits.
//!
//! ```text
//! x = tokens[ids] + positions[pos]
//! each layer: x += attn_out(self_attention(attn_norm(x)))
//!             x += cross_out(cross_attention(cross_norm(x), audio))
//!             x += ffn_down(gelu(ffn_up(ffn_norm(x))))
//! logits = norm(x[outputs]) · tokensᵀ
//! ```

use stonechat_nn::{
    Activation, Attention, Backend, Batch, Embed, Error, KvCache, KvDType, KvRow, KvShape,
    LayerNorm, Linear, PAGE_LEN, QueryRow, Rows, Sequence, View,
};

use crate::capture::CrossAttentionCapture;
use crate::config::Config;

/// Weights of the decoder.
#[derive(Debug)]
pub(crate) struct Decoder<B: Backend> {
    /// `[V, D]`: token embedding and, transposed, vocabulary projection.
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

/// KV caches and activations of the decoder, allocated once; a step allocates nothing.
#[derive(Debug)]
pub struct DecoderState<B: Backend> {
    self_kv: KvCache<B>,
    cross_kv: KvCache<B>,
    sequences: Vec<Sequence>,
    /// Cross-attention pages of each window; of length 0 before `set_audio`.
    windows: Vec<Sequence>,
    sequences_per_window: usize,
    max_tokens: usize,
    max_outputs: usize,
    /// Residual stream `[T, D]`.
    x: B::Buffer,
    /// Norm and attention results `[T, D]`.
    h: B::Buffer,
    /// `[T, 3D]`; of cross-attention, queries `[T, D]`.
    qkv: B::Buffer,
    /// `[T, 4D]`.
    ffn: B::Buffer,
    /// Rows of `x` whose logits are computed, `[outputs, D]`.
    output: B::Buffer,
    /// `[outputs, V]`.
    logits: B::Buffer,
    /// Cross-attention keys and values of one layer, `[n_audio_ctx, 2D]`, before they are written to
    /// the pages.
    cross_kv_rows: B::Buffer,
    /// `[T]` position of each token.
    pos: Vec<u32>,
    /// `[T]` KV slot of each token.
    slots: Vec<KvRow>,
    /// `[windows, n_audio_ctx]` KV slots.
    cross_slots: Vec<KvRow>,
    /// Pages of all windows.
    cross_page_table: Vec<u32>,
    self_rows: Vec<QueryRow>,
    cross_rows: Vec<QueryRow>,
    page_table: Vec<u32>,
    /// Cross-attention queries and keys for word alignment, if enabled.
    pub(crate) capture: Option<CrossAttentionCapture<B>>,
}

impl<B: Backend> DecoderState<B> {
    /// Allocates state for `n_windows` windows of audio with `n_sequences` sequences each: sequences
    /// `w * n_sequences .. (w + 1) * n_sequences` attend to window `w`.
    ///
    /// # Errors
    /// If the device is out of memory.
    pub fn new(
        backend: &B,
        config: &Config,
        n_windows: usize,
        n_sequences: usize,
        kv_dtype: KvDType,
    ) -> Result<Self, Error> {
        let (d, t) = (config.d_model, config.n_audio_ctx);
        let sequences_per_window = n_sequences;
        let n_sequences = n_windows * sequences_per_window;
        let max_tokens = config.n_text_ctx.max(n_sequences);
        let max_outputs = n_sequences.max(2 * n_windows);
        let pages_per_sequence = config.n_text_ctx.div_ceil(PAGE_LEN);
        let shape = KvShape {
            n_layers: config.n_text_layers,
            n_pages: n_sequences * pages_per_sequence,
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
            cross_page_table: windows.iter().flat_map(Sequence::pages).copied().collect(),
            cross_kv,
            sequences: (0..n_sequences)
                .map(|_| Sequence::with_capacity(config.n_text_ctx))
                .collect(),
            windows,
            sequences_per_window,
            max_tokens,
            max_outputs,
            x: backend.alloc(max_tokens * d)?,
            h: backend.alloc(max_tokens * d)?,
            qkv: backend.alloc(max_tokens * 3 * d)?,
            ffn: backend.alloc(max_tokens * 4 * d)?,
            output: backend.alloc(max_outputs * d)?,
            logits: backend.alloc(max_outputs * config.vocab_size)?,
            cross_kv_rows: backend.alloc(t * 2 * d)?,
            pos: Vec::with_capacity(max_tokens),
            slots: Vec::with_capacity(max_tokens),
            self_rows: Vec::with_capacity(max_tokens),
            cross_rows: Vec::with_capacity(max_tokens),
            page_table: Vec::with_capacity(n_sequences * pages_per_sequence),
            capture: None,
        })
    }

    /// Most rows of logits of one batch.
    pub(crate) fn max_outputs(&self) -> usize {
        self.max_outputs
    }

    /// Number of windows.
    #[must_use]
    pub fn n_windows(&self) -> usize {
        self.windows.len()
    }

    /// Sequences of each window.
    #[must_use]
    pub fn n_sequences(&self) -> usize {
        self.sequences_per_window
    }

    /// Most tokens of one batch.
    #[must_use]
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// Logits of the last batch, `[outputs, vocab_size]`.
    #[must_use]
    pub fn logits(&self) -> &B::Buffer {
        &self.logits
    }

    /// Empties every sequence.
    pub fn clear(&mut self) {
        for sequence in &mut self.sequences {
            self.self_kv.truncate(sequence, 0);
        }
    }

    /// Empties every sequence and removes the audio of window `window`.
    pub(crate) fn clear_audio(&mut self, backend: &B, window: usize) -> Result<(), Error> {
        self.clear();
        let window = &mut self.windows[window];
        let n = window.len();
        self.cross_kv.truncate(window, 0);
        // Reserves the same pages again: `cross_slots` and `cross_page_table` hold their numbers.
        self.cross_kv.reserve(backend, window, n)
    }

    /// Makes sequence `to` a copy of `from`; they share KV pages until one of them writes.
    ///
    /// # Panics
    /// If they are equal or out of range.
    pub fn fork(&mut self, from: usize, to: usize) {
        let [from, to] =
            self.sequences.get_disjoint_mut([from, to]).expect("two sequences of this state");
        self.self_kv.fork(from, to);
    }

    /// Plans a step: positions, KV slots, visible keys of each token.
    fn plan(&mut self, backend: &B, batch: Batch<'_>, n_text_ctx: usize) -> Result<(), Error> {
        for list in [&mut self.self_rows, &mut self.cross_rows] {
            list.clear();
        }
        self.pos.clear();
        self.slots.clear();
        self.page_table.clear();
        let mut n_planned = 0;
        for run in batch.sequences.chunk_by(|a, b| a == b) {
            let sequence = &mut self.sequences[run[0]];
            let window = run[0] / self.sequences_per_window;
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
            n_planned += run.len();
        }
        debug_assert_eq!(n_planned, batch.tokens.len());
        Ok(())
    }
}

impl<B: Backend> Decoder<B> {
    /// Projects the encoder's output `audio`, `[n_audio_ctx, D]`, to the cross-attention keys and
    /// values of every layer of window `window`, and empties its sequences.
    pub(crate) fn set_audio(
        &self,
        backend: &B,
        config: &Config,
        state: &mut DecoderState<B>,
        window: usize,
        audio: &B::Buffer,
    ) {
        let (t, d) = (config.n_audio_ctx, config.d_model);
        let n = state.sequences_per_window;
        for sequence in &mut state.sequences[window * n..(window + 1) * n] {
            state.self_kv.truncate(sequence, 0);
        }
        let slots = &state.cross_slots[window * t..(window + 1) * t];
        for (layer, block) in self.blocks.iter().enumerate() {
            block.cross_kv.forward(backend, &mut state.cross_kv_rows, View::packed(audio, t, d));
            if let Some(capture) = &mut state.capture {
                capture.set_keys(backend, config, (window, layer), &state.cross_kv_rows);
            }
            let all = Rows::packed(t, 2 * d);
            let part = |i| View::new(&state.cross_kv_rows, all.columns(i * d, d));
            let pool = state.cross_kv.pool_mut();
            backend.kv_write(pool, layer, part(0), part(1), slots);
        }
        if state.windows[window].is_empty() {
            state.windows[window].advance(t);
        }
    }

    /// Runs `batch`; the logits of its outputs are left in [`DecoderState::logits`].
    pub(crate) fn forward(
        &self,
        backend: &B,
        config: &Config,
        state: &mut DecoderState<B>,
        batch: Batch<'_>,
    ) -> Result<(), Error> {
        let (t, d) = (batch.tokens.len(), config.d_model);
        assert!(t <= state.max_tokens, "{t} tokens of {}", state.max_tokens);
        state.plan(backend, batch, config.n_text_ctx)?;

        let DecoderState { self_kv, cross_kv, x, h, qkv, ffn, capture, .. } = state;
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
            let (n_heads, rows, pages) = (config.n_text_heads, &state.self_rows, &state.page_table);
            let kv = self_kv.pool();
            backend.attention(h, Attention::plain(part(0), kv, layer, n_heads, rows, pages));
            block.attn_out.accumulate(backend, x, View::packed(h, t, d));

            block.cross_norm.forward(backend, h, View::packed(x, t, d));
            block.cross_q.forward(backend, qkv, View::packed(h, t, d));
            if let Some(capture) = capture {
                capture.set_queries(backend, config, layer, View::packed(qkv, t, d));
            }
            let (rows, pages) = (&state.cross_rows, &state.cross_page_table);
            let (q, kv) = (View::packed(qkv, t, d), cross_kv.pool());
            backend.attention(h, Attention::plain(q, kv, layer, n_heads, rows, pages));
            block.cross_out.accumulate(backend, x, View::packed(h, t, d));

            block.ffn_norm.forward(backend, h, View::packed(x, t, d));
            let next = (Activation::Gelu, &block.ffn_down);
            block.ffn_up.forward_activated(backend, ffn, View::packed(h, t, d), next);
            block.ffn_down.accumulate(backend, x, View::packed(ffn, t, 4 * d));
        }
        self.project(backend, config, state, t, batch.outputs);
        Ok(())
    }

    /// Computes the logits of `rows` of the last batch, of `t` tokens, into
    /// [`DecoderState::logits`]. The vocabulary projection is the largest matrix of the small models,
    /// and runs for these rows only.
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
