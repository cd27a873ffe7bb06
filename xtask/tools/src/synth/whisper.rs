//! Tensors and metadata of a Whisper model, under openai/whisper's names.

use stonechat_formats::{DType, Metadata, TensorInfo};

use super::shapes::Whisper;
use super::{Plan, Planned, Values, vocabulary};

/// Encoder positions of 30 s.
const N_AUDIO_CTX: usize = 1500;
/// Tokens that the decoder can hold.
const N_TEXT_CTX: usize = 448;

/// Metadata and tensors of a model of these sizes, every tensor of type f32.
pub(super) fn plan(sizes: &Whisper) -> Plan {
    let d = sizes.d_model;
    let mut list = List { d_model: d, tensors: Vec::new() };
    for (name, n_in) in [("encoder.conv1", sizes.n_mels), ("encoder.conv2", d)] {
        list.random(&format!("{name}.weight"), &[d, n_in, 3]);
        list.random(&format!("{name}.bias"), &[d]);
    }
    list.random("encoder.positional_embedding", &[N_AUDIO_CTX, d]);
    for layer in 0..sizes.n_audio_layers {
        list.layer(&format!("encoder.blocks.{layer}"), &["attn"]);
    }
    list.norm("encoder.ln_post");
    list.random("decoder.token_embedding.weight", &[sizes.vocab_size, d]);
    list.random("decoder.positional_embedding", &[N_TEXT_CTX, d]);
    for layer in 0..sizes.n_text_layers {
        list.layer(&format!("decoder.blocks.{layer}"), &["attn", "cross_attn"]);
    }
    list.norm("decoder.ln");
    Plan { metadata: metadata(sizes), tensors: list.tensors }
}

/// The tensors so far.
struct List {
    d_model: usize,
    tensors: Vec<Planned>,
}

impl List {
    fn layer(&mut self, name: &str, attentions: &[&str]) {
        let d = self.d_model;
        for attention in attentions {
            self.norm(&format!("{name}.{attention}_ln"));
            for part in ["query", "value", "out"] {
                self.linear(&format!("{name}.{attention}.{part}"), d, d);
            }
            self.random(&format!("{name}.{attention}.key.weight"), &[d, d]);
        }
        self.norm(&format!("{name}.mlp_ln"));
        self.linear(&format!("{name}.mlp.0"), 4 * d, d);
        self.linear(&format!("{name}.mlp.2"), d, 4 * d);
    }

    fn norm(&mut self, name: &str) {
        self.push(&format!("{name}.weight"), &[self.d_model], Values::Ones);
        self.random(&format!("{name}.bias"), &[self.d_model]);
    }

    fn linear(&mut self, name: &str, rows: usize, cols: usize) {
        self.random(&format!("{name}.weight"), &[rows, cols]);
        self.random(&format!("{name}.bias"), &[rows]);
    }

    fn random(&mut self, name: &str, shape: &[usize]) {
        self.push(name, shape, Values::Random);
    }

    fn push(&mut self, name: &str, shape: &[usize], values: Values) {
        self.tensors.push(Planned { info: TensorInfo::new(name, DType::F32, shape), values });
    }
}

fn metadata(sizes: &Whisper) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "whisper");
    for (key, size) in [
        ("n_vocab", sizes.vocab_size),
        ("n_audio_ctx", N_AUDIO_CTX),
        ("n_audio_state", sizes.d_model),
        ("n_audio_head", sizes.n_heads),
        ("n_audio_layer", sizes.n_audio_layers),
        ("n_text_ctx", N_TEXT_CTX),
        ("n_text_state", sizes.d_model),
        ("n_text_head", sizes.n_heads),
        ("n_text_layer", sizes.n_text_layers),
        ("n_mels", sizes.n_mels),
    ] {
        metadata.set(format!("whisper.{key}"), size as u32);
    }
    metadata.set("tokenizer.ggml.model", "gpt2");
    metadata.set("tokenizer.ggml.tokens", vocabulary::tokens(sizes.vocab_size));
    metadata
}
