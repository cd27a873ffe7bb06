//! From the body of a chat request to the text and the tokens of its prompt.
//!
//! Messages are checked and brought into the form that templates expect; the template's own needs (no system role,
//! content in parts) are met by [`ChatFormat::render`](stonechat::llm::ChatFormat::render).

use serde::Deserialize;
use serde_json::{Map, Value};
use stonechat::text::Conversation;

use crate::{ApiError, ApiResult, LanguageModel};

/// Start of a line that Claude Code puts into the system prompt. It differs in every request, so that no prefix of two
/// requests would be equal.
const BILLING_LINE: &str = "x-anthropic-billing-header";

/// Roles of messages.
const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];

/// Fields of a chat request that make its prompt. A body with more fields has these in it (`#[serde(flatten)]`).
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
pub struct ChatBody {
    /// Messages of OpenAI's chat API.
    #[cfg_attr(test, schema(value_type = Vec<Object>))]
    pub messages: Vec<Value>,
    /// Definitions of tools.
    #[serde(default)]
    #[cfg_attr(test, schema(value_type = Option<Vec<Object>>))]
    pub tools: Option<Vec<Value>>,
    /// Documents, for templates of retrieval.
    #[serde(default)]
    #[cfg_attr(test, schema(value_type = Option<Vec<Object>>))]
    pub documents: Option<Vec<Value>>,
    /// Further variables of the template, such as `enable_thinking`.
    #[serde(default)]
    #[cfg_attr(test, schema(value_type = Option<Object>))]
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Effort of reasoning, a variable of templates that know it.
    #[serde(default)]
    pub reasoning_effort: Option<String>,
    /// Whether the prompt ends where the answer begins; default true.
    #[serde(default)]
    pub add_generation_prompt: Option<bool>,
    /// Whether the answer continues the last message, of the assistant; default true if that is the last one.
    #[serde(default)]
    pub continue_final_message: Option<bool>,
}

/// Prompt of a chat request.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChatPrompt {
    /// Rendered text.
    pub text: String,
    /// Tokens, with BOS if the model has it.
    pub tokens: Vec<u32>,
    /// Whether the answer continues the last message.
    pub continues: bool,
    /// Stop string of the template, beside those of the request.
    pub stop: Option<&'static str>,
}

impl ChatPrompt {
    /// Renders and tokenizes a request. On a runtime with several threads the others go on meanwhile.
    ///
    /// # Errors
    /// 400 if a message is invalid, or the template refuses the conversation.
    pub fn new(model: &LanguageModel, body: &ChatBody) -> ApiResult<Self> {
        blocking(|| {
            let (conversation, continues) = conversation(body)?;
            let prompt = model.format.prompt(&conversation, continues)?;
            Ok(Self {
                text: prompt.text(),
                tokens: model.llm.info().model.tokenize_marked_chat(&prompt),
                continues,
                stop: model.format.stop(),
            })
        })
    }
}

/// Runs work that takes milliseconds so that other tasks of the runtime need not wait.
pub(crate) fn blocking<R>(work: impl FnOnce() -> R) -> R {
    use tokio::runtime::{Handle, RuntimeFlavor};
    let flavor = Handle::try_current().map(|handle| handle.runtime_flavor());
    match flavor {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

/// Conversation of a request, and whether the answer continues its last message.
fn conversation(body: &ChatBody) -> ApiResult<(Conversation, bool)> {
    if body.messages.is_empty() {
        return Err(ApiError::field("messages", "at least one message", "none"));
    }
    let messages = body.messages.iter().enumerate();
    let messages: Vec<Value> =
        messages.map(|(i, message)| checked(i, message)).collect::<ApiResult<_>>()?;
    let continues = continues(body, &messages)?;
    let mut variables = body.chat_template_kwargs.clone().unwrap_or_default();
    if let Some(effort) = &body.reasoning_effort {
        variables.entry("reasoning_effort").or_insert_with(|| effort.as_str().into());
    }
    let list = |values: &Option<Vec<Value>>| {
        values
            .as_ref()
            .filter(|values| !values.is_empty())
            .map(|values| Value::Array(values.clone()))
    };
    let conversation = Conversation {
        messages,
        tools: list(&body.tools),
        documents: list(&body.documents),
        add_generation_prompt: !continues && body.add_generation_prompt.unwrap_or(true),
        now: None,
        variables,
    };
    Ok((conversation, continues))
}

/// Whether the answer continues the last message: the assistant's, without calls of tools.
fn continues(body: &ChatBody, messages: &[Value]) -> ApiResult<bool> {
    let last = messages.last().filter(|last| {
        last["role"] == "assistant"
            && last.get("tool_calls").is_none_or(|calls| calls == &Value::Array(Vec::new()))
    });
    let can = last.is_some_and(|last| last["content"].is_string());
    match (body.continue_final_message, can) {
        (Some(true), false) => {
            let expected = "a text of the assistant as the last message";
            Err(ApiError::field("continue_final_message", expected, "another message"))
        }
        (Some(true), true) if body.add_generation_prompt == Some(true) => Err(ApiError::field(
            "continue_final_message",
            "false with `add_generation_prompt`",
            "both true",
        )),
        (None, true) => Ok(body.add_generation_prompt != Some(true)),
        (wanted, can) => Ok(can && wanted == Some(true)),
    }
}

/// A message as templates expect it: a known role, content as one string.
fn checked(index: usize, message: &Value) -> ApiResult<Value> {
    let name = format!("messages[{index}]");
    let Value::Object(fields) = message else {
        return Err(ApiError::field(&name, "an object", kind_of(message)));
    };
    let mut fields = fields.clone();
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
            let got = format!("`{other}`, which this model cannot read");
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

/// Kind of a JSON value, for messages.
pub(crate) fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use stonechat::text::ChatTemplate;

    use super::{ChatBody, conversation};

    fn body(value: Value) -> ChatBody {
        serde_json::from_value(value).unwrap()
    }

    fn messages(value: Value) -> Vec<Value> {
        conversation(&body(json!({ "messages": value }))).unwrap().0.messages
    }

    #[track_caller]
    fn refused(value: Value, expected: &str) {
        let error = conversation(&body(value)).unwrap_err();
        assert_eq!((error.status().as_u16(), error.message()), (400, expected));
    }

    /// Text with `ChatML`.
    fn rendered(value: Value) -> String {
        let template = ChatTemplate::builtin("chatml", "", "").unwrap();
        let (conversation, continues) = conversation(&body(value)).unwrap();
        match continues {
            true => template.render_continued(&conversation).unwrap(),
            false => template.render(&conversation).unwrap(),
        }
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
            "`messages[0].content[0].type`: expected `text`, got `image_url`, which this model cannot read",
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
        let (conversation, _) = conversation(&body(json!({
            "messages": [{"role": "user", "content": "Hi"}],
            "tools": [{"type": "function"}],
            "chat_template_kwargs": {"enable_thinking": false},
            "reasoning_effort": "low",
        })))
        .unwrap();
        assert_eq!(conversation.tools, Some(json!([{"type": "function"}])));
        assert_eq!(conversation.variables["enable_thinking"], false);
        assert_eq!(conversation.variables["reasoning_effort"], "low");
    }
}
