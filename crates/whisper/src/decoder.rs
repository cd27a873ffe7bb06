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
    Activation, Attention, Backend, Embed, Error, KvDType, KvRow, KvShape, LayerNorm, Linear,
    PAGE_LEN, PageCopy, QueryRow, Rows, StepInputs, StepLimits, View,
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

/// KV pages and activations of the decoder on a device, allocated once.
#[derive(Debug)]
pub(crate) struct DecoderBuffers<B: Backend> {
    self_kv: B::Kv,
    cross_kv: B::Kv,
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
    pub(crate) logits: B::Buffer,
    /// Cross-attention keys and values of one layer, `[n_audio_ctx, 2D]`, before they are written to
    /// the pages.
    cross_kv_rows: B::Buffer,
    /// `[windows, n_audio_ctx]` KV slots.
    cross_slots: Vec<KvRow>,
    /// Pages of all windows: window `w` has `w * n .. (w + 1) * n`.
    cross_page_table: Vec<u32>,
    /// Cross-attention queries and keys for word alignment, if enabled.
    pub(crate) capture: Option<CrossAttentionCapture<B>>,
}

impl<B: Backend> DecoderBuffers<B> {
    /// Allocates pools and buffers for steps within `limits` over the audio of `n_windows` windows.
    ///
    /// # Errors
    /// If the device is out of memory.
    pub(crate) fn new(
        backend: &B,
        config: &Config,
        limits: StepLimits,
        n_windows: usize,
        kv_dtype: KvDType,
    ) -> Result<Self, Error> {
        let (t, d) = (config.n_audio_ctx, config.d_model);
        let StepLimits { n_pages, n_batch, n_outputs, .. } = limits;
        let shape = KvShape {
            n_layers: config.n_text_layers,
            n_pages,
            n_kv_heads: config.n_text_heads,
            head_dim: config.text_head_dim(),
            dtype: kv_dtype,
        };
        let window_pages = t.div_ceil(PAGE_LEN);
        let n_cross_pages = n_windows * window_pages;
        let slot = |i: usize| {
            let (window, pos) = (i / t, i % t);
            let page = (window * window_pages + pos / PAGE_LEN) as u32;
            KvRow { page, slot: (pos % PAGE_LEN) as u32 }
        };
        Ok(Self {
            self_kv: backend.kv(shape)?,
            cross_kv: backend.kv(KvShape { n_pages: n_cross_pages, ..shape })?,
            cross_slots: (0..n_windows * t).map(slot).collect(),
            cross_page_table: (0..n_cross_pages as u32).collect(),
            x: backend.alloc(n_batch * d)?,
            h: backend.alloc(n_batch * d)?,
            qkv: backend.alloc(n_batch * 3 * d)?,
            ffn: backend.alloc(n_batch * 4 * d)?,
            output: backend.alloc(n_outputs * d)?,
            logits: backend.alloc(n_outputs * config.vocab_size)?,
            cross_kv_rows: backend.alloc(t * 2 * d)?,
            capture: None,
        })
    }
}

/// Inputs of a decoder step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DecoderStep<'a> {
    /// Tokens, positions and pages of self-attention.
    pub(crate) inputs: &'a StepInputs,
    /// `[T]` pages of cross-attention.
    pub(crate) cross_rows: &'a [QueryRow],
    /// Whether to copy the cross-attention queries for word alignment.
    pub(crate) has_capture: bool,
}

impl<B: Backend> Decoder<B> {
    /// Projects the encoder's output `audio`, `[n_audio_ctx, D]`, to the cross-attention keys and
    /// values of every layer of window `window`.
    pub(crate) fn set_audio(
        &self,
        backend: &B,
        config: &Config,
        buffers: &mut DecoderBuffers<B>,
        window: usize,
        audio: &B::Buffer,
    ) {
        let (t, d) = (config.n_audio_ctx, config.d_model);
        let slots = &buffers.cross_slots[window * t..(window + 1) * t];
        for (layer, block) in self.blocks.iter().enumerate() {
            block.cross_kv.forward(backend, &mut buffers.cross_kv_rows, View::packed(audio, t, d));
            if let Some(capture) = &mut buffers.capture {
                capture.set_keys(backend, config, (window, layer), &buffers.cross_kv_rows);
            }
            let all = Rows::packed(t, 2 * d);
            let part = |i| View::new(&buffers.cross_kv_rows, all.columns(i * d, d));
            backend.kv_write(&mut buffers.cross_kv, layer, part(0), part(1), slots);
        }
    }

    /// Runs a step; the logits of its outputs are left in [`DecoderBuffers::logits`].
    pub(crate) fn forward(
        &self,
        backend: &B,
        config: &Config,
        buffers: &mut DecoderBuffers<B>,
        step: DecoderStep<'_>,
    ) {
        let (t, d) = (step.inputs.n_tokens(), config.d_model);
        let DecoderBuffers { self_kv, cross_kv, x, h, qkv, ffn, capture, .. } = buffers;
        let StepInputs { tokens, pos, kv_rows, query_rows, page_table, copies, outputs, .. } =
            step.inputs;
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
            if let Some(capture) = capture.as_mut().filter(|_| step.has_capture) {
                capture.set_queries(backend, config, layer, View::packed(qkv, t, d));
            }
            let (rows, pages) = (step.cross_rows, &buffers.cross_page_table);
            let (q, kv) = (View::packed(qkv, t, d), &*cross_kv);
            backend.attention(h, Attention::plain(q, kv, layer, n_heads, rows, pages));
            block.cross_out.accumulate(backend, x, View::packed(h, t, d));

            block.ffn_norm.forward(backend, h, View::packed(x, t, d));
            let next = (Activation::Gelu, &block.ffn_down);
            block.ffn_up.forward_activated(backend, ffn, View::packed(h, t, d), next);
            block.ffn_down.accumulate(backend, x, View::packed(ffn, t, 4 * d));
        }
        self.project(backend, config, buffers, t, outputs);
    }

    /// Computes the logits of `rows` of the last step, of `t` tokens, into
    /// [`DecoderBuffers::logits`]. The vocabulary projection is the largest matrix of the small models,
    /// and runs for these rows only.
    pub(crate) fn project(
        &self,
        backend: &B,
        config: &Config,
        buffers: &mut DecoderBuffers<B>,
        t: usize,
        rows: &[usize],
    ) {
        let (n, d) = (rows.len(), config.d_model);
        if n == 0 {
            return;
        }
        let DecoderBuffers { x, h, output, logits, .. } = buffers;
        for (i, &row) in rows.iter().enumerate() {
            let from = View::new(&*x, Rows::packed(t, d).slice(row, 1));
            backend.copy(output, i * d, from);
        }
        self.norm.forward(backend, h, View::packed(output, n, d));
        self.tokens.forward(backend, logits, View::packed(h, n, d));
    }
}
