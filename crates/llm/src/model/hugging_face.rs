//! Hugging Face folders: `config.json` to [`Config`], and GGUF tensor names to those of the folder.

use serde_json::Value;
use stonechat_formats::ModelFile;
use stonechat_nn::{RopePairs, Routing};

use crate::Error;
use crate::model::arch::Architecture;
use crate::model::config::{Config, ExpertsConfig, RopeConfig, RopeScaling, attn_scale, is_local};

/// `model_type` of `config.json`, and the name of its [`Architecture`].
const MODEL_TYPES: [(&str, &str); 10] = [
    ("llama", "llama"),
    ("mistral", "llama"),
    ("qwen2", "qwen2"),
    ("qwen3", "qwen3"),
    ("qwen3_moe", "qwen3moe"),
    ("gemma", "gemma"),
    ("gemma2", "gemma2"),
    ("gemma3_text", "gemma3"),
    ("phi", "phi2"),
    ("phi3", "phi3"),
];

/// Reads `config.json`.
pub(crate) fn config(file: &ModelFile) -> Result<Config, Error> {
    let text = file
        .companion("config.json")
        .ok_or_else(|| Error::config("config.json", "is missing beside the weights"))?;
    let json: Value = serde_json::from_slice(text)
        .map_err(|e| Error::config("config.json", format!("is not JSON: {e}")))?;
    let json = Json(&json);
    let model_type = json.str("model_type")?;
    let name = MODEL_TYPES.iter().find(|(t, _)| *t == model_type).map(|(_, name)| *name);
    let architecture = name.and_then(Architecture::find).ok_or_else(|| Error::Architecture {
        got: model_type.to_owned(),
        expected: MODEL_TYPES.map(|(t, _)| t).join(", "),
    })?;
    let (d_model, n_layers) = (json.size("hidden_size")?, json.size("num_hidden_layers")?);
    let n_heads = json.size("num_attention_heads")?;
    if n_heads == 0 {
        return Err(Error::config("num_attention_heads", "must not be 0"));
    }
    let head_dim = json.size_or("head_dim", d_model / n_heads)?;
    let experts = match json.size_or("num_experts", 0)? {
        0 => None,
        n_experts => Some(ExpertsConfig {
            n_experts,
            n_used: json.size("num_experts_per_tok")?,
            routing: match json.0["norm_topk_prob"].as_bool() {
                Some(true) => Routing::NormalizedTopK,
                _ => Routing::Softmax,
            },
        }),
    };
    let rope = json.rope(head_dim)?;
    let local_rope = match json.0["rope_local_base_freq"].as_f64() {
        Some(base) if architecture.local_rope => {
            Some(RopeConfig { freq_base: base as f32, scaling: RopeScaling::None, ..rope })
        }
        _ => json.nested_local(architecture, rope),
    };
    let window = match architecture.window_pattern {
        Some(_) => Some(json.size_or("sliding_window", 0)?).filter(|&w| w > 0),
        None => None,
    };
    let attn_scale = match json.0["query_pre_attn_scalar"].as_f64() {
        Some(width) if width > 0.0 => 1.0 / (width as f32).sqrt(),
        _ => attn_scale(architecture, d_model, n_layers, n_heads, head_dim),
    };
    Ok(Config {
        architecture,
        n_ctx_train: json.size("max_position_embeddings")?,
        d_model,
        n_layers,
        n_heads,
        n_kv_heads: json.size_or("num_key_value_heads", n_heads)?,
        head_dim,
        d_ff: json.size(if experts.is_some() {
            "moe_intermediate_size"
        } else {
            "intermediate_size"
        })?,
        vocab_size: json.size("vocab_size")?,
        norm_eps: json.float(match json.0["rms_norm_eps"] {
            Value::Null => "layer_norm_eps",
            _ => "rms_norm_eps",
        })?,
        rope: Some(rope),
        local_rope,
        max_alibi_bias: None,
        window,
        is_local: json.local_layers(architecture, window, n_layers),
        attn_soft_cap: json.soft_cap("attn_logit_softcapping"),
        final_soft_cap: json.soft_cap("final_logit_softcapping"),
        pooling: None,
        attn_scale,
        experts,
    })
}

/// JSON object; look-ups fail with the key, the expected type and the value.
struct Json<'a>(&'a Value);

