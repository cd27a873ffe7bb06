//! Body of a chat request in OpenAI's format, and its conversion to a request of the library.
//!
//! Messages are checked and brought into the form that templates expect; the template's own needs (no system role,
//! content in parts) are met by [`ChatFormat::prompt`](stonechat::llm::ChatFormat::prompt).

use serde::Deserialize;
use serde_json::{Map, Value};
use stonechat::llm::chat::ToolChoice;
use stonechat::text::Conversation;
use stonechat::{ChatRequest, LlmInfo, ReasoningOptions};

use crate::json::kind_of;
use crate::reasoning::{ChatDefaults, ReasoningFormat};
use crate::{ApiError, ApiResult, chat_messages, chat_tools};

/// Fields of a chat request that make its prompt.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ChatBody {
    /// Messages of OpenAI's chat API.
    #[cfg_attr(feature = "schema", schema(value_type = Vec<Object>))]
    pub(crate) messages: Vec<Value>,
    /// Definitions of tools.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Vec<Object>>))]
    pub(crate) tools: Option<Vec<Value>>,
    /// Documents, for templates of retrieval.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Vec<Object>>))]
    pub(crate) documents: Option<Vec<Value>>,
    /// Further variables of the template, such as `enable_thinking`.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub(crate) chat_template_kwargs: Option<Map<String, Value>>,
    /// Effort of reasoning, a variable of some templates; `none` turns it off.
    #[serde(default)]
    pub(crate) reasoning_effort: Option<String>,
    /// `OpenRouter`'s object: `effort`, `max_tokens`, `enabled`, `exclude`.
    #[serde(default)]
    pub(crate) reasoning: Option<ReasoningFields>,
    /// llama-server: `auto` and `deepseek` return reasoning as `reasoning_content`, `none` leaves it in the content,
    /// `deepseek-legacy` leaves it in that of a stream.
    #[serde(default)]
    pub(crate) reasoning_format: Option<String>,
    /// llama-server: maximum tokens of reasoning; -1: no limit, 0: none.
    #[serde(default, alias = "thinking_budget_tokens", alias = "reasoning_budget")]
    pub(crate) reasoning_budget_tokens: Option<i64>,
    /// Whether the model reasons, if its template lets it choose.
    #[serde(default)]
    pub(crate) enable_thinking: Option<bool>,
    /// Tools that the answer may call: `none`, `auto`, `required`, or a function.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub(crate) tool_choice: Option<Value>,
    /// Whether the answer may call several tools; default true.
    #[serde(default)]
    pub(crate) parallel_tool_calls: Option<bool>,
    /// Whether the prompt ends where the answer begins; default true.
    #[serde(default)]
    pub(crate) add_generation_prompt: Option<bool>,
    /// Whether the answer continues the last message; default: true if it is the assistant's.
    #[serde(default)]
    pub(crate) continue_final_message: Option<bool>,
    /// OpenAI's fields that must be empty.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(ignore))]
    functions: Value,
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(ignore))]
    function_call: Value,
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(ignore))]
    audio: Value,
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(ignore))]
    web_search_options: Value,
    /// Kinds of output; only `text` is supported.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(ignore))]
    modalities: Value,
}

/// `reasoning` of `OpenRouter`. `exclude` has no effect: reasoning is a field of its own, which a client may skip.
#[derive(Debug, Clone, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ReasoningFields {
    /// `none`, `minimal`, `low`, `medium`, `high`, as far as the template knows them.
    #[serde(default)]
    pub(crate) effort: Option<String>,
    /// Maximum tokens.
    #[serde(default)]
    pub(crate) max_tokens: Option<i64>,
    /// Whether the model reasons.
    #[serde(default)]
    pub(crate) enabled: Option<bool>,
}

impl ChatBody {
    /// Refuses what an answer cannot have: other output than text, a search of the web, calls in OpenAI's form of 2023.
    ///
    /// # Errors
    /// 400 with the field.
    pub(crate) fn check_answer(&self) -> ApiResult<()> {
        for (name, value) in
            [("functions", &self.functions), ("function_call", &self.function_call)]
        {
            let is_none = is_empty(value) || value == "none" || value == "auto";
            if !is_none {
                return Err(ApiError::field(name, "none: `tools` has their place", kind_of(value)));
            }
        }
        let outputs = self.modalities.as_array().into_iter().flatten();
        if let Some(other) = outputs.into_iter().find(|output| *output != "text") {
            return Err(ApiError::field("modalities", "`text` alone", other));
        }
        for (name, value) in
            [("audio", &self.audio), ("web_search_options", &self.web_search_options)]
        {
            if !value.is_null() {
                return Err(ApiError::field(name, "none: it is not supported", kind_of(value)));
            }
        }
        self.tool_choice()?;
        self.reasoning_format()?;
        Ok(())
    }

