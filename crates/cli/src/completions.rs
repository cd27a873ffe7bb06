//! `stonechat completions` and `man-pages`; values that shells complete.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::{fs, io};

use anyhow::Context;
use clap::Command;
use clap::builder::PossibleValuesParser;
use clap_complete::env::{CompleteEnv, Shells};
use clap_complete::{ArgValueCompleter, CompletionCandidate};
use clap_mangen::Man;
use stonechat::whisper::{LANGUAGES, OutputFormat};
use stonechat::{CATALOG, CatalogEntry, ModelKind};

use super::find_model::models;

/// Variable that makes the program complete a command line instead of running it.
const VARIABLE: &str = "COMPLETE";

const EXAMPLES: &str = "\
Examples:
  stonechat completions bash > stonechat.bash
  stonechat completions zsh > _stonechat
  stonechat completions fish > stonechat.fish";

/// Arguments of `stonechat completions`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Args {
    /// Shell
    #[arg(value_name = "SHELL", value_parser = PossibleValuesParser::new(Shells::builtins().names().collect::<Vec<_>>()))]
    shell: String,
}

const MAN_EXAMPLES: &str = "\
Examples:
  stonechat man-pages man
  man man/stonechat-transcribe.1";

/// Arguments of `stonechat man-pages`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = MAN_EXAMPLES)]
pub(super) struct ManArgs {
    /// Folder to write to
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Answers a shell that completes a command line, and ends the process.
pub(super) fn answer_shell(command: fn() -> Command) {
    CompleteEnv::with_factory(command).var(VARIABLE).complete();
}

/// Prints the script of a shell.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let shells = Shells::builtins();
    let shell = shells.completer(&args.shell).context("no such shell")?;
    let mut script = Vec::new();
    shell.write_registration(VARIABLE, "stonechat", "stonechat", "stonechat", &mut script)?;
    let mut script = String::from_utf8(script)?;
    if args.shell == "bash" {
        script += include_str!("completions.bash");
    }
    Ok(super::print(&script)?)
}

/// Writes a man page for the program and for each verb.
pub(super) fn man_pages(args: &ManArgs, command: Command) -> anyhow::Result<()> {
    let folder = &args.folder;
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set()).cloned();
    let all: Vec<Command> = verbs.chain([command.clone()]).collect();
    let write = || -> io::Result<()> {
        fs::create_dir_all(folder)?;
        for command in all {
            let (name, page) = man_page(command)?;
            fs::write(folder.join(name), page)?;
        }
        Ok(())
    };
    write().with_context(|| format!("cannot write `{}`", folder.display()))
}

/// Name and text of a man page. The synopsis of all flags, which `Man` writes, would fill a screen.
fn man_page(mut command: Command) -> io::Result<(String, String)> {
    let usage = command.render_usage().to_string();
    let man = Man::new(command).manual("stonechat");
    let mut page = Vec::new();
    man.render(&mut page)?;
    let mut page = String::from_utf8(page).map_err(io::Error::other)?;
    let start = page.find(".SH SYNOPSIS\n").map(|at| at + ".SH SYNOPSIS\n".len());
    if let (Some(start), Some(end)) = (start, page.find(".SH DESCRIPTION\n")) {
        page.replace_range(start..end, &format!("{}\n", usage.trim_start_matches("Usage: ")));
    }
    // Commands are copied: they are not filled, and elsewhere there are no hyphens and no stretched blanks.
    let page = page.replace(".SH EXTRA\nExamples:\n", ".SH EXAMPLES\n.nf\n");
    let title = page.find(".TH ").unwrap_or_default();
    let end = page[title..].find('\n').map_or(page.len(), |at| title + at);
    let (title, rest) = page.split_at(end);
    Ok((man.get_filename(), format!("{title}\n.nh\n.ad l{rest}{MORE}")))
}

