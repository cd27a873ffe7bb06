//! `stonechat help-markdown`: the command line reference, `docs/cli.md`, from clap's definitions.

use std::fmt::Write;

use clap::{Arg, Command};

use super::console::wrap;

/// Maximum length of a line.
const WIDTH: usize = 120;

/// Prints the reference.
pub(super) fn run(command: Command) -> anyhow::Result<()> {
    Ok(super::print(&markdown(command)?)?)
}

fn markdown(mut command: Command) -> Result<String, std::fmt::Error> {
    command.build();
    let mut text = "# Command line\n\n".to_owned();
    paragraph(
        &mut text,
        "",
        "This file is generated: `cargo run -p stonechat-cli -- help-markdown > docs/cli.md`. \
         The exit code is 0 on success, 1 on an error, 2 on a usage error and 130 after Ctrl-C.",
    )?;
    text.push('\n');
    let verbs = |command: &Command| -> Vec<Command> {
        let shown = command.get_subcommands().filter(|verb| !verb.is_hide_set());
        shown.filter(|verb| verb.get_name() != "help").cloned().collect()
    };
    for verb in verbs(&command) {
        let name = verb.get_name();
        writeln!(text, "- [`{name}`](#stonechat-{name}): {}", about(&verb))?;
    }
    text.push_str("\n## Options of every verb\n\n");
    let is_shown = |arg: &&Arg| arg.is_global_set() && !arg.is_hide_set();
    for arg in command.get_arguments().filter(is_shown) {
        item(&mut text, arg)?;
    }
    for mut verb in verbs(&command) {
        section(&mut text, &mut verb)?;
    }
    Ok(text)
}

fn about(verb: &Command) -> String {
    verb.get_about().map(ToString::to_string).unwrap_or_default()
}

/// Writes the section of a verb: description, usage, examples, and a list of flags for each heading.
fn section(text: &mut String, verb: &mut Command) -> std::fmt::Result {
    write!(text, "\n## stonechat {}\n\n{}.\n", verb.get_name(), about(verb))?;
    let usage = verb.render_usage().to_string();
    write!(text, "\n```text\n{}\n```\n", usage.trim_start_matches("Usage: "))?;
    if let Some(examples) = verb.get_after_long_help() {
        let examples = examples.to_string();
        let lines = examples.lines().skip(1).map(|line| line.strip_prefix("  ").unwrap_or(line));
        write!(text, "\n```sh\n{}\n```\n", lines.collect::<Vec<_>>().join("\n"))?;
    }
    let mut groups: Vec<(&str, Vec<&Arg>)> = vec![("Arguments", vec![]), ("Options", vec![])];
    let is_own = |arg: &&Arg| !arg.is_hide_set() && !arg.is_global_set() && arg.get_id() != "help";
    for arg in verb.get_arguments().filter(is_own) {
        let default = if arg.is_positional() { "Arguments" } else { "Options" };
        let heading = arg.get_help_heading().unwrap_or(default);
        match groups.iter_mut().find(|(name, _)| *name == heading) {
            Some((_, args)) => args.push(arg),
            None => groups.push((heading, vec![arg])),
        }
    }
    for (heading, args) in groups.iter().filter(|(_, args)| !args.is_empty()) {
        write!(text, "\n### {heading}\n\n")?;
        for arg in args {
            item(text, arg)?;
        }
    }
    Ok(())
}

/// Writes the list item of an argument: its names and value, help, default and possible values.
fn item(text: &mut String, arg: &Arg) -> std::fmt::Result {
    let value: String = arg
        .get_value_names()
        .filter(|_| arg.is_positional() || arg.get_action().takes_values())
        .map(|names| names.iter().map(|name| format!(" <{name}>")).collect())
        .unwrap_or_default();
    let short = arg.get_short().map(|short| format!("-{short}"));
    let aliases = arg.get_visible_aliases().unwrap_or_default();
    let long = arg.get_long().into_iter().chain(aliases).map(|long| format!("--{long}"));
    let mut names: Vec<String> = short.into_iter().chain(long).collect();
    match names.last_mut() {
        Some(last) => last.push_str(&value),
        None => names.push(value.trim_start().to_owned()),
    }
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut paragraphs = help.split("\n\n").map(|paragraph| paragraph.replace('\n', " "));
    let mut first = format!("{}: {}", names.join(", "), paragraphs.next().unwrap_or_default());
    let defaults = arg.get_default_values().iter().map(|value| value.to_string_lossy());
    let defaults: Vec<_> = defaults.filter(|_| arg.get_action().takes_values()).collect();
    if !defaults.is_empty() {
        write!(first, " [default: `{}`]", defaults.join(","))?;
    }
    let values = arg.get_possible_values();
    let values: Vec<_> = values.iter().filter(|value| !value.is_hide_set()).collect();
    let is_bool = values.iter().all(|value| matches!(value.get_name(), "true" | "false"));
    if arg.get_action().takes_values() && !values.is_empty() && !is_bool {
        let values: Vec<_> = values.iter().map(|value| format!("`{}`", value.get_name())).collect();
        write!(first, " [values: {}]", values.join(", "))?;
    }
    paragraph(text, "- ", &first)?;
    paragraphs.try_for_each(|more| {
        text.push('\n');
        paragraph(text, "  ", &more)
    })
}

/// Writes a paragraph; lines after the first are indented by the width of `prefix`.
fn paragraph(text: &mut String, prefix: &str, words: &str) -> std::fmt::Result {
    writeln!(text, "{}", wrap(prefix, words, WIDTH))
}
