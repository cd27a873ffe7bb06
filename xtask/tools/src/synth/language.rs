//! Tensors and metadata of a language model.

use anyhow::{Context, Result};
use stonechat_formats::{DType, Metadata, TensorInfo};
use stonechat_llm::{Architecture, FeedForward, NormKind, QkNorm, Residual};

use super::shapes::{Biases, Experts, Language, Yarn};
use super::{Plan, Planned, Values, vocabulary};

/// GGML's token types that are used here (`enum llama_token_type`).
pub(super) const NORMAL: i32 = 1;
pub(super) const CONTROL: i32 = 3;

/// Metadata and tensors of a model of these sizes, every tensor of type f32.
pub(super) fn plan(sizes: &Language) -> Result<Plan> {
    let architecture = Architecture::find(sizes.architecture)
        .with_context(|| format!("unknown architecture {:?}", sizes.architecture))?;
    let mut list = List { architecture, biases: sizes.biases, tensors: Vec::new() };
    let (d, vocab_size) = (sizes.d_model, sizes.vocab_size);
    list.random("token_embd.weight", &[vocab_size, d]);
    for layer in 0..sizes.n_layers {
        list.layer(&format!("blk.{layer}"), sizes);
    }
    list.norm("output_norm", d);
    if !sizes.is_tied {
        list.random("output.weight", &[vocab_size, d]);
        if sizes.biases == Biases::All {
            list.random("output.bias", &[vocab_size]);
        }
    }
    Ok(Plan { metadata: metadata(sizes, architecture), tensors: list.tensors })
}

/// The tensors so far.
struct List {
    architecture: &'static Architecture,
    biases: Biases,
    tensors: Vec<Planned>,
}

impl List {
    fn layer(&mut self, name: &str, sizes: &Language) {
        let architecture = self.architecture;
        let d = sizes.d_model;
        let (q_width, kv_width) =
            (sizes.n_heads * sizes.head_dim, sizes.n_kv_heads * sizes.head_dim);
        if architecture.pre_norms {
            self.norm(&format!("{name}.attn_norm"), d);
        }
        for (part, rows) in [("attn_q", q_width), ("attn_k", kv_width), ("attn_v", kv_width)] {
            let part = format!("{name}.{part}");
            self.random(&format!("{part}.weight"), &[rows, d]);
            if self.biases != Biases::None {
                self.random(&format!("{part}.bias"), &[rows]);
            }
        }
        if let Some(kind) = architecture.qk_norm {
            for (part, width) in [("attn_q_norm", q_width), ("attn_k_norm", kv_width)] {
                let len = if kind == QkNorm::Width { width } else { sizes.head_dim };
                self.ones(&format!("{name}.{part}.weight"), len);
            }
        }
        self.linear(&format!("{name}.attn_output"), &[d, q_width]);
        if architecture.sinks {
            self.random(&format!("{name}.attn_sinks.weight"), &[sizes.n_heads]);
        }
        if architecture.post_norms {
            self.ones(&format!("{name}.post_attention_norm.weight"), d);
        }
        if architecture.pre_norms && architecture.residual == Residual::Sequential {
            self.norm(&format!("{name}.{}", architecture.ffn_norm), d);
        }
        self.ffn(name, sizes);
        if architecture.post_norms {
            self.ones(&format!("{name}.post_ffw_norm.weight"), d);
        }
    }

    fn ffn(&mut self, name: &str, sizes: &Language) {
        let d = sizes.d_model;
        if let Some(Experts { n_experts: n, d_ff, .. }) = sizes.experts {
            self.linear(&format!("{name}.ffn_gate_inp"), &[n, d]);
            self.linear(&format!("{name}.ffn_gate_exps"), &[n, d_ff, d]);
            self.linear(&format!("{name}.ffn_up_exps"), &[n, d_ff, d]);
            self.linear(&format!("{name}.ffn_down_exps"), &[n, d, d_ff]);
            return;
        }
        if let FeedForward::Gated(_) = self.architecture.feed_forward {
            self.linear(&format!("{name}.ffn_gate"), &[sizes.d_ff, d]);
        }
        self.linear(&format!("{name}.ffn_up"), &[sizes.d_ff, d]);
        self.linear(&format!("{name}.ffn_down"), &[d, sizes.d_ff]);
    }

