//! Sizes and constants of a model, checked.

use crate::Error;
use crate::model::arch::Architecture;
use crate::model::layer::{KvGroup, LayerConfig, check_size};
use crate::model::pooling::Pooling;

/// Sizes and constants of a language model. Defaults are those that the file format defines, no others.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// Architecture switches.
    pub architecture: &'static Architecture,
    /// Context length in training.
    pub n_ctx_train: usize,
    /// Width of the residual stream, `D`.
    pub d_model: usize,
    /// Rows of the embedding, `V`.
    pub vocab_size: usize,
    /// Epsilon of all norms.
    pub norm_eps: f32,
    /// Layers, first to last.
    pub layers: Vec<LayerConfig>,
    /// Shapes of keys and values, by [`LayerConfig::kv_group`].
    pub kv_groups: Vec<KvGroup>,
    /// ALiBi: largest slope exponent.
    pub max_alibi_bias: Option<f32>,
    /// Soft cap of attention scores: `cap * tanh(score / cap)`.
    pub attn_soft_cap: Option<f32>,
    /// Soft cap of logits.
    pub final_soft_cap: Option<f32>,
    /// Pooling of embeddings that the file names.
    pub pooling: Option<Pooling>,
}

/// Maximum number of layers.
const MAX_LAYERS: usize = 1 << 12;

/// Checks a number of layers before they are made.
pub(crate) fn checked_n_layers(n: usize) -> Result<usize, Error> {
    check_size("layers", n, MAX_LAYERS).map(|()| n)
}

impl Config {
    /// Checks ranges of sizes and constants, and that they fit each other and the forward pass.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        check_size("context length", self.n_ctx_train, 1 << 30)?;
        check_size("d_model", self.d_model, 1 << 20)?;
        checked_n_layers(self.layers.len())?;
        check_size("vocab_size", self.vocab_size, 1 << 26)?;
        self.layers.iter().try_for_each(|layer| layer.validate(self.kv(layer)))?;
        self.validate_equal()?;
        if !(self.norm_eps >= 0.0 && self.norm_eps < 1.0) {
            return Err(Error::config("norm epsilon", format!("is {}", self.norm_eps)));
        }
        Ok(())
    }

    /// Checks what the forward pass needs to be equal in all layers.
    fn validate_equal(&self) -> Result<(), Error> {
        let differs =
            |key| Err(Error::config(key, "differs from layer to layer, which is not supported"));
        let windows = || self.layers.iter().filter_map(|layer| layer.window);
        if windows().any(|window| Some(window) != self.window()) {
            return differs("attention.sliding_window");
        }
        let n_heads = self.layers[0].n_heads;
        if self.max_alibi_bias.is_some() && self.layers.iter().any(|l| l.n_heads != n_heads) {
            return differs("attention.head_count");
        }
        Ok(())
    }

    /// Number of layers.
    #[must_use]
    pub fn n_layers(&self) -> usize {
        self.layers.len()
    }

    /// Length of the sliding windows, if a layer has one.
    #[must_use]
    pub fn window(&self) -> Option<usize> {
        self.layers.iter().find_map(|layer| layer.window)
    }

    /// Factor of embeddings: `sqrt(D)` or 1.
    #[must_use]
    pub fn embedding_scale(&self) -> f32 {
        if self.architecture.scale_embeddings { (self.d_model as f32).sqrt() } else { 1.0 }
    }

    /// Shape of the keys and values of a layer.
    #[must_use]
    pub fn kv(&self, layer: &LayerConfig) -> KvGroup {
        self.kv_groups[layer.kv_group]
    }

    /// Width of all query heads of a layer, `H*C`.
    #[must_use]
    pub fn q_width(&self, layer: &LayerConfig) -> usize {
        layer.n_heads * self.kv(layer).head_dim
    }

    /// Width of all key heads of a layer, `G*C`.
    #[must_use]
    pub fn kv_width(&self, layer: &LayerConfig) -> usize {
        let KvGroup { n_kv_heads, head_dim } = self.kv(layer);
        n_kv_heads * head_dim
    }

    /// ALiBi slopes, `[H]`, as ggml's `soft_max_ext` computes them.
    #[must_use]
    pub fn alibi_slopes(&self) -> Option<Vec<f32>> {
        let (max_bias, n_heads) = (self.max_alibi_bias?, self.layers.first()?.n_heads);
        let n = n_heads.next_power_of_two();
        let n = if n == n_heads { n } else { n / 2 };
        let (even, odd) = (-max_bias / n as f32, -max_bias / 2.0 / n as f32);
        Some(
            (0..n_heads)
                .map(|h| {
                    let exponent =
                        if h < n { even * (h + 1) as f32 } else { odd * (2 * (h - n) + 1) as f32 };
                    exponent.exp2()
                })
                .collect(),
        )
    }
}
