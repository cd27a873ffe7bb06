//! `--log`, `--log-file` and `--log-format`: log events of this program and its libraries.

#[cfg(feature = "server")]
pub(crate) mod reopen;

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use anyhow::Context;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::layer;
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::headings::OPTIONS;

/// Flags of the log.
#[derive(Debug, clap::Args)]
pub(super) struct LogArgs {
    /// Log level: off, error, warn, info, debug, trace; or a filter
    ///
    /// A level is that of stonechat; libraries log warnings. A filter has a level for each module, such as
    /// `stonechat_llm=debug,wgpu_core=info`. Without it `serve` logs warnings, with --quiet errors.
    #[arg(long, global = true, value_name = "LEVEL", help_heading = OPTIONS)]
    log: Option<String>,
    /// File to append the log to, without --log at level info
    ///
    /// Without it the log is written to standard error.
    #[arg(long, global = true, value_name = "FILE", help_heading = OPTIONS, hide_short_help = true)]
    log_file: Option<PathBuf>,
    /// Format of the log: text, or json, an object a line
    #[arg(long, global = true, value_name = "FORMAT", help_heading = OPTIONS, hide_short_help = true)]
    #[arg(value_enum, default_value_t = Format::Text, hide_possible_values = true)]
    log_format: Format,
}

/// Format of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    Text,
    Json,
}

/// The file of `--log-file`.
static FILE: OnceLock<Appended> = OnceLock::new();

/// A file that lines are appended to.
struct Appended {
    #[cfg_attr(
        not(feature = "server"),
        expect(dead_code, reason = "only a server opens it again")
    )]
    path: PathBuf,
    file: Mutex<File>,
}

impl Appended {
    fn open(path: &Path) -> anyhow::Result<File> {
        let file = File::options().create(true).append(true).open(path);
        file.with_context(|| format!("cannot write `{}`", path.display()))
    }
}

impl Write for &Appended {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).flush()
    }
}

/// Whether log lines go to standard error, where a progress bar would be drawn over them.
static IS_ON_STDERR: AtomicBool = AtomicBool::new(false);

/// Tells if log lines go to standard error.
pub(super) fn is_on_stderr() -> bool {
    IS_ON_STDERR.load(Ordering::Relaxed)
}

impl LogArgs {
    /// Starts logging, if a flag asks for it or the verb has a default level.
    ///
    /// # Errors
    /// [`UsageError`](super::UsageError) for a filter that is none; otherwise if the file cannot be written.
    pub(super) fn start(&self, default: Option<&str>) -> anyhow::Result<()> {
        // An empty variable is none.
        let text = self.log.as_deref().filter(|text| !text.is_empty());
        let text = match (text.or_else(|| self.log_file.as_ref().and(Some("info"))), default) {
            (Some(text), _) | (None, Some(text)) => text,
            (None, None) => return Ok(()),
        };
        let registry = tracing_subscriber::registry().with(filter(text)?);
        let writer = if let Some(path) = &self.log_file {
            let file = Mutex::new(Appended::open(path)?);
            // main starts the log once.
            let log: &'static Appended = FILE.get_or_init(|| Appended { path: path.clone(), file });
            BoxMakeWriter::new(move || log)
        } else {
            IS_ON_STDERR.store(true, Ordering::Relaxed);
            BoxMakeWriter::new(io::stderr)
        };
        let layer = layer().with_ansi(false).with_writer(writer);
        match self.log_format {
            Format::Text => registry.with(layer).init(),
            // An object a line: `timestamp`, `level`, `target`, `message` and the fields of the event.
            Format::Json => {
                let layer = layer.json().flatten_event(true).with_current_span(false);
                registry.with(layer.with_span_list(false)).init();
            }
        }
        Ok(())
    }
}

/// Filter of a level, or of directives.
fn filter(text: &str) -> anyhow::Result<EnvFilter> {
    let directives = match text.parse::<LevelFilter>() {
        Ok(level) => format!("{},stonechat={level}", level.min(LevelFilter::WARN)),
        Err(_) => text.to_owned(),
    };
    const WRONG: &str = "--log: expected off, error, warn, info, debug, trace or directives such as stonechat=debug";
    // `EnvFilter` takes a word that is no level for a module.
    let is_directive = |part: &str| part.contains('=') || part.parse::<LevelFilter>().is_ok();
    anyhow::ensure!(directives.split(',').all(is_directive), usage_error!("{WRONG}"));
    EnvFilter::try_new(&directives).map_err(|_| usage_error!("{WRONG}").into())
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_level_is_that_of_stonechat() {
        for (text, expected) in [
            ("debug", "stonechat=debug,warn"),
            ("error", "stonechat=error,error"),
            ("off", "stonechat=off,off"),
            ("wgpu_core=info", "wgpu_core=info"),
        ] {
            assert_eq!(super::filter(text).unwrap().to_string(), expected);
        }
        for wrong in ["stonechat=loud", "verbose", "warning"] {
            let error = super::filter(wrong).unwrap_err().to_string();
            assert!(error.starts_with("--log: expected off, error, "), "{error}");
        }
    }
}
