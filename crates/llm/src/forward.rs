//! The forward pass of every architecture: a ragged batch of tokens to logits.

use stonechat_nn::{
    Activation, Attention, Backend, Batch, Embed, Epilogue, GatedMlp, MatmulOp, Rope, Rotation,
    Rows, View,
};

use crate::arch::{FeedForward, Residual};
use crate::config::RopeConfig;
use crate::state::{Buffers, StageState};
use crate::weights::{Block, Ffn, Input, Output, Weights};
use crate::{Config, Error};

/// Runs `batch` through one pipeline stage. Input: the tokens, or the residual stream in `Buffers::x` if the stage has
/// no embedding. Output: `Buffers::logits` of `batch.outputs`, or the residual stream in `x`.
///
/// ```text
/// x = embed(tokens)
/// for each layer:
///     q, k, v = rope(qkv(norm(x)));  write k, v to the KV pages
///     x += attn_output(attention(q, pages))
///     x += ffn(norm(x))                        gated MLP, plain MLP or MoE
/// logits = output(norm(x[outputs]))
/// ```
///
/// Variants by [`Architecture`](crate::Architecture): parallel residual (attention and FFN read the same `x`),
/// post-norms, norms of query and key heads, sliding windows, ALiBi, attention sinks.
pub(crate) fn forward<B: Backend>(
    backend: &B,
    config: &Config,
    weights: &Weights<B>,
    stage: &mut StageState<B>,
    batch: Batch<'_>,
) -> Result<(), Error> {
    let t = batch.tokens.len();
    assert!(t <= stage.options.n_batch && batch.outputs.len() <= stage.options.n_outputs);
    assert_eq!(t, batch.sequences.len(), "one sequence index for each token");
    stage.prepare(backend, batch, config.window)?;
    if let Some(input) = &weights.input {
        input.forward(backend, config, &mut stage.buffers, batch);
    }
    for (layer, block) in weights.blocks.iter().enumerate() {
        let is_local = config.is_local[weights.layers.start + layer];
        let pass = Pass { backend, config, weights, layer, is_local, t };
        pass.attention(block, stage);
        pass.feed_forward(block, &mut stage.buffers);
    }
    if let Some(output) = &weights.output {
        output.forward(backend, config, weights.input.as_ref(), &mut stage.buffers, batch);
    }
    Ok(())
}

impl<B: Backend> Input<B> {
    /// Embeds the tokens of the batch: `x`, `[T, D]`.
    fn forward(&self, backend: &B, config: &Config, buffers: &mut Buffers<B>, batch: Batch<'_>) {
        let Buffers { x, h, .. } = buffers;
        let embed =
            Embed { tokens: batch.tokens, scale: config.embedding_scale(), positions: None };
        backend.embed(x, &self.token_embd, embed);
        if let Some(norm) = &self.norm {
            norm.forward(backend, h, View::packed(x, batch.tokens.len(), config.d_model));
            std::mem::swap(x, h);
        }
    }
}

impl<B: Backend> Output<B> {
    /// Computes the logits of `batch.outputs`, `[n_outputs, V]`. Only these rows go through the last norm and the
    /// vocabulary projection, the largest matrix of small models. `input` has that matrix if the embedding is tied.
    fn forward(
        &self,
        backend: &B,
        config: &Config,
        input: Option<&Input<B>>,
        buffers: &mut Buffers<B>,
        batch: Batch<'_>,
    ) {
        let (t, d, n) = (batch.tokens.len(), config.d_model, batch.outputs.len());
        let Buffers { x, h, output, logits, .. } = buffers;
        for (i, &row) in batch.outputs.iter().enumerate() {
            let from = View::new(&*x, Rows::packed(t, d).slice(row, 1));
            backend.copy(output, i * d, from);
        }
        if n > 0 {
            self.norm.forward(backend, h, View::packed(output, n, d));
            let tied = input.map(|input| &input.token_embd);
            let w = self.matrix.as_ref().or(tied).expect("`Weights::load` gives one of them");
            let bias = self.bias.as_ref();
            let epilogue = Epilogue { bias, activation: Activation::None, accumulate: false };
            backend.matmul(
                View::packed(h, n, d),
                [MatmulOp { out: logits, w, epilogue, consumer: None }],
            );
        }
    }
}

/// Arguments of one layer of a forward pass.
struct Pass<'a, B: Backend> {
    backend: &'a B,
    config: &'a Config,
    weights: &'a Weights<B>,
    /// Index among the layers of the stage.
    layer: usize,
    /// Whether the layer attends to a sliding window.
    is_local: bool,
    /// Tokens of the batch.
    t: usize,
}

