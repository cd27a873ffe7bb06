//! Rotary position embeddings, with an optional norm of each head before.

use super::{AttentionArgs, KvDType, KvWriteArgs, Weight};

/// Pairs of channels of a head that are rotated together; `R` channels are rotated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RopePairs {
    /// `(2i, 2i + 1)`: the paper's order, ggml's `GGML_ROPE_TYPE_NORMAL`.
    Adjacent,
    /// `(i, i + R/2)`: GPT-NeoX and Hugging Face, ggml's `GGML_ROPE_TYPE_NEOX`.
    Neox,
}

/// Angles of a rotary embedding.
#[derive(Debug, Clone)]
pub struct Rotation {
    /// `[n_ctx, R]`: `R/2` cosines, then `R/2` sines of a position, times the model's `mscale` if it has one. Only the
    /// first `R` of the `C` channels of a head are rotated.
    pub table: Weight,
    /// Rotated channels `R`, even.
    pub n_rot: usize,
    /// Pairing of the channels: adjacent (GPT-J) or `(i, i + R/2)` (GPT-NeoX).
    pub pairs: RopePairs,
}

/// Arguments of [`Op::Rope`].
#[derive(Debug, Clone)]
pub struct RopeArgs {
    /// Width of a head `C`.
    pub head_dim: usize,
    /// QK norm, the RMS norm of every head before the rotation: weight `[C]` and epsilon (Qwen 3, Gemma 3).
    pub norm: Option<(Weight, f32)>,
    /// Rotation after the norm; `None` only norms.
    pub rotation: Option<Rotation>,
}

impl RopeArgs {
    /// Whether both have the same width of a head and the same rotation.
    #[must_use]
    pub fn rotates_like(&self, other: &Self) -> bool {
        let same_rotation = match (&self.rotation, &other.rotation) {
            (Some(a), Some(b)) => a.table.is(&b.table) && (a.n_rot, a.pairs) == (b.n_rot, b.pairs),
            (None, None) => true,
            _ => false,
        };
        self.head_dim == other.head_dim && same_rotation
    }
}

/// Arguments of [`Op::RopeKv`]. Both embeddings have the same width of a head and the same rotation.
#[derive(Debug, Clone)]
pub struct RopeKvArgs {
    /// Of the queries.
    pub q: RopeArgs,
    /// Of the keys.
    pub k: RopeArgs,
    /// Of the keys and values.
    pub write: KvWriteArgs,
}

/// Arguments of [`Op::RopeAttention`].
#[derive(Debug, Clone)]
pub struct RopeAttentionArgs {
    /// Rotations and KV write.
    pub rope: RopeKvArgs,
    /// Attention of the rotated queries, over the layer of the write.
    pub attention: AttentionArgs,
    /// Element type of the pool.
    pub kv: KvDType,
}
