//! Tools of a chat, and which of them an answer may call.

use serde_json::Value;

/// Tool that an answer may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// Name.
    pub name: String,
    /// JSON schema of the arguments, an object; null: any.
    pub parameters: Value,
    /// Whether the arguments conform to the schema in every answer, also with [`ToolChoice::Auto`].
    pub is_strict: bool,
}

/// Tools that an answer may or must call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// None.
    None,
    /// At least one tool.
    Required,
    /// The tool with this name.
    Function(String),
}

impl Tool {
    /// Tools of a list in the form of OpenAI's chat API: `{"type": "function", "function": {"name", "parameters", …}}`, or
    /// the inner object alone. Items without a name are left out.
    #[must_use]
    pub fn of_definitions(definitions: &Value) -> Vec<Self> {
        let list = definitions.as_array().map_or(&[][..], Vec::as_slice);
        let tool = |item: &Value| {
            let function = item.get("function").unwrap_or(item);
            Some(Self {
                name: function["name"].as_str()?.to_owned(),
                parameters: function.get("parameters").cloned().unwrap_or(Value::Null),
                is_strict: function["strict"] == true,
            })
        };
        list.iter().filter_map(tool).collect()
    }
}
