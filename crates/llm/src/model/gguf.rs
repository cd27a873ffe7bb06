//! Configuration of a GGUF file.

use stonechat_formats::{Array, Metadata, ModelFile, Value};
use stonechat_nn::{RopePairs, Routing};

use crate::Error;
use crate::model::arch::{Architecture, Multipliers, Positions};
use crate::model::config::{Config, Scales, checked_n_layers};
use crate::model::layer::{
    ExpertsConfig, FfnConfig, KvGroup, LayerConfig, check_size, expert_activation, is_local,
    set_rope_layers, set_windows,
};
use crate::model::pooling::Pooling;
use crate::model::rope::{RopeConfig, RopeScaling, Temperature, yarn_mscale};

/// Reads the metadata.
pub(crate) fn config(file: &ModelFile) -> Result<Config, Error> {
    let metadata = file.metadata();
    let name = metadata.str("general.architecture")?;
    let architecture = Architecture::find(name).ok_or_else(|| Error::Architecture {
        got: name.to_owned(),
        expected: Architecture::names(),
    })?;
    let keys = Keys { metadata, arch: architecture.name };
    for key in ["attention.clamp_kqv", "expert_shared_count"] {
        if keys.float_or(key, 0.0)? != 0.0 {
            return Err(Error::config(keys.key(key), "is not supported"));
        }
    }
    let d_model = keys.size("embedding_length")?;
    let (layers, kv_groups) = keys.layers(architecture, d_model)?;
    let scales = keys.scales(architecture, (d_model, layers.len()))?;
    Ok(Config {
        architecture,
        n_ctx_train: keys.size("context_length")?,
        d_model,
        vocab_size: rows_of(file, "token_embd.weight")?,
        norm_eps: keys.float(architecture.norm.epsilon_key())?,
        embedding_scale: scales.embedding,
        residual_scale: scales.residual,
        logit_scale: scales.logits,
        layers,
        kv_groups,
        max_alibi_bias: match architecture.positions {
            Positions::Alibi => Some(keys.float_or("attention.max_alibi_bias", 8.0)?),
            Positions::Rope(_) => None,
        },
        attn_soft_cap: keys.nonzero("attn_logit_softcapping")?,
        final_soft_cap: keys.nonzero("final_logit_softcapping")?,
        pooling: Pooling::from_gguf(keys.size_or("pooling_type", 0)?),
    })
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

    /// A size of all layers: one, or an array of equal sizes.
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

    /// A size of each layer: an array, or one size for all.
    fn sizes(&self, name: &str, n_layers: usize) -> Result<Vec<usize>, Error> {
        let key = self.key(name);
        let Some(Value::Array(array)) = self.metadata.get(&key) else {
            return Ok(vec![self.metadata.usize(&key)?; n_layers]);
        };
        let sizes = integers(array);
        match sizes.first() {
            Some(&first) if sizes.iter().all(|&size| size == first) => Ok(vec![first; n_layers]),
            _ if sizes.len() >= n_layers => Ok(sizes[..n_layers].to_vec()),
            _ => {
                let problem = format!("has {} entries for {n_layers} layers", sizes.len());
                Err(Error::config(key, problem))
            }
        }
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

    /// Factors of embeddings, residual additions and logits, for sizes `(D, L)`.
    fn scales(
        &self,
        architecture: &Architecture,
        (d_model, n_layers): (usize, usize),
    ) -> Result<Scales, Error> {
        let defaults = Scales::new(architecture, (d_model, n_layers));
        let Some(Multipliers { divides_logits, .. }) = architecture.multipliers else {
            return Ok(defaults);
        };
        let logits = self.nonzero("logit_scale")?;
        let logits = logits.map(|scale| if divides_logits { 1.0 / scale } else { scale });
        Ok(Scales {
            embedding: self.nonzero("embedding_scale")?.unwrap_or(defaults.embedding),
            residual: self.nonzero("residual_scale")?.unwrap_or(defaults.residual),
            logits: logits.unwrap_or(defaults.logits),
        })
    }

    /// A number, which is 0 in some files that have none.
    fn nonzero(&self, name: &str) -> Result<Option<f32>, Error> {
        Ok(Some(self.float_or(name, 0.0)?).filter(|&value| value != 0.0))
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
        // YaRN's own factor is divided by the one with this multiplier.
        let multiplier = self.float_or("rope.scaling.yarn_log_multiplier", 0.0)?;
        let divisor = yarn_mscale(factor.into(), multiplier.into()) as f32;
        let attn_factor = self.float_or("rope.scaling.attn_factor", 1.0)? / divisor;
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
            temperature: None,
        })
    }

    /// Layers, and the shapes of their keys and values.
    fn layers(
        &self,
        architecture: &Architecture,
        d_model: usize,
    ) -> Result<(Vec<LayerConfig>, Vec<KvGroup>), Error> {
        // Blocks that predict further tokens follow the layers.
        let n_further = self.size_or("nextn_predict_layers", 0)?;
        let n_layers = checked_n_layers(self.size("block_count")?.saturating_sub(n_further))?;
        let n_heads = self.sizes("attention.head_count", n_layers)?;
        if n_heads.contains(&0) {
            return Err(Error::config(self.key("attention.head_count"), "must not be 0"));
        }
        let n_kv_heads = match self.has("attention.head_count_kv") {
            true => self.sizes("attention.head_count_kv", n_layers)?,
            false => n_heads.clone(),
        };
        let head_dim = self.size_or("attention.key_length", d_model / n_heads[0])?;
        let value_dim = self.size_or("attention.value_length", d_model / n_heads[0])?;
        if value_dim != head_dim {
            let problem = format!("must be the key length {head_dim}, got {value_dim}");
            return Err(Error::config(self.key("attention.value_length"), problem));
        }
        let has_rope = match self.metadata.get(&self.key("rope.scaling.finetuned")) {
            Some(Value::Bool(is_rotated)) if architecture.multipliers.is_some() => *is_rotated,
            _ => true,
        };
        let rope = match architecture.positions {
            Positions::Rope(pairs) if has_rope => Some(self.rope(pairs, head_dim)?),
            Positions::Rope(_) | Positions::Alibi => None,
        };
        let temperature = self.temperature()?;
        let attn_scale = architecture.attn_scale(d_model, n_layers, (n_heads[0], head_dim));
        let attn_scale = self.float_or("attention.scale", attn_scale)?;
        let (ffns, mut kv_groups) = (self.ffns(architecture, n_layers)?, Vec::new());
        let mut layers = Vec::with_capacity(n_layers);
        for ((n_heads, n_kv_heads), ffn) in n_heads.into_iter().zip(n_kv_heads).zip(ffns) {
            let group = KvGroup { n_kv_heads, head_dim };
            let known = kv_groups.iter().position(|other| *other == group);
            let kv_group = known.unwrap_or(kv_groups.len());
            if known.is_none() {
                kv_groups.push(group);
            }
            let layer = LayerConfig::new(architecture, ffn);
            layers.push(LayerConfig { n_heads, kv_group, attn_scale, rope, temperature, ..layer });
        }
        self.windows(architecture, &mut layers)?;
        set_rope_layers(&mut layers, architecture.rope_layers);
        Ok((layers, kv_groups))
    }

    /// Growth of queries with their position.
    fn temperature(&self) -> Result<Option<Temperature>, Error> {
        let Some(scale) = self.nonzero("attention.temperature_scale")? else { return Ok(None) };
        let key = "rope.scaling.original_context_length";
        let n_ctx = self.size(key)?;
        check_size(key, n_ctx, 1 << 30)?;
        Ok(Some(Temperature { scale, n_ctx }))
    }

    /// FFN of each layer.
    fn ffns(&self, architecture: &Architecture, n_layers: usize) -> Result<Vec<FfnConfig>, Error> {
        let n_experts = self.size_or("expert_count", 0)?;
        if n_experts == 0 {
            let dense = |d_ff| FfnConfig::Dense { d_ff, kind: architecture.feed_forward };
            let widths = self.sizes("feed_forward_length", n_layers)?;
            return Ok(widths.into_iter().map(dense).collect());
        }
        let width = ["expert_feed_forward_length", "feed_forward_length"];
        let experts = ExpertsConfig {
            n_experts,
            n_used: self.size("expert_used_count")?,
            routing: Routing::NormalizedTopK,
            d_ff: self.size(if self.has(width[0]) { width[0] } else { width[1] })?,
            activation: expert_activation(architecture)?,
        };
        Ok(vec![FfnConfig::Experts(experts); n_layers])
    }

    /// Sliding-window layers: all but every `pattern`-th, or by an array of the file.
    fn windows(
        &self,
        architecture: &Architecture,
        layers: &mut [LayerConfig],
    ) -> Result<(), Error> {
        let Some(default) = architecture.window_pattern else { return Ok(()) };
        let window = self.size_or("attention.sliding_window", 0)?;
        if window == 0 {
            return Ok(());
        }
        let key = "rope.freq_base_swa";
        let freq_base = self.has(key).then(|| self.float(key)).transpose()?;
        let rope = (architecture.local_rope, freq_base);
        let key = self.key("attention.sliding_window_pattern");
        if let Some(Value::Array(Array::Bool(is_local))) = self.metadata.get(&key) {
            if is_local.len() < layers.len() {
                let problem = format!("has {} entries for {} layers", is_local.len(), layers.len());
                return Err(Error::config(key, problem));
            }
            set_windows(layers, |i| is_local[i], Some(window), rope);
            return Ok(());
        }
        let pattern = self.size_or("attention.sliding_window_pattern", default)?;
        set_windows(layers, |i| is_local(i, pattern), Some(window), rope);
        Ok(())
    }
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