impl Json<'_> {
    fn str(&self, key: &str) -> Result<&str, Error> {
        self.0[key].as_str().ok_or_else(|| self.wrong(key, "a string"))
    }

    fn size(&self, key: &str) -> Result<usize, Error> {
        let size = self.0[key].as_u64().and_then(|v| usize::try_from(v).ok());
        size.ok_or_else(|| self.wrong(key, "a size"))
    }

    fn size_or(&self, key: &str, default: usize) -> Result<usize, Error> {
        if self.0[key].is_null() { Ok(default) } else { self.size(key) }
    }

    fn float(&self, key: &str) -> Result<f32, Error> {
        self.0[key].as_f64().map(|v| v as f32).ok_or_else(|| self.wrong(key, "a number"))
    }

    fn soft_cap(&self, key: &str) -> Option<f32> {
        self.0[key].as_f64().map(|cap| cap as f32).filter(|&cap| cap != 0.0)
    }

    fn wrong(&self, key: &str, expected: &str) -> Error {
        let got = match &self.0[key] {
            Value::Null => "nothing".to_owned(),
            other => other.to_string().chars().take(40).collect(),
        };
        Error::config(key, format!("must be {expected}, got {got}"))
    }

    /// RoPE configuration. transformers 5 nests it in `rope_parameters`, by layer type if the model
    /// has two.
    fn rope(&self, head_dim: usize) -> Result<RopeConfig, Error> {
        let nested = match &self.0["rope_parameters"] {
            Value::Null => &self.0["rope_scaling"],
            by_layer if by_layer["full_attention"].is_object() => &by_layer["full_attention"],
            all => all,
        };
        let scaling = Json(nested);
        let freq_base = match (nested["rope_theta"].as_f64(), self.0["rope_theta"].as_f64()) {
            (Some(base), _) | (None, Some(base)) => base as f32,
            (None, None) => return Err(self.wrong("rope_theta", "a number")),
        };
        let partial = nested["partial_rotary_factor"]
            .as_f64()
            .or(self.0["partial_rotary_factor"].as_f64())
            .unwrap_or(1.0);
        let n_ctx_orig = match &nested["original_max_position_embeddings"] {
            Value::Null => self.size_or(
                "original_max_position_embeddings",
                self.size("max_position_embeddings")?,
            )?,
            _ => scaling.size("original_max_position_embeddings")?,
        };
        let kind = nested["rope_type"].as_str().or(nested["type"].as_str()).unwrap_or("default");
        let scaling = match kind {
            "default" => RopeScaling::None,
            "linear" => RopeScaling::Linear { factor: scaling.float("factor")? },
            "llama3" => RopeScaling::Llama3 {
                factor: scaling.float("factor")?,
                low_freq_factor: scaling.float("low_freq_factor")?,
                high_freq_factor: scaling.float("high_freq_factor")?,
                n_ctx_orig,
            },
            "yarn" => RopeScaling::Yarn {
                factor: scaling.float("factor")?,
                n_ctx_orig,
                beta_fast: nested["beta_fast"].as_f64().unwrap_or(32.0) as f32,
                beta_slow: nested["beta_slow"].as_f64().unwrap_or(1.0) as f32,
                attn_factor: 1.0,
                truncate: nested["truncate"].as_bool().unwrap_or(true),
            },
            "longrope" | "su" => {
                let n_ctx = self.size("max_position_embeddings")? as f32;
                let scale = n_ctx / n_ctx_orig as f32;
                // Source: `modeling_phi3.py`.
                let default = if scale <= 1.0 {
                    1.0
                } else {
                    (1.0 + scale.ln() / (n_ctx_orig as f32).ln()).sqrt()
                };
                let attn_factor = nested["attention_factor"].as_f64().map_or(default, |f| f as f32);
                RopeScaling::Long { n_ctx_orig, attn_factor }
            }
            other => {
                let expected = "default, linear, llama3, yarn or longrope";
                return Err(Error::config("rope_type", format!("`{other}`: expected {expected}")));
            }
        };
        let n_rot = (head_dim as f64 * partial) as usize;
        // Hugging Face orders heads as halves, for llama, too: only its GGUF conversion reorders them to adjacent pairs.
        Ok(RopeConfig { pairs: RopePairs::Neox, n_rot, freq_base, scaling })
    }

    fn nested_local(&self, architecture: &Architecture, rope: RopeConfig) -> Option<RopeConfig> {
        let base = self.0["rope_parameters"]["sliding_attention"]["rope_theta"].as_f64()?;
        architecture.local_rope.then_some(RopeConfig {
            freq_base: base as f32,
            scaling: RopeScaling::None,
            ..rope
        })
    }

    fn local_layers(
        &self,
        architecture: &Architecture,
        window: Option<usize>,
        n_layers: usize,
    ) -> Vec<bool> {
        let n_layers = n_layers.min(1 << 12);
        let (Some(default), Some(_)) = (architecture.window_pattern, window) else {
            return vec![false; n_layers];
        };
        if let Some(types) = self.0["layer_types"].as_array()
            && types.len() >= n_layers
        {
            return types[..n_layers].iter().map(|t| t == "sliding_attention").collect();
        }
        let pattern = self.0["sliding_window_pattern"].as_u64().unwrap_or(default as u64) as usize;
        (0..n_layers).map(|i| is_local(i, pattern)).collect()
    }
}

