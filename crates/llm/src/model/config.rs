//! Sizes and constants of a model, read from its file and checked.

use stonechat_formats::{Array, Format, Metadata, ModelFile, Value};
use stonechat_nn::{RopePairs, Routing};

use crate::Error;
use crate::model::arch::{Architecture, Positions};
use crate::model::hugging_face;
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
    /// Number of layers.
    pub n_layers: usize,
    /// Query heads, `H`.
    pub n_heads: usize,
    /// Key and value heads, `G`.
    pub n_kv_heads: usize,
    /// Width of a head, `C`.
    pub head_dim: usize,
    /// Width of the FFN; of one expert in a MoE.
    pub d_ff: usize,
    /// Rows of the embedding, `V`.
    pub vocab_size: usize,
    /// Epsilon of all norms.
    pub norm_eps: f32,
    /// RoPE of full-attention layers; `None` for ALiBi.
    pub rope: Option<RopeConfig>,
    /// RoPE of sliding-window layers, if it differs.
    pub local_rope: Option<RopeConfig>,
    /// ALiBi: largest slope exponent.
    pub max_alibi_bias: Option<f32>,
    /// Sliding window: positions that a token attends to, itself included.
    pub window: Option<usize>,
    /// For each layer, whether it has a sliding window.
    pub is_local: Vec<bool>,
    /// Soft cap of attention scores: `cap * tanh(score / cap)`.
    pub attn_soft_cap: Option<f32>,
    /// Soft cap of logits.
    pub final_soft_cap: Option<f32>,
    /// Pooling of embeddings that the file names.
    pub pooling: Option<Pooling>,
    /// Factor of attention scores.
    pub attn_scale: f32,
    /// MoE sizes; `None` for a dense model.
    pub experts: Option<ExpertsConfig>,
}

/// MoE sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExpertsConfig {
    /// Experts in a layer.
    pub n_experts: usize,
    /// Experts routed to for each token (top-k).
    pub n_used: usize,
    /// Normalization of the routing weights.
    pub routing: Routing,
}

/// Rotary embedding (RoPE).
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct RopeConfig {
    /// Channels that form a pair.
    pub pairs: RopePairs,
    /// Rotated channels of a head, `R`.
    pub n_rot: usize,
    /// Base of the frequencies.
    pub freq_base: f32,
    /// RoPE scaling.
    pub scaling: RopeScaling,
}

/// RoPE scaling, for contexts longer than those in training.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum RopeScaling {
    /// None; the file may still have frequency factors (Llama 3).
    None,
    /// Positions divided by a factor (Chen et al. 2023).
    Linear {
        /// The factor.
        factor: f32,
    },
    /// YaRN (Peng et al. 2023): low frequencies divided, high ones kept, with a ramp between.
    Yarn {
        /// The factor.
        factor: f32,
        /// Context length before scaling.
        n_ctx_orig: usize,
        /// Rotations in `n_ctx_orig` above which a frequency is kept.
        beta_fast: f32,
        /// Rotations below which it is divided by the factor.
        beta_slow: f32,
        /// Factor of `mscale`, on top of YaRN's own.
        attn_factor: f32,
        /// Whether the ends of the ramp are rounded to whole pairs.
        truncate: bool,
    },
    /// LongRoPE (Ding et al. 2024): frequency factors of the file, the long ones if the context
    /// is longer than `n_ctx_orig`.
    Long {
        /// Context length before scaling.
        n_ctx_orig: usize,
        /// `mscale`: factor of cosines and sines.
        attn_factor: f32,
    },
    /// Llama 3.1: low frequencies divided, high ones kept, with a ramp between.
    Llama3 {
        /// Divisor of low frequencies.
        factor: f32,
        /// Wavelengths above `n_ctx_orig / low_freq_factor` are low.
        low_freq_factor: f32,
        /// Wavelengths below `n_ctx_orig / high_freq_factor` are high.
        high_freq_factor: f32,
        /// Context length before scaling.
        n_ctx_orig: usize,
    },
}

/// Default RoPE base of sliding-window layers (Gemma 3).
const LOCAL_FREQ_BASE: f32 = 10_000.0;

