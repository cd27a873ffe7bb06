//! A tiny Whisper model with random weights, small enough for the f64 oracle.

use stonechat_compute::DType;
use stonechat_formats::{GgufWriter, Metadata, ModelFile, TensorInfo};

use crate::Lcg;

/// Sizes of a tiny random model. The window is Whisper's 30 s.
#[derive(Debug, Clone, Copy)]
pub struct TinyWhisper {
    /// Model width; `head_dim` is 32.
    pub d_model: usize,
    /// Layers of the encoder and of the decoder.
    pub n_layers: usize,
    /// 51864 for an English-only model, 51865 or 51866 for a multilingual one.
    pub vocab_size: usize,
    /// Mel bands.
    pub n_mels: usize,
    /// Seed of the weights.
    pub seed: u64,
}

impl Default for TinyWhisper {
    fn default() -> Self {
        Self { d_model: 64, n_layers: 2, vocab_size: 51864, n_mels: 80, seed: 1 }
    }
}

impl TinyWhisper {
    /// The model as a GGUF file in memory, weights in f32.
    ///
    /// # Panics
    /// If the file cannot be made, which is a bug of the writer.
    #[must_use]
    pub fn gguf(&self) -> Vec<u8> {
        let mut random = Lcg::new(self.seed);
        let tensors: Vec<(TensorInfo, Vec<f32>)> = self
            .shapes()
            .into_iter()
            .map(|(name, shape)| {
                let n = shape.iter().product();
                let fan_in: usize = shape.iter().skip(1).product();
                let values = if name.ends_with("ln.weight") || name.ends_with("ln_post.weight") {
                    random.normals(n, 0.1).into_iter().map(|v| 1.0 + v).collect()
                } else {
                    random.normals(n, 1.0 / (fan_in.max(4) as f32).sqrt())
                };
                (TensorInfo::new(name, DType::F32, shape), values)
            })
            .collect();
        let infos = tensors.iter().map(|(info, _)| info.clone()).collect();
        let mut writer =
            GgufWriter::new(Vec::new(), &self.metadata(), infos).expect("a valid header");
        for (info, values) in &tensors {
            writer.write_tensor(&info.name, bytemuck::cast_slice(values)).expect("in order");
        }
        writer.finish().expect("every tensor was written")
    }

    /// The model, opened.
    ///
    /// # Panics
    /// If the file just written cannot be read.
    #[must_use]
    pub fn file(&self) -> ModelFile {
        ModelFile::from_reader(self.gguf()).expect("the reader takes what the writer made")
    }

    fn metadata(&self) -> Metadata {
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", "whisper");
        let n_heads = self.d_model / 32;
        for (key, value) in [
            ("n_vocab", self.vocab_size),
            ("n_audio_ctx", 1500),
            ("n_audio_state", self.d_model),
            ("n_audio_head", n_heads),
            ("n_audio_layer", self.n_layers),
            ("n_text_ctx", 448),
            ("n_text_state", self.d_model),
            ("n_text_head", n_heads),
            ("n_text_layer", self.n_layers),
            ("n_mels", self.n_mels),
        ] {
            metadata.set(format!("whisper.{key}"), value as u32);
        }
        metadata.set("tokenizer.ggml.model", "gpt2");
        metadata.set("tokenizer.ggml.tokens", vocabulary(self.vocab_size));
        metadata
    }

    fn shapes(&self) -> Vec<(String, Vec<usize>)> {
        let d = self.d_model;
        let mut shapes: Vec<(String, Vec<usize>)> = vec![
            ("encoder.conv1.weight".into(), vec![d, self.n_mels, 3]),
            ("encoder.conv1.bias".into(), vec![d]),
            ("encoder.conv2.weight".into(), vec![d, d, 3]),
            ("encoder.conv2.bias".into(), vec![d]),
            ("encoder.positional_embedding".into(), vec![1500, d]),
            ("decoder.positional_embedding".into(), vec![448, d]),
            ("decoder.token_embedding.weight".into(), vec![self.vocab_size, d]),
        ];
        let mut norm = |name: String| {
            shapes.push((format!("{name}.weight"), vec![d]));
            shapes.push((format!("{name}.bias"), vec![d]));
        };
        norm("encoder.ln_post".into());
        norm("decoder.ln".into());
        for (stack, attentions) in
            [("encoder", &["attn"][..]), ("decoder", &["attn", "cross_attn"])]
        {
            for i in 0..self.n_layers {
                for attention in attentions {
                    norm(format!("{stack}.blocks.{i}.{attention}_ln"));
                }
                norm(format!("{stack}.blocks.{i}.mlp_ln"));
            }
        }
        for (stack, attentions) in
            [("encoder", &["attn"][..]), ("decoder", &["attn", "cross_attn"])]
        {
            for i in 0..self.n_layers {
                let block = format!("{stack}.blocks.{i}");
                let mut matrix = |name: String, n: usize, k: usize, bias: bool| {
                    shapes.push((format!("{block}.{name}.weight"), vec![n, k]));
                    if bias {
                        shapes.push((format!("{block}.{name}.bias"), vec![n]));
                    }
                };
                for attention in attentions {
                    for part in ["query", "key", "value", "out"] {
                        matrix(format!("{attention}.{part}"), d, d, part != "key");
                    }
                }
                matrix("mlp.0".into(), 4 * d, d, true);
                matrix("mlp.2".into(), d, 4 * d, true);
            }
        }
        shapes
    }
}

/// Byte-level tokens of all 256 bytes, then made-up words; encodes any text.
fn vocabulary(vocab_size: usize) -> Vec<String> {
    let n_text = if vocab_size > 51864 { 50257 } else { 50256 };
    // GPT-2's byte table: printable bytes map to themselves, the others to U+0100 and up.
    let printable = |b: &u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let hidden = (0..=255u8).filter(|b| !printable(b)).count() as u32;
    let bytes = (0..=255u8).filter(printable).map(char::from);
    let others = (0..hidden).filter_map(|i| char::from_u32(256 + i));
    let mut tokens: Vec<String> = bytes.chain(others).map(String::from).collect();
    tokens.extend((tokens.len()..n_text).map(|i| format!("Ġword{i}")));
    tokens
}
