//! Data type of the KV cache: `--kv-type` and `--cache-type-k`.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use stonechat::nn::KvDType;

/// Flag of the KV cache's data type.
#[derive(Debug, clap::Args)]
pub(super) struct KeyTypeArgs {
    /// KV cache data type: f32, f16 or q8_0
    #[arg(
        long,
        visible_alias = "ctk",
        value_name = "TYPE",
        value_parser = any_type(),
        hide_possible_values = true,
        default_value = "f16"
    )]
    pub(super) cache_type_k: KvDType,
}

/// Flags of the KV cache's data type, with llama.cpp's second one.
#[derive(Debug, clap::Args)]
pub(super) struct KvTypeArgs {
    #[command(flatten)]
    keys: KeyTypeArgs,
    /// KV cache data type of values, equal to that of keys
    #[arg(long, visible_alias = "ctv", value_name = "TYPE", value_parser = any_type(), hide_possible_values = true)]
    cache_type_v: Option<KvDType>,
}

impl KvTypeArgs {
    /// Refuses values of another type than keys.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.cache_type_v.is_none_or(|v| v == self.dtype()),
            usage_error!("--cache-type-v: expected the same type as --cache-type-k, got another")
        );
        Ok(())
    }

    pub(super) fn dtype(&self) -> KvDType {
        self.keys.cache_type_k
    }
}

/// Parser of all types.
fn any_type() -> impl TypedValueParser<Value = KvDType> {
    PossibleValuesParser::new(["f32", "f16", "q8_0"]).map(|name| match name.as_str() {
        "f32" => KvDType::F32,
        "f16" => KvDType::F16,
        _ => KvDType::Q8_0,
    })
}

/// Parser of float types; the verbs for Whisper models offer no others.
pub(super) fn float_type() -> impl TypedValueParser<Value = KvDType> {
    let dtype = |name: String| if name == "f32" { KvDType::F32 } else { KvDType::F16 };
    PossibleValuesParser::new(["f32", "f16"]).map(dtype)
}
