//! `/api/chat`.

use std::collections::VecDeque;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::answer::{Lines, Route};
use super::fields::{Fields, images};
use crate::chat_answer::{ChatContext, ChatDialect, ChatWriter};
use crate::json::kind_of;
use crate::{ApiError, ApiResult, chat_messages};

/// Fields of `/api/chat` beside those of a chat: none.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub struct OllamaChat {}

impl ChatDialect for OllamaChat {
    fn adapt(body: &mut Map<String, Value>) -> ApiResult<()> {
        let mut fields = Fields::new(body);
        fields.common(body)?;
        let messages = fields.take("messages").unwrap_or_default();
        body.insert("messages".to_owned(), self::messages(messages)?);
        body.extend(fields.take("tools").map(|tools| ("tools".to_owned(), tools)));
        Ok(())
    }

    fn ignores_unknown() -> bool {
        true
    }

    fn writer(self, context: &ChatContext<'_>) -> ApiResult<Box<dyn ChatWriter>> {
        let ChatContext { model, fields, .. } = *context;
        let probs = fields.chat_probs()?.map(|n| fields.prob_fields(n));
        Ok(Box::new(Lines::new(model.name, Route::Chat).with_probs(model, probs)))
    }
}

/// Messages of a chat: calls get the identifiers that their results name.
fn messages(messages: Value) -> ApiResult<Value> {
    let Value::Array(mut messages) = messages else {
        return Err(ApiError::field("messages", "a list of messages", kind_of(&messages)));
    };
    let (mut n_calls, mut open) = (0, VecDeque::new());
    for (index, message) in messages.iter_mut().enumerate() {
        let name = format!("messages[{index}]");
        let Value::Object(fields) = message else {
            return Err(ApiError::field(&name, "an object", kind_of(message)));
        };
        images(fields.remove("images").as_ref(), &format!("{name}.images"))?;
        // Ollama reads a message without content as an empty one.
        fields.entry("content").or_insert_with(|| "".into());
        if let Some(thinking) = fields.remove("thinking").filter(Value::is_string) {
            fields.insert("reasoning_content".to_owned(), thinking);
        }
        match fields.remove("tool_calls") {
            None | Some(Value::Null) => {}
            Some(Value::Array(calls)) => {
                open.clear();
                let mut known = Vec::with_capacity(calls.len());
                for (i, call) in calls.into_iter().enumerate() {
                    let call = self::call(call, n_calls, &format!("{name}.tool_calls[{i}]"))?;
                    n_calls += 1;
                    open.push_back((call["id"].clone(), call["function"]["name"].clone()));
                    known.push(call);
                }
                fields.insert("tool_calls".to_owned(), known.into());
            }
            Some(other) => {
                let name = format!("{name}.tool_calls");
                return Err(ApiError::field(&name, "a list of calls", kind_of(&other)));
            }
        }
        if fields.get("role").is_some_and(|role| role == "tool") {
            result(fields, &mut open);
        }
    }
    Ok(Value::Array(messages))
}

/// Call of a tool, whose arguments are an object, as OpenAI's.
fn call(call: Value, number: usize, name: &str) -> ApiResult<Value> {
    let function = &call["function"];
    let Some(tool) = function["name"].as_str() else {
        let got = kind_of(&function["name"]);
        return Err(ApiError::field(&format!("{name}.function.name"), "a string", got));
    };
    let arguments = match &function["arguments"] {
        Value::Null => "{}".to_owned(),
        Value::String(text) => text.clone(),
        object @ Value::Object(_) => object.to_string(),
        other => {
            let name = format!("{name}.function.arguments");
            return Err(ApiError::field(&name, "an object", kind_of(other)));
        }
    };
    let id = call["id"].as_str().filter(|id| !id.is_empty());
    // Some templates want 9 letters and digits.
    let id = id.map_or_else(|| format!("call{number:05}"), str::to_owned);
    Ok(chat_messages::tool_call(&id, tool, &arguments))
}

/// Completes the result of a tool: `open` are the calls without one.
fn result(fields: &mut Map<String, Value>, open: &mut VecDeque<(Value, Value)>) {
    if let Some(tool) = fields.remove("tool_name") {
        fields.entry("name").or_insert(tool);
    }
    let id = fields.get("tool_call_id").cloned();
    let at = open.iter().position(|(known, name)| match &id {
        Some(id) => known == id,
        None => fields.get("name").is_none_or(|it| it == name),
    });
    if let Some((id, name)) = at.and_then(|at| open.remove(at)) {
        fields.entry("tool_call_id").or_insert(id);
        fields.entry("name").or_insert(name);
    }
}
