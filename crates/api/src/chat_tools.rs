//! `tools` and `tool_choice` of OpenAI's chat API.

use std::collections::HashSet;

use serde_json::Value;
use stonechat::llm::chat::ToolChoice;

use crate::json::kind_of;
use crate::{ApiError, ApiResult};

/// Maximum tools of a request.
const MAX_TOOLS: usize = 512;
/// Maximum bytes of a tool's name; OpenAI's is 64, servers of MCP tools join longer ones.
const MAX_NAME_BYTES: usize = 256;
/// Maximum bytes of all definitions.
const MAX_TOOLS_BYTES: usize = 4 << 20;

/// Parses the choice in the field `name`.
///
/// # Errors
/// 400 with the field.
pub(crate) fn choice(value: Option<&Value>, name: &str) -> ApiResult<ToolChoice> {
    let expected = "`none`, `auto`, `required`, or a function with a name";
    match value {
        None | Some(Value::Null) => Ok(ToolChoice::Auto),
        Some(Value::String(kind)) => match kind.as_str() {
            "auto" => Ok(ToolChoice::Auto),
            "none" => Ok(ToolChoice::None),
            "required" | "any" => Ok(ToolChoice::Required),
            other => Err(ApiError::field(name, expected, format!("`{other}`"))),
        },
        Some(object @ Value::Object(_)) => {
            let function = object.get("function").unwrap_or(object);
            match (object["type"].as_str(), function["name"].as_str()) {
                (Some("function"), Some(tool)) => Ok(ToolChoice::Function(tool.to_owned())),
                (kind, _) => {
                    let got = format!("an object of the type `{}`", kind.unwrap_or_default());
                    Err(ApiError::field(name, expected, got))
                }
            }
        }
        Some(other) => Err(ApiError::field(name, expected, kind_of(other))),
    }
}

/// Checks definitions of tools: functions with names that differ, among them the chosen one.
///
/// # Errors
/// 400 with the field.
pub(crate) fn check(tools: &[Value], choice: &ToolChoice) -> ApiResult<()> {
    if tools.len() > MAX_TOOLS {
        return Err(ApiError::field("tools", &format!("at most {MAX_TOOLS} tools"), tools.len()));
    }
    let mut names = HashSet::with_capacity(tools.len());
    let mut n_bytes = 0;
    for (index, tool) in tools.iter().enumerate() {
        let field = |name: &str| format!("tools[{index}]{name}");
        if tool["type"] != "function" {
            let got = tool["type"]
                .as_str()
                .map_or_else(|| kind_of(&tool["type"]).to_owned(), |kind| format!("`{kind}`"));
            return Err(ApiError::field(&field(".type"), "`function`", got));
        }
        let function = &tool["function"];
        let Some(name) = function["name"].as_str() else {
            let got = kind_of(&function["name"]);
            return Err(ApiError::field(&field(".function.name"), "a string", got));
        };
        check_name(name, &field(".function.name"))?;
        if !names.insert(name) {
            let expected = "names that differ";
            return Err(ApiError::field(
                &field(".function.name"),
                expected,
                format!("`{name}` again"),
            ));
        }
        let parameters = &function["parameters"];
        if !parameters.is_null() && !parameters.is_object() {
            let name = field(".function.parameters");
            return Err(ApiError::field(&name, "a JSON schema", kind_of(parameters)));
        }
        n_bytes += tool.to_string().len();
        if n_bytes > MAX_TOOLS_BYTES {
            let expected = format!("at most {MAX_TOOLS_BYTES} bytes");
            return Err(ApiError::field("tools", &expected, "more"));
        }
    }
    match choice {
        ToolChoice::Required if tools.is_empty() => {
            Err(ApiError::field("tool_choice", "`none` or `auto` without tools", "`required`"))
        }
        ToolChoice::Function(name) if !names.contains(name.as_str()) => {
            let got = format!("`{name}`");
            Err(ApiError::field("tool_choice", "the name of a tool of `tools`", got))
        }
        _ => Ok(()),
    }
}

/// Checks the name of a tool: characters of identifiers, points and dashes, which every format can write.
fn check_name(name: &str, field: &str) -> ApiResult<()> {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || "_-.:/".contains(c);
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.chars().all(is_fine) {
        let expected = format!("1 to {MAX_NAME_BYTES} letters, digits, `_`, `-`, `.`, `:` or `/`");
        let got: String = name.chars().take(80).collect();
        return Err(ApiError::field(field, &expected, format!("`{got}`")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use stonechat::llm::chat::ToolChoice;

    use super::{check, choice};

    fn tool(name: &str) -> Value {
        json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}})
    }

    #[test]
    fn choices_have_the_forms_of_openai() {
        for (value, expected) in [
            (json!("auto"), ToolChoice::Auto),
            (json!(null), ToolChoice::Auto),
            (json!("none"), ToolChoice::None),
            (json!("required"), ToolChoice::Required),
            (
                json!({"type": "function", "function": {"name": "f"}}),
                ToolChoice::Function("f".into()),
            ),
            (json!({"type": "function", "name": "f"}), ToolChoice::Function("f".into())),
        ] {
            assert_eq!(choice(Some(&value), "tool_choice").unwrap(), expected, "{value}");
        }
        for wrong in [json!("maybe"), json!(7), json!({"type": "allowed_tools"}), json!({})] {
            let error = choice(Some(&wrong), "tool_choice").unwrap_err();
            assert!(error.message().starts_with("`tool_choice`: expected `none`"), "{error}");
        }
    }

    #[test]
    fn invalid_tools_are_named() {
        let name = |name: &str| json!([tool(name)]);
        for (tools, expected) in [
            (json!([7]), "`tools[0].type`: expected `function`, got null"),
            (
                json!([{"type": "web_search"}]),
                "`tools[0].type`: expected `function`, got `web_search`",
            ),
            (
                json!([{"type": "function"}]),
                "`tools[0].function.name`: expected a string, got null",
            ),
            (name("a b"), "`tools[0].function.name`: expected 1 to 256 letters"),
            (name("<|im_end|>"), "`tools[0].function.name`: expected 1 to 256 letters"),
            (json!([tool("a"), tool("a")]), "`tools[1].function.name`: expected names that differ"),
        ] {
            let error = check(tools.as_array().unwrap(), &ToolChoice::Auto).unwrap_err();
            assert!(error.message().starts_with(expected), "{error}");
        }
        assert!(check(&[], &ToolChoice::Required).is_err());
        assert!(check(&[tool("a")], &ToolChoice::Function("b".to_owned())).is_err());
        assert!(check(&[tool("a")], &ToolChoice::Function("a".to_owned())).is_ok());
        let many: Vec<Value> = (0..513).map(|i| tool(&format!("t{i}"))).collect();
        assert!(check(&many, &ToolChoice::Auto).is_err());
    }
}
