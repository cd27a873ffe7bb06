//! The `stonechat` command line: one file per verb, with its arguments and a `run` function.
//!
//! Exit codes: 0 success, 1 error (one line on standard error), 2 usage error, 130 interrupted.
#![deny(unsafe_code)]

/// Formats a [`UsageError`].
macro_rules! usage_error {
    ($($text:tt)*) => { $crate::UsageError(std::fmt::format(format_args!($($text)*))) };
}

mod aliases;
mod completions;
mod console;
mod convert;
mod device;
#[expect(unsafe_code, reason = "the process is set up before any thread starts")]
mod environment;
mod find_model;
mod headings;
mod help_markdown;
mod inspect;
mod interrupt;
mod json;
mod kv_type;
mod listen;
mod llm;
mod load;
mod log;
#[cfg(feature = "mcp")]
mod mcp;
mod models;
#[cfg(feature = "pull")]
mod pull;
mod quantize;
mod recognizer;
#[cfg(feature = "server")]
mod serve;
mod settings;
mod short_help;
mod terminal;
mod transcribe;
mod usage;
mod vad;
mod write_model;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::LazyLock;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, FromArgMatches, Parser, Subcommand};
use headings::OPTIONS;
use settings::Settings;
use stonechat::compute::simd::Isa;

/// Speech to text and language models, offline
#[derive(Debug, Parser)]
#[command(name = "stonechat", version = VERSION.as_str())]
struct Cli {
    /// Folder of installed models
    ///
    /// Also STONECHAT_MODELS. Without it: stonechat/models in the platform's cache folder.
    #[arg(long, global = true, value_name = "DIR", help_heading = OPTIONS)]
    models_dir: Option<PathBuf>,
    /// Configuration file: flags as keys, for all verbs or in the table of one
    ///
    /// Without it: that of STONECHAT_CONFIG, else stonechat/config.toml in the platform's
    /// configuration folder. Every flag `--some-flag` is also the variable STONECHAT_SOME_FLAG. The
    /// command line wins, then the environment, then the file.
    #[arg(long, global = true, value_name = "FILE", help_heading = OPTIONS)]
    config: Option<PathBuf>,
    #[command(flatten)]
    log: log::LogArgs,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run a language model, downloaded if need be: answer a prompt, or chat
    Run(Box<llm::run::Args>),
    /// Transcribe or translate audio files
    Transcribe(Box<transcribe::Args>),
    /// Transcribe live speech from a microphone or raw PCM on standard input
    Listen(Box<listen::Args>),
    /// Complete a prompt with a language model
    Generate(Box<llm::generate::Args>),
    /// Chat with a language model
    Chat(Box<llm::chat::Args>),
    /// Serve models over HTTP, with the routes of OpenAI and llama-server
    #[cfg(feature = "server")]
    Serve(Box<serve::Args>),
    /// Serve tools to other programs' models by the Model Context Protocol (stdio)
    #[cfg(feature = "mcp")]
    Mcp(mcp::Args),
    /// Print the embeddings of texts
    Embed(llm::embed::Args),
    /// Print the tokens of a text
    Tokenize(llm::tokenize::Args),
    /// Compute the perplexity of a language model on a text
    Perplexity(llm::perplexity::Args),
    /// Benchmark prompt processing and text generation
    Bench(llm::bench::Args),
    /// Download models from the Hugging Face hub
    #[cfg(feature = "pull")]
    Pull(pull::Args),
    /// List the installed models, or those that have a short name
    #[command(visible_aliases = ["list", "ls"])]
    Models(models::Args),
    /// Show the properties of a model
    Show(models::ShowArgs),
    /// Remove installed models
    Rm(models::RemoveArgs),
    /// List the devices that models can run on
    Devices(device::Args),
    /// Print the metadata of a model or audio file
    Inspect(inspect::Args),
    /// Convert a Whisper model to GGUF or whisper.cpp's format
    Convert(convert::Args),
    /// Quantize a model to another weight type
    Quantize(quantize::Args),
    /// Print the completions of a shell
    Completions(completions::Args),
    /// Write man pages
    #[command(visible_alias = "man")]
    ManPages(completions::ManArgs),
    /// Print this help of every verb as Markdown
    #[command(hide = true)]
    HelpMarkdown,
}

