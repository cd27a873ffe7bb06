//! Data type of the KV cache: `--kv-type` and `--cache-type-k`.

use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use stonechat::nn::KvDType;

use super::UsageError;

/// Flag of the KV cache's data type.
#[derive(Debug, clap::Args)]
pub(super) struct KeyTypeArgs {
    /// KV cache data type: f32, f16 or q8_0
    #[arg(
        long,
        visible_alias = "ctk",
        value_name = "TYPE",
        value_enum,
        hide_possible_values = true,
        default_value_t = KvType::F16
    )]
    cache_type_k: KvType,
}

impl KeyTypeArgs {
    pub(super) fn dtype(&self) -> KvDType {
        self.cache_type_k.dtype()
    }
}

/// Flags of the KV cache's data type, with llama.cpp's second one.
#[derive(Debug, clap::Args)]
pub(super) struct KvTypeArgs {
    #[command(flatten)]
    keys: KeyTypeArgs,
    /// KV cache data type of values, equal to that of keys
    #[arg(
        long,
        visible_alias = "ctv",
        value_name = "TYPE",
        value_enum,
        hide_possible_values = true
    )]
    cache_type_v: Option<KvType>,
}

impl KvTypeArgs {
    /// Refuses values of another type than keys.
    pub(super) fn check(&self) -> Result<(), UsageError> {
        const ONE_TYPE: UsageError =
            UsageError("--cache-type-v: expected the same type as --cache-type-k, got another");
        if self.cache_type_v.is_none_or(|v| v == self.keys.cache_type_k) {
            Ok(())
        } else {
            Err(ONE_TYPE)
        }
    }

    pub(super) fn dtype(&self) -> KvDType {
        self.keys.dtype()
    }
}

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