    fn norm(&mut self, name: &str, len: usize) {
        self.ones(&format!("{name}.weight"), len);
        if self.architecture.norm == NormKind::Layer {
            self.random(&format!("{name}.bias"), &[len]);
        }
    }

    /// A matrix of a layer, or those of all experts, with its bias if there is one.
    fn linear(&mut self, name: &str, shape: &[usize]) {
        self.random(&format!("{name}.weight"), shape);
        if let (Biases::Layers | Biases::All, [outputs @ .., _]) = (self.biases, shape) {
            self.random(&format!("{name}.bias"), outputs);
        }
    }

    fn random(&mut self, name: &str, shape: &[usize]) {
        self.push(name, shape, Values::Random);
    }

    fn ones(&mut self, name: &str, len: usize) {
        self.push(name, &[len], Values::Ones);
    }

    fn push(&mut self, name: &str, shape: &[usize], values: Values) {
        self.tensors.push(Planned { info: TensorInfo::new(name, DType::F32, shape), values });
    }
}

fn metadata(sizes: &Language, architecture: &Architecture) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", architecture.name);
    let key = |name: &str| format!("{}.{name}", architecture.name);
    for (name, size) in [
        ("context_length", sizes.n_ctx),
        ("embedding_length", sizes.d_model),
        ("block_count", sizes.n_layers),
        ("feed_forward_length", sizes.d_ff),
        ("attention.head_count", sizes.n_heads),
        ("attention.head_count_kv", sizes.n_kv_heads),
        ("attention.key_length", sizes.head_dim),
        ("attention.value_length", sizes.head_dim),
        ("rope.dimension_count", sizes.n_rot),
        ("vocab_size", sizes.vocab_size),
    ] {
        metadata.set(key(name), size as u32);
    }
    if let Some(window) = sizes.window {
        metadata.set(key("attention.sliding_window"), window as u32);
    }
    metadata.set(key(architecture.norm.epsilon_key()), sizes.norm_eps);
    metadata.set(key("rope.freq_base"), sizes.freq_base);
    if let Some(Yarn { factor, n_ctx_orig }) = sizes.yarn {
        metadata.set(key("rope.scaling.type"), "yarn");
        metadata.set(key("rope.scaling.factor"), factor);
        metadata.set(key("rope.scaling.original_context_length"), n_ctx_orig as u32);
    }
    if let Some(Experts { n_experts, n_used, d_ff }) = sizes.experts {
        metadata.set(key("expert_count"), n_experts as u32);
        metadata.set(key("expert_used_count"), n_used as u32);
        metadata.set(key("expert_feed_forward_length"), d_ff as u32);
    }
    set_vocabulary(&mut metadata, sizes);
    metadata
}

/// The last two tokens are the start and the end of a text.
fn set_vocabulary(metadata: &mut Metadata, sizes: &Language) {
    let mut tokens = vocabulary::tokens(sizes.vocab_size);
    let mut types = vec![NORMAL; tokens.len()];
    let first_control = tokens.len().saturating_sub(2);
    let controls = tokens.iter_mut().zip(&mut types).skip(first_control);
    for ((token, kind), name) in controls.zip(["<|startoftext|>", "<|endoftext|>"]) {
        (*token, *kind) = (name.to_owned(), CONTROL);
    }
    metadata.set("tokenizer.ggml.model", "gpt2");
    metadata.set("tokenizer.ggml.pre", sizes.pre_tokenizer);
    metadata.set("tokenizer.ggml.tokens", tokens);
    metadata.set("tokenizer.ggml.token_type", types);
    // llama.cpp asks for the key, even with nothing to merge.
    metadata.set("tokenizer.ggml.merges", Vec::<String>::new());
    metadata.set("tokenizer.ggml.bos_token_id", first_control as u32);
    metadata.set("tokenizer.ggml.eos_token_id", first_control as u32 + 1);
    metadata.set("tokenizer.ggml.add_bos_token", false);
}
