//! Hugging Face folders: `config.json` to [`Config`], and GGUF tensor names to those of the folder.

use serde_json::Value;
use stonechat_formats::ModelFile;
use stonechat_nn::{RopePairs, Routing};

use crate::Error;
use crate::model::arch::{Architecture, RopeLayers};
use crate::model::config::{Config, Scales, checked_n_layers};
use crate::model::layer::{
    ExpertsConfig, FfnConfig, KvGroup, LayerConfig, check_size, expert_activation, is_local,
    set_rope_layers, set_windows,
};
use crate::model::pooling::Pooling;
use crate::model::rope::{RopeConfig, RopeScaling, Temperature, yarn_mscale};

/// `model_type` of `config.json`, and the name of its [`Architecture`].
const MODEL_TYPES: [(&str, &str); 28] = [
    ("llama", "llama"),
    ("mistral", "llama"),
    ("ministral3", "mistral3"),
    ("qwen2", "qwen2"),
    ("qwen2_vl", "qwen2vl"),
    ("qwen2_vl_text", "qwen2vl"),
    ("qwen2_5_vl", "qwen2vl"),
    ("qwen2_5_vl_text", "qwen2vl"),
    ("qwen3", "qwen3"),
    ("qwen3_vl_text", "qwen3vl"),
    ("qwen3_moe", "qwen3moe"),
    ("gemma", "gemma"),
    ("gemma2", "gemma2"),
    ("gemma3_text", "gemma3"),
    ("phi", "phi2"),
    ("phi3", "phi3"),
    ("smollm3", "smollm3"),
    ("ernie4_5", "ernie4_5"),
    ("seed_oss", "seed_oss"),
    ("hunyuan_v1_dense", "hunyuan-dense"),
    ("glm4", "glm4"),
    ("olmo2", "olmo2"),
    ("olmo3", "olmo2"),
    ("exaone4", "exaone4"),
    ("cohere2", "cohere2"),
    ("granite", "granite"),
    ("minicpm", "minicpm"),
    ("minicpm4", "minicpm"),
];

/// Architectures whose heads have adjacent pairs in a folder, too. All others have halves there: the GGUF conversion of llama
/// and its like reorders them.
const ADJACENT_PAIRS: [&str; 3] = ["ernie4_5", "glm4", "cohere2"];

/// Reads `config.json`.
pub(crate) fn config(file: &ModelFile) -> Result<Config, Error> {
    let text = file
        .companion("config.json")
        .ok_or_else(|| Error::config("config.json", "is missing beside the weights"))?;
    let json: Value = serde_json::from_slice(text)
        .map_err(|e| Error::config("config.json", format!("is not JSON: {e}")))?;
    let json = text_config(json);
    let json = Json(&json);
    let model_type = json.str("model_type")?;
    let name = MODEL_TYPES.iter().find(|(t, _)| *t == model_type).map(|(_, name)| *name);
    let architecture = name.and_then(Architecture::find).ok_or_else(|| Error::Architecture {
        got: model_type.to_owned(),
        expected: MODEL_TYPES.map(|(t, _)| t).join(", "),
    })?;
    let d_model = json.size("hidden_size")?;
    let n_layers = checked_n_layers(json.size("num_hidden_layers")?)?;
    let n_heads = json.size("num_attention_heads")?;
    if n_heads == 0 {
        return Err(Error::config("num_attention_heads", "must not be 0"));
    }
    let head_dim = json.size_or("head_dim", d_model / n_heads)?;
    let n_kv_heads = json.size_or("num_key_value_heads", n_heads)?;
    let rope = json.rope(architecture, head_dim)?;
    let attn_scale =
        match (json.0["query_pre_attn_scalar"].as_f64(), json.0["attention_multiplier"].as_f64()) {
            (Some(width), _) if width > 0.0 => 1.0 / (width as f32).sqrt(),
            (_, Some(scale)) if architecture.multipliers.is_some() => scale as f32,
            _ => architecture.attn_scale(d_model, n_layers, (n_heads, head_dim)),
        };
    let layer = LayerConfig {
        n_heads,
        attn_scale,
        rope: (json.0["position_embedding_type"] != "nope").then_some(rope),
        temperature: json.temperature()?,
        ..LayerConfig::new(architecture, json.ffn(architecture)?)
    };
    let mut layers = vec![layer; n_layers];
    json.windows(architecture, &mut layers)?;
    json.rope_layers(architecture, &mut layers);
    let scales = json.scales(architecture, (d_model, n_layers));
    Ok(Config {
        architecture,
        n_ctx_train: json.size("max_position_embeddings")?,
        d_model,
        vocab_size: json.size("vocab_size")?,
        norm_eps: json.float(match json.0["rms_norm_eps"] {
            Value::Null => "layer_norm_eps",
            _ => "rms_norm_eps",
        })?,
        embedding_scale: scales.embedding,
        residual_scale: scales.residual,
        logit_scale: scales.logits,
        layers,
        kv_groups: vec![KvGroup { n_kv_heads, head_dim }],
        max_alibi_bias: None,
        attn_soft_cap: json.soft_cap("attn_logit_softcapping"),
        final_soft_cap: json.soft_cap("final_logit_softcapping"),
        pooling: pooling(file)?,
    })
}

