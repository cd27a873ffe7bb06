//! The forward pass of every architecture: a ragged batch of tokens to logits.

use stonechat_nn::{
    Activation, Attention, Backend, Embed, Epilogue, GatedMlp, MatmulOp, Rope, Rotation, Rows,
    StepInputs, View,
};

use crate::Config;
use crate::arch::{FeedForward, Residual};
use crate::config::RopeConfig;
use crate::outputs::OutputLayout;
use crate::stage::{Buffers, StageState};
use crate::weights::{Block, Ffn, Input, Output, Weights};

/// Runs a step through one pipeline stage. Input: the tokens, or the residual stream in `Buffers::x` if the stage has no
/// embedding. Output: the results of `layout`, or the residual stream in `x`.
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
pub(crate) fn forward<B: Backend>(
    backend: &B,
    config: &Config,
    weights: &Weights<B>,
    stage: &mut StageState<B>,
    (inputs, layout): (&StepInputs, &OutputLayout),
) {
    stage.prepare(backend, inputs, config.window);
    if let Some(input) = &weights.input {
        input.forward(backend, config, &mut stage.buffers, &inputs.tokens);
    }
    for (layer, block) in weights.blocks.iter().enumerate() {
        let is_local = config.is_local[weights.layers.start + layer];
        let pass = Pass { backend, config, weights, inputs, layer, is_local };
        pass.attention(block, stage);
        pass.feed_forward(block, &mut stage.buffers);
    }
    if let Some(output) = &weights.output {
        let t = inputs.n_tokens();
        output.forward(backend, config, weights.input.as_ref(), &mut stage.buffers, (t, layout));
    }
}

impl<B: Backend> Input<B> {
    /// Embeds the tokens of the step: `x`, `[T, D]`.
    fn forward(&self, backend: &B, config: &Config, buffers: &mut Buffers<B>, tokens: &[u32]) {
        let Buffers { x, h, .. } = buffers;
        let embed = Embed { tokens, scale: config.embedding_scale(), positions: None };
        backend.embed(x, &self.token_embd, embed);
        if let Some(norm) = &self.norm {
            norm.forward(backend, h, View::packed(x, tokens.len(), config.d_model));
            std::mem::swap(x, h);
        }
    }
}

impl<B: Backend> Output<B> {
    /// Computes the results of `layout`: hidden states in `h`, `[outputs, D]`, logits of the first rows, and their top-k.
    /// Only these rows go through the last norm and the vocabulary projection, the largest matrix of small models.
    /// `input` has that matrix if the embedding is tied.
    fn forward(
        &self,
        backend: &B,
        config: &Config,
        input: Option<&Input<B>>,
        buffers: &mut Buffers<B>,
        (t, layout): (usize, &OutputLayout),
    ) {
        let (d, vocab_size) = (config.d_model, config.vocab_size);
        let Buffers { x, h, output, logits, top_k, .. } = buffers;
        for (i, &row) in layout.rows.iter().enumerate() {
            let from = View::new(&*x, Rows::packed(t, d).slice(row, 1));
            backend.copy(output, i * d, from);
        }
        if layout.rows.is_empty() {
            return;
        }
        self.norm.forward(backend, h, View::packed(output, layout.rows.len(), d));
        if layout.n_projected() > 0 {
            let tied = input.map(|input| &input.token_embd);
            let w = self.matrix.as_ref().or(tied).expect("`Weights::load` gives one of them");
            let bias = self.bias.as_ref();
            let epilogue = Epilogue { bias, activation: Activation::None, accumulate: false };
            backend.matmul(
                View::packed(h, layout.n_projected(), d),
                [MatmulOp { out: logits, w, epilogue, consumer: None }],
            );
        }
        if layout.n_top_k > 0 {
            backend.top_k(top_k, View::packed(logits, layout.n_top_k, vocab_size), layout.k);
        }
    }
}

/// Arguments of one layer of a forward pass.
struct Pass<'a, B: Backend> {
    backend: &'a B,
    config: &'a Config,
    weights: &'a Weights<B>,
    inputs: &'a StepInputs,
    /// Index among the layers of the stage.
    layer: usize,
    /// Whether the layer attends to a sliding window.
    is_local: bool,
}

impl<B: Backend> Pass<'_, B> {
    /// Adds self-attention to the residual stream, and leaves the normed input of a parallel FFN in `h`.
    fn attention(&self, block: &Block<B>, stage: &mut StageState<B>) {
        let Self { backend, config, inputs, layer, is_local, .. } = *self;
        let t = inputs.n_tokens();
        let d = config.d_model;
        let Buffers { x, h, q, k, v, attn, rope_table, local_rope_table, .. } = &mut stage.buffers;
        block.attn_norm.forward(backend, h, View::packed(x, t, d));
        let qkv = [block.attn_q.matmul_op(q), block.attn_k.matmul_op(k), block.attn_v.matmul_op(v)];
        backend.matmul(View::packed(h, t, d), qkv);
        let (rope, table) = match (&config.local_rope, &*local_rope_table) {
            (Some(rope), Some(table)) if is_local => (Some(rope), Some(table)),
            _ => (config.rope.as_ref(), rope_table.as_ref()),
        };
        let rows = |width| Rows::packed(t, width);
        self.rope(q, rows(config.q_width()), block.attn_q_norm.as_ref(), rope.zip(table));
        self.rope(k, rows(config.kv_width()), block.attn_k_norm.as_ref(), rope.zip(table));
        let width = config.kv_width();
        let (k, v) = (View::packed(k, t, width), View::packed(v, t, width));
        backend.kv_write(&mut stage.kv, layer, k, v, &inputs.kv_rows);
        backend.attention(
            attn,
            Attention {
                q: View::packed(q, t, config.q_width()),
                kv: &stage.kv,
                layer,
                n_heads: config.n_heads,
                scale: config.attn_scale,
                soft_cap: config.attn_soft_cap,
                slopes: self.weights.alibi_slopes.as_ref(),
                sinks: block.attn_sinks.as_ref(),
                rows: if is_local { &stage.local_query_rows } else { &inputs.query_rows },
                page_table: &inputs.page_table,
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
            norm.forward(
                self.backend,
                h,
                View::packed(x, self.inputs.n_tokens(), self.config.d_model),
            );
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
        let rotation = rotation.map(|(rope, table)| Rotation {
            table,
            positions: &self.inputs.pos,
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
        let Self { backend, config, inputs, .. } = *self;
        let t = inputs.n_tokens();
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