/// RoPE frequency factors of `config.json` (LongRoPE); `kind` is `short_factor` or `long_factor`.
pub(crate) fn freq_factors(file: &ModelFile, kind: &str) -> Option<Vec<f32>> {
    let json: Value = serde_json::from_slice(file.companion("config.json")?).ok()?;
    let nested = match &json["rope_parameters"] {
        Value::Null => &json["rope_scaling"],
        all => all,
    };
    let values = nested[kind].as_array()?;
    values.iter().map(|v| v.as_f64().map(|v| v as f32)).collect()
}

/// Tensor names of a block: GGUF, Hugging Face.
const BLOCK_NAMES: [(&str, &str); 13] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_qkv", "self_attn.qkv_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
];

const GEMMA_NAMES: [(&str, &str); 3] = [
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

const PHI2_NAMES: [(&str, &str); 3] =
    [("attn_output", "self_attn.dense"), ("ffn_up", "mlp.fc1"), ("ffn_down", "mlp.fc2")];

const PHI3_NAMES: [(&str, &str); 1] = [("ffn_up", "mlp.gate_up_proj")];

/// Tensor names of a folder.
#[derive(Debug)]
pub(crate) struct Names {
    /// Names of the architecture, searched before [`BLOCK_NAMES`].
    overrides: &'static [(&'static str, &'static str)],
    output_norm: &'static str,
    n_experts: usize,
    offset_norms: bool,
}

impl Names {
    pub(crate) fn of(config: &Config) -> Self {
        let (overrides, output_norm): (&'static [_], _) = match config.architecture.name {
            "gemma2" | "gemma3" => (&GEMMA_NAMES, "model.norm"),
            "phi2" => (&PHI2_NAMES, "model.final_layernorm"),
            "phi3" => (&PHI3_NAMES, "model.norm"),
            _ => (&[], "model.norm"),
        };
        Self {
            overrides,
            output_norm,
            n_experts: config.experts.map_or(0, |e| e.n_experts),
            offset_norms: config.architecture.scale_embeddings,
        }
    }

    /// Whether this norm weight is stored as `w - 1` (Gemma).
    pub(crate) fn is_offset_norm(&self, name: &str) -> bool {
        self.offset_norms && name.ends_with("norm.weight")
    }

    /// Names in the folder of the tensor with this GGUF name: one for each expert if GGUF stacks them.
    pub(crate) fn stored(&self, name: &str) -> Option<Vec<String>> {
        let (stem, suffix) = name.rsplit_once('.')?;
        let one = |prefix: &str| Some(vec![format!("{prefix}.{suffix}")]);
        match stem {
            "token_embd" => return one("model.embed_tokens"),
            "output_norm" => return one(self.output_norm),
            "output" => return one("lm_head"),
            _ => {}
        }
        let (layer, tensor) = stem.strip_prefix("blk.")?.split_once('.')?;
        if let Some(part) = tensor.strip_suffix("_exps") {
            let part = part.strip_prefix("ffn_")?;
            return Some(
                (0..self.n_experts)
                    .map(|e| format!("model.layers.{layer}.mlp.experts.{e}.{part}_proj.{suffix}"))
                    .collect(),
            );
        }
        let (_, stored) =
            self.overrides.iter().chain(&BLOCK_NAMES).find(|(gguf, _)| *gguf == tensor)?;
        one(&format!("model.layers.{layer}.{stored}"))
    }
}
