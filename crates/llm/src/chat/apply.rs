//! Options of a text that is the answer to a conversation.

use super::{AnswerFormat, AnswerParser};
use crate::{Error, GenerateOptions, ModelInfo, ReasoningBudget};

impl AnswerFormat {
    /// Writes what the parser needs into the options of the answer, with `budget` tokens of reasoning at most. Returns the parser.
    ///
    /// # Errors
    /// If the answer needs a grammar of tool calls and has another one.
    pub fn apply(
        self,
        model: &ModelInfo,
        options: &mut GenerateOptions,
        budget: Option<usize>,
    ) -> Result<AnswerParser, Error> {
        let Self { parser, visible_special, end_tokens, grammar, reasoning } = self;
        options.visible_special.extend(visible_special);
        options.end_tokens.extend(end_tokens);
        if let Some(grammar) = grammar {
            if options.grammar.is_some() {
                let expected = "none beside the grammar of the answer".to_owned();
                return Err(Error::Option { option: "grammar", expected, got: "one".to_owned() });
            }
            options.grammar = Some(grammar.compiled);
            options.grammar_start = grammar.start;
        }
        options.reasoning = reasoning.map(|markers| {
            let end = markers.end.trim();
            ReasoningBudget {
                start: vec![markers.start.trim().to_owned()],
                end: vec![end.to_owned()],
                closing: model.tokenizer().tokenize(end, false, true),
                budget,
                starts_open: markers.is_open,
                ..ReasoningBudget::default()
            }
        });
        Ok(parser)
    }
}
