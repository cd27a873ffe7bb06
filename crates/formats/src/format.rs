//! Names of the model file formats.

use std::fmt;

/// A model file format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// CTranslate2's `model.bin`, alone or in its folder.
    CTranslate2,
    /// whisper.cpp's `ggml-*.bin`.
    WhisperBin,
    /// GGUF.
    Gguf,
    /// safetensors: one file, or the shards of a Hugging Face folder.
    SafeTensors,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::CTranslate2 => "CTranslate2",
            Self::WhisperBin => "whisper.cpp .bin",
            Self::Gguf => "GGUF",
            Self::SafeTensors => "safetensors",
        })
    }
}