/// Pooling of a folder of sentence-transformers, which has a file of its own.
fn pooling(file: &ModelFile) -> Result<Option<Pooling>, Error> {
    const NAME: &str = "1_Pooling/config.json";
    let Some(text) = file.companion(NAME) else { return Ok(None) };
    let json: Value = serde_json::from_slice(text)
        .map_err(|e| Error::config(NAME, format!("is not JSON: {e}")))?;
    // Newer files have one name, older ones a flag for each.
    let is_chosen = |mode: &str, flag: &str| json["pooling_mode"] == mode || json[flag] == true;
    let modes = [
        (Pooling::Cls, is_chosen("cls", "pooling_mode_cls_token")),
        (Pooling::Mean, is_chosen("mean", "pooling_mode_mean_tokens")),
        (Pooling::Last, is_chosen("lasttoken", "pooling_mode_lasttoken")),
    ];
    let mut chosen = modes.iter().filter(|(_, is_chosen)| *is_chosen);
    match (chosen.next(), chosen.next()) {
        (Some((pooling, _)), None) => Ok(Some(*pooling)),
        _ => Err(Error::config(NAME, "expected one of the modes cls, mean and lasttoken")),
    }
}

/// Entries that a nested object leaves out where they are transformers' defaults.
const GEMMA3_DEFAULTS: [(&str, f64); 8] = [
    ("vocab_size", 262_208.0),
    ("num_attention_heads", 8.0),
    ("num_key_value_heads", 4.0),
    ("head_dim", 256.0),
    ("max_position_embeddings", 131_072.0),
    ("rms_norm_eps", 1e-6),
    ("query_pre_attn_scalar", 256.0),
    ("rope_theta", 1e6),
];

