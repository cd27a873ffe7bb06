//! `stonechat quantize`: converts the matrices of a model to another data type.

use std::path::PathBuf;

use anyhow::bail;
use stonechat::formats::DType;
use stonechat::quant;

use super::write_model::write_model;

const EXAMPLES: &str = "\
Examples:
  stonechat quantize base base-q8_0.bin q8_0
  stonechat quantize model-f16.gguf model-q4_k.gguf q4_k";

/// Arguments of `stonechat quantize`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Args {
    /// Model: file, folder or name
    #[arg(value_name = "IN")]
    input: String,
    /// Output file: .gguf, or .bin (whisper.cpp, Whisper models only)
    #[arg(value_name = "OUT")]
    output: PathBuf,
    /// Data type of the matrices: f32, f16, bf16, q8_0, q5_1, q4_k, …
    #[arg(value_name = "TYPE")]
    dtype: String,
    /// Print nothing but errors
    #[arg(short, long)]
    quiet: bool,
}

/// Writes the model with its matrices quantized.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let dtype = find(&args.dtype)?;
    write_model(&args.input, &args.output, Some(dtype), args.quiet)
}

fn find(name: &str) -> anyhow::Result<DType> {
    let dtype = DType::from_name(name);
    if let Some(dtype) = dtype.filter(|&dtype| quant::needs_importance(dtype)) {
        bail!(quant::Error::NeedsImportance { dtype });
    }
    let types = quant::quantizable();
    if let Some(dtype) = dtype.filter(|dtype| types.contains(dtype)) {
        return Ok(dtype);
    }
    if let Some(base) = base_of_mix(name).filter(|base| types.contains(base)) {
        let expected = format!("type: expected {} for `{name}`", base.name());
        bail!(usage_error!("{expected}, which is a mix of types: here all matrices have one"));
    }
    let names: Vec<_> = types.iter().map(|dtype| dtype.name()).collect();
    bail!(usage_error!("type: expected {}, got `{name}`", names.join(", ")))
}

/// The type of most matrices of a mix of llama.cpp, such as `q4_k_m`.
fn base_of_mix(name: &str) -> Option<DType> {
    let name = name.to_ascii_lowercase();
    let base = ["_s", "_m", "_l", "_xl"].into_iter().find_map(|size| name.strip_suffix(size))?;
    DType::from_name(base)
}

#[cfg(test)]
mod tests {
    use super::{find, quant};

    #[test]
    fn types_are_found_by_name() {
        for dtype in quant::quantizable() {
            assert_eq!(find(&dtype.name().to_ascii_uppercase()).unwrap(), dtype);
        }
        let message = find("q9_z").unwrap_err().to_string();
        assert!(message.starts_with("type: expected f32, f16, bf16, q4_0,"), "{message}");
        assert!(message.ends_with("nvfp4, got `q9_z`"), "{message}");
        for (mix, expected) in [("Q4_K_M", "q4_k"), ("q5_k_s", "q5_k"), ("q3_k_xl", "q3_k")] {
            let message = find(mix).unwrap_err().to_string();
            assert!(
                message.starts_with(&format!("type: expected {expected} for `{mix}`")),
                "{message}"
            );
        }
        let message = find("iq2_xs").unwrap_err().to_string();
        assert!(message.contains("iq2_xs: it needs an importance matrix"), "{message}");
    }
}
