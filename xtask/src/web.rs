//! `cargo xtask page`: the page that the server embeds.

pub(crate) mod page;

/// Options of `cargo xtask page`.
#[derive(Debug, clap::Args)]
pub(crate) struct PageArgs {
    /// Write nothing; fail if the checked-in bundle differs from its sources
    #[arg(long)]
    check: bool,
}

/// Builds or checks the page.
pub(crate) fn run(args: &PageArgs) -> anyhow::Result<()> {
    page::build(args.check)
}
