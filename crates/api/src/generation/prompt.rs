//! The field `prompt`: texts, tokens, or both in turn.

use serde_json::Value;
use stonechat::llm::ModelInfo;

use crate::json::kind_of;
use crate::{ApiError, ApiResult};

/// Tokens of each prompt: a string, a list of strings, a list of token ids (with strings among them), or a list of such
/// lists. Each begins with BOS if the model has it.
pub(crate) fn prompts(value: &Value, model: &ModelInfo) -> ApiResult<Vec<Vec<u32>>> {
    let Value::Array(items) = value else { return Ok(vec![one(value, model, "prompt")?]) };
    if items.is_empty() {
        return Err(ApiError::field("prompt", "at least one text or token", "an empty list"));
    }
    if items.iter().any(Value::is_number) {
        return Ok(vec![one(value, model, "prompt")?]);
    }
    let items = items.iter().enumerate();
    items.map(|(i, item)| one(item, model, &format!("prompt[{i}]"))).collect()
}

/// Tokens of one prompt.
fn one(value: &Value, model: &ModelInfo, name: &str) -> ApiResult<Vec<u32>> {
    let tokens = match value {
        Value::String(text) => model.tokenize_prompt(text),
        Value::Array(items) => mixed(items, model, name)?,
        Value::Object(fields) => match (fields.get("prompt_string"), fields.get("multimodal_data"))
        {
            (Some(text @ Value::String(_)), None | Some(Value::Null)) => one(text, model, name)?,
            _ => {
                let expected = "an object with `prompt_string` and no `multimodal_data`";
                return Err(ApiError::field(name, expected, "another object"));
            }
        },
        other => {
            return Err(ApiError::field(name, "a text or a list of tokens", kind_of(other)));
        }
    };
    if tokens.is_empty() {
        return Err(ApiError::field(name, "at least one token", "an empty prompt"));
    }
    Ok(tokens)
}

/// Tokens and texts in turn.
fn mixed(items: &[Value], model: &ModelInfo, name: &str) -> ApiResult<Vec<u32>> {
    let (mut tokens, n) = (Vec::new(), model.config().vocab_size);
    for (i, item) in items.iter().enumerate() {
        match item {
            Value::String(text) if i == 0 => tokens.extend(model.tokenize_prompt(text)),
            Value::String(text) => tokens.extend(model.tokenizer().tokenize(text, false, true)),
            Value::Number(id) => {
                let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
                let id = id.filter(|&id| (id as usize) < n);
                tokens.push(id.ok_or_else(|| {
                    ApiError::field(&format!("{name}[{i}]"), &format!("a token id below {n}"), item)
                })?);
            }
            other => {
                let name = format!("{name}[{i}]");
                return Err(ApiError::field(&name, "a text or a token id", kind_of(other)));
            }
        }
    }
    Ok(tokens)
}
