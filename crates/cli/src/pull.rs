//! `stonechat pull`: downloads models.

use stonechat::Models;
use stonechat::pull::pull;

use super::console::Console;

const EXAMPLES: &str = "\
Examples:
  stonechat pull large-v3-turbo
  stonechat pull base-q5_1
  stonechat pull Qwen/Qwen2.5-0.5B-Instruct
  stonechat pull user/repo:model.gguf";

/// Arguments of `stonechat pull`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Args {
    /// Model names: base, tiny.en, large-v3-turbo …, base-q5_1, or user/repo[:file]
    ///
    /// base-q5_1, ggml-base and the like are whisper.cpp's files.
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Print nothing but errors
    #[arg(short, long)]
    quiet: bool,
}

/// Downloads the models that are not installed, and prints the path of each.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let models = Models::from_env();
    let console = Console::new(args.quiet);
    for name in &args.names {
        let mut current = String::new();
        let result = pull(&models, name, &mut |progress| {
            if current != progress.file {
                progress.file.clone_into(&mut current);
                console.begin(progress.file, progress.total);
            }
            console.advance(progress.done);
        });
        console.end();
        let path = result?;
        super::print(&format!("{}\n", path.display()))?;
    }
    Ok(())
}
