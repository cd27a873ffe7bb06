//! JSON bodies with limits of nesting, whose errors name the field.

use serde::de::{DeserializeOwned, Deserializer, Visitor};
use serde::{Serialize, forward_to_deserialize_any};
use serde_json::{Map, Value};

use crate::{ApiError, ApiResult, Defaults, limits};

/// Maximum nesting of arrays and objects in a body. `serde_json` itself stops at 128.
pub const MAX_NESTING: usize = 64;

/// Body of a request whose fields have limits.
pub trait ParseBody: Sized {
    /// Parses a body and checks the limits of its fields.
    ///
    /// # Errors
    /// 400 with the field, what was expected and what was found.
    fn parse(body: &[u8], defaults: &Defaults<'_>) -> ApiResult<Self>;
}

/// An object within the limits of a request, whose fields structures take by their names.
#[derive(Debug)]
pub struct JsonFields {
    /// Fields that no structure has taken.
    rest: Map<String, Value>,
    /// Names that the structures know.
    names: Vec<&'static str>,
}

impl JsonFields {
    /// Parses an object, rewrites it by `adapt`, and checks the limits of its fields. `max_choices` is the maximum of `n`.
    pub(crate) fn parse(
        body: &[u8],
        max_choices: usize,
        adapt: impl FnOnce(&mut Map<String, Value>) -> ApiResult<()>,
    ) -> ApiResult<Self> {
        let mut fields = Self::new(from_bytes(body)?)?;
        adapt(&mut fields.rest)?;
        limits::check(&mut fields.rest, max_choices)?;
        Ok(fields)
    }

    /// Parses a body that is one structure.
    ///
    /// # Errors
    /// 400 with the field, what was expected and what was found.
    pub(crate) fn parse_whole<T: DeserializeOwned>(
        body: &[u8],
        max_choices: usize,
    ) -> ApiResult<T> {
        let mut fields = Self::parse(body, max_choices, |_| Ok(()))?;
        let whole = fields.take();
        // A misspelled field explains a missing one.
        fields.check_rest()?;
        whole
    }

    /// Fields of an object, whose limits are not checked.
    pub(crate) fn new(body: Value) -> ApiResult<Self> {
        match body {
            Value::Object(rest) => Ok(Self { rest, names: Vec::new() }),
            other => Err(ApiError::bad_request(format!(
                "the body is invalid: expected an object, got {}",
                kind_of(&other)
            ))),
        }
    }

    /// Moves the fields of `T` out of the body.
    ///
    /// # Errors
    /// 400 with the field, what was expected and what was found.
    pub(crate) fn take<T: DeserializeOwned>(&mut self) -> ApiResult<T> {
        serde_path_to_error::deserialize(self).map_err(field_error)
    }