/// Version, platform and instruction set of the kernels.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let isa = Isa::best().map_or_else(|error| error.to_string(), |isa| isa.name().to_owned());
    let (arch, os) = (std::env::consts::ARCH, std::env::consts::OS);
    format!("{} ({arch} {os}, {isa})", env!("CARGO_PKG_VERSION"))
});

/// Verbs and flags.
fn command() -> Command {
    short_help::shorten(Cli::command())
}

/// Parses the command line, with the flags of the environment and the configuration file.
fn parse(args: Vec<OsString>, spelled: &[(String, String)]) -> anyhow::Result<Cli> {
    let settings = Settings::read(&args)?;
    let command = settings.apply(command())?;
    let unknown = settings::unknown_variables(&command);
    let parsed = command.try_get_matches_from(&args);
    match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => {
            for name in unknown {
                console::print_note(&format!("warning: {name}: there is no flag of this variable"));
            }
            Ok(cli)
        }
        Err(error) => {
            let context = |kind| match error.get(kind) {
                Some(ContextValue::String(text)) => text.as_str(),
                _ => "",
            };
            let (flag, value) =
                (context(ContextKind::InvalidArg), context(ContextKind::InvalidValue));
            if let Some(name) = settings::wrong_variable(&args, flag, value) {
                console::print_note(&format!("the variable {name} is `{value}`"));
            }
            if let (ErrorKind::ValueValidation | ErrorKind::InvalidValue, Some(path)) =
                (error.kind(), settings.path())
            {
                console::print_note(&format!("flags are read from `{}`, too", path.display()));
            }
            usage::refine(error, spelled).exit()
        }
    }
}

/// Default log level of a verb.
fn log_level(verb: &Verb) -> Option<&'static str> {
    match verb {
        // Nobody watches a server that runs for long.
        #[cfg(feature = "server")]
        Verb::Serve(args) => Some(args.log_level()),
        _ => None,
    }
}

fn main() -> ExitCode {
    environment::silence_drivers();
    environment::bound_free_memory();
    completions::answer_shell(command);
    let expanded = match aliases::expand(std::env::args_os()) {
        Ok(expanded) => expanded,
        Err(refusal) => usage::of_refusal(command(), &refusal).exit(),
    };
    let cli = match parse(expanded.args, &expanded.spelled) {
        Ok(cli) => cli,
        Err(error) => {
            console::print_error(&error);
            return ExitCode::FAILURE;
        }
    };
    if let Err(error) = cli.log.start(log_level(&cli.verb)) {
        return fail(&error);
    }
    if let Some(folder) = &cli.models_dir {
        find_model::set_models_dir(folder);
    }
    expanded.notes.iter().for_each(|note| console::print_note(note));
    let result = match cli.verb {
        Verb::Run(args) => llm::run::run(&args),
        Verb::Transcribe(args) => transcribe::run(&args),
        Verb::Listen(args) => listen::run(&args),
        Verb::Generate(args) => llm::generate::run(&args),
        Verb::Chat(args) => llm::chat::run(&args),
        #[cfg(feature = "server")]
        Verb::Serve(args) => serve::run(&args, cli.models_dir.as_deref()),
        #[cfg(feature = "mcp")]
        Verb::Mcp(args) => mcp::run(&args),
        Verb::Embed(args) => llm::embed::run(&args).map(|()| ExitCode::SUCCESS),
        Verb::Tokenize(args) => llm::tokenize::run(&args).map(|()| ExitCode::SUCCESS),
        Verb::Perplexity(args) => llm::perplexity::run(&args).map(|()| ExitCode::SUCCESS),
        Verb::Bench(args) => llm::bench::run(&args).map(|()| ExitCode::SUCCESS),
        #[cfg(feature = "pull")]
        Verb::Pull(args) => pull::run(&args).map(|()| ExitCode::SUCCESS),
        Verb::Models(args) => models::run(&args).map(|()| ExitCode::SUCCESS),
        Verb::Show(args) => models::show(&args).map(|()| ExitCode::SUCCESS),
        Verb::Rm(args) => models::remove(&args).map(|()| ExitCode::SUCCESS),
        Verb::Devices(args) => device::run(&args).map(|()| ExitCode::SUCCESS),
        Verb::Inspect(args) => inspect::run(&args).map(|()| ExitCode::SUCCESS),
        Verb::Convert(args) => convert::run(&args).map(|()| ExitCode::SUCCESS),
        Verb::Quantize(args) => quantize::run(&args).map(|()| ExitCode::SUCCESS),
        Verb::Completions(args) => completions::run(&args).map(|()| ExitCode::SUCCESS),
        Verb::ManPages(args) => {
            completions::man_pages(&args, command()).map(|()| ExitCode::SUCCESS)
        }
        Verb::HelpMarkdown => help_markdown::run(command()).map(|()| ExitCode::SUCCESS),
    };
    result.unwrap_or_else(|error| {
        if error.downcast_ref::<io::Error>().is_some_and(is_broken_pipe) {
            return ExitCode::SUCCESS;
        }
        fail(&error)
    })
}

