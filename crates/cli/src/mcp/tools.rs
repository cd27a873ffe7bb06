//! Tools: names, arguments, their schemas.

use rmcp::model::Tool;
use serde::Deserialize;
use serde_json::{Map, Value, json};

pub(super) const TRANSCRIBE: &str = "transcribe";
pub(super) const LIST_MODELS: &str = "list_models";
pub(super) const GENERATE: &str = "generate";

/// Maximum tokens of a generated text.
pub(super) const MAX_TOKENS: usize = 8192;
/// Tokens of a generated text without `max_tokens`.
pub(super) const DEFAULT_TOKENS: usize = 1024;
/// Maximum bytes of a JSON schema.
pub(super) const MAX_SCHEMA_BYTES: usize = 256 << 10;

/// Arguments of `transcribe`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TranscribeArgs {
    pub(super) path: String,
    #[serde(default)]
    pub(super) language: Option<String>,
    #[serde(default)]
    pub(super) format: Format,
    #[serde(default)]
    pub(super) word_timestamps: bool,
}

/// Form of a transcript.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Format {
    #[default]
    Text,
    Json,
    Srt,
    Vtt,
}

/// Arguments of `list_models`: none.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListModelsArgs {}

/// Arguments of `generate`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GenerateArgs {
    pub(super) prompt: String,
    #[serde(default)]
    pub(super) system: Option<String>,
    #[serde(default)]
    pub(super) max_tokens: Option<usize>,
    #[serde(default)]
    pub(super) json_schema: Option<Value>,
}

/// The tools; `generate` needs a language model.
pub(super) fn all(generates: bool) -> Vec<Tool> {
    let mut tools = vec![
        Tool::new(
            TRANSCRIBE,
            "Transcribes speech in an audio or video file on this machine",
            schema(
                &json!({
                    "path": {"type": "string", "description": "Path of the file"},
                    "language": {"type": "string", "description": "Code or English name of the \
                        spoken language; detected without it"},
                    "format": {"type": "string", "enum": ["text", "json", "srt", "vtt"],
                        "default": "text"},
                    "word_timestamps": {"type": "boolean", "default": false,
                        "description": "Times of words, with format json"},
                }),
                &["path"],
            ),
        ),
        Tool::new(LIST_MODELS, "Lists the installed models", schema(&json!({}), &[])),
    ];
    if generates {
        tools.push(Tool::new(
            GENERATE,
            "Generates a text with a local language model",
            schema(
                &json!({
                    "prompt": {"type": "string"},
                    "system": {"type": "string", "description": "System message"},
                    "max_tokens": {"type": "integer", "minimum": 1, "maximum": MAX_TOKENS,
                        "default": DEFAULT_TOKENS},
                    "json_schema": {"type": "object", "description": "JSON schema of the text"},
                }),
                &["prompt"],
            ),
        ));
    }
    tools
}

/// JSON schema of the arguments of a tool.
fn schema(properties: &Value, required: &[&str]) -> Map<String, Value> {
    let schema = json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    });
    match schema {
        Value::Object(schema) => schema,
        _ => Map::new(),
    }
}