/// Sections that every page has.
const MORE: &str = "\
.fi
.SH \"EXIT STATUS\"
.TP
0
Success.
.TP
1
An error, said in one line on standard error.
.TP
2
A usage error.
.TP
130
Interrupted by Ctrl\\-C.
.SH ENVIRONMENT
.TP
STONECHAT_SOME_FLAG
Value of \\fB\\-\\-some\\-flag\\fR, unless the command line has it.
.TP
STONECHAT_MODELS
Folder of installed models, as \\fB\\-\\-models\\-dir\\fR.
.TP
HF_HUB_CACHE, HF_HOME, HF_ENDPOINT, HF_TOKEN
Cache, address and access token of the Hugging Face hub.
.TP
NO_COLOR
Nothing is coloured.
.SH FILES
Below $XDG_CONFIG_HOME (~/.config), $XDG_CACHE_HOME (~/.cache) and $XDG_STATE_HOME (~/.local/state):
.TP
stonechat/config.toml
Configuration: flags as keys.
.TP
stonechat/models
Installed models.
.TP
stonechat/results
Records of transcripts, which tell what is up to date.
.TP
stonechat/kernels
Compiled kernels of GPUs.
.TP
stonechat/history
Lines of earlier chats.
";

/// Completes names of installed models, and those of language models of the catalog.
pub(super) fn language_names() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| names(current, |kind| kind == ModelKind::Language))
}

/// Completes names of installed models, and those of speech models of the catalog.
pub(super) fn speech_names() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| names(current, |kind| kind == ModelKind::Speech))
}

/// Completes output formats, also after a comma.
pub(super) fn output_formats() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let current = current.to_string_lossy();
        let (before, last) = current.rsplit_once(',').unwrap_or(("", &current));
        let before = if before.is_empty() { String::new() } else { format!("{before},") };
        let names = OutputFormat::ALL.iter().map(|format| format.name()).chain(["all"]);
        let fitting = names.filter(|name| name.starts_with(last));
        fitting.map(|name| CompletionCandidate::new(format!("{before}{name}"))).collect()
    })
}

/// Completes codes of languages, with their names as help.
pub(super) fn languages() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let current = current.to_string_lossy();
        let all = LANGUAGES.iter().map(|language| (language.code, language.name));
        let fitting = all.chain([("auto", "detect it")]).filter(|(code, name)| {
            code.starts_with(&*current) || (current.len() > 2 && name.starts_with(&*current))
        });
        let candidate = |(code, name): (&'static str, &'static str)| {
            let value = if code.starts_with(&*current) { code } else { name };
            CompletionCandidate::new(value).help(Some(name.into()))
        };
        fitting.map(candidate).collect()
    })
}

/// Completes names of installed models only.
pub(super) fn installed_names() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| installed(current))
}

fn installed(current: &OsStr) -> Vec<CompletionCandidate> {
    let current = current.to_string_lossy();
    let all = models().installed().unwrap_or_default().into_iter().map(|model| model.name);
    all.filter(|name| name.starts_with(&*current)).map(CompletionCandidate::new).collect()
}

/// Names that start with `current`: of installed models, and of models of the catalog of this kind.
pub(super) fn names(
    current: &OsStr,
    is_wanted: impl Fn(ModelKind) -> bool,
) -> Vec<CompletionCandidate> {
    // Names of the catalog tell the kind of a model, others do not.
    let fits = |candidate: &CompletionCandidate| {
        let name = candidate.get_value().to_string_lossy();
        CatalogEntry::find(&name).is_none_or(|entry| is_wanted(entry.kind))
    };
    let mut candidates = installed(current);
    candidates.retain(fits);
    let current = current.to_string_lossy();
    let catalog = CATALOG.iter().filter(|entry| is_wanted(entry.kind)).map(|entry| entry.name);
    let catalog = catalog.filter(|name| name.starts_with(&*current)).map(CompletionCandidate::new);
    for candidate in catalog {
        if candidates.iter().all(|known| known.get_value() != candidate.get_value()) {
            candidates.push(candidate);
        }
    }
    candidates
}
