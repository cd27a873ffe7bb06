//! The audio encoder: windows of 3000 mel frames (10 ms) to 1500 positions (20 ms).
//!
//! ```text
//! x = gelu(conv2(gelu(conv1(mel)))) + positions        conv2 has stride 2
//! each layer: x += attn_out(attention(attn_norm(x)))
//!             x += ffn_down(gelu(ffn_up(ffn_norm(x))))
//! output = norm(x)
//! ```

use stonechat_nn::op::{AttentionArgs, Count, KvWriteArgs, PoolId, RowTable, Rows, Tensor, Weight};
use stonechat_nn::{Activation, Conv1d, Linear, Norm, Precision, Recorder, SegmentName};

use crate::WINDOW_FRAMES;
use crate::config::Config;
use crate::ports::{AUDIO, ENCODER_ROWS, ENCODER_SLOTS, MEL};

/// KV pool of the encoder's current layer.
pub(crate) const ENCODER_POOL: PoolId = PoolId(2);

/// Weights of the encoder.
#[derive(Debug)]
pub(crate) struct Encoder {
    pub(crate) conv1: Conv1d,
    pub(crate) conv2: Conv1d,
    /// `[n_audio_ctx, D]`.
    pub(crate) positions: Weight,
    pub(crate) blocks: Vec<EncoderBlock>,
    pub(crate) norm: Norm,
}

/// Weights of one encoder layer.
#[derive(Debug)]
pub(crate) struct EncoderBlock {
    pub(crate) attn_norm: Norm,
    /// Query, key and value stacked: `[3D, D]`.
    pub(crate) attn_qkv: Linear,
    /// Bf16 if the projections' weights are quantized, else F32.
    pub(crate) attn_precision: Precision,
    pub(crate) attn_out: Linear,
    pub(crate) ffn_norm: Norm,
    pub(crate) ffn_up: Linear,
    pub(crate) ffn_down: Linear,
}

impl Encoder {
    /// Records the encoder; returns its output, `[W * n_audio_ctx, D]`.
    pub(crate) fn record(&self, r: &mut Recorder, config: &Config) -> Tensor {
        let positions = Rows { count: Count::Windows, each: config.n_audio_ctx };
        r.segment(SegmentName::Encoder, positions);
        let frames = Rows { count: Count::Windows, each: WINDOW_FRAMES };
        let mel = r.import(MEL, frames, config.n_mels);
        let x = self.conv1.record(r, mel, Activation::Gelu);
        let x = self.conv2.record(r, x, Activation::Gelu);
        let positions = r.constant(&self.positions, Count::Windows, config.d_model);
        let mut x = r.add(positions, x);
        for block in &self.blocks {
            let h = block.attn_norm.record(r, x);
            let attn = block.attention(r, config, h);
            x = r.add(x, attn);
            let h = block.ffn_norm.record(r, x);
            let h = block.ffn_up.record_activated(r, h, Activation::Gelu);
            let ffn = block.ffn_down.record(r, h);
            x = r.add(x, ffn);
        }
        let audio = self.norm.record(r, x);
        r.output(AUDIO, audio);
        audio
    }
}

impl EncoderBlock {
    fn attention(&self, r: &mut Recorder, config: &Config, h: Tensor) -> Tensor {
        let d = config.d_model;
        let qkv = self.attn_qkv.record(r, h);
        let [q, k, v] = [0, 1, 2].map(|i| qkv.columns(i * d, d));
        let (pool, layer) = (ENCODER_POOL, 0);
        r.kv_write(KvWriteArgs { pool, layer, slots: ENCODER_SLOTS }, k, v);
        let args = AttentionArgs {
            precision: self.attn_precision,
            ..plain_attention((pool, layer), config.n_audio_heads, d, ENCODER_ROWS)
        };
        let attn = r.attention(q, args);
        self.attn_out.record(r, attn)
    }
}

/// Scaled dot-product attention in f32 over `width` channels of all heads.
pub(crate) fn plain_attention(
    (pool, layer): (PoolId, usize),
    n_heads: usize,
    width: usize,
    rows: RowTable,
) -> AttentionArgs {
    AttentionArgs {
        pool,
        layer,
        n_heads,
        scale: 1.0 / ((width / n_heads) as f32).sqrt(),
        soft_cap: None,
        slopes: None,
        sinks: None,
        rows,
        precision: Precision::F32,
    }
}
