//! The text decoder: a ragged batch of tokens to logits.
//!
//! ```text
//! x = tokens[ids] + positions[pos]
//! each layer: x += attn_out(self_attention(attn_norm(x)))
//!             x += cross_out(cross_attention(cross_norm(x), audio))
//!             x += ffn_down(gelu(ffn_up(ffn_norm(x))))
//! logits = norm(x[outputs]) · tokensᵀ
//! ```
//!
//! Attention stays fused where words are aligned: the alignment computes the weights of its few heads from copies of the
//! cross-attention keys and queries. Keys are copied when a window's audio is set, queries in the steps that align windows.

use stonechat_nn::op::{
    Count, EmbedArgs, KvWriteArgs, Op, PoolId, Port, RowTable, Rows, SlotTable, Tensor, Weight,
};
use stonechat_nn::{Activation, Linear, Norm, Recorder, SegmentName};

use crate::alignment_heads::AlignmentHeads;
use crate::config::Config;
use crate::encoder::plain_attention;
use crate::ports::{CROSS_ROWS, CROSS_SLOTS, captured_keys, captured_queries};

/// KV pool of self-attention. Page copies are in this pool.
pub(crate) const SELF_POOL: PoolId = PoolId(0);
/// KV pool of cross-attention.
pub(crate) const CROSS_POOL: PoolId = PoolId(1);

/// Weights of the decoder.
#[derive(Debug)]
pub(crate) struct Decoder {
    /// `[V, D]`: token embedding and, transposed, vocabulary projection.
    pub(crate) tokens: Linear,
    /// `[n_text_ctx, D]`.
    pub(crate) positions: Weight,
    pub(crate) blocks: Vec<DecoderBlock>,
    pub(crate) norm: Norm,
}

/// Weights of one decoder layer.
#[derive(Debug)]
pub(crate) struct DecoderBlock {
    pub(crate) attn_norm: Norm,
    /// Query, key and value stacked: `[3D, D]`.
    pub(crate) attn_qkv: Linear,
    pub(crate) attn_out: Linear,
    pub(crate) cross_norm: Norm,
    pub(crate) cross_q: Linear,
    /// Key and value stacked: `[2D, D]`.
    pub(crate) cross_kv: Linear,
    pub(crate) cross_out: Linear,
    pub(crate) ffn_norm: Norm,
    pub(crate) ffn_up: Linear,
    pub(crate) ffn_down: Linear,
}

impl Decoder {
    /// Records the projection of the encoder's output `audio`, `[W * n_audio_ctx, D]`, to the cross-attention keys and
    /// values of every layer; exports the keys of `heads`.
    pub(crate) fn record_audio(
        &self,
        r: &mut Recorder,
        config: &Config,
        heads: Option<&AlignmentHeads>,
        audio: Tensor,
    ) {
        r.segment(SegmentName::CrossKv, audio.rows);
        let (d, c) = (config.d_model, config.text_head_dim());
        for (layer, block) in self.blocks.iter().enumerate() {
            let kv = block.cross_kv.record(r, audio);
            let [k, v] = [0, 1].map(|i| kv.columns(i * d, d));
            for (i, head) in heads.iter().flat_map(|heads| heads.of_layer(layer)) {
                let keys = k.columns(head * c, c).first(Count::CapturedWindows);
                r.export(captured_keys(i), keys);
            }
            r.kv_write(KvWriteArgs { pool: CROSS_POOL, layer, slots: CROSS_SLOTS }, k, v);
        }
    }

    /// Records a step; exports the queries of `heads`.
    pub(crate) fn record(&self, r: &mut Recorder, config: &Config, heads: Option<&AlignmentHeads>) {
        r.segment(SegmentName::Body, Rows::of(Count::Tokens));
        let (table, positions) = (self.tokens.weight.clone(), Some(self.positions.clone()));
        let mut x = r.embed(EmbedArgs { table, positions, scale: 1.0 });
        for (layer, block) in self.blocks.iter().enumerate() {
            let h = block.attn_norm.record(r, x);
            let attn = block.self_attention(r, config, layer, h);
            x = r.add(x, attn);

            let h = block.cross_norm.record(r, x);
            let q = block.cross_q.record(r, h);
            let c = config.text_head_dim();
            for (i, head) in heads.iter().flat_map(|heads| heads.of_layer(layer)) {
                let queries = q.columns(head * c, c).first(Count::CapturedTokens);
                r.export(captured_queries(i), queries);
            }
            let attn = attention(r, config, q, (CROSS_POOL, layer), CROSS_ROWS);
            let out = block.cross_out.record(r, attn);
            x = r.add(x, out);

            let h = block.ffn_norm.record(r, x);
            let h = block.ffn_up.record_activated(r, h, Activation::Gelu);
            let ffn = block.ffn_down.record(r, h);
            x = r.add(x, ffn);
        }
        // The vocabulary projection is the largest matrix of the small models, and runs for the outputs only.
        r.segment(SegmentName::Logits, Rows::of(Count::Logits));
        let rows = r.gather(x, Count::Logits);
        let h = self.norm.record(r, rows);
        let logits = self.tokens.record(r, h);
        let logits = r.logit_filter(logits);
        r.output(Port::LOGITS, logits);
        let top_k = r.top_k(logits.first(Count::TopK));
        r.output(Port::TOP_K, top_k);
        let log_sum_exp = r.op(Op::LogSumExp, &[logits.first(Count::LogProbs)]);
        r.output(Port::LOG_SUM_EXP, log_sum_exp);
    }
}

impl DecoderBlock {
    fn self_attention(&self, r: &mut Recorder, config: &Config, layer: usize, h: Tensor) -> Tensor {
        let d = config.d_model;
        let qkv = self.attn_qkv.record(r, h);
        let [q, k, v] = [0, 1, 2].map(|i| qkv.columns(i * d, d));
        r.kv_write(KvWriteArgs { pool: SELF_POOL, layer, slots: SlotTable::TOKENS }, k, v);
        let attn = attention(r, config, q, (SELF_POOL, layer), RowTable::FULL);
        self.attn_out.record(r, attn)
    }
}

fn attention(
    r: &mut Recorder,
    config: &Config,
    q: Tensor,
    pool: (PoolId, usize),
    rows: RowTable,
) -> Tensor {
    let (n_heads, width) = (config.n_text_heads, config.d_model);
    r.attention(q, plain_attention(pool, n_heads, width, rows))
}