impl Config {
    /// Reads the configuration of a GGUF file or a Hugging Face folder.
    ///
    /// # Errors
    /// If the architecture does not run here or an entry is missing or impossible.
    pub fn from_file(file: &ModelFile) -> Result<Self, Error> {
        let config = match file.format() {
            Format::Gguf => Self::from_gguf(file)?,
            Format::SafeTensors => hugging_face::config(file)?,
            other => {
                return Err(Error::Architecture {
                    got: format!("{other:?} file"),
                    expected: "a GGUF file or a Hugging Face folder".to_owned(),
                });
            }
        };
        config.validate()?;
        Ok(config)
    }

    fn from_gguf(file: &ModelFile) -> Result<Self, Error> {
        let metadata = file.metadata();
        let name = metadata.str("general.architecture")?;
        let architecture = Architecture::find(name).ok_or_else(|| Error::Architecture {
            got: name.to_owned(),
            expected: Architecture::names(),
        })?;
        let keys = Keys { metadata, arch: architecture.name };
        let d_model = keys.size("embedding_length")?;
        let n_layers = keys.size("block_count")?;
        let n_heads = keys.size("attention.head_count")?;
        let n_kv_heads = keys.size_or("attention.head_count_kv", n_heads)?;
        if n_heads == 0 {
            return Err(Error::config(keys.key("attention.head_count"), "must not be 0"));
        }
        let head_dim = keys.size_or("attention.key_length", d_model / n_heads)?;
        let value_dim = keys.size_or("attention.value_length", d_model / n_heads)?;
        if value_dim != head_dim {
            return Err(Error::config(
                keys.key("attention.value_length"),
                format!("is {value_dim}, expected the key length {head_dim}"),
            ));
        }
        for key in ["attention.clamp_kqv", "expert_shared_count"] {
            if keys.float_or(key, 0.0)? != 0.0 {
                return Err(Error::config(keys.key(key), "is not supported"));
            }
        }
        let n_experts = keys.size_or("expert_count", 0)?;
        let experts = (n_experts > 0)
            .then(|| {
                let n_used = keys.size("expert_used_count")?;
                Ok::<_, Error>(ExpertsConfig {
                    n_experts,
                    n_used,
                    routing: Routing::NormalizedTopK,
                })
            })
            .transpose()?;
        let d_ff = match experts {
            Some(_) if keys.has("expert_feed_forward_length") => {
                keys.size("expert_feed_forward_length")?
            }
            _ => keys.size("feed_forward_length")?,
        };
        let rope = match architecture.positions {
            Positions::Rope(pairs) => Some(keys.rope(pairs, head_dim)?),
            Positions::Alibi => None,
        };
        let local_rope = match rope {
            Some(rope) if architecture.local_rope => Some(RopeConfig {
                freq_base: keys.float_or("rope.freq_base_swa", LOCAL_FREQ_BASE)?,
                scaling: RopeScaling::None,
                ..rope
            }),
            _ => None,
        };
        let window = match architecture.window_pattern {
            Some(_) => Some(keys.size_or("attention.sliding_window", 0)?).filter(|&w| w > 0),
            None => None,
        };
        Ok(Self {
            architecture,
            n_ctx_train: keys.size("context_length")?,
            d_model,
            n_layers,
            n_heads,
            n_kv_heads,
            head_dim,
            d_ff,
            vocab_size: rows_of(file, "token_embd.weight")?,
            norm_eps: keys.float(architecture.norm.epsilon_key())?,
            rope,
            local_rope,
            max_alibi_bias: match architecture.positions {
                Positions::Alibi => Some(keys.float_or("attention.max_alibi_bias", 8.0)?),
                Positions::Rope(_) => None,
            },
            window,
            is_local: keys.local_layers(architecture, window, n_layers)?,
            attn_soft_cap: keys.soft_cap("attn_logit_softcapping")?,
            final_soft_cap: keys.soft_cap("final_logit_softcapping")?,
            pooling: Pooling::from_gguf(keys.size_or("pooling_type", 0)?),
            attn_scale: attn_scale(architecture, d_model, n_layers, n_heads, head_dim),
            experts,
        })
    }

