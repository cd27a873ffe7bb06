//! Reasoning before an answer: its flags, `/think`, and its folded or full display.

use std::time::Instant;

use console::{Term, style};

use crate::headings::INPUT;

/// Flags of reasoning.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct ThinkingArgs {
    /// Reasoning before an answer: on, off, or an effort such as low
    #[arg(
        long,
        value_name = "HOW",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "on",
        help_heading = INPUT
    )]
    think: Option<String>,
    /// Disable thinking of a reasoning model
    #[arg(long, conflicts_with = "think", help_heading = INPUT)]
    no_think: bool,
    /// Print the reasoning instead of folding it into a line
    #[arg(long, help_heading = INPUT)]
    show_thinking: bool,
    /// Maximum tokens of reasoning; -1: no limit
    #[arg(long, value_name = "N", allow_negative_numbers = true, help_heading = INPUT)]
    reasoning_budget: Option<i64>,
}

/// Reasoning of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Thinking {
    /// Whether the model reasons; `None`: as its template has it.
    pub(super) enabled: Option<bool>,
    /// Effort, a word of the template.
    pub(super) effort: Option<String>,
    /// Maximum tokens.
    pub(super) budget: Option<usize>,
    is_shown: bool,
}

impl Thinking {
    pub(super) fn new(args: &ThinkingArgs) -> Self {
        let (enabled, effort) = (args.no_think.then_some(false), None);
        let budget = args.reasoning_budget.and_then(|n| usize::try_from(n).ok());
        let mut thinking = Self { enabled, effort, budget, is_shown: args.show_thinking };
        if let Some(think) = &args.think {
            thinking.set(think);
        }
        thinking
    }

    /// Applies the argument of `--think` or `/think`.
    pub(super) fn set(&mut self, how: &str) {
        match how {
            "" | "on" | "true" => (self.enabled, self.effort) = (Some(true), None),
            "off" | "false" | "none" => (self.enabled, self.effort) = (Some(false), None),
            "show" => self.is_shown = true,
            "hide" => self.is_shown = false,
            effort => (self.enabled, self.effort) = (Some(true), Some(effort.to_owned())),
        }
    }

    /// Setting as a text.
    pub(super) fn describe(&self) -> String {
        let how = match (self.enabled, &self.effort) {
            (_, Some(effort)) => effort,
            (Some(true), None) => "on",
            (Some(false), None) => "off",
            (None, None) => "as the model has it",
        };
        let display = if self.is_shown { "shown" } else { "folded" };
        format!("thinking: {how}, {display} (/think on, off, an effort, show or hide)")
    }

    /// Display of the reasoning of one answer on standard output.
    pub(super) fn view(&self) -> View {
        View { is_shown: self.is_shown, is_terminal: Term::stdout().is_term(), started: None }
    }
}

/// Display of the reasoning of one answer. A pipe gets it only if it is shown.
#[derive(Debug)]
pub(super) struct View {
    is_shown: bool,
    is_terminal: bool,
    /// Start of reasoning that goes on.
    started: Option<Instant>,
}

impl View {
    /// Text to print for a part of the reasoning.
    pub(super) fn push(&mut self, text: &str) -> String {
        let is_first = self.started.is_none();
        self.started.get_or_insert_with(Instant::now);
        match (self.is_shown, self.is_terminal) {
            (true, true) => style(text).dim().to_string(),
            (true, false) => text.to_owned(),
            (false, true) if is_first => style("Thinking…").dim().to_string(),
            (false, _) => String::new(),
        }
    }

    /// Text to print where the reasoning ends, if there was any.
    pub(super) fn end(&mut self) -> String {
        let Some(started) = self.started.take() else { return String::new() };
        match (self.is_shown, self.is_terminal) {
            (true, _) => "\n\n".to_owned(),
            (false, true) => {
                let seconds = started.elapsed().as_secs_f64();
                let line = style(format!("Thought for {seconds:.1} s")).dim();
                format!("\r\x1b[2K{line}\n")
            }
            (false, false) => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Thinking, ThinkingArgs, View};

    #[test]
    fn one_word_sets_the_reasoning() {
        let mut thinking = Thinking::new(&ThinkingArgs::default());
        assert_eq!((thinking.enabled, thinking.is_shown), (None, false));
        thinking.set("high");
        assert_eq!((thinking.enabled, thinking.effort.as_deref()), (Some(true), Some("high")));
        thinking.set("off");
        assert_eq!((thinking.enabled, thinking.effort.as_deref()), (Some(false), None));
        thinking.set("show");
        assert!(thinking.is_shown && thinking.describe().starts_with("thinking: off, shown"));
    }

    #[test]
    fn a_pipe_gets_no_folded_reasoning() {
        let mut view = View { is_shown: false, is_terminal: false, started: None };
        assert_eq!(view.push("so") + &view.push("…") + &view.end(), "");
        let mut view = View { is_shown: true, is_terminal: false, started: None };
        assert_eq!(view.push("so") + &view.push("…") + &view.end() + &view.end(), "so…\n\n");
        let mut view = View { is_shown: false, is_terminal: true, started: None };
        assert!(view.push("so").contains("Thinking"));
        assert_eq!(view.push("…"), "");
        assert!(view.end().contains("Thought for 0.0 s"));
    }
}
