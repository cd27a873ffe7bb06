//! `stonechat pull`: downloads models.

use stonechat::Models;
use stonechat::pull::pull;

use super::console::Console;

/// Arguments of `stonechat pull`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// base, tiny.en, large-v3-turbo …, base-q5_1 or ggml-base (whisper.cpp's files), or user/repo[:file]
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Print nothing but errors
    #[arg(short, long)]
    quiet: bool,
}

/// Downloads each model that is not there and prints where they are.
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
