//! The flags of `-h`, which fits on a screen; `--help` has all of them.

use clap::Command;

/// Flags of a conversation, and of `generate`.
const MODEL_RUN: &[&str] = &[
    "n-predict",
    "ctx-size",
    "temp",
    "top-k",
    "top-p",
    "seed",
    "json-schema",
    "threads",
    "device",
    "gpu-layers",
    "verbose",
    "quiet",
];

/// Flags that `-h` of a verb shows beside those of [`MODEL_RUN`]; verbs that are not here show all flags.
const SHOWN: [(&str, &[&str]); 6] = [
    ("run", &["system-prompt", "think"]),
    ("chat", &["prompt", "system-prompt", "think", "model"]),
    ("generate", &["prompt", "file", "reverse-prompt", "json"]),
    ("serve", &["model", "alias", "host", "port", "api-key", "metrics"]),
    (
        "transcribe",
        &[
            "model",
            "language",
            "task",
            "output-format",
            "output-dir",
            "word-timestamps",
            "beam-size",
            "vad",
            "initial-prompt",
            "batch-size",
            "jobs",
        ],
    ),
    ("listen", &["model", "language", "task", "output-format", "format", "rate", "chunk", "vad"]),
];

/// Hides the other flags from `-h`.
pub(super) fn shorten(command: Command) -> Command {
    let hide = |command: Command, (verb, shown): &(&str, &[&str])| {
        command.mut_subcommand(verb, |verb| {
            verb.mut_args(|arg| {
                let is_shown = |long| shown.contains(&long) || MODEL_RUN.contains(&long);
                let is_hidden = arg.get_long().is_some_and(|long| !is_shown(long));
                if is_hidden { arg.hide_short_help(true) } else { arg }
            })
        })
    };
    SHOWN.iter().fold(command, hide)
}

#[cfg(test)]
mod tests {
    use super::{MODEL_RUN, SHOWN};

    /// Lines of a terminal.
    const SCREEN: usize = 40;

    #[test]
    fn short_help_of_every_verb_fits_on_a_screen() {
        let mut command = crate::command().term_width(100);
        command.build();
        for verb in command.get_subcommands_mut() {
            let help = verb.render_help().to_string();
            let n = help.lines().count();
            assert!(n <= SCREEN, "{}: {n} lines\n{help}", verb.get_name());
        }
    }

    #[test]
    fn shown_flags_exist() {
        let command = crate::command();
        for (verb, shown) in SHOWN {
            let verb = command.find_subcommand(verb).unwrap();
            let has = |name: &&str| verb.get_arguments().any(|arg| arg.get_long() == Some(name));
            for name in shown {
                assert!(has(name), "{}: --{name}", verb.get_name());
            }
        }
        let generate = command.find_subcommand("generate").unwrap();
        for name in MODEL_RUN {
            assert!(generate.get_arguments().any(|arg| arg.get_long() == Some(name)), "--{name}");
        }
    }
}