/// Prints an error; returns its exit code.
fn fail(error: &anyhow::Error) -> ExitCode {
    console::print_error(error);
    if error.is::<UsageError>() { ExitCode::from(USAGE) } else { ExitCode::FAILURE }
}

/// Exit code of a usage error, that of clap.
const USAGE: u8 = 2;

/// A wrong command line, or value of a flag, that clap accepts.
#[derive(Debug)]
struct UsageError(String);

impl UsageError {
    /// Makes a usage error of an error.
    fn from_error(error: impl std::fmt::Display) -> anyhow::Error {
        anyhow::Error::new(usage_error!("{error:#}"))
    }
}

impl std::fmt::Display for UsageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// Tells a closed standard output (`| head`) from a failure.
fn is_broken_pipe(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}

/// Writes `text` to standard output and flushes it.
fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// Formats a size in decimal units, from `700 B` to `1.5 TB`.
fn format_bytes(bytes: u64) -> String {
    bytesize::ByteSize(bytes).display().si().to_string()
}

/// Formats a count with a decimal unit, from `700` to `1.5 B`.
fn format_count(n: u64) -> String {
    const UNITS: [(f64, &str); 3] = [(1e9, "B"), (1e6, "M"), (1e3, "k")];
    let n = n as f64;
    let unit = UNITS.iter().find(|(size, _)| n >= *size);
    unit.map_or_else(|| n.to_string(), |(size, unit)| format!("{:.1} {unit}", n / size))
}

#[cfg(test)]
mod tests {
    use super::{command, format_bytes};

    #[test]
    fn short_help_fits_lines_of_100_columns() {
        let mut command = command().term_width(100);
        command.build();
        for verb in command.get_subcommands_mut().filter(|verb| verb.get_name() != "help") {
            let help = verb.render_help().to_string();
            // Help is in a column beside the flags, or indented by 10 below them; wrapped lines repeat the indentation.
            let indents: Vec<usize> =
                help.lines().map(|line| line.len() - line.trim_start().len()).collect();
            let lines: Vec<&str> = help.lines().collect();
            for (i, pair) in indents.windows(2).enumerate() {
                let wraps = pair[1] > 10 || pair == [10, 10];
                assert!(!wraps, "{}: wrapped: {}", verb.get_name(), lines[i]);
            }
        }
    }

    #[test]
    fn sizes_have_decimal_units() {
        for (bytes, expected) in [
            (700, "700 B"),
            (1_500, "1.5 kB"),
            (123_456_789, "123.5 MB"),
            (8_012_300_000, "8.0 GB"),
            (1_500_000_000_000, "1.5 TB"),
        ] {
            assert_eq!(format_bytes(bytes), expected);
        }
    }
}
