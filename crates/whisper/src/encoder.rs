//! The audio encoder: one window of 3000 mel frames (10 ms) to 1500 positions (20 ms).
//!
//! ```text
//! x = gelu(conv2(gelu(conv1(mel)))) + positions        conv2 has stride 2
//! each layer: x += attn_out(attention(attn_norm(x)))
//!             x += ffn_down(gelu(ffn_up(ffn_norm(x))))
//! output = norm(x)
//! ```

use stonechat_nn::{
    Activation, Attention, Backend, Conv1d, Error, KvDType, KvRow, KvShape, LayerNorm, Linear,
    PAGE_LEN, Precision, QueryRow, Rows, View,
};

use crate::WINDOW_FRAMES;
use crate::config::Config;

/// Weights of the encoder.
#[derive(Debug)]
pub(crate) struct Encoder<B: Backend> {
    pub(crate) conv1: Conv1d<B>,
    pub(crate) conv2: Conv1d<B>,
    /// `[n_audio_ctx, D]`.
    pub(crate) positions: B::Buffer,
    pub(crate) blocks: Vec<EncoderBlock<B>>,
    pub(crate) norm: LayerNorm<B>,
}

/// Weights of one encoder layer.
#[derive(Debug)]
pub(crate) struct EncoderBlock<B: Backend> {
    pub(crate) attn_norm: LayerNorm<B>,
    /// Query, key and value stacked: `[3D, D]`.
    pub(crate) attn_qkv: Linear<B>,
    /// Bf16 if the projections' weights are quantized, else F32.
    pub(crate) attn_precision: Precision,
    pub(crate) attn_out: Linear<B>,
    pub(crate) ffn_norm: LayerNorm<B>,
    pub(crate) ffn_up: Linear<B>,
    pub(crate) ffn_down: Linear<B>,
}

/// Activations of the encoder, allocated once.
#[derive(Debug)]
pub(crate) struct EncoderBuffers<B: Backend> {
    /// `[WINDOW_FRAMES, n_mels]`.
    mel: B::Buffer,
    /// Residual stream `[n_audio_ctx, D]`.
    x: B::Buffer,
    /// Norm and attention results `[n_audio_ctx, D]`; after a run, the encoder's output.
    h: B::Buffer,
    /// `[n_audio_ctx, 3D]`.
    qkv: B::Buffer,
    /// FFN activations `[n_audio_ctx, 4D]`; before the first layer, the output of `conv1`,
    /// `[WINDOW_FRAMES, D]`, which is half as large.
    ffn: B::Buffer,
    /// Keys and values of the current layer.
    kv: B::Kv,
    /// Places of the keys and values of each position.
    slots: Vec<KvRow>,
    rows: Vec<QueryRow>,
    page_table: Vec<u32>,
}

impl<B: Backend> EncoderBuffers<B> {
    /// Allocates the buffers for `config`.
    ///
    /// # Errors
    /// If the device is out of memory.
    pub(crate) fn new(backend: &B, config: &Config, kv_dtype: KvDType) -> Result<Self, Error> {
        let (t, d) = (config.n_audio_ctx, config.d_model);
        let shape = KvShape {
            n_layers: 1,
            n_pages: t.div_ceil(PAGE_LEN),
            n_kv_heads: config.n_audio_heads,
            head_dim: config.audio_head_dim(),
            dtype: kv_dtype,
        };
        let n_pages = shape.n_pages as u32;
        let row = QueryRow { first_page: 0, n_pages, kv_start: 0, kv_len: t as u32 };
        let slot = |pos| KvRow { page: (pos / PAGE_LEN) as u32, slot: (pos % PAGE_LEN) as u32 };
        Ok(Self {
            mel: backend.alloc(WINDOW_FRAMES * config.n_mels)?,
            x: backend.alloc(t * d)?,
            h: backend.alloc(t * d)?,
            qkv: backend.alloc(t * 3 * d)?,
            ffn: backend.alloc(t * 4 * d)?,
            kv: backend.kv(shape)?,
            slots: (0..t).map(slot).collect(),
            rows: vec![row; t],
            page_table: (0..n_pages).collect(),
        })
    }

    /// Output of the last run, `[n_audio_ctx, D]`.
    pub(crate) fn output(&self) -> &B::Buffer {
        &self.h
    }
}

impl<B: Backend> Encoder<B> {
    /// Encodes `mel`, `[WINDOW_FRAMES, n_mels]`; the result is [`EncoderBuffers::output`].
    pub(crate) fn forward(
        &self,
        backend: &B,
        config: &Config,
        buffers: &mut EncoderBuffers<B>,
        mel: &[f32],
    ) {
        let (t, d) = (config.n_audio_ctx, config.d_model);
        let EncoderBuffers { mel: input, x, h, qkv, ffn, kv, slots, rows, page_table } = buffers;
        assert_eq!(mel.len(), WINDOW_FRAMES * config.n_mels, "one window of mel frames");

        backend.write(input, 0, mel);
        self.conv1.forward_gelu(
            backend,
            ffn,
            View::packed(input, WINDOW_FRAMES, config.n_mels),
            false,
        );
        backend.copy(x, 0, View::packed(&self.positions, t, d));
        self.conv2.forward_gelu(backend, x, View::packed(ffn, WINDOW_FRAMES, d), true);
        for block in &self.blocks {
            block.attn_norm.forward(backend, h, View::packed(x, t, d));
            block.attn_qkv.forward(backend, qkv, View::packed(h, t, d));
            let all = Rows::packed(t, 3 * d);
            let part = |i| View::new(&*qkv, all.columns(i * d, d));
            backend.kv_write(kv, 0, part(1), part(2), slots);
            let (n_heads, precision) = (config.n_audio_heads, block.attn_precision);
            let plain = Attention::plain(part(0), kv, 0, n_heads, rows, page_table);
            backend.attention(h, Attention { precision, ..plain });
            block.attn_out.accumulate(backend, x, View::packed(h, t, d));
            block.ffn_norm.forward(backend, h, View::packed(x, t, d));
            let next = (Activation::Gelu, &block.ffn_down);
            block.ffn_up.forward_activated(backend, ffn, View::packed(h, t, d), next);
            block.ffn_down.accumulate(backend, x, View::packed(ffn, t, 4 * d));
        }
        self.norm.forward(backend, h, View::packed(x, t, d));
    }
}