    /// Checks ranges of sizes and constants, and that they fit each other.
    fn validate(&self) -> Result<(), Error> {
        let bounds = [
            ("context length", self.n_ctx_train, 1 << 30),
            ("d_model", self.d_model, 1 << 20),
            ("layers", self.n_layers, 1 << 12),
            ("heads", self.n_heads, 1 << 12),
            ("kv heads", self.n_kv_heads, 1 << 12),
            ("head_dim", self.head_dim, 1 << 12),
            ("d_ff", self.d_ff, 1 << 24),
            ("vocab_size", self.vocab_size, 1 << 26),
        ];
        for (key, value, limit) in bounds {
            if value == 0 || value > limit {
                return Err(Error::config(key, format!("must be 1 to {limit}, got {value}")));
            }
        }
        if !self.n_heads.is_multiple_of(self.n_kv_heads) {
            let problem = format!("{} do not divide {} heads", self.n_kv_heads, self.n_heads);
            return Err(Error::config("kv heads", problem));
        }
        for rope in self.rope.iter().chain(&self.local_rope) {
            if rope.n_rot == 0 || rope.n_rot % 2 != 0 || rope.n_rot > self.head_dim {
                let problem =
                    format!("must be even and at most {}, got {}", self.head_dim, rope.n_rot);
                return Err(Error::config("rotated channels", problem));
            }
            if !(rope.freq_base > 0.0 && rope.freq_base.is_finite()) {
                let problem = format!("must be positive, got {}", rope.freq_base);
                return Err(Error::config("rope base", problem));
            }
        }
        if let Some(experts) = self.experts
            && !(1..=experts.n_experts).contains(&experts.n_used)
        {
            let problem = format!("must be 1 to {}, got {}", experts.n_experts, experts.n_used);
            return Err(Error::config("experts used", problem));
        }
        if !(self.norm_eps >= 0.0 && self.norm_eps < 1.0) {
            return Err(Error::config("norm epsilon", format!("is {}", self.norm_eps)));
        }
        Ok(())
    }

    /// Factor of embeddings: `sqrt(D)` or 1.
    #[must_use]
    pub fn embedding_scale(&self) -> f32 {
        if self.architecture.scale_embeddings { (self.d_model as f32).sqrt() } else { 1.0 }
    }