/// The object of the language model: nested in that of a model with vision.
fn text_config(mut json: Value) -> Value {
    if !json["text_config"].is_object() {
        return json;
    }
    let mut text = json["text_config"].take();
    if text["model_type"] == "gemma3_text" {
        for (key, default) in GEMMA3_DEFAULTS {
            let value = || match default.fract() {
                0.0 => Value::from(default as u64),
                _ => Value::from(default),
            };
            if text[key].is_null() {
                text[key] = value();
            }
        }
    }
    text
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
        self.number(key).ok_or_else(|| self.wrong(key, "a number"))
    }

    fn number(&self, key: &str) -> Option<f32> {
        self.0[key].as_f64().map(|value| value as f32)
    }

    fn soft_cap(&self, key: &str) -> Option<f32> {
        self.number(key).filter(|&cap| cap != 0.0)
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
    fn rope(&self, architecture: &Architecture, head_dim: usize) -> Result<RopeConfig, Error> {
        let nested = self.nested_rope();
        let scaling = Json(nested);
        let mut freq_base = match (nested["rope_theta"].as_f64(), self.0["rope_theta"].as_f64()) {
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
            // Sections are of images: the positions of text are equal in all.
            "default" | "mrope" => RopeScaling::None,
            // HunYuan: a larger base.
            "dynamic" if nested["alpha"].is_number() => {
                let n = head_dim as f64;
                freq_base *= scaling.float("alpha")?.powf((n / (n - 2.0)) as f32);
                RopeScaling::None
            }
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
                attn_factor: scaling.yarn_attn_factor()?,
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
                let expected = "default, mrope, linear, llama3, yarn or longrope";
                return Err(Error::config("rope_type", format!("`{other}`: expected {expected}")));
            }
        };
        let n_rot = (head_dim as f64 * partial) as usize;
        let is_adjacent = ADJACENT_PAIRS.contains(&architecture.name);
        let pairs = if is_adjacent { RopePairs::Adjacent } else { RopePairs::Neox };
        Ok(RopeConfig { pairs, n_rot, freq_base, scaling, temperature: None })
    }

    /// RoPE parameters of layers with full attention.
    fn nested_rope(&self) -> &Value {
        match &self.0["rope_parameters"] {
            Value::Null => &self.0["rope_scaling"],
            by_layer if by_layer["full_attention"].is_object() => &by_layer["full_attention"],
            all => all,
        }
    }

    /// Factor on top of YaRN's own: a file names the product or multipliers of its logarithm.
    fn yarn_attn_factor(&self) -> Result<f32, Error> {
        let factor = f64::from(self.float("factor")?);
        let number = |key: &str| self.0[key].as_f64();
        let product = match (number("attention_factor"), number("mscale"), number("mscale_all_dim"))
        {
            (Some(product), ..) => product,
            (None, Some(one), Some(all)) if one != 0.0 && all != 0.0 => {
                yarn_mscale(factor, one) / yarn_mscale(factor, all)
            }
            _ => return Ok(1.0),
        };
        Ok((product / yarn_mscale(factor, 1.0)) as f32)
    }

    /// Growth of queries with their position.
    fn temperature(&self) -> Result<Option<Temperature>, Error> {
        let nested = Json(self.nested_rope());
        let Some(scale) = nested.0["llama_4_scaling_beta"].as_f64() else { return Ok(None) };
        let key = "original_max_position_embeddings";
        let n_ctx = nested.size(key)?;
        check_size(key, n_ctx, 1 << 30)?;
        Ok(Some(Temperature { scale: scale as f32, n_ctx }))
    }

    /// Removes RoPE from the layers that have none, by a list of the file or by the architecture.
    fn rope_layers(&self, architecture: &Architecture, layers: &mut [LayerConfig]) {
        let listed = self.0["no_rope_layers"].as_array().filter(|all| all.len() >= layers.len());
        match (architecture.rope_layers, listed) {
            (RopeLayers::AllBut(_), Some(listed)) => {
                for (layer, has_rope) in layers.iter_mut().zip(listed) {
                    layer.rope = layer.rope.filter(|_| has_rope.as_u64() != Some(0));
                }
            }
            (rope_layers, _) => set_rope_layers(layers, rope_layers),
        }
    }

    /// Factors of embeddings, residual additions and logits, for sizes `(D, L)`.
    fn scales(&self, architecture: &Architecture, (d_model, n_layers): (usize, usize)) -> Scales {
        let defaults = Scales::new(architecture, (d_model, n_layers));
        if architecture.multipliers.is_none() {
            return defaults;
        }
        let depth = |scale: f32| scale / (n_layers as f32).sqrt();
        let logits = (self.number("logit_scale"))
            .or(self.number("logits_scaling").map(|scale| 1.0 / scale))
            .or(self.number("dim_model_base").map(|width| width / d_model as f32));
        let embedding = self.number("embedding_multiplier").or(self.number("scale_emb"));
        let residual = self.number("residual_multiplier").or(self.number("scale_depth").map(depth));
        Scales {
            embedding: embedding.unwrap_or(defaults.embedding),
            residual: residual.unwrap_or(defaults.residual),
            logits: logits.unwrap_or(defaults.logits),
        }
    }

    fn ffn(&self, architecture: &Architecture) -> Result<FfnConfig, Error> {
        let n_experts = self.size_or("num_experts", 0)?;
        if n_experts == 0 {
            let (d_ff, kind) = (self.size("intermediate_size")?, architecture.feed_forward);
            return Ok(FfnConfig::Dense { d_ff, kind });
        }
        Ok(FfnConfig::Experts(ExpertsConfig {
            n_experts,
            n_used: self.size("num_experts_per_tok")?,
            routing: match self.0["norm_topk_prob"].as_bool() {
                Some(true) => Routing::NormalizedTopK,
                _ => Routing::Softmax,
            },
            d_ff: self.size("moe_intermediate_size")?,
            activation: expert_activation(architecture)?,
        }))
    }

    /// Sliding-window layers, with a RoPE of their own if they have one.
    fn windows(
        &self,
        architecture: &Architecture,
        layers: &mut [LayerConfig],
    ) -> Result<(), Error> {
        let Some(default) = architecture.window_pattern else { return Ok(()) };
        let window = self.size_or("sliding_window", 0)?;
        if window == 0 {
            return Ok(());
        }
        let nested = &self.0["rope_parameters"]["sliding_attention"]["rope_theta"];
        let freq_base = self.0["rope_local_base_freq"].as_f64().or(nested.as_f64());
        let local = (architecture.local_rope, freq_base.map(|base| base as f32));
        let pattern = self.0["sliding_window_pattern"].as_u64().unwrap_or(default as u64) as usize;
        let types = self.0["layer_types"].as_array().filter(|types| types.len() >= layers.len());
        let is_sliding = |i: usize| match types {
            Some(types) => types[i] == "sliding_attention",
            None => is_local(i, pattern),
        };
        set_windows(layers, is_sliding, Some(window), local);
        Ok(())
    }
}

