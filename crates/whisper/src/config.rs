//! Model sizes.

use stonechat_formats::{Format, ModelFile};

use crate::error::Error;
use crate::source::Source;
use crate::{FRAMES_PER_POSITION, WINDOW_FRAMES};

/// Sizes of a Whisper model, read from its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Config {
    /// Mel bands: 80, or 128 since large-v3.
    pub n_mels: usize,
    /// Encoder positions (20 ms) of one window: 1500.
    pub n_audio_ctx: usize,
    /// Width `D` of encoder and decoder.
    pub d_model: usize,
    /// Attention heads of the encoder.
    pub n_audio_heads: usize,
    /// Layers of the encoder.
    pub n_audio_layers: usize,
    /// Context of the decoder in tokens: 448.
    pub n_text_ctx: usize,
    /// Attention heads of the decoder.
    pub n_text_heads: usize,
    /// Layers of the decoder.
    pub n_text_layers: usize,
    /// Vocabulary size, special tokens included.
    pub vocab_size: usize,
}

impl Config {
    /// Checks the sizes.
    ///
    /// # Errors
    /// If a size is out of range or does not fit another; names the first such entry.
    pub fn validate(&self) -> Result<(), Error> {
        let bounds = [
            ("n_mels", self.n_mels, 1024),
            ("n_audio_ctx", self.n_audio_ctx, 1 << 16),
            ("d_model", self.d_model, 1 << 16),
            ("n_audio_heads", self.n_audio_heads, 1 << 10),
            ("n_audio_layers", self.n_audio_layers, 1 << 10),
            ("n_text_ctx", self.n_text_ctx, 1 << 16),
            ("n_text_heads", self.n_text_heads, 1 << 10),
            ("n_text_layers", self.n_text_layers, 1 << 10),
            ("vocab_size", self.vocab_size, 1 << 24),
        ];
        for (key, value, limit) in bounds {
            if value == 0 || value > limit {
                let problem = format!("must be 1 to {limit}, got {value}");
                return Err(Error::Config { key, problem });
            }
        }
        for (key, heads) in
            [("n_audio_heads", self.n_audio_heads), ("n_text_heads", self.n_text_heads)]
        {
            if !self.d_model.is_multiple_of(heads) {
                let problem = format!("{heads} does not divide d_model {}", self.d_model);
                return Err(Error::Config { key, problem });
            }
        }
        if self.n_audio_ctx != WINDOW_FRAMES / FRAMES_PER_POSITION {
            let problem = format!("must be 1500, got {}", self.n_audio_ctx);
            return Err(Error::Config { key: "n_audio_ctx", problem });
        }
        if self.n_text_ctx < 8 {
            let problem = format!("must be at least 8, got {}", self.n_text_ctx);
            return Err(Error::Config { key: "n_text_ctx", problem });
        }
        Ok(())
    }

    /// Width of an encoder head.
    #[must_use]
    pub fn audio_head_dim(&self) -> usize {
        self.d_model / self.n_audio_heads
    }

    /// Width of a decoder head.
    #[must_use]
    pub fn text_head_dim(&self) -> usize {
        self.d_model / self.n_text_heads
    }

    /// Maximum new tokens of a window: half of the context.
    #[must_use]
    pub fn max_new_tokens(&self) -> usize {
        self.n_text_ctx / 2
    }

    /// Maximum tokens of hotwords, earlier text and prefix in a prompt.
    #[must_use]
    pub fn max_prompt_tokens(&self) -> usize {
        self.n_text_ctx / 2 - 1
    }
}

impl Config {
    /// Reads the sizes of the model in `file`.
    ///
    /// # Errors
    /// If it is no Whisper model or lacks a size.
    pub fn from_file(file: &ModelFile) -> Result<Self, Error> {
        Self::read(&Source::new(file)?)
    }

