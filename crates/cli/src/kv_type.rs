//! Data type of the KV cache: `--kv-type` and `--cache-type-k`.

use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use stonechat::nn::KvDType;

/// Data types of cached keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum KvType {
    F32,
    F16,
    #[value(name = "q8_0")]
    Q8_0,
}

impl KvType {
    pub(super) fn dtype(self) -> KvDType {
        match self {
            Self::F32 => KvDType::F32,
            Self::F16 => KvDType::F16,
            Self::Q8_0 => KvDType::Q8_0,
        }
    }

    /// Parses a float type; the verbs for Whisper models offer no others.
    pub(super) fn float_parser() -> impl TypedValueParser<Value = Self> {
        let floats = [Self::F32, Self::F16];
        let values = floats.iter().filter_map(Self::to_possible_value);
        PossibleValuesParser::new(values).try_map(|name| Self::from_str(&name, false))
    }
}