    /// Refuses an unknown field whose name is similar to a known one: a misspelled field.
    pub(crate) fn check_rest(&self) -> ApiResult<()> {
        limits::check_names(self.rest.keys(), &self.names)
    }
}

impl<'de> Deserializer<'de> for &mut JsonFields {
    type Error = serde_json::Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        let taken = fields.iter().filter_map(|name| self.rest.remove_entry(*name)).collect();
        self.names.extend(fields);
        Value::Object(taken).deserialize_struct(name, fields, visitor)
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        Value::Object(std::mem::take(&mut self.rest)).deserialize_any(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// Parses a JSON text.
///
/// # Errors
/// 400 with the field, what was expected and what was found.
pub fn from_bytes<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err(ApiError::bad_request("expected a JSON body, got an empty one"));
    }
    let nesting = nesting(body);
    if nesting > MAX_NESTING {
        return Err(ApiError::bad_request(format!(
            "the body is nested too deeply: expected at most {MAX_NESTING} levels, got {nesting}"
        )));
    }
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(field_error)?;
    let end = deserializer.end();
    end.map_err(|error| ApiError::bad_request(format!("the body is no JSON: {error}")))?;
    Ok(value)
}

/// Error with the path of its field.
fn field_error(error: serde_path_to_error::Error<serde_json::Error>) -> ApiError {
    let path = error.path().to_string();
    let error = error.into_inner();
    let is_data = error.is_data();
    let error = plain(&error);
    match path.as_str() {
        "." if is_data => ApiError::bad_request(format!("the body is invalid: {error}")),
        // The error precedes the first field.
        "." | "?" => ApiError::bad_request(format!("the body is no JSON: {error}")),
        path if is_data => ApiError::bad_request(format!("`{path}`: {error}")).with_param(path),
        path => ApiError::bad_request(format!("the body is no JSON at `{path}`: {error}")),
    }
}

/// JSON of an object.
///
/// # Errors
/// 500 if it has none, which no object of this crate does.
pub(crate) fn to_value(object: impl Serialize) -> ApiResult<Value> {
    serde_json::to_value(object).map_err(|error| ApiError::server(error.to_string()))
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

/// Arguments of a tool call; `None` if they were cut off. A call without any has an empty object.
pub(crate) fn arguments(text: &str) -> Option<Value> {
    if text.trim().is_empty() {
        return Some(Value::Object(Map::new()));
    }
    serde_json::from_str(text).ok().filter(Value::is_object)
}

/// Text of an error, with the name of a number in place of its type in this program.
fn plain(error: &serde_json::Error) -> String {
    let mut text = error.to_string();
    for (name, types) in [
        ("a number", &["f32", "f64"][..]),
        ("a whole number", &["i32", "i64", "i128", "isize", "u8", "u16", "u32", "u64", "usize"]),
    ] {
        for wrong in types {
            let wrong = format!("expected {wrong}");
            if let Some(at) = text.rfind(&wrong)
                && !text[at + wrong.len()..].starts_with(|c: char| c.is_ascii_alphanumeric())
            {
                text.replace_range(at..at + wrong.len(), &format!("expected {name}"));
            }
        }
    }
    text
}

/// Deepest nesting of brackets outside of strings.
fn nesting(body: &[u8]) -> usize {
    let (mut depth, mut deepest) = (0usize, 0);
    let (mut in_string, mut is_escaped) = (false, false);
    for &byte in body {
        if in_string {
            match byte {
                _ if is_escaped => is_escaped = false,
                b'\\' => is_escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::{MAX_NESTING, from_bytes, nesting};

    #[derive(Debug, Deserialize)]
    struct Message {
        content: String,
    }

    #[derive(Debug, Deserialize)]
    struct Chat {
        messages: Vec<Message>,
    }

    #[track_caller]
    fn refused(body: &str, expected: &str) {
        let error = from_bytes::<Chat>(body.as_bytes()).unwrap_err();
        assert_eq!(error.status(), 400);
        assert!(error.message().contains(expected), "{}", error.message());
    }

    #[test]
    fn errors_name_no_types_of_the_program() {
        fn got<T: serde::de::DeserializeOwned + std::fmt::Debug>(body: &str) -> String {
            from_bytes::<T>(body.as_bytes()).unwrap_err().message().to_owned()
        }
        let message = got::<Vec<f32>>("[\"hot\"]");
        assert_eq!(
            message,
            "`[0]`: invalid type: string \"hot\", expected a number at line 1 column 6"
        );
        for message in
            [got::<Vec<i64>>("[{}]"), got::<Vec<usize>>("[-1]"), got::<Vec<Option<u8>>>("[300]")]
        {
            assert!(message.contains(", expected a whole number at line 1"), "{message}");
        }
        // A text of the client is not changed.
        let message = got::<Vec<bool>>("[\"expected f32s\"]");
        assert!(message.contains("\"expected f32s\", expected a boolean"), "{message}");
    }

    #[test]
    fn errors_name_the_field() {
        let chat: Chat = from_bytes(br#"{"messages": [{"content": "a"}]}"#).unwrap();
        assert_eq!(chat.messages[0].content, "a");
        refused(
            r#"{"messages": [{"content": 1}]}"#,
            "`messages[0].content`: invalid type: integer `1`",
        );
        refused(r#"{"messages": [{}]}"#, "missing field `content`");
        refused(r#"{"messages": 7}"#, "`messages`: invalid type: integer `7`, expected a sequence");
        refused("{}", "missing field `messages`");
        refused(r#"{"messages": []} x"#, "trailing characters");
        refused(r#"{"messages": ["#, "EOF");
        refused("{", "the body is no JSON: EOF while parsing an object");
        refused("nonsense", "the body is no JSON: expected ident");
        refused(" \n", "empty");
        refused("[1, 2", "`[0]`: invalid type: integer `1`");
    }

    #[test]
    fn nesting_is_bounded_outside_of_strings() {
        assert_eq!(nesting(br#"{"a": [1, "[[\"[["], "b": {}}"#), 2);
        let deep = format!("{}{}", "[".repeat(MAX_NESTING), "]".repeat(MAX_NESTING));
        assert!(from_bytes::<serde_json::Value>(deep.as_bytes()).is_ok());
        let deeper = format!("[{deep}]");
        let error = from_bytes::<serde_json::Value>(deeper.as_bytes()).unwrap_err();
        assert!(error.message().contains("at most 64 levels, got 65"), "{}", error.message());
        // A body that only opens is refused before it is parsed.
        let error = from_bytes::<serde_json::Value>("[".repeat(100_000).as_bytes()).unwrap_err();
        assert!(error.message().contains("got 100000"), "{}", error.message());
    }
}
