//! Fields that bodies of Ollama share, under the names of generation.

use serde_json::{Map, Value};

use crate::chat_messages::{object_format, schema_format};
use crate::json::kind_of;
use crate::{ApiError, ApiResult};

/// Options of sampling: Ollama's name and that of generation.
const OPTIONS: [(&str, &str); 17] = [
    ("seed", "seed"),
    ("num_predict", "n_predict"),
    ("num_keep", "n_keep"),
    ("top_k", "top_k"),
    ("top_p", "top_p"),
    ("min_p", "min_p"),
    ("typical_p", "typical_p"),
    ("repeat_last_n", "repeat_last_n"),
    ("temperature", "temperature"),
    ("repeat_penalty", "repeat_penalty"),
    ("presence_penalty", "presence_penalty"),
    ("frequency_penalty", "frequency_penalty"),
    ("mirostat", "mirostat"),
    ("mirostat_tau", "mirostat_tau"),
    ("mirostat_eta", "mirostat_eta"),
    ("stop", "stop"),
    // Not an option of Ollama: texts of a fixed length, for measurements.
    ("ignore_eos", "ignore_eos"),
];

/// Options without an effect: the context, the device and the threads are those of the server, the others are gone from
/// Ollama itself.
pub(super) const NO_EFFECT: [&str; 16] = [
    "num_ctx",
    "num_batch",
    "num_gpu",
    "main_gpu",
    "num_thread",
    "num_gqa",
    "numa",
    "use_mmap",
    "use_mlock",
    "low_vram",
    "f16_kv",
    "logits_all",
    "vocab_only",
    "draft_num_predict",
    "penalize_newline",
    "tfs_z",
];

/// Fields of a body that are taken by their names.
pub(super) struct Fields(Map<String, Value>);

impl Fields {
    /// Moves the fields out of a body, which gets the translated ones.
    pub(super) fn new(body: &mut Map<String, Value>) -> Self {
        Self(std::mem::take(body))
    }

    /// Takes a field; `None` if it is absent or null.
    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    /// Takes a string; empty ones are absent.
    pub(super) fn text(&mut self, name: &str) -> ApiResult<Option<String>> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text).filter(|text| !text.is_empty())),
            Some(other) => Err(ApiError::field(name, "a string", kind_of(&other))),
        }
    }

    /// Takes a boolean.
    pub(super) fn flag(&mut self, name: &str) -> ApiResult<bool> {
        match self.take(name) {
            None => Ok(false),
            Some(Value::Bool(value)) => Ok(value),
            Some(other) => Err(ApiError::field(name, "a boolean", kind_of(&other))),
        }
    }

    /// Writes the fields of generation that both routes have.
    pub(super) fn common(&mut self, body: &mut Map<String, Value>) -> ApiResult<()> {
        body.extend(self.take("model").map(|model| ("model".to_owned(), model)));
        let stream = self.take("stream").unwrap_or(Value::Bool(true));
        body.insert("stream".to_owned(), stream);
        if let Some(options) = self.take("options") {
            self::options(options, body)?;
        }
        if let Some(format) = self.take("format") {
            body.extend(response_format(format)?.map(|it| ("response_format".to_owned(), it)));
        }
        if let Some(think) = self.take("think") {
            self::think(&think, body)?;
        }
        if self.flag("logprobs")? {
            body.insert("logprobs".to_owned(), true.into());
            let most = self.take("top_logprobs");
            body.extend(most.map(|n| ("top_logprobs".to_owned(), n)));
        }
        Ok(())
    }

    /// Refuses images, in the field `name`.
    pub(super) fn no_images(&mut self, name: &str) -> ApiResult<()> {
        images(self.take("images").as_ref(), name)
    }
}

