//! Reasoning and template variables of requests to `stonechat serve` that do not say otherwise.

use clap::builder::PossibleValuesParser;
use serde_json::{Map, Value};
use stonechat_server::{ChatDefaults, ReasoningFormat};

/// Reasoning and template variables of chats that do not say otherwise.
#[derive(Debug, clap::Args)]
pub(super) struct ChatDefaultArgs {
    /// Default variables of the chat template, a JSON object
    ///
    /// Such as `{"reasoning_effort": "low"}`. Those of a request's `chat_template_kwargs` win.
    #[arg(long, value_name = "JSON", value_parser = json_object)]
    chat_template_kwargs: Option<Map<String, Value>>,
    /// Default of reasoning; auto: as the chat template has it
    #[arg(
        long,
        value_name = "HOW",
        default_value = "auto",
        value_parser = PossibleValuesParser::new(["on", "off", "auto"])
    )]
    reasoning: String,
    /// Default maximum of tokens of reasoning; -1 is no limit
    #[arg(long, value_name = "N", default_value_t = -1, allow_negative_numbers = true)]
    reasoning_budget: i64,
    /// Place of the reasoning: auto, deepseek, deepseek-legacy or none
    ///
    /// `auto` and `deepseek` are a field of its own, `none` is the content, `deepseek-legacy` is the content of streams
    /// alone.
    #[arg(long, value_name = "FORMAT", default_value = "auto")]
    reasoning_format: ReasoningFormat,
}

impl ChatDefaultArgs {
    /// Values of fields that a request leaves out.
    pub(super) fn defaults(&self) -> ChatDefaults {
        ChatDefaults {
            thinking: match self.reasoning.as_str() {
                "on" => Some(true),
                "off" => Some(false),
                _ => None,
            },
            reasoning_budget: usize::try_from(self.reasoning_budget).ok(),
            reasoning_format: self.reasoning_format,
            variables: self.chat_template_kwargs.clone().unwrap_or_default(),
        }
    }
}

fn json_object(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|error| format!("expected a JSON object: {error}"))
}
