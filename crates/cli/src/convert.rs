//! `stonechat convert`: GGUF and whisper.cpp files from any model.

use std::path::PathBuf;

use super::write_model::write_model;

/// Arguments of `stonechat convert`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A model: path or name
    #[arg(value_name = "IN")]
    input: String,
    /// File to write: .gguf, or .bin for whisper.cpp
    #[arg(value_name = "OUT")]
    output: PathBuf,
    /// Print nothing but errors
    #[arg(short, long)]
    quiet: bool,
}

/// Writes the model with the weights as they are.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    write_model(&args.input, &args.output, None, args.quiet)
}
