//! Body of Anthropic's messages as that of a chat.

use serde_json::{Map, Value};

use super::content;
use crate::json::kind_of;
use crate::{ApiError, ApiResult, chat_messages};

/// Fields that pass as they are: those of Anthropic, then llama-server's for the same model.
const KEPT: [&str; 17] = [
    "model",
    "stream",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "repeat_penalty",
    "ignore_eos",
    "chat_template_kwargs",
    "cache_prompt",
    "cache_salt",
    "priority",
    "timeout_ms",
    "sse_ping_interval",
    "id_slot",
];

/// Rewrites a body; fields that neither Anthropic nor the model has are dropped.
pub(super) fn adapt(body: &mut Map<String, Value>) -> ApiResult<()> {
    let mut given = std::mem::take(body);
    let mut take = |name: &str| given.remove(name).filter(|value| !value.is_null());
    for name in KEPT {
        if let Some(value) = take(name) {
            body.insert(name.to_owned(), value);
        }
    }
    let mut messages = Vec::new();
    if let Some(system) = take("system") {
        messages.push(content::system(system, "system")?);
    }
    content::messages(take("messages"), &mut messages)?;
    body.insert("messages".to_owned(), messages.into());
    if let Some(stop) = take("stop_sequences") {
        if !stop.is_array() {
            let expected = "a list of strings";
            return Err(ApiError::field("stop_sequences", expected, kind_of(&stop)));
        }
        body.insert("stop".to_owned(), stop);
    }
    if let Some(tools) = take("tools") {
        body.insert("tools".to_owned(), self::tools(tools)?);
    }
    if let Some(choice) = take("tool_choice") {
        tool_choice(&choice, body)?;
    }
    if let Some(thinking) = take("thinking") {
        self::thinking(&thinking, body)?;
    }
    let format = take("output_format");
    output(take("output_config"), format, body)
}

/// Definitions of tools as functions. Tools that Anthropic's servers run, or whose schema only its models know, have a type of
/// their own: they are left out.
fn tools(tools: Value) -> ApiResult<Value> {
    let Value::Array(tools) = tools else {
        return Err(ApiError::field("tools", "a list of tools", kind_of(&tools)));
    };
    let mut functions = Vec::with_capacity(tools.len());
    for (index, tool) in tools.into_iter().enumerate() {
        let name = format!("tools[{index}]");
        let Value::Object(mut tool) = tool else {
            return Err(ApiError::field(&name, "an object", kind_of(&tool)));
        };
        match tool.get("type") {
            None | Some(Value::Null) => {}
            Some(Value::String(kind)) if kind == "custom" => {}
            Some(Value::String(_)) => continue,
            Some(other) => {
                return Err(ApiError::field(&format!("{name}.type"), "a string", kind_of(other)));
            }
        }
        let Some(schema) = tool.remove("input_schema").filter(Value::is_object) else {
            let name = format!("{name}.input_schema");
            return Err(ApiError::field(&name, "a JSON schema", "none"));
        };
        let mut function = Map::new();
        for field in ["name", "description", "strict"] {
            function.extend(tool.remove(field).map(|value| (field.to_owned(), value)));
        }
        function.insert("parameters".to_owned(), schema);
        functions.push(chat_messages::tool(function.into()));
    }
    Ok(Value::Array(functions))
}

/// Writes `tool_choice` and `parallel_tool_calls`.
fn tool_choice(choice: &Value, body: &mut Map<String, Value>) -> ApiResult<()> {
    let expected = "`auto`, `any`, `tool` or `none`";
    let chosen = match choice["type"].as_str() {
        Some("auto") => "auto".into(),
        Some("any") => "required".into(),
        Some("none") => "none".into(),
        Some("tool") => match choice["name"].as_str() {
            Some(name) => chat_messages::chosen_tool(name),
            None => {
                let got = kind_of(&choice["name"]);
                return Err(ApiError::field("tool_choice.name", "the name of a tool", got));
            }
        },
        Some(other) => {
            return Err(ApiError::field("tool_choice.type", expected, format!("`{other}`")));
        }
        None => {
            return Err(ApiError::field("tool_choice.type", expected, kind_of(&choice["type"])));
        }
    };
    body.insert("tool_choice".to_owned(), chosen);
    match &choice["disable_parallel_tool_use"] {
        Value::Null => {}
        Value::Bool(is_single) => {
            body.insert("parallel_tool_calls".to_owned(), (!is_single).into());
        }
        other => {
            let name = "tool_choice.disable_parallel_tool_use";
            return Err(ApiError::field(name, "a boolean", kind_of(other)));
        }
    }
    Ok(())
}

/// Writes the fields of reasoning. Without `thinking` the model's template decides.
fn thinking(thinking: &Value, body: &mut Map<String, Value>) -> ApiResult<()> {
    let is_on = match thinking["type"].as_str() {
        Some("enabled" | "adaptive") => true,
        Some("disabled") => false,
        other => {
            let expected = "`enabled`, `adaptive` or `disabled`";
            let got = other.map_or(kind_of(&thinking["type"]).to_owned(), |it| format!("`{it}`"));
            return Err(ApiError::field("thinking.type", expected, got));
        }
    };
    body.insert("enable_thinking".to_owned(), is_on.into());
    match &thinking["budget_tokens"] {
        Value::Null => {}
        _ if !is_on => {}
        budget if budget.as_u64().is_some_and(|n| n > 0 && n <= i32::MAX as u64) => {
            body.insert("reasoning_budget_tokens".to_owned(), budget.clone());
        }
        other => {
            return Err(ApiError::field("thinking.budget_tokens", "a positive number", other));
        }
    }
    Ok(())
}

/// Writes the effort and the schema of `output_config`; `format` is the earlier field of the schema.
fn output(
    config: Option<Value>,
    format: Option<Value>,
    body: &mut Map<String, Value>,
) -> ApiResult<()> {
    let mut config = match config {
        None => Map::new(),
        Some(Value::Object(config)) => config,
        Some(other) => return Err(ApiError::field("output_config", "an object", kind_of(&other))),
    };
    match config.remove("effort") {
        None | Some(Value::Null) => {}
        Some(effort @ Value::String(_)) => {
            body.insert("reasoning_effort".to_owned(), effort);
        }
        Some(other) => {
            return Err(ApiError::field("output_config.effort", "a string", kind_of(&other)));
        }
    }
    let Some(mut format) = config.remove("format").or(format).filter(|it| !it.is_null()) else {
        return Ok(());
    };
    if format["type"] != "json_schema" || !format["schema"].is_object() {
        let expected = "an object of the type `json_schema` with a `schema`";
        return Err(ApiError::field("output_config.format", expected, kind_of(&format)));
    }
    let schema = format["schema"].take();
    body.insert("response_format".to_owned(), chat_messages::schema_format(schema));
    Ok(())
}