    /// Reads the sizes from the metadata (GGUF, whisper.cpp), the tensor shapes (CTranslate2), or
    /// `config.json`.
    pub(crate) fn read(source: &Source<'_>) -> Result<Self, Error> {
        let file = source.file();
        let config = if matches!(file.format(), Format::WhisperBin | Format::Gguf) {
            let size = |key: &str| file.metadata().usize(&format!("whisper.{key}"));
            let d_model = size("n_audio_state")?;
            if size("n_text_state")? != d_model {
                let problem = format!("must equal n_audio_state {d_model}");
                return Err(Error::Config { key: "n_text_state", problem });
            }
            Self {
                n_mels: size("n_mels")?,
                n_audio_ctx: size("n_audio_ctx")?,
                d_model,
                n_audio_heads: size("n_audio_head")?,
                n_audio_layers: size("n_audio_layer")?,
                n_text_ctx: size("n_text_ctx")?,
                n_text_heads: size("n_text_head")?,
                n_text_layers: size("n_text_layer")?,
                vocab_size: size("n_vocab")?,
            }
        } else if source.is_ctranslate2() {
            Self::from_shapes(
                source,
                ctranslate2_heads(source, "encoder")?,
                ctranslate2_heads(source, "decoder")?,
            )?
        } else {
            Self::from_hugging_face(source)?
        };
        config.validate()?;
        Ok(config)
    }

    fn from_hugging_face(source: &Source<'_>) -> Result<Self, Error> {
        let problem = |key, problem: &str| Error::Config { key, problem: problem.to_owned() };
        let json = source.file().companion("config.json");
        let json = json.ok_or_else(|| problem("config.json", "is missing beside the weights"))?;
        let json: serde_json::Value = serde_json::from_slice(json)
            .map_err(|e| Error::Config { key: "config.json", problem: e.to_string() })?;
        let size = |key: &'static str| {
            let value = json.get(key).and_then(serde_json::Value::as_u64);
            value
                .and_then(|n| usize::try_from(n).ok())
                .ok_or_else(|| problem(key, "is missing or no whole number"))
        };
        let config = Self {
            n_mels: size("num_mel_bins")?,
            n_audio_ctx: size("max_source_positions")?,
            d_model: size("d_model")?,
            n_audio_heads: size("encoder_attention_heads")?,
            n_audio_layers: size("encoder_layers")?,
            n_text_ctx: size("max_target_positions")?,
            n_text_heads: size("decoder_attention_heads")?,
            n_text_layers: size("decoder_layers")?,
            vocab_size: size("vocab_size")?,
        };
        for key in ["encoder_ffn_dim", "decoder_ffn_dim"] {
            if size(key)? != 4 * config.d_model {
                return Err(problem(key, "must be four times d_model"));
            }
        }
        Ok(config)
    }

    fn from_shapes(
        source: &Source<'_>,
        n_audio_heads: usize,
        n_text_heads: usize,
    ) -> Result<Self, Error> {
        let axes = |name: &str, n: usize| {
            let shape = source.shape(name)?;
            if shape.len() == n {
                Ok(shape)
            } else {
                Err(Error::Shape { name: name.to_owned(), expected: vec![0; n], got: shape })
            }
        };
        let conv = axes("encoder.conv1.weight", 3)?;
        let audio = axes("encoder.positional_embedding", 2)?;
        let text = axes("decoder.positional_embedding", 2)?;
        Ok(Self {
            n_mels: conv[1],
            n_audio_ctx: audio[0],
            d_model: conv[0],
            n_audio_heads,
            n_audio_layers: source.count_layers("encoder"),
            n_text_ctx: text[0],
            n_text_heads,
            n_text_layers: source.count_layers("decoder"),
            vocab_size: axes("decoder.token_embedding.weight", 2)?[0],
        })
    }
}

/// CTranslate2 stores the number of heads as an integer scalar beside the weights.
fn ctranslate2_heads(source: &Source<'_>, stack: &str) -> Result<usize, Error> {
    let view = source.file().require(&format!("{stack}/num_heads"))?;
    let heads = match *view.data.load()? {
        [a] => i64::from(a.cast_signed()),
        [a, b] => i64::from(i16::from_le_bytes([a, b])),
        [a, b, c, d] => i64::from(i32::from_le_bytes([a, b, c, d])),
        _ => 0,
    };
    usize::try_from(heads).ok().filter(|&n| n > 0).ok_or_else(|| Error::Config {
        key: "num_heads",
        problem: format!("must be a positive integer, got {heads}"),
    })
}
