//! Start of a grammar: with the text, or at a trigger (llama.cpp's lazy grammars).

use crate::Error;

/// Maximum triggers of a grammar.
const MAX_TRIGGERS: usize = 128;
/// Maximum bytes of the text of a trigger.
const MAX_TRIGGER_BYTES: usize = 1024;

/// Start of a grammar in a text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum GrammarStart {
    /// The first token.
    #[default]
    Immediately,
    /// The first trigger after which the grammar allows the text. All text before it is free, and may be the whole text.
    After(Vec<Trigger>),
    /// As [`After`](Self::After), and the text may not end before.
    Required(Vec<Trigger>),
}

/// Token or text that starts a grammar. It is the start of the grammar's text, or comes before it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trigger {
    /// A token.
    Token {
        /// The token.
        token: u32,
        /// Whether the grammar's text starts with it.
        is_included: bool,
    },
    /// A text, which tokens may split anywhere. Special tokens count as their names.
    Text {
        /// The text.
        text: String,
        /// Whether the grammar's text starts with it.
        is_included: bool,
    },
    /// A JSON object at the start of a line; the grammar's text starts with it.
    Object {
        /// Text that the object begins with, without white space, which does not count in the object.
        text: String,
    },
}

impl Trigger {
    /// A token that is the start of the grammar's text.
    #[must_use]
    pub fn token(token: u32) -> Self {
        Self::Token { token, is_included: true }
    }

    /// A text that is the start of the grammar's text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into(), is_included: true }
    }

    /// The same trigger before the grammar's text, for example the end of reasoning; an object stays as it is.
    #[must_use]
    pub fn excluded(self) -> Self {
        match self {
            Self::Token { token, .. } => Self::Token { token, is_included: false },
            Self::Text { text, .. } => Self::Text { text, is_included: false },
            Self::Object { text } => Self::Object { text },
        }
    }
}

impl GrammarStart {
    /// Triggers of the start; none if it is immediate.
    #[must_use]
    pub fn triggers(&self) -> &[Trigger] {
        match self {
            Self::Immediately => &[],
            Self::After(triggers) | Self::Required(triggers) => triggers,
        }
    }

    /// Checks the number of triggers and the lengths of their texts.
    ///
    /// # Errors
    /// [`Error::Grammar`] if there is none or there are too many, or a text is empty or too long.
    pub fn validate(&self) -> Result<(), Error> {
        let refused = |message| Err(Error::Grammar { kind: "triggers", message });
        let triggers = self.triggers();
        if *self != Self::Immediately && !(1..=MAX_TRIGGERS).contains(&triggers.len()) {
            return refused(format!("expected 1 to {MAX_TRIGGERS}, got {}", triggers.len()));
        }
        for trigger in triggers {
            if let Trigger::Text { text, .. } | Trigger::Object { text } = trigger
                && !(1..=MAX_TRIGGER_BYTES).contains(&text.len())
            {
                let expected = format!("expected a text of 1 to {MAX_TRIGGER_BYTES} bytes");
                return refused(format!("{expected}, got {}", text.len()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{GrammarStart, Trigger};

    #[test]
    fn triggers_are_bounded() {
        GrammarStart::Immediately.validate().unwrap();
        GrammarStart::Required(vec![Trigger::text("a"), Trigger::token(3)]).validate().unwrap();
        for (triggers, message) in [
            (Vec::new(), "expected 1 to 128, got 0"),
            (vec![Trigger::token(1); 129], "expected 1 to 128, got 129"),
            (vec![Trigger::text("")], "expected a text of 1 to 1024 bytes, got 0"),
            (vec![Trigger::text("x".repeat(1025))], "1024 bytes, got 1025"),
        ] {
            let error = GrammarStart::After(triggers).validate().unwrap_err().to_string();
            assert!(error.starts_with("triggers: ") && error.ends_with(message), "{error}");
        }
    }
}