/// RoPE frequency factors of `config.json` (LongRoPE); `kind` is `short_factor` or `long_factor`.
pub(crate) fn freq_factors(file: &ModelFile, kind: &str) -> Option<Vec<f32>> {
    let json: Value = serde_json::from_slice(file.companion("config.json")?).ok()?;
    let json = text_config(json);
    let json = Json(&json);
    let values = json.nested_rope()[kind].as_array()?;
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

const SEED_NAMES: [(&str, &str); 1] = [("post_attention_norm", "post_attention_layernorm")];

const GLM4_NAMES: [(&str, &str); 4] = [
    ("post_attention_norm", "post_self_attn_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("post_ffw_norm", "post_mlp_layernorm"),
    ("ffn_up", "mlp.gate_up_proj"),
];

const HUNYUAN_NAMES: [(&str, &str); 2] =
    [("attn_q_norm", "self_attn.query_layernorm"), ("attn_k_norm", "self_attn.key_layernorm")];

const PHI2_NAMES: [(&str, &str); 3] =
    [("attn_output", "self_attn.dense"), ("ffn_up", "mlp.fc1"), ("ffn_down", "mlp.fc2")];

const PHI3_NAMES: [(&str, &str); 1] = [("ffn_up", "mlp.gate_up_proj")];

/// Start of the names of a language model that is whole, its output included, inside a model with vision.
const INNER_PREFIX: &str = "language_model.model.";

/// Starts of the names of a language model: alone, inside models with vision, and without an output.
const PREFIXES: [&str; 4] = ["model.", "model.language_model.", INNER_PREFIX, ""];

/// Tensor names of a folder.
#[derive(Debug)]
pub(crate) struct Names {
    /// Names of the architecture, searched before [`BLOCK_NAMES`].
    overrides: &'static [(&'static str, &'static str)],
    output_norm: &'static str,
    /// Start of the names of the language model.
    prefix: &'static str,
    n_experts: usize,
    offset_norms: bool,
}

impl Names {
    pub(crate) fn of(file: &ModelFile, config: &Config) -> Self {
        let (overrides, output_norm): (&'static [_], _) = match config.architecture.name {
            "gemma2" | "gemma3" | "olmo2" | "exaone4" => (&GEMMA_NAMES, "norm"),
            "seed_oss" => (&SEED_NAMES, "norm"),
            "glm4" => (&GLM4_NAMES, "norm"),
            "hunyuan-dense" => (&HUNYUAN_NAMES, "norm"),
            "phi2" => (&PHI2_NAMES, "final_layernorm"),
            "phi3" => (&PHI3_NAMES, "norm"),
            _ => (&[], "norm"),
        };
        let has_embedding =
            |prefix: &&str| file.tensor(&format!("{prefix}embed_tokens.weight")).is_some();
        Self {
            overrides,
            output_norm,
            prefix: PREFIXES.into_iter().find(has_embedding).unwrap_or(PREFIXES[0]),
            n_experts: config.layers.iter().map(|layer| layer.ffn.n_experts()).max().unwrap_or(0),
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
        let prefix = self.prefix;
        let one = |stem: &str| Some(vec![format!("{prefix}{stem}.{suffix}")]);
        match stem {
            "token_embd" => return one("embed_tokens"),
            "output_norm" => return one(self.output_norm),
            "output" => {
                let outer = if prefix == INNER_PREFIX { "language_model." } else { "" };
                return Some(vec![format!("{outer}lm_head.{suffix}")]);
            }
            _ => {}
        }
        let (layer, tensor) = stem.strip_prefix("blk.")?.split_once('.')?;
        if let Some(part) = tensor.strip_suffix("_exps") {
            let part = part.strip_prefix("ffn_")?;
            return Some(
                (0..self.n_experts)
                    .map(|e| format!("{prefix}layers.{layer}.mlp.experts.{e}.{part}_proj.{suffix}"))
                    .collect(),
            );
        }
        let (_, stored) =
            self.overrides.iter().chain(&BLOCK_NAMES).find(|(gguf, _)| *gguf == tensor)?;
        one(&format!("layers.{layer}.{stored}"))
    }
}
