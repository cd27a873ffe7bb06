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

/// Angles of a rotary embedding. `W` holds values: a [`Weight`] in a program, or the memory of a device.
#[derive(Debug, Clone, Copy)]
pub struct Rotation<W = Weight> {
    /// `[n_ctx, R]`: `R/2` cosines, then `R/2` sines of a position, times the model's `mscale` if it has one. Only the
    /// first `R` of the `C` channels of a head are rotated.
    pub table: W,
    /// Rotated channels `R`, even.
    pub n_rot: usize,
    /// Pairing of the channels: adjacent (GPT-J) or `(i, i + R/2)` (GPT-NeoX).
    pub pairs: RopePairs,
}

/// Arguments of [`Op::Rope`](super::Op::Rope). `W` as in [`Rotation`].
#[derive(Debug, Clone, Copy)]
pub struct RopeArgs<W = Weight> {
    /// Width of a head `C`.
    pub head_dim: usize,
    /// QK norm, the RMS norm of every head before the rotation: weight `[C]` and epsilon (Qwen 3, Gemma 3).
    pub norm: Option<(W, f32)>,
    /// Rotation after the norm; `None` only norms.
    pub rotation: Option<Rotation<W>>,
}

impl<W> RopeArgs<W> {
    /// Replaces the weights by those of a device.
    #[must_use]
    pub fn map<'a, V>(&'a self, values: impl Fn(&'a W) -> V) -> RopeArgs<V> {
        let Self { head_dim, norm, rotation } = self;
        let rotation = rotation.as_ref().map(|Rotation { table, n_rot, pairs }| Rotation {
            table: values(table),
            n_rot: *n_rot,
            pairs: *pairs,
        });
        let norm = norm.as_ref().map(|(weight, eps)| (values(weight), *eps));
        RopeArgs { head_dim: *head_dim, norm, rotation }
    }
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

/// Arguments of [`Op::RopeKv`](super::Op::RopeKv). Both embeddings have the same width of a head and the same rotation.
#[derive(Debug, Clone)]
pub struct RopeKvArgs {
    /// Rotation of the queries.
    pub q: RopeArgs,
    /// Rotation of the keys.
    pub k: RopeArgs,
    /// KV write of the keys and values.
    pub write: KvWriteArgs,
}

/// Arguments of [`Op::RopeAttention`](super::Op::RopeAttention).
#[derive(Debug, Clone)]
pub struct RopeAttentionArgs {
    /// Rotations and KV write.
    pub rope: RopeKvArgs,
    /// Attention of the rotated queries, over the layer of the write.
    pub attention: AttentionArgs,
    /// Element type of the pool.
    pub kv: KvDType,
}
