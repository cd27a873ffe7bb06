//! Sizes and constants of a model, checked.

use crate::Error;
use crate::model::arch::{Architecture, Multipliers};
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
    /// Factor of embeddings.
    pub embedding_scale: f32,
    /// Factor of the outputs of attention and FFN before the residual addition.
    pub residual_scale: f32,
    /// Factor of logits.
    pub logit_scale: f32,
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

/// Factors of embeddings, residual additions and logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Scales {
    pub(crate) embedding: f32,
    pub(crate) residual: f32,
    pub(crate) logits: f32,
}

impl Scales {
    /// The defaults of a file that has none, for sizes `(D, L)`.
    pub(crate) fn new(architecture: &Architecture, (d_model, n_layers): (usize, usize)) -> Self {
        let is_scaled = architecture.scale_embeddings;
        let scales = Self {
            embedding: if is_scaled { (d_model as f32).sqrt() } else { 1.0 },
            residual: 1.0,
            logits: 1.0,
        };
        let Some(Multipliers { embedding, residual_depth, logit_width, .. }) =
            architecture.multipliers
        else {
            return scales;
        };
        Self {
            embedding,
            residual: residual_depth.map_or(1.0, |depth| depth / (n_layers as f32).sqrt()),
            logits: logit_width.map_or(1.0, |width| width / d_model as f32),
        }
    }
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
        for (key, scale) in [
            ("embedding scale", self.embedding_scale),
            ("residual scale", self.residual_scale),
            ("logit scale", self.logit_scale),
        ] {
            if !(scale > 0.0 && scale.is_finite()) {
                return Err(Error::config(key, format!("must be positive, got {scale}")));
            }
        }
        // Without a norm before attention and FFN their inputs would be divided by it.
        if self.residual_scale != 1.0 && self.layers.iter().any(|layer| !layer.pre_norms) {
            return Err(Error::config("residual scale", "needs norms before attention and FFN"));
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

    /// Factor of embeddings in the residual stream, which is stored divided by [`residual_scale`](Self::residual_scale):
    /// norms take its length away, and additions to it need no factor.
    pub(crate) fn stream_scale(&self) -> f32 {
        self.embedding_scale / self.residual_scale
    }

    /// Epsilon of the norms of the stored residual stream.
    pub(crate) fn stream_eps(&self) -> f32 {
        self.norm_eps / (self.residual_scale * self.residual_scale)
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
