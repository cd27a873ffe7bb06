//! The forward pass of every architecture, recorded as a program: a ragged batch of tokens to logits.

use stonechat_nn::op::{
    AttentionArgs, Count, EmbedArgs, KvWriteArgs, MatmulArgs, NormArgs, Op, PoolId, Port, RopeArgs,
    Rotation, RowTable, Rows, SlotTable, Tensor, Weight,
};
use stonechat_nn::{Activation, KvShape, Norm, Program, Recorder, SegmentName};

use crate::Config;
use crate::model::arch::{QkNorm, Residual};
use crate::model::layer::LayerConfig;
use crate::model::rope::RopeConfig;
use crate::model::weights::{Block, Ffn, Input, Output, Weights};

/// Rotations of a state: the table of angles of each RoPE configuration of its layers.
pub(crate) type Rotations = Vec<(RopeConfig, Rotation)>;

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
/// norms of inputs, outputs, queries and keys, sliding windows, layers without RoPE, ALiBi, attention sinks.
pub(crate) fn record(
    config: &Config,
    weights: &Weights,
    rotations: &Rotations,
    (kv, max_top_k): (&[KvShape], usize),
) -> Program {
    let mut r = Recorder::new();
    let mut pools: Vec<(PoolId, usize)> = kv.iter().map(|shape| (r.pool(*shape), 0)).collect();
    r.segment(SegmentName::Body, Rows::of(Count::Tokens));
    let mut x = match &weights.input {
        Some(input) => input.record(&mut r, config),
        None => r.import(Port::STREAM, Rows::of(Count::Tokens), config.d_model),
    };
    for (layer, block) in config.layers[weights.layers.clone()].iter().zip(&weights.blocks) {
        let rotation = |rope: Option<RopeConfig>| {
            rotations.iter().find(|(known, _)| Some(*known) == rope).map(|(_, rotation)| rotation)
        };
        let rotations = [rotation(layer.query_rope()), rotation(layer.rope)];
        let (pool, n_before) = &mut pools[layer.kv_group];
        let place = (*pool, *n_before);
        *n_before += 1;
        x = Layer { config, weights, layer, block, place, rotations }.record(&mut r, x);
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
        let (table, scale) = (self.token_embd.clone(), config.stream_scale());
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
        let h = self.logits_norm.record(r, rows);
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
    layer: &'a LayerConfig,
    block: &'a Block,
    /// KV pool, and index among the layers of the pool.
    place: (PoolId, usize),
    /// Rotations of queries and keys.
    rotations: [Option<&'a Rotation>; 2],
}

impl Layer<'_> {
    fn record(&self, r: &mut Recorder, x: Tensor) -> Tensor {
        let h = self.block.attn_norm.as_ref().map_or(x, |norm| norm.record(r, x));
        let attn = self.attention(r, h);
        let stream = r.add(x, attn);
        let input = match (self.config.architecture.residual, &self.block.ffn_norm) {
            (Residual::Sequential, Some(norm)) => norm.record(r, stream),
            (Residual::Sequential, None) => stream,
            // A parallel FFN reads the stream before attention is added.
            (Residual::Parallel, Some(norm)) => norm.record(r, x),
            (Residual::Parallel, None) => h,
        };
        let ffn = self.feed_forward(r, input);
        r.add(stream, ffn)
    }

    /// Self-attention of the normed stream `h`.
    fn attention(&self, r: &mut Recorder, h: Tensor) -> Tensor {
        let Self { config, layer: &LayerConfig { n_heads, attn_scale, window, .. }, block, .. } =
            *self;
        let (pool, layer) = self.place;
        let q = block.attn_q.record(r, h);
        let k = block.attn_k.record(r, h);
        let v = block.attn_v.record(r, h);
        let [q_rotation, k_rotation] = self.rotations;
        let q = self.rope(r, q, (block.attn_q_norm.as_ref(), q_rotation));
        let k = self.rope(r, k, (block.attn_k_norm.as_ref(), k_rotation));
        r.kv_write(KvWriteArgs { pool, layer, slots: SlotTable::TOKENS }, k, v);
        let args = AttentionArgs {
            pool,
            layer,
            n_heads,
            scale: attn_scale,
            soft_cap: config.attn_soft_cap,
            slopes: self.weights.alibi_slopes.clone(),
            sinks: block.attn_sinks.clone(),
            rows: if window.is_some() { RowTable::WINDOW } else { RowTable::FULL },
            precision: block.attn_precision,
        };
        let attn = r.attention(q, args);
        let out = block.attn_output.record(r, attn);
        block.post_attn_norm.as_ref().map_or(out, |norm| norm.record(r, out))
    }

    /// The RMS norm and the rotary embedding of queries or keys `x`, `[T, heads*C]`.
    fn rope(
        &self,
        r: &mut Recorder,
        x: Tensor,
        (norm, rotation): (Option<&Weight>, Option<&Rotation>),
    ) -> Tensor {
        let eps = self.config.norm_eps;
        let head_dim = self.config.kv(self.layer).head_dim;
        let heads = |r: &mut Recorder, x, norm: Option<&Weight>, rotation: Option<&Rotation>| {
            if norm.is_none() && rotation.is_none() {
                return x;
            }
            let norm = norm.map(|weight| (weight.clone(), eps));
            r.rope(x, RopeArgs { head_dim, norm, rotation: rotation.cloned() })
        };
        match (self.layer.qk_norm, norm) {
            (Some(QkNorm::RotatedHeads), norm) => {
                let rotated = heads(r, x, None, rotation);
                heads(r, rotated, norm, None)
            }
            (Some(QkNorm::Width), Some(weight)) => {
                let args = NormArgs { weight: weight.clone(), bias: None, eps };
                let normed = Norm::Rms(args).record(r, x);
                heads(r, normed, None, rotation)
            }
            (_, norm) => heads(r, x, norm, rotation),
        }
    }

    /// The FFN of the normed stream `h`.
    fn feed_forward(&self, r: &mut Recorder, h: Tensor) -> Tensor {
        let out = match &self.block.ffn {
            Ffn::Gated { gate, up, down, activation } => {
                let (gate, up) = (gate.record(r, h), up.record(r, h));
                let hidden = r.gated(gate, up, *activation);
                down.record(r, hidden)
            }
            Ffn::Plain { up, down, activation } => {
                let hidden = up.record_activated(r, h, *activation);
                down.record(r, hidden)
            }
            Ffn::Experts { router, experts } => {
                let logits = router.record(r, h);
                return r.moe(h, logits, experts.clone());
            }
        };
        self.block.post_ffn_norm.as_ref().map_or(out, |norm| norm.record(r, out))
    }
}
