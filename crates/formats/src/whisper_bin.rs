//! whisper.cpp's `.bin` ("ggml") files.
//!
//! ```text
//! u32 magic 0x67676d6c, i32 hparams[11],
//! i32 n_mels, i32 n_bins, f32 filters[n_mels][n_bins],
//! i32 n_tokens, n_tokens × { u32 length, bytes },
//! until the end: { i32 n_dims, i32 name length, i32 type, i32 ne[n_dims], name, data }
//! ```
//! `ne` counts from the innermost dimension; shapes here are the reverse, which makes them
//! PyTorch's: linear weights `[out, in]`, convolutions `[out, in, 3]`, positional embeddings
//! `[ctx, state]`. Only `encoder.conv1.bias` and `encoder.conv2.bias` differ: `[out, 1]`.
//!
//! whisper.cpp allocates tensors by `ftype` and checks the file's sizes, not its types, so a
//! tensor must be stored as [`WhisperHparams::stored_dtype`] says or it will not load there. An
//! f32 file loads, but its convolutions run on no whisper.cpp whose GGML builds them in f16
//! alone, so f16 is the plain type to write for it.
//!
//! Own reader and writer: no maintained crate reads this format.
//! Source: `whisper_model_load` in whisper.cpp's `src/whisper.cpp`, and its
//! `models/convert-pt-to-ggml.py` and `examples/quantize/quantize.cpp`.

mod read;
mod write;

use stonechat_compute::DType;

use crate::error::{Error, Result};

pub(crate) use read::parse;
pub use write::WhisperBinWriter;

/// The first bytes of a file.
pub(crate) const MAGIC: [u8; 4] = 0x6767_6d6c_u32.to_le_bytes();

/// `ftype` is stored as `version × 1000 + ftype` (GGML's `GGML_QNT_VERSION_FACTOR`).
const QNT_VERSION_FACTOR: u32 = 1000;

/// The version of GGML's block layouts (`GGML_QNT_VERSION`); older ones had other layouts.
const QNT_VERSION: u32 = 2;

/// Dimensions that GGML has (`GGML_MAX_DIMS`).
const MAX_DIMS: u32 = 4;

/// Sizes, mel filters and tokens of a whisper.cpp file.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct WhisperBin {
    /// The model's sizes.
    pub hparams: WhisperHparams,
    /// The mel filter bank.
    pub mel_filters: MelFilters,
    /// The bytes of each token, by id. Special tokens are not stored, but for `<|endoftext|>` in
    /// some files: whisper.cpp makes up the ids from here to `hparams.n_vocab`.
    pub vocab: Vec<Vec<u8>>,
}

/// The sizes at the start of a file, under whisper.cpp's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WhisperHparams {
    /// Tokens, special ones included.
    pub n_vocab: u32,
    /// Encoder positions.
    pub n_audio_ctx: u32,
    /// Encoder width.
    pub n_audio_state: u32,
    /// Encoder heads.
    pub n_audio_head: u32,
    /// Encoder layers.
    pub n_audio_layer: u32,
    /// Decoder positions.
    pub n_text_ctx: u32,
    /// Decoder width.
    pub n_text_state: u32,
    /// Decoder heads.
    pub n_text_head: u32,
    /// Decoder layers.
    pub n_text_layer: u32,
    /// Mel bands of the input.
    pub n_mels: u32,
    /// GGML's file type, without the quantization version.
    pub ftype: u32,
}

/// A mel filter bank.
#[derive(Debug, Clone, PartialEq)]
pub struct MelFilters {
    /// Mel bands.
    pub n_mels: usize,
    /// Frequency bins: `n_fft / 2 + 1`.
    pub n_bins: usize,
    /// `[n_mels, n_bins]`, row-major.
    pub data: Vec<f32>,
}

/// Tensors with more than one dimension that whisper.cpp keeps in f32 all the same.
const F32_TENSORS: [&str; 4] = [
    "encoder.conv1.bias",
    "encoder.conv2.bias",
    "encoder.positional_embedding",
    "decoder.positional_embedding",
];

impl WhisperHparams {
    /// The type of the large tensors.
    ///
    /// # Errors
    /// [`Error::Metadata`] if `ftype` is none of GGML's.
    pub fn dtype(&self) -> Result<DType> {
        DType::from_ggml_ftype(self.ftype).ok_or_else(|| {
            Error::metadata("whisper.ftype", "0 to 3, 7 to 14 or 24", self.ftype.to_string())
        })
    }

    /// The type that whisper.cpp expects the tensor `name` of shape `shape` in: f32 for vectors,
    /// biases and positional embeddings; f16 for convolutions, f32 in an f32 file; the file's
    /// type for matrices.
    ///
    /// # Errors
    /// [`Error::Metadata`] if `ftype` is none of GGML's.
    pub fn stored_dtype(&self, name: &str, shape: &[usize]) -> Result<DType> {
        let dtype = self.dtype()?;
        Ok(match shape.len() {
            _ if F32_TENSORS.contains(&name) => DType::F32,
            0 | 1 => DType::F32,
            2 => dtype,
            _ if dtype == DType::F32 => DType::F32,
            _ => DType::F16,
        })
    }

    /// The fields in file order with their names, `whisper.` before each; `ftype` last, without the version.
    #[must_use]
    pub fn fields(&self) -> [(&'static str, u32); 11] {
        [
            ("whisper.n_vocab", self.n_vocab),
            ("whisper.n_audio_ctx", self.n_audio_ctx),
            ("whisper.n_audio_state", self.n_audio_state),
            ("whisper.n_audio_head", self.n_audio_head),
            ("whisper.n_audio_layer", self.n_audio_layer),
            ("whisper.n_text_ctx", self.n_text_ctx),
            ("whisper.n_text_state", self.n_text_state),
            ("whisper.n_text_head", self.n_text_head),
            ("whisper.n_text_layer", self.n_text_layer),
            ("whisper.n_mels", self.n_mels),
            ("whisper.ftype", self.ftype),
        ]
    }
}
