//! `stonechat mcp`: tools for other programs' models, by the Model Context Protocol on standard input and output.

mod files;
mod pipes;
mod server;
mod tools;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use rmcp::ServiceExt;
use rmcp::service::ServerInitializeError;

use super::completions::{installed_names, speech_names};

use files::Files;
use server::{Models, Server};

const EXAMPLES: &str = "\
Examples:
  stonechat mcp --root ~/recordings
  stonechat mcp -m base --llm qwen3:0.6b

Configuration of a client:
  {\"mcpServers\": {\"stonechat\": {\"command\": \"stonechat\", \"args\": [\"mcp\"]}}}";

/// Arguments of `stonechat mcp`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Args {
    /// Whisper model: file, folder or name of an installed model
    ///
    /// Without it: an installed model, `base` first.
    #[arg(short, long, add = speech_names())]
    model: Option<String>,
    /// Language model of the tool `generate`; without it there is no such tool
    #[arg(long, value_name = "MODEL", add = installed_names())]
    llm: Option<String>,
    /// Folder that recordings must be in, links resolved [default: any]
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Maximum size of a recording in megabytes
    #[arg(long, value_name = "MB", default_value_t = 2048)]
    max_file_size: u64,
}

/// Serves until standard input ends.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let max_bytes = args.max_file_size.saturating_mul(1_000_000);
    let files = Files::new(args.root.as_deref(), max_bytes)?;
    let models = Models::new(args.model.clone(), args.llm.clone());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .context("cannot start the async runtime")?;
    let served = runtime.block_on(async {
        let (input, output, written) = pipes::open();
        match Server::new(models, files).serve((input, output)).await {
            // A client that closes the pipe is done, also before its first request.
            Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(ExitCode::SUCCESS),
            service => service.context("the client did not begin the protocol")?.waiting().await?,
        };
        written.await??;
        Ok(ExitCode::SUCCESS)
    });
    // The thread that reads standard input may still wait for it.
    runtime.shutdown_background();
    served
}