    /// Width of all query heads, `H*C`.
    #[must_use]
    pub fn q_width(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Width of all key heads, `G*C`.
    #[must_use]
    pub fn kv_width(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    /// ALiBi slopes, `[H]`, as ggml's `soft_max_ext` computes them.
    #[must_use]
    pub fn alibi_slopes(&self) -> Option<Vec<f32>> {
        let max_bias = self.max_alibi_bias?;
        let n = self.n_heads.next_power_of_two();
        let n = if n == self.n_heads { n } else { n / 2 };
        let (even, odd) = (-max_bias / n as f32, -max_bias / 2.0 / n as f32);
        Some(
            (0..self.n_heads)
                .map(|h| {
                    let exponent =
                        if h < n { even * (h + 1) as f32 } else { odd * (2 * (h - n) + 1) as f32 };
                    exponent.exp2()
                })
                .collect(),
        )
    }
}

/// Attention scale: `1/sqrt(C)`; `1/sqrt(D/H)` for Gemma 2 27B and Gemma 3 27B.
pub(crate) fn attn_scale(
    architecture: &Architecture,
    d_model: usize,
    n_layers: usize,
    n_heads: usize,
    head_dim: usize,
) -> f32 {
    let is_27b = matches!((architecture.name, n_layers), ("gemma2", 46) | ("gemma3", 62));
    let width = if is_27b { d_model / n_heads } else { head_dim };
    1.0 / (width as f32).sqrt()
}

fn rows_of(file: &ModelFile, name: &str) -> Result<usize, Error> {
    file.require(name)?.shape.first().copied().ok_or_else(|| Error::Shape {
        name: name.to_owned(),
        expected: vec![0, 0],
        got: Vec::new(),
    })
}

/// GGUF metadata under the prefix of an architecture.
struct Keys<'a> {
    metadata: &'a Metadata,
    arch: &'static str,
}

impl Keys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch)
    }

    fn has(&self, name: &str) -> bool {
        self.metadata.get(&self.key(name)).is_some()
    }

    /// A size, or an array of equal sizes for each layer.
    fn size(&self, name: &str) -> Result<usize, Error> {
        let key = self.key(name);
        if let Some(Value::Array(array)) = self.metadata.get(&key) {
            let sizes: Vec<usize> = integers(array);
            return match sizes.first() {
                Some(&first) if sizes.iter().all(|&s| s == first) => Ok(first),
                _ => Err(Error::config(key, "differs from layer to layer, which is not supported")),
            };
        }
        Ok(self.metadata.usize(&key)?)
    }

    fn size_or(&self, name: &str, default: usize) -> Result<usize, Error> {
        if self.has(name) { self.size(name) } else { Ok(default) }
    }

    fn float(&self, name: &str) -> Result<f32, Error> {
        Ok(self.metadata.f32(&self.key(name))?)
    }

    fn float_or(&self, name: &str, default: f32) -> Result<f32, Error> {
        if self.has(name) { self.float(name) } else { Ok(default) }
    }

    fn soft_cap(&self, name: &str) -> Result<Option<f32>, Error> {
        Ok(Some(self.float_or(name, 0.0)?).filter(|&cap| cap != 0.0))
    }

    fn rope(&self, pairs: RopePairs, head_dim: usize) -> Result<RopeConfig, Error> {
        let n_ctx_orig = || match self.has("rope.scaling.original_context_length") {
            true => self.size("rope.scaling.original_context_length"),
            false => self.size("context_length"),
        };
        // `rope.scale_linear` is the older key of the factor.
        let factor = self.float_or("rope.scale_linear", 0.0)?;
        let factor = self.float_or("rope.scaling.factor", factor)?;
        let kind = match self.metadata.get(&self.key("rope.scaling.type")) {
            Some(_) => self.metadata.str(&self.key("rope.scaling.type"))?,
            None => "linear",
        };
        let attn_factor = self.float_or("rope.scaling.attn_factor", 1.0)?;
        let scaling = match kind {
            "none" => RopeScaling::None,
            "linear" if factor == 0.0 || factor == 1.0 => match attn_factor {
                // Phi 3 long-context files have frequency factors and `attn_factor`, but no `rope.scaling.type`.
                1.0 if !self.has("rope.scaling.original_context_length") => RopeScaling::None,
                _ => RopeScaling::Long { n_ctx_orig: n_ctx_orig()?, attn_factor },
            },
            "linear" => RopeScaling::Linear { factor },
            "yarn" => RopeScaling::Yarn {
                factor,
                n_ctx_orig: n_ctx_orig()?,
                beta_fast: self.float_or("rope.scaling.yarn_beta_fast", 32.0)?,
                beta_slow: self.float_or("rope.scaling.yarn_beta_slow", 1.0)?,
                attn_factor,
                truncate: true,
            },
            "longrope" => RopeScaling::Long { n_ctx_orig: n_ctx_orig()?, attn_factor },
            other => {
                let problem = format!("`{other}`: expected none, linear, yarn or longrope");
                return Err(Error::config(self.key("rope.scaling.type"), problem));
            }
        };
        if matches!(scaling, RopeScaling::Yarn { .. }) && factor <= 0.0 {
            let problem = format!("must be positive, got {factor}");
            return Err(Error::config(self.key("rope.scaling.factor"), problem));
        }
        Ok(RopeConfig {
            pairs,
            n_rot: self.size_or("rope.dimension_count", head_dim)?,
            freq_base: self.float_or("rope.freq_base", 10_000.0)?,
            scaling,
        })
    }

    /// Sliding-window layers: all but every `pattern`-th, or by an array of the file.
    fn local_layers(
        &self,
        architecture: &Architecture,
        window: Option<usize>,
        n_layers: usize,
    ) -> Result<Vec<bool>, Error> {
        let (Some(default), Some(_)) = (architecture.window_pattern, window) else {
            return Ok(vec![false; n_layers.min(1 << 12)]);
        };
        let key = self.key("attention.sliding_window_pattern");
        if let Some(Value::Array(Array::Bool(layers))) = self.metadata.get(&key) {
            if layers.len() < n_layers {
                let problem = format!("has {} entries for {n_layers} layers", layers.len());
                return Err(Error::config(key, problem));
            }
            return Ok(layers[..n_layers].to_vec());
        }
        let pattern = self.size_or("attention.sliding_window_pattern", default)?;
        Ok((0..n_layers.min(1 << 12)).map(|i| is_local(i, pattern)).collect())
    }
}

/// Whether layer `i` has a sliding window if every `pattern`-th has full attention.
pub(crate) fn is_local(i: usize, pattern: usize) -> bool {
    pattern > 0 && i % pattern != pattern - 1
}

fn integers(array: &Array) -> Vec<usize> {
    match array {
        Array::U32(v) => v.iter().map(|&x| x as usize).collect(),
        Array::I32(v) => v.iter().filter_map(|&x| usize::try_from(x).ok()).collect(),
        Array::U64(v) => v.iter().filter_map(|&x| usize::try_from(x).ok()).collect(),
        Array::I64(v) => v.iter().filter_map(|&x| usize::try_from(x).ok()).collect(),
        _ => Vec::new(),
    }
}
