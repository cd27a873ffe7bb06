//! The forward pass of every architecture, recorded as a program: a ragged batch of tokens to logits.

use stonechat_nn::op::{
    AttentionArgs, Count, EmbedArgs, KvWriteArgs, MatmulArgs, Op, PoolId, Port, RopeArgs, Rotation,
    RowTable, Rows, SlotTable, Tensor, Weight,
};
use stonechat_nn::{Activation, KvShape, Program, Recorder, SegmentName};

use crate::Config;
use crate::model::arch::{FeedForward, Residual};
use crate::model::weights::{Block, Ffn, Input, Output, Weights};

/// Angles of the rotary embeddings of a state, by position.
#[derive(Debug)]
pub(crate) struct RopeTables {
    pub(crate) full: Option<Rotation>,
    /// Of sliding-window layers with a RoPE base of their own.
    pub(crate) local: Option<Rotation>,
}

/// Records one pipeline stage. Input: the tokens, or the residual stream if the stage has no embedding. Output: hidden
/// states, logits and top-k logits, or the residual stream.
///
/// ```text
/// x = embed(tokens)
/// for each layer:
///     q, k, v = rope(qkv(norm(x)));  write k, v to the KV pages
///     x += attn_output(attention(q, pages))
///     x += ffn(norm(x))                        gated MLP, plain MLP or MoE
/// h = norm(x[outputs]);  logits = output(h)
/// ```
///
/// Variants by [`Architecture`](crate::Architecture): parallel residual (attention and FFN read the same `x`),
/// post-norms, norms of query and key heads, sliding windows, ALiBi, attention sinks.
pub(crate) fn record(
    config: &Config,
    weights: &Weights,
    ropes: &RopeTables,
    (kv, max_top_k): (KvShape, usize),
) -> Program {
    let mut r = Recorder::new();
    let pool = r.pool(kv);
    r.segment(SegmentName::Body, Rows::of(Count::Tokens));
    let mut x = match &weights.input {
        Some(input) => input.record(&mut r, config),
        None => r.import(Port::STREAM, Rows::of(Count::Tokens), config.d_model),
    };
    for (layer, block) in weights.blocks.iter().enumerate() {
        let is_local = config.is_local[weights.layers.start + layer];
        x = Layer { config, weights, ropes, block, pool, layer, is_local }.record(&mut r, x);
    }
    match &weights.output {
        Some(output) => output.record(&mut r, config, weights.input.as_ref(), (x, max_top_k)),
        None => r.output(Port::STREAM, x),
    }
    r.finish()
}

impl Input {
    /// The embedded tokens: `[T, D]`.
    fn record(&self, r: &mut Recorder, config: &Config) -> Tensor {
        let (table, scale) = (self.token_embd.clone(), config.embedding_scale());
        let x = r.embed(EmbedArgs { table, positions: None, scale });
        self.norm.as_ref().map_or(x, |norm| norm.record(r, x))
    }
}

impl Output {
    /// Hidden states, logits and top-k logits of the outputs. Only these rows go through the last norm and the vocabulary
    /// projection, the largest matrix of small models. `input` has that matrix if the embedding is tied.
    fn record(
        &self,
        r: &mut Recorder,
        config: &Config,
        input: Option<&Input>,
        (x, max_top_k): (Tensor, usize),
    ) {
        r.segment(SegmentName::Hidden, Rows::of(Count::Hidden));
        let rows = r.gather(x, Count::Hidden);
        let hidden = self.norm.record(r, rows);
        r.output(Port::HIDDEN, hidden);
        r.segment(SegmentName::Logits, Rows::of(Count::Logits));
        let rows = r.gather(x, Count::Logits);
        let h = self.norm.record(r, rows);
        let tied = input.map(|input| &input.token_embd);
        let weight = self.matrix.as_ref().or(tied).expect("`Weights::load` gives one of them");
        let (weight, bias) = (weight.clone(), self.bias.clone());
        let matmul = MatmulArgs { weight, bias, activation: Activation::None };
        let mut logits = r.op(Op::Matmul(matmul), &[h]);
        if let Some(cap) = config.final_soft_cap {
            logits = r.op(Op::SoftCap(cap), &[logits]);
        }
        r.output(Port::LOGITS, logits);
        if max_top_k > 0 {
            let top_k = r.top_k(logits.first(Count::TopK));
            r.output(Port::TOP_K, top_k);
            let log_sum_exp = r.op(Op::LogSumExp, &[logits.first(Count::LogProbs)]);
            r.output(Port::LOG_SUM_EXP, log_sum_exp);
        }
    }
}