    /// Tools that the answer may call. Without tools it calls none.
    fn tool_choice(&self) -> ApiResult<ToolChoice> {
        let choice = chat_tools::choice(self.tool_choice.as_ref(), "tool_choice")?;
        chat_tools::check(self.tools.as_deref().unwrap_or_default(), &choice)?;
        Ok(choice)
    }

    /// Place of the reasoning, if the body says it.
    fn reasoning_format(&self) -> ApiResult<Option<ReasoningFormat>> {
        let Some(name) = self.reasoning_format.as_deref() else { return Ok(None) };
        let error = |_| ApiError::field("reasoning_format", ReasoningFormat::NAMES, name);
        name.parse().map(Some).map_err(error)
    }

    /// Options of reasoning from all fields that have them, else from `defaults`.
    fn reasoning_options(
        &self,
        defaults: &ChatDefaults,
        is_stream: bool,
    ) -> ApiResult<ReasoningOptions> {
        let own = self.reasoning.clone().unwrap_or_default();
        let effort = self.reasoning_effort.clone().or(own.effort);
        let is_off = effort.as_deref() == Some("none");
        let enabled = self.enable_thinking.or(own.enabled).or(is_off.then_some(false));
        // A request with an effort wants reasoning.
        let default = defaults.thinking.filter(|is_on| *is_on || effort.is_none());
        let budget = self.reasoning_budget_tokens.or(own.max_tokens);
        let format = self.reasoning_format()?.unwrap_or(defaults.reasoning_format);
        Ok(ReasoningOptions {
            enabled: enabled.or(default),
            effort: effort.filter(|_| !is_off),
            budget: match budget {
                Some(n) => usize::try_from(n).ok(),
                None => defaults.reasoning_budget,
            },
            is_split: format.is_split(is_stream),
        })
    }

    /// Request for an answer, in a stream or in one piece, with default options of generation.
    ///
    /// # Errors
    /// 400 if a message is invalid.
    pub(crate) fn request(
        mut self,
        defaults: &ChatDefaults,
        is_stream: bool,
    ) -> ApiResult<ChatRequest> {
        if self.messages.is_empty() {
            return Err(ApiError::field("messages", "at least one message", "none"));
        }
        let messages = std::mem::take(&mut self.messages).into_iter().enumerate();
        let messages: Vec<Value> =
            messages.map(|(i, it)| chat_messages::checked(i, it)).collect::<ApiResult<_>>()?;
        let continues = self.continues(&messages)?;
        let tool_choice = self.tool_choice()?;
        let reasoning = self.reasoning_options(defaults, is_stream)?;
        let mut variables = self.chat_template_kwargs.unwrap_or_default();
        for (name, value) in &defaults.variables {
            variables.entry(name.as_str()).or_insert_with(|| value.clone());
        }
        let tools = self.tools.filter(|_| tool_choice != ToolChoice::None);
        let list = |values: Option<Vec<Value>>| {
            values.filter(|values| !values.is_empty()).map(Value::Array)
        };
        let conversation = Conversation {
            messages,
            tools: list(tools),
            documents: list(self.documents),
            add_generation_prompt: !continues && self.add_generation_prompt.unwrap_or(true),
            continues,
            now: None,
            variables,
        };
        Ok(ChatRequest {
            conversation,
            tool_choice,
            parallel_tool_calls: self.parallel_tool_calls.unwrap_or(true),
            reasoning,
            ..ChatRequest::default()
        })
    }

    /// Number of tokens of the prompt.
    ///
    /// # Errors
    /// 400 if a message is invalid, or the template refuses it.
    pub(crate) fn n_tokens(self, model: &LlmInfo, defaults: &ChatDefaults) -> ApiResult<usize> {
        let prompt = model.chat_prompt(&self.request(defaults, false)?)?;
        Ok(model.model.tokenize_marked_chat(&prompt).len())
    }

    /// Whether the answer continues the last message: the assistant's, without calls of tools.
    fn continues(&self, messages: &[Value]) -> ApiResult<bool> {
        let last = messages.last().filter(|last| {
            last["role"] == "assistant" && last.get("tool_calls").is_none_or(is_empty)
        });
        let can = last.is_some_and(|last| last["content"].is_string());
        match (self.continue_final_message, can) {
            (Some(true), false) => {
                let expected = "a text of the assistant as the last message";
                Err(ApiError::field("continue_final_message", expected, "another message"))
            }
            (Some(true), true) if self.add_generation_prompt == Some(true) => Err(ApiError::field(
                "continue_final_message",
                "false with `add_generation_prompt`",
                "both true",
            )),
            (None, true) => Ok(self.add_generation_prompt != Some(true)),
            (wanted, can) => Ok(can && wanted == Some(true)),
        }
    }
}

/// Whether a value is null or an empty list.
fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(Vec::is_empty)
}

#[cfg(test)]
mod tests;
