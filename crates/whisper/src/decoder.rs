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
    Activation, Attention, Backend, Batch, Embed, Error, KvDType, KvRow, KvShape, LayerNorm,
    Linear, PAGE_LEN, PageCopy, PlanError, QueryRow, Rows, Sequences, Slot, StepInputs, StepLimits,
    View,
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
    self_kv: B::Kv,
    cross_kv: B::Kv,
    sequences: Sequences,
    /// Whether each window has audio. Window `w` has the cross-attention pages `w * n .. (w + 1) * n`.
    has_audio: Vec<bool>,
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
    /// `[windows, n_audio_ctx]` KV slots.
    cross_slots: Vec<KvRow>,
    /// Pages of all windows.
    cross_page_table: Vec<u32>,
    cross_rows: Vec<QueryRow>,
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
        let limits = StepLimits {
            n_sequences,
            n_ctx: config.n_text_ctx,
            n_pages: shape.n_pages,
            n_batch: max_tokens,
            n_outputs: max_outputs,
        };
        let window_pages = t.div_ceil(PAGE_LEN);
        let n_pages = n_windows * window_pages;
        let slot = |i: usize| {
            let (window, pos) = (i / t, i % t);
            let page = (window * window_pages + pos / PAGE_LEN) as u32;
            KvRow { page, slot: (pos % PAGE_LEN) as u32 }
        };
        Ok(Self {
            self_kv: backend.kv(shape)?,
            cross_kv: backend.kv(KvShape { n_pages, ..shape })?,
            sequences: Sequences::new(limits),
            has_audio: vec![false; n_windows],
            cross_slots: (0..n_windows * t).map(slot).collect(),
            cross_page_table: (0..n_pages as u32).collect(),
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
            cross_rows: Vec::with_capacity(max_tokens),
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
        self.has_audio.len()
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
        for index in 0..self.sequences.limits().n_sequences {
            self.sequences.truncate(Slot::new(index), 0);
        }
    }

    /// Empties every sequence and removes the audio of window `window`.
    pub(crate) fn clear_audio(&mut self, window: usize) {
        self.clear();
        self.has_audio[window] = false;
    }

    /// Makes sequence `to` a copy of `from`; they share KV pages until one of them writes.
    ///
    /// # Panics
    /// If they are equal or out of range.
    pub fn fork(&mut self, from: usize, to: usize) {
        self.sequences.fork(Slot::new(from), Slot::new(to));
    }

    /// Plans a step: positions, KV slots, visible keys of each token.
    fn plan(&mut self, batch: Batch<'_>, n_audio_ctx: usize) -> Result<(), PlanError> {
        let mut plan = self.sequences.plan();
        let mut first = 0;
        for run in batch.sequences.chunk_by(|a, b| a == b) {
            let rows = first..first + run.len();
            let outputs = batch.outputs.iter().filter(|row| rows.contains(row));
            plan.add(
                Slot::new(run[0]),
                &batch.tokens[rows.clone()],
                outputs.map(|row| row - first),
            )?;
            first = rows.end;
        }
        plan.commit();
        let n_pages = n_audio_ctx.div_ceil(PAGE_LEN) as u32;
        self.cross_rows.clear();
        for run in &self.sequences.inputs().runs {
            let window = run.slot.index() / self.sequences_per_window;
            assert!(
                self.has_audio[window],
                "`set_audio` of window {window} comes before the first step"
            );
            let (first_page, kv_len) = (window as u32 * n_pages, n_audio_ctx as u32);
            let row = QueryRow { first_page, n_pages, kv_start: 0, kv_len };
            self.cross_rows.extend(run.rows.clone().map(|_| row));
        }
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
        for index in window * n..(window + 1) * n {
            state.sequences.truncate(Slot::new(index), 0);
        }
        let slots = &state.cross_slots[window * t..(window + 1) * t];
        for (layer, block) in self.blocks.iter().enumerate() {
            block.cross_kv.forward(backend, &mut state.cross_kv_rows, View::packed(audio, t, d));
            if let Some(capture) = &mut state.capture {
                capture.set_keys(backend, config, (window, layer), &state.cross_kv_rows);
            }
            let all = Rows::packed(t, 2 * d);
            let part = |i| View::new(&state.cross_kv_rows, all.columns(i * d, d));
            backend.kv_write(&mut state.cross_kv, layer, part(0), part(1), slots);
        }
        state.has_audio[window] = true;
    }

    /// Runs `batch`; the logits of its outputs are left in [`DecoderState::logits`].
    pub(crate) fn forward(
        &self,
        backend: &B,
        config: &Config,
        state: &mut DecoderState<B>,
        batch: Batch<'_>,
    ) -> Result<(), PlanError> {
        let (t, d) = (batch.tokens.len(), config.d_model);
        assert!(t <= state.max_tokens, "{t} tokens of {}", state.max_tokens);
        state.plan(batch, config.n_audio_ctx)?;

        let DecoderState { self_kv, cross_kv, sequences, x, h, qkv, ffn, capture, .. } = state;
        let StepInputs { tokens, pos, kv_rows, query_rows, page_table, copies, .. } =
            sequences.inputs();
        for &PageCopy { from, to } in copies {
            backend.kv_copy_page(self_kv, from, to);
        }
        let embed = Embed { tokens, scale: 1.0, positions: Some((&self.positions, pos)) };
        backend.embed(x, &self.tokens.weight, embed);
        for (layer, block) in self.blocks.iter().enumerate() {
            block.attn_norm.forward(backend, h, View::packed(x, t, d));
            block.attn_qkv.forward(backend, qkv, View::packed(h, t, d));
            let all = Rows::packed(t, 3 * d);
            let part = |i| View::new(&*qkv, all.columns(i * d, d));
            backend.kv_write(self_kv, layer, part(1), part(2), kv_rows);
            let n_heads = config.n_text_heads;
            let attention =
                Attention::plain(part(0), &*self_kv, layer, n_heads, query_rows, page_table);
            backend.attention(h, attention);
            block.attn_out.accumulate(backend, x, View::packed(h, t, d));

            block.cross_norm.forward(backend, h, View::packed(x, t, d));
            block.cross_q.forward(backend, qkv, View::packed(h, t, d));
            if let Some(capture) = capture {
                capture.set_queries(backend, config, layer, View::packed(qkv, t, d));
            }
            let (rows, pages) = (&state.cross_rows, &state.cross_page_table);
            let (q, kv) = (View::packed(qkv, t, d), &*cross_kv);
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