/// One layer.
struct Layer<'a> {
    config: &'a Config,
    weights: &'a Weights,
    ropes: &'a RopeTables,
    block: &'a Block,
    pool: PoolId,
    /// Index among the layers of the stage.
    layer: usize,
    /// Whether the layer attends to a sliding window.
    is_local: bool,
}

impl Layer<'_> {
    fn record(&self, r: &mut Recorder, x: Tensor) -> Tensor {
        let h = self.block.attn_norm.record(r, x);
        let attn = self.attention(r, h);
        let stream = r.add(x, attn);
        let input = match (self.config.architecture.residual, &self.block.ffn_norm) {
            (Residual::Sequential, Some(norm)) => norm.record(r, stream),
            // A parallel FFN reads the stream before attention is added.
            (Residual::Parallel, Some(norm)) => norm.record(r, x),
            (_, None) => h,
        };
        let ffn = self.feed_forward(r, input);
        r.add(stream, ffn)
    }

    /// Self-attention of the normed stream `h`.
    fn attention(&self, r: &mut Recorder, h: Tensor) -> Tensor {
        let Self { config, block, pool, layer, .. } = *self;
        let q = block.attn_q.record(r, h);
        let k = block.attn_k.record(r, h);
        let v = block.attn_v.record(r, h);
        let q = self.rope(r, q, block.attn_q_norm.as_ref());
        let k = self.rope(r, k, block.attn_k_norm.as_ref());
        r.kv_write(KvWriteArgs { pool, layer, slots: SlotTable::TOKENS }, k, v);
        let args = AttentionArgs {
            pool,
            layer,
            n_heads: config.n_heads,
            scale: config.attn_scale,
            soft_cap: config.attn_soft_cap,
            slopes: self.weights.alibi_slopes.clone(),
            sinks: block.attn_sinks.clone(),
            rows: if self.is_local { RowTable::WINDOW } else { RowTable::FULL },
            precision: block.attn_precision,
        };
        let attn = r.attention(q, args);
        let out = block.attn_output.record(r, attn);
        block.post_attn_norm.as_ref().map_or(out, |norm| norm.record(r, out))
    }

    /// The RMS norm of query or key heads and the rotary embedding of the heads of `x`, `[T, heads*C]`.
    fn rope(&self, r: &mut Recorder, x: Tensor, norm: Option<&Weight>) -> Tensor {
        let norm = norm.map(|weight| (weight.clone(), self.config.norm_eps));
        let RopeTables { full, local } = self.ropes;
        let rotation = local.as_ref().filter(|_| self.is_local).or(full.as_ref()).cloned();
        if norm.is_none() && rotation.is_none() {
            return x;
        }
        r.rope(x, RopeArgs { head_dim: self.config.head_dim, norm, rotation })
    }

    /// The FFN of the normed stream `h`.
    fn feed_forward(&self, r: &mut Recorder, h: Tensor) -> Tensor {
        let out = match (&self.block.ffn, self.config.architecture.feed_forward) {
            (Ffn::Gated { gate, up, down }, FeedForward::Gated(activation)) => {
                let (gate, up) = (gate.record(r, h), up.record(r, h));
                let hidden = r.gated(gate, up, activation);
                down.record(r, hidden)
            }
            (Ffn::Plain { up, down }, FeedForward::Plain(activation)) => {
                let hidden = up.record_activated(r, h, activation);
                down.record(r, hidden)
            }
            (Ffn::Experts { router, experts }, _) => {
                let logits = router.record(r, h);
                return r.moe(h, logits, experts.clone());
            }
            _ => unreachable!("`Weights::load` follows the architecture"),
        };
        self.block.post_ffn_norm.as_ref().map_or(out, |norm| norm.record(r, out))
    }
}
