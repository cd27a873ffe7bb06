//! Copies of cross-attention queries and keys, for word alignment.
//!
//! Attention itself stays fused: the alignment computes the weights of its few heads from these
//! copies. Keys are copied when a window's audio is set, queries in the steps that align windows.

use stonechat_nn::{Backend, Error, Rows, View};

use crate::alignment_heads::AlignmentHeads;
use crate::config::Config;

/// Keys and queries of the alignment heads.
#[derive(Debug)]
pub(crate) struct CrossAttentionCapture<B: Backend> {
    pub(crate) heads: AlignmentHeads,
    /// `[windows, heads, n_audio_ctx, C]`.
    pub(crate) keys: B::Buffer,
    /// `[heads, max_tokens, C]`, of the last step with capture.
    pub(crate) queries: B::Buffer,
    /// Most tokens of a step.
    pub(crate) max_tokens: usize,
}

impl<B: Backend> CrossAttentionCapture<B> {
    /// Allocates the buffers for `n_windows` windows and steps of `max_tokens` tokens.
    pub(crate) fn new(
        backend: &B,
        config: &Config,
        (n_windows, max_tokens): (usize, usize),
        heads: AlignmentHeads,
    ) -> Result<Self, Error> {
        let width = heads.len() * config.text_head_dim();
        Ok(Self {
            keys: backend.alloc(n_windows * config.n_audio_ctx * width)?,
            queries: backend.alloc(max_tokens * width)?,
            heads,
            max_tokens,
        })
    }

    /// Copies the keys of one window and layer: the first `D` columns of `kv`, `[n_audio_ctx, 2D]`.
    pub(crate) fn set_keys(
        &mut self,
        backend: &B,
        config: &Config,
        (window, layer): (usize, usize),
        kv: &B::Buffer,
    ) {
        let (t, c) = (config.n_audio_ctx, config.text_head_dim());
        let all = Rows::packed(t, 2 * config.d_model);
        for (i, head) in self.heads.of_layer(layer) {
            let view = View::new(kv, all.columns(head * c, c));
            let place = window * self.heads.len() + i;
            backend.copy(&mut self.keys, place * t * c, view);
        }
    }

    /// Copies the queries of `layer`, `[T, D]`.
    pub(crate) fn set_queries(
        &mut self,
        backend: &B,
        config: &Config,
        layer: usize,
        queries: View<'_, B>,
    ) {
        let c = config.text_head_dim();
        for (i, head) in self.heads.of_layer(layer) {
            let view = View::new(queries.buffer, queries.rows.columns(head * c, c));
            backend.copy(&mut self.queries, i * self.max_tokens * c, view);
        }
    }
}
