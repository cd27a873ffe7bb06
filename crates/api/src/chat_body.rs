//! Body of a chat request in OpenAI's format, and its conversion to a request of the library.
//!
//! Messages are checked and brought into the form that templates expect; the template's own needs (no system role,
//! content in parts) are met by [`ChatFormat::prompt`](stonechat::llm::ChatFormat::prompt).

use serde::Deserialize;
use serde_json::{Map, Value};
use stonechat::llm::chat::ToolChoice;
use stonechat::text::Conversation;
use stonechat::{ChatRequest, LlmInfo, ReasoningOptions};

use crate::chat_tools;
use crate::json::kind_of;
use crate::{ApiError, ApiResult};

/// Start of a line that Claude Code puts into the system prompt. It differs in every request, so that no prefix of two
/// requests would be equal.
const BILLING_LINE: &str = "x-anthropic-billing-header";

/// Roles of messages.
const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];

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
    /// llama-server: `auto` and `deepseek` return reasoning as `reasoning_content`, `none` leaves it in the content.
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
        self.reasoning_options()?;
        Ok(())
    }

    /// Tools that the answer may call. Without tools it calls none.
    fn tool_choice(&self) -> ApiResult<ToolChoice> {
        let choice = chat_tools::choice(self.tool_choice.as_ref(), "tool_choice")?;
        chat_tools::check(self.tools.as_deref().unwrap_or_default(), &choice)?;
        Ok(choice)
    }

    /// Options of reasoning from all fields that have them.
    fn reasoning_options(&self) -> ApiResult<ReasoningOptions> {
        let own = self.reasoning.clone().unwrap_or_default();
        let effort = self.reasoning_effort.clone().or(own.effort);
        let budget = self.reasoning_budget_tokens.or(own.max_tokens);
        let is_off = effort.as_deref() == Some("none");
        Ok(ReasoningOptions {
            enabled: self.enable_thinking.or(own.enabled).or(is_off.then_some(false)),
            effort: effort.filter(|_| !is_off),
            budget: budget.and_then(|n| usize::try_from(n).ok()),
            is_split: match self.reasoning_format.as_deref() {
                None | Some("auto" | "deepseek") => true,
                Some("none") => false,
                Some(other) => {
                    let expected = "`auto`, `deepseek` or `none`";
                    return Err(ApiError::field("reasoning_format", expected, other));
                }
            },
        })
    }

    /// Request for an answer, with default options.
    ///
    /// # Errors
    /// 400 if a message is invalid.
    pub(crate) fn request(mut self) -> ApiResult<ChatRequest> {
        if self.messages.is_empty() {
            return Err(ApiError::field("messages", "at least one message", "none"));
        }
        let messages = std::mem::take(&mut self.messages).into_iter().enumerate();
        let messages: Vec<Value> =
            messages.map(|(i, message)| checked(i, message)).collect::<ApiResult<_>>()?;
        let continues = self.continues(&messages)?;
        let (tool_choice, reasoning) = (self.tool_choice()?, self.reasoning_options()?);
        let variables = self.chat_template_kwargs.unwrap_or_default();
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
    pub(crate) fn n_tokens(self, model: &LlmInfo) -> ApiResult<usize> {
        let prompt = model.chat_prompt(&self.request()?)?;
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

/// A message as templates expect it: a known role, content as one string.
fn checked(index: usize, message: Value) -> ApiResult<Value> {
    let name = format!("messages[{index}]");
    let Value::Object(mut fields) = message else {
        return Err(ApiError::field(&name, "an object", kind_of(&message)));
    };
    let role = match fields.get("role") {
        Some(Value::String(role)) if !role.is_empty() => role.clone(),
        other => {
            let got = other.map_or("nothing", kind_of);
            return Err(ApiError::field(&format!("{name}.role"), "a string", got));
        }
    };
    if !ROLES.contains(&role.as_str()) {
        let expected = format!("`{}`", ROLES.join("`, `"));
        return Err(ApiError::field(&format!("{name}.role"), &expected, format!("`{role}`")));
    }
    let role = if role == "developer" { "system".to_owned() } else { role };
    let content = text_of(fields.get("content"), &format!("{name}.content"))?;
    let has_calls =
        fields.get("tool_calls").and_then(Value::as_array).is_some_and(|c| !c.is_empty());
    if content.is_none() && role != "assistant" && !fields.contains_key("content") {
        return Err(ApiError::field(&format!("{name}.content"), "a text", "nothing"));
    }
    if content.is_none() && role == "assistant" && !has_calls && !fields.contains_key("content") {
        let expected = "a text, or `tool_calls` beside it";
        return Err(ApiError::field(&format!("{name}.content"), expected, "nothing"));
    }
    let mut content = content.unwrap_or_default();
    if role == "system" {
        content = without_billing_line(content);
    }
    // vLLM and `OpenRouter` name it so; templates read DeepSeek's name.
    if let Some(reasoning) = fields.remove("reasoning").filter(Value::is_string) {
        fields.entry("reasoning_content").or_insert(reasoning);
    }
    fields.insert("role".to_owned(), role.into());
    fields.insert("content".to_owned(), content.into());
    Ok(Value::Object(fields))
}

/// Text of a message; parts of type `text` are joined by line breaks. `None` for null or no content.
fn text_of(content: Option<&Value>, name: &str) -> ApiResult<Option<String>> {
    match content {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Array(parts)) => {
            let texts =
                parts.iter().enumerate().map(|(i, part)| text_part(part, &format!("{name}[{i}]")));
            let texts: Vec<&str> = texts.collect::<ApiResult<_>>()?;
            Ok(Some(texts.join("\n")))
        }
        Some(other) => Err(ApiError::field(name, "a string or a list of parts", kind_of(other))),
    }
}

fn text_part<'a>(part: &'a Value, name: &str) -> ApiResult<&'a str> {
    match (part["type"].as_str(), &part["text"]) {
        (Some("text" | "input_text" | "output_text"), Value::String(text)) => Ok(text),
        (Some("text" | "input_text" | "output_text"), other) => {
            Err(ApiError::field(&format!("{name}.text"), "a string", kind_of(other)))
        }
        (Some(other), _) => {
            let got = format!(
                "`{other}`, which needs a model that sees or hears; recordings go to `/v1/audio/transcriptions`"
            );
            Err(ApiError::field(&format!("{name}.type"), "`text`", got))
        }
        (None, _) => {
            Err(ApiError::field(&format!("{name}.type"), "`text`", kind_of(&part["type"])))
        }
    }
}

