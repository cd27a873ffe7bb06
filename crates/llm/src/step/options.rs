//! Sizes of a state.

use std::ops::Range;

use stonechat_nn::{KvDType, KvShape, PAGE_LEN, StepLimits};

use crate::model::layer::KvGroup;
use crate::{Config, Error};

/// Sizes of a [`State`](crate::State).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateOptions {
    /// Maximum positions of a sequence.
    pub n_ctx: usize,
    /// Number of sequences.
    pub n_sequences: usize,
    /// KV pages shared by all sequences; `None`: enough for `n_ctx` positions of each.
    pub n_pages: Option<usize>,
    /// Maximum tokens per step.
    pub n_batch: usize,
    /// Maximum rows of logits and top-k per step.
    pub n_outputs: usize,
    /// Maximum rows of hidden states per step.
    pub n_hidden: usize,
    /// Element type of cached keys and values.
    pub kv_dtype: KvDType,
}

impl StateOptions {
    /// One sequence of `n_ctx` positions.
    #[must_use]
    pub fn new(n_ctx: usize) -> Self {
        Self {
            n_ctx,
            n_sequences: 1,
            n_pages: None,
            n_batch: 512.min(n_ctx),
            n_outputs: 1,
            n_hidden: 0,
            kv_dtype: KvDType::F16,
        }
    }

    /// Checks that sizes are in `1..=2^24`.
    pub(crate) fn check(&self) -> Result<(), Error> {
        for (option, value) in [
            ("context size", self.n_ctx),
            ("sequences", self.n_sequences),
            ("KV pages", self.n_pages()),
            ("batch size", self.n_batch),
            ("outputs", self.n_outputs),
            ("hidden states", self.n_hidden.max(1)),
        ] {
            if value == 0 || value > 1 << 24 {
                let expected = format!("1 to {}", 1 << 24);
                return Err(Error::Option { option, expected, got: value.to_string() });
            }
        }
        Ok(())
    }

    pub(crate) fn n_pages(&self) -> usize {
        let each = self.n_ctx.div_ceil(PAGE_LEN);
        self.n_pages.unwrap_or_else(|| self.n_sequences.saturating_mul(each))
    }

    /// Maximum positions of a sequence: the context, or the whole pool if it is smaller.
    pub(crate) fn max_positions(&self) -> usize {
        self.n_ctx.min(self.n_pages().saturating_mul(PAGE_LEN))
    }

    /// Bytes of the KV cache of a model.
    #[must_use]
    pub fn kv_bytes(&self, config: &Config) -> u64 {
        self.kv_bytes_of(config, 0..config.n_layers())
    }

    /// Bytes of the KV cache of some layers.
    pub(crate) fn kv_bytes_of(&self, config: &Config, layers: Range<usize>) -> u64 {
        self.kv_shapes(config, layers).into_iter().map(KvShape::bytes).sum()
    }

    /// Shapes of the KV pools of some layers, one for each group of the model.
    pub(crate) fn kv_shapes(&self, config: &Config, layers: Range<usize>) -> Vec<KvShape> {
        let layers = &config.layers[layers];
        let shape = |(index, group): (usize, &KvGroup)| KvShape {
            n_layers: layers.iter().filter(|layer| layer.kv_group == index).count(),
            n_pages: self.n_pages(),
            n_kv_heads: group.n_kv_heads,
            head_dim: group.head_dim,
            dtype: self.kv_dtype,
        };
        config.kv_groups.iter().enumerate().map(shape).collect()
    }

    pub(crate) fn limits(&self) -> StepLimits {
        StepLimits {
            n_sequences: self.n_sequences,
            n_ctx: self.n_ctx,
            n_pages: self.n_pages(),
            n_batch: self.n_batch,
            n_outputs: self.n_outputs + self.n_hidden,
            n_checkpoints: None,
        }
    }
}