/// Refuses images.
pub(super) fn images(images: Option<&Value>, name: &str) -> ApiResult<()> {
    match images {
        None | Some(Value::Null) => Ok(()),
        Some(Value::Array(items)) if items.is_empty() => Ok(()),
        Some(other) => {
            let got = format!("{}, which needs a model that sees", kind_of(other));
            Err(ApiError::field(name, "no images", got))
        }
    }
}

/// Writes `options`.
fn options(options: Value, body: &mut Map<String, Value>) -> ApiResult<()> {
    let Value::Object(options) = options else {
        return Err(ApiError::field("options", "an object", kind_of(&options)));
    };
    for (name, value) in options {
        if value.is_null() || NO_EFFECT.contains(&name.as_str()) {
            continue;
        }
        let known = OPTIONS.iter().find(|(theirs, _)| *theirs == name);
        let Some((_, ours)) = known else {
            let name: String = name.chars().take(80).collect();
            let error = format!("`options.{name}`: no such option");
            return Err(ApiError::bad_request(error).with_param(format!("options.{name}")));
        };
        // -2 fills the context, -1 has no limit: a text ends with its context in either case.
        let fills = *ours == "n_predict" && value.as_f64() == Some(-2.0);
        let value = if fills { Value::from(-1) } else { value };
        body.insert((*ours).to_owned(), value);
    }
    Ok(())
}

/// `response_format` of a `format`: `json`, or a schema.
fn response_format(format: Value) -> ApiResult<Option<Value>> {
    match format {
        Value::String(text) if text.is_empty() => Ok(None),
        Value::String(text) if text == "json" => Ok(Some(object_format())),
        schema @ Value::Object(_) => Ok(Some(schema_format(schema))),
        other => Err(ApiError::field("format", "`json` or a JSON schema", kind_of(&other))),
    }
}

/// Writes the fields of reasoning: a boolean, or an effort.
fn think(think: &Value, body: &mut Map<String, Value>) -> ApiResult<()> {
    let (is_on, effort) = match think {
        Value::Bool(is_on) => (*is_on, None),
        Value::String(effort) => match effort.as_str() {
            "true" => (true, None),
            "false" | "none" => (false, None),
            "low" | "medium" | "high" | "max" => (true, Some(effort.as_str())),
            other => return Err(think_error(format!("`{other}`"))),
        },
        other => return Err(think_error(kind_of(other).to_owned())),
    };
    body.insert("enable_thinking".to_owned(), is_on.into());
    body.extend(effort.map(|effort| ("reasoning_effort".to_owned(), effort.into())));
    Ok(())
}

fn think_error(got: String) -> ApiError {
    ApiError::field("think", "a boolean, `low`, `medium`, `high` or `max`", got)
}

/// Tells if a `keep_alive` unloads the model: a duration of 0, in seconds or as Go writes it (`5m`, `1h30m`).
pub(super) fn unloads(keep_alive: Option<&Value>) -> ApiResult<bool> {
    let error = |got: String| {
        let expected = "seconds, or a duration such as `5m`";
        Err(ApiError::field("keep_alive", expected, got))
    };
    match keep_alive {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Number(seconds)) => Ok(seconds.as_f64() == Some(0.0)),
        Some(Value::String(text)) => match seconds(text) {
            Some(seconds) => Ok(seconds == 0.0),
            None => error(format!("`{}`", text.chars().take(40).collect::<String>())),
        },
        Some(other) => error(kind_of(other).to_owned()),
    }
}

/// Seconds of a duration of Go: numbers with units. A number alone is in seconds.
fn seconds(text: &str) -> Option<f64> {
    let text = text.trim();
    if let Ok(seconds) = text.parse::<f64>() {
        return seconds.is_finite().then_some(seconds);
    }
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    let mut sum = 0.0;
    while !rest.is_empty() {
        let n = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(n);
        let unit = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(unit);
        let scale = match unit {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        sum += number.parse::<f64>().ok()? * scale;
        rest = after;
    }
    (!text.is_empty()).then_some(sum)
}