/// Cuts the lines of Claude Code's billing header.
fn without_billing_line(text: String) -> String {
    if !text.contains(BILLING_LINE) {
        return text;
    }
    let is_kept = |line: &&str| !line.trim_start().starts_with(BILLING_LINE);
    text.split_inclusive('\n').filter(is_kept).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use stonechat::text::ChatTemplate;

    use super::{ChatBody, ChatRequest};

    fn body(value: Value) -> ChatBody {
        serde_json::from_value(value).unwrap()
    }

    fn request(value: Value) -> ChatRequest {
        body(value).request().unwrap()
    }

    fn messages(value: Value) -> Vec<Value> {
        request(json!({ "messages": value })).conversation.messages
    }

    #[track_caller]
    fn refused(value: Value, expected: &str) {
        let error = body(value).request().unwrap_err();
        assert_eq!((error.status(), error.message()), (400, expected));
    }

    /// Text with `ChatML`.
    fn rendered(value: Value) -> String {
        let template = ChatTemplate::builtin("chatml", "", "").unwrap();
        template.render(&request(value).conversation).unwrap()
    }

    #[test]
    fn messages_get_the_form_of_templates() {
        let got = messages(json!([
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": null, "tool_calls": [{"id": "1"}]},
            {"role": "tool", "tool_call_id": "1", "content": "7"},
        ]));
        let expected = json!([
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "a\nb"},
            {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]},
            {"role": "tool", "tool_call_id": "1", "content": "7"},
        ]);
        assert_eq!(Value::Array(got), expected);
    }

    #[test]
    fn invalid_messages_are_named() {
        refused(json!({"messages": []}), "`messages`: expected at least one message, got none");
        refused(json!({"messages": ["hi"]}), "`messages[0]`: expected an object, got a string");
        refused(
            json!({"messages": [{"content": "hi"}]}),
            "`messages[0].role`: expected a string, got nothing",
        );
        refused(
            json!({"messages": [{"role": "wizard", "content": "hi"}]}),
            "`messages[0].role`: expected `system`, `developer`, `user`, `assistant`, `tool`, `function`, got `wizard`",
        );
        refused(
            json!({"messages": [{"role": "user"}]}),
            "`messages[0].content`: expected a text, got nothing",
        );
        refused(
            json!({"messages": [{"role": "assistant"}]}),
            "`messages[0].content`: expected a text, or `tool_calls` beside it, got nothing",
        );
        refused(
            json!({"messages": [{"role": "user", "content": 7}]}),
            "`messages[0].content`: expected a string or a list of parts, got a number",
        );
        refused(
            json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
            "`messages[0].content[0].type`: expected `text`, got `image_url`, which needs a model that sees or hears; recordings go to `/v1/audio/transcriptions`",
        );
        refused(
            json!({"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
            "`messages[0].content[0].text`: expected a string, got null",
        );
    }

    #[test]
    fn the_billing_line_is_cut_from_system_messages_alone() {
        let line = "x-anthropic-billing-header: cc_version=2.1; cch=0a1b2;";
        let got = messages(json!([
            {"role": "system", "content": format!("{line}\nYou are Claude Code.\n")},
            {"role": "system", "content": [{"type": "text", "text": line}, {"type": "text", "text": "Second."}]},
            {"role": "user", "content": line},
        ]));
        assert_eq!(got[0]["content"], "You are Claude Code.\n");
        assert_eq!(got[1]["content"], "Second.");
        assert_eq!(got[2]["content"], line);
    }

    #[test]
    fn an_answer_begins_or_continues() {
        let user = json!({"role": "user", "content": "Hi"});
        let begin = "<|im_start|>user\nHi<|im_end|>\n";
        assert_eq!(
            rendered(json!({"messages": [user]})),
            format!("{begin}<|im_start|>assistant\n")
        );
        assert_eq!(rendered(json!({"messages": [user], "add_generation_prompt": false})), begin);
        let prefilled = json!([user, {"role": "assistant", "content": "Hello, "}]);
        let continued = format!("{begin}<|im_start|>assistant\nHello, ");
        // llama-server continues a last message of the assistant without being told.
        assert_eq!(rendered(json!({"messages": prefilled})), continued);
        assert_eq!(
            rendered(json!({"messages": prefilled, "continue_final_message": true})),
            continued
        );
        assert_eq!(
            rendered(json!({"messages": prefilled, "continue_final_message": false})),
            format!("{continued}<|im_end|>\n<|im_start|>assistant\n")
        );
        let empty = json!([user, {"role": "assistant", "content": ""}]);
        assert_eq!(rendered(json!({"messages": empty})), format!("{begin}<|im_start|>assistant\n"));
        refused(
            json!({"messages": [user], "continue_final_message": true}),
            "`continue_final_message`: expected a text of the assistant as the last message, got another message",
        );
        refused(
            json!({"messages": prefilled, "continue_final_message": true, "add_generation_prompt": true}),
            "`continue_final_message`: expected false with `add_generation_prompt`, got both true",
        );
    }

    #[test]
    fn variables_and_tools_reach_the_template() {
        let ChatRequest { conversation, .. } = request(json!({
            "messages": [{"role": "user", "content": "Hi"}],
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "chat_template_kwargs": {"enable_thinking": false},
        }));
        let tools = json!([{"type": "function", "function": {"name": "f"}}]);
        assert_eq!(conversation.tools, Some(tools));
        assert_eq!(conversation.variables["enable_thinking"], false);
    }

    #[test]
    fn what_a_chat_cannot_do_is_refused() {
        let checked = |fields: &Value| {
            let mut body = fields.clone();
            body["messages"] = json!([]);
            self::body(body).check_answer()
        };
        let tool = json!([{"type": "function", "function": {"name": "f"}}]);
        for fine in [
            json!({}),
            json!({"tools": [], "tool_choice": "auto", "functions": null}),
            json!({"tools": tool, "tool_choice": "none", "modalities": ["text"]}),
            json!({"tools": tool, "tool_choice": "required", "parallel_tool_calls": false}),
            json!({"reasoning_format": "deepseek", "reasoning_budget_tokens": -1}),
        ] {
            assert!(checked(&fine).is_ok(), "{fine}");
        }
        for (body, name) in [
            (json!({"tool_choice": "required"}), "tool_choice"),
            (json!({"functions": tool}), "functions"),
            (json!({"function_call": {"name": "f"}}), "function_call"),
            (json!({"modalities": ["text", "audio"]}), "modalities"),
            (json!({"web_search_options": {}}), "web_search_options"),
            (json!({"reasoning_format": "deepseek-legacy"}), "reasoning_format"),
        ] {
            let error = checked(&body).unwrap_err();
            assert!(error.message().starts_with(&format!("`{name}`: expected ")), "{error}");
        }
    }

    #[test]
    fn reasoning_has_one_meaning_under_all_its_names() {
        let reasoning = |mut fields: Value| {
            fields["messages"] = json!([{"role": "user", "content": "Hi"}]);
            request(fields).reasoning
        };
        let off = reasoning(json!({"reasoning_effort": "none"}));
        assert_eq!((off.enabled, off.effort), (Some(false), None));
        let low = reasoning(json!({"reasoning": {"effort": "low", "max_tokens": 9}}));
        assert_eq!((low.effort.as_deref(), low.budget), (Some("low"), Some(9)));
        assert_eq!(reasoning(json!({"thinking_budget_tokens": 0})).budget, Some(0));
        assert_eq!(reasoning(json!({"reasoning_budget_tokens": -1})).budget, None);
        assert!(!reasoning(json!({"reasoning_format": "none"})).is_split);
    }

    #[test]
    fn reasoning_of_earlier_answers_has_the_name_of_templates() {
        let got = messages(json!([{"role": "assistant", "content": "a", "reasoning": "r"}]));
        assert_eq!(got[0]["reasoning_content"], "r");
        assert!(got[0].get("reasoning").is_none());
    }
}