impl<B: Backend> Pass<'_, B> {
    /// Adds self-attention to the residual stream, and leaves the normed input of a parallel FFN in `h`.
    fn attention(&self, block: &Block<B>, stage: &mut StageState<B>) {
        let Self { backend, config, layer, is_local, t, .. } = *self;
        let d = config.d_model;
        let Buffers { x, h, q, k, v, attn, cos_sin, local_cos_sin, .. } = &mut stage.buffers;
        block.attn_norm.forward(backend, h, View::packed(x, t, d));
        let qkv = [block.attn_q.matmul_op(q), block.attn_k.matmul_op(k), block.attn_v.matmul_op(v)];
        backend.matmul(View::packed(h, t, d), qkv);
        let (rope, cos_sin) = match (&config.local_rope, &*local_cos_sin) {
            (Some(rope), Some(cos_sin)) if is_local => (Some(rope), Some(cos_sin)),
            _ => (config.rope.as_ref(), cos_sin.as_ref()),
        };
        let rows = |width| Rows::packed(t, width);
        self.rope(q, rows(config.q_width()), block.attn_q_norm.as_ref(), rope.zip(cos_sin));
        self.rope(k, rows(config.kv_width()), block.attn_k_norm.as_ref(), rope.zip(cos_sin));
        let width = config.kv_width();
        let (k, v) = (View::packed(k, t, width), View::packed(v, t, width));
        backend.kv_write(stage.kv.pool_mut(), layer, k, v, &stage.inputs.kv_rows);
        backend.attention(
            attn,
            Attention {
                q: View::packed(q, t, config.q_width()),
                kv: stage.kv.pool(),
                layer,
                n_heads: config.n_heads,
                scale: config.attn_scale,
                soft_cap: config.attn_soft_cap,
                slopes: self.weights.alibi_slopes.as_ref(),
                sinks: block.attn_sinks.as_ref(),
                rows: if is_local {
                    &stage.inputs.local_query_rows
                } else {
                    &stage.inputs.query_rows
                },
                page_table: &stage.inputs.page_table,
                precision: block.attn_precision,
            },
        );
        let result = View::packed(attn, t, config.q_width());
        match &block.post_attn_norm {
            Some(norm) => {
                block.attn_output.forward(backend, h, result);
                norm.accumulate(backend, x, View::packed(h, t, d));
            }
            None if config.architecture.residual == Residual::Parallel
                && block.ffn_norm.is_some() =>
            {
                // A parallel FFN reads the stream before attention is added.
                self.parallel_norm(block, x, h);
                block.attn_output.accumulate(backend, x, result);
            }
            None => block.attn_output.accumulate(backend, x, result),
        }
    }

    fn parallel_norm(&self, block: &Block<B>, x: &B::Buffer, h: &mut B::Buffer) {
        if let Some(norm) = &block.ffn_norm {
            norm.forward(self.backend, h, View::packed(x, self.t, self.config.d_model));
        }
    }

    /// Applies the RMS norm of query or key heads and the rotary embedding to the heads of `x`, `[T, heads*C]`.
    fn rope(
        &self,
        x: &mut B::Buffer,
        rows: Rows,
        norm: Option<&B::Buffer>,
        rotation: Option<(&RopeConfig, &B::Buffer)>,
    ) {
        let norm = norm.map(|weight| (weight, self.config.norm_eps));
        let rotation = rotation.map(|(rope, cos_sin)| Rotation {
            cos_sin,
            n_rot: rope.n_rot,
            pairs: rope.pairs,
        });
        if norm.is_some() || rotation.is_some() {
            let head_dim = self.config.head_dim;
            self.backend.rope(x, rows, Rope { head_dim, norm, rotation });
        }
    }

    /// Adds the FFN to the residual stream.
    fn feed_forward(&self, block: &Block<B>, buffers: &mut Buffers<B>) {
        let Self { backend, config, t, .. } = *self;
        let (d, f) = (config.d_model, config.d_ff);
        let Buffers { x, h, result, gate, up, hidden, .. } = buffers;
        if let (Residual::Sequential, Some(norm)) = (config.architecture.residual, &block.ffn_norm)
        {
            norm.forward(backend, h, View::packed(x, t, d));
        }
        // A post-norm needs the output apart from the residual stream.
        let norm = block.post_ffn_norm.as_ref();
        let accumulate = norm.is_none();
        let out = if accumulate { &mut *x } else { &mut *result };
        match (&block.ffn, config.architecture.feed_forward) {
            (Ffn::Gated { gate: w_gate, up: w_up, down }, FeedForward::Gated(activation)) => {
                let mlp = GatedMlp {
                    gate: w_gate,
                    up: w_up,
                    down,
                    activation,
                    d_ff: f,
                    accumulate,
                    scratch: [gate, up, hidden],
                };
                backend.gated_mlp(out, View::packed(h, t, d), mlp);
            }
            (Ffn::Plain { up: w_up, down }, FeedForward::Plain(activation)) => {
                w_up.forward_activated(backend, up, View::packed(h, t, d), (activation, down));
                down.forward_into(backend, out, View::packed(up, t, f), accumulate);
            }
            (Ffn::Experts { router, experts }, _) => {
                router.forward(backend, gate, View::packed(h, t, d));
                let logits = View::packed(gate, t, experts.n_experts);
                backend.moe(x, View::packed(h, t, d), logits, experts);
                return;
            }
            _ => unreachable!("`Weights::load` follows the architecture"),
        }
        if let Some(norm) = norm {
            norm.accumulate(backend, x, View::packed(result, t, d));
        }
    }
}
