//! Lines of a conversation: from an editor on a terminal, else from standard input.

use std::fs;
use std::io::{self, BufRead, IsTerminal};
use std::path::PathBuf;

use anyhow::Context as _;
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{
    Cmd, Config, Context, Editor, Event, EventHandler, Helper, KeyCode, KeyEvent, Modifiers,
};

use super::commands::COMMANDS;
use crate::find_model::models;

/// Encloses a message of several lines.
const QUOTES: &str = "\"\"\"";
/// Entries of the history file.
const HISTORY_SIZE: usize = 1000;

/// Source of the lines.
#[expect(clippy::large_enum_variant, reason = "there is one")]
pub(super) enum Prompt {
    Terminal { editor: Editor<LineHelper, FileHistory>, history: Option<PathBuf> },
    Pipe,
}

/// A line, or why there is none.
#[derive(Debug)]
pub(super) enum Line {
    Text(String),
    /// Ctrl-C on the prompt.
    Interrupted,
    /// End of the input, or Ctrl-D.
    End,
}

impl Prompt {
    /// Editor with the history of earlier conversations if standard input is a terminal.
    pub(super) fn open() -> anyhow::Result<Self> {
        if !io::stdin().is_terminal() {
            return Ok(Self::Pipe);
        }
        let config = Config::builder().max_history_size(HISTORY_SIZE)?.history_ignore_dups(true)?;
        let mut editor = Editor::with_config(config.auto_add_history(false).build())?;
        editor.set_helper(Some(LineHelper));
        for modifiers in [Modifiers::ALT, Modifiers::SHIFT] {
            let key = Event::from(KeyEvent(KeyCode::Enter, modifiers));
            editor.bind_sequence(key, EventHandler::Simple(Cmd::Newline));
        }
        let history = history_file();
        // The first conversation has no history file.
        let _ = history.as_ref().map(|path| editor.load_history(path));
        Ok(Self::Terminal { editor, history })
    }

    pub(super) fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminal { .. })
    }

    /// Reads a message or a command.
    pub(super) fn read(&mut self) -> anyhow::Result<Line> {
        let Self::Terminal { editor, history } = self else {
            let mut line = String::new();
            let n =
                io::stdin().lock().read_line(&mut line).context("cannot read standard input")?;
            return Ok(if n == 0 { Line::End } else { Line::Text(line.trim().to_owned()) });
        };
        match editor.readline("> ") {
            Ok(line) if line.trim().is_empty() => Ok(Line::Text(String::new())),
            Ok(line) => {
                editor.add_history_entry(line.as_str())?;
                if let Some(path) = history {
                    // A missing history file does not end the conversation.
                    let _ = path.parent().map(fs::create_dir_all);
                    let _ = editor.append_history(path);
                }
                Ok(Line::Text(message(&line)))
            }
            Err(ReadlineError::Interrupted) => Ok(Line::Interrupted),
            Err(ReadlineError::Eof) => Ok(Line::End),
            Err(error) => Err(error).context("cannot read from the terminal"),
        }
    }
}

/// `stonechat/history` in the platform's folder for state.
fn history_file() -> Option<PathBuf> {
    let folder = dirs::state_dir().or_else(dirs::data_local_dir)?;
    Some(folder.join("stonechat").join("history"))
}

/// The message in an edited text: without `"""` around it, and with line breaks for `\` at the end of a line.
fn message(text: &str) -> String {
    let text = text.trim();
    let inner = text.strip_prefix(QUOTES).and_then(|text| text.strip_suffix(QUOTES));
    inner.map_or_else(|| text.replace("\\\n", "\n"), |inner| inner.trim_matches('\n').to_owned())
}

/// Tells if a message continues on the next line.
fn is_incomplete(text: &str) -> bool {
    text.ends_with('\\') || text.matches(QUOTES).count() % 2 == 1
}

/// Completion and continuation lines of the editor.
#[derive(Debug)]
pub(super) struct LineHelper;

impl Completer for LineHelper {
    type Candidate = String;

    /// Completes commands, and names of models after `/model`.
    fn complete(
        &self,
        line: &str,
        position: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        let line = &line[..position];
        if let Some(name) = line.strip_prefix("/model ") {
            let all = models().installed().unwrap_or_default().into_iter().map(|model| model.name);
            return Ok(("/model ".len(), all.filter(|model| model.starts_with(name)).collect()));
        }
        let names = COMMANDS.iter().map(|(name, ..)| (*name).to_owned());
        let is_command = line.starts_with('/');
        Ok((0, names.filter(|name| is_command && name.starts_with(line)).collect()))
    }
}

impl Validator for LineHelper {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(match is_incomplete(context.input()) {
            true => ValidationResult::Incomplete,
            false => ValidationResult::Valid(None),
        })
    }
}

impl Hinter for LineHelper {
    type Hint = String;
}

impl Highlighter for LineHelper {}

impl Helper for LineHelper {}

#[cfg(test)]
mod tests {
    use super::{is_incomplete, message};

    #[test]
    fn messages_have_several_lines() {
        assert!(is_incomplete("\"\"\"one"));
        assert!(is_incomplete("one\\"));
        assert!(!is_incomplete("\"\"\"one\ntwo\"\"\""));
        assert_eq!(message("\"\"\"\none\ntwo\n\"\"\""), "one\ntwo");
        assert_eq!(message("one\\\ntwo"), "one\ntwo");
        assert_eq!(message(" one "), "one");
    }
}
