//! `stonechat convert`: GGUF and whisper.cpp files from any Whisper model.

use std::path::PathBuf;

use super::write_model::write_model;

const EXAMPLES: &str = "\
Examples:
  stonechat convert base base.gguf
  stonechat convert path/to/whisper-small-hf ggml-small.bin";

/// Arguments of `stonechat convert`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Args {
    /// Whisper model: file, folder or name
    #[arg(value_name = "IN")]
    input: String,
    /// Output file: .gguf, or .bin for whisper.cpp
    #[arg(value_name = "OUT")]
    output: PathBuf,
    /// Print nothing but errors
    #[arg(short, long)]
    quiet: bool,
}

/// Writes the model with the data types of its weights.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    write_model(&args.input, &args.output, None, args.quiet)
}
