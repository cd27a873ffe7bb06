//! Tools of Responses in the form of chat completions.

use std::collections::{HashMap, HashSet};

use serde::Serialize;
use serde_json::Value;

use super::input::quoted;
use crate::json::{kind_of, to_value};
use crate::{ApiError, ApiResult};

/// Functions of a request, and the parts of their names.
#[derive(Debug, Default)]
pub(super) struct Tools {
    /// Definitions in the form of chat completions.
    pub(super) list: Vec<Value>,
    /// Namespace and own name of each function of a namespace, by the joined name.
    pub(super) namespaces: HashMap<String, [String; 2]>,
}

/// Definition of a function, or the choice of one, in the form of chat completions.
#[derive(Debug, Serialize)]
struct FunctionTool<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    function: Definition<'a>,
}

#[derive(Debug, Default, Serialize)]
struct Definition<'a> {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    strict: Option<&'a Value>,
}

impl Definition<'_> {
    fn into_value(self) -> ApiResult<Value> {
        to_value(FunctionTool { kind: "function", function: self })
    }
}

/// Name of a function of a namespace. Codex names namespaces `mcp__server__`.
pub(super) fn joined(namespace: &str, tool: &str) -> String {
    let separator = if namespace.ends_with("__") { "" } else { "__" };
    format!("{namespace}{separator}{tool}")
}

/// Functions of the field `tools`, those of namespaces included. Other types are left out: clients list tools of OpenAI's
/// servers with every request (codex 10635).
///
/// # Errors
/// 400 with the tool.
pub(super) fn tools(tools: &[Value]) -> ApiResult<Tools> {
    let mut found = Tools::default();
    for (index, tool) in tools.iter().enumerate() {
        let name = format!("tools[{index}]");
        match tool["type"].as_str() {
            Some("function") => found.list.push(function(tool, None, &name)?),
            Some("namespace") => {
                let namespace = own_name(tool, &name)?;
                let Some(inner) = tool["tools"].as_array() else {
                    let got = kind_of(&tool["tools"]);
                    return Err(ApiError::field(&format!("{name}.tools"), "a list of tools", got));
                };
                let functions = inner.iter().enumerate();
                for (i, tool) in functions.filter(|(_, tool)| tool["type"] == "function") {
                    let name = format!("{name}.tools[{i}]");
                    let own = own_name(tool, &name)?.to_owned();
                    found.list.push(function(tool, Some(namespace), &name)?);
                    let names = [namespace.to_owned(), own];
                    found.namespaces.insert(joined(namespace, &names[1]), names);
                }
            }
            Some(_) => {}
            None => {
                let got = kind_of(&tool["type"]);
                return Err(ApiError::field(&format!("{name}.type"), "a string", got));
            }
        }
    }
    Ok(found)
}

/// Name of a tool, which chat completions put into `function`.
fn own_name<'a>(tool: &'a Value, name: &str) -> ApiResult<&'a str> {
    let value = tool.get("function").unwrap_or(tool).get("name");
    value.and_then(Value::as_str).ok_or_else(|| {
        let got = value.map_or("nothing", kind_of);
        ApiError::field(&format!("{name}.name"), "a string", got)
    })
}

/// A function in the form of chat completions.
fn function(tool: &Value, namespace: Option<&str>, name: &str) -> ApiResult<Value> {
    let own = own_name(tool, name)?;
    let definition = tool.get("function").unwrap_or(tool);
    let field = |name: &str| definition.get(name).filter(|value: &&Value| !value.is_null());
    let definition = Definition {
        name: namespace.map_or_else(|| own.to_owned(), |namespace| joined(namespace, own)),
        description: field("description"),
        parameters: field("parameters"),
        strict: field("strict"),
    };
    definition.into_value()
}

/// The field `tool_choice` in the form of chat completions. Allowed tools are those that stay in `tools`.
///
/// # Errors
/// 400 for a choice of another tool than a function.
pub(super) fn tool_choice(choice: &Value, tools: &mut Vec<Value>) -> ApiResult<Value> {
    let Value::Object(fields) = choice else { return Ok(choice.clone()) };
    let name = |tool: &Value| {
        let own = tool["name"].as_str()?;
        let namespace = tool["namespace"].as_str();
        Some(namespace.map_or_else(|| own.to_owned(), |namespace| joined(namespace, own)))
    };
    match fields.get("type").and_then(Value::as_str) {
        Some("function") if fields.contains_key("function") => Ok(choice.clone()),
        Some("function") => {
            let Some(name) = name(choice) else {
                return Err(ApiError::field("tool_choice.name", "a string", "nothing"));
            };
            Definition { name, ..Definition::default() }.into_value()
        }
        Some("allowed_tools") => {
            let allowed = choice["tools"].as_array().map_or(&[][..], Vec::as_slice);
            let allowed: HashSet<String> = allowed.iter().filter_map(name).collect();
            let is_allowed = |tool: &Value| {
                tool["function"]["name"].as_str().is_some_and(|name| allowed.contains(name))
            };
            tools.retain(is_allowed);
            if tools.is_empty() {
                let got = "other ones";
                return Err(ApiError::field("tool_choice.tools", "functions of `tools`", got));
            }
            Ok(choice["mode"].clone())
        }
        other => {
            let got = other.map_or_else(|| "nothing".to_owned(), quoted);
            Err(ApiError::field("tool_choice.type", "`function` or `allowed_tools`", got))
        }
    }
}
