//! Errors as exceptions of JavaScript, with the fields of the server's errors.

use js_sys::{Error, Reflect};
use stonechat_api::ApiError;
use wasm_bindgen::{JsCast, JsValue};

/// Exception with `status`, `type` and the other fields of the error object that the server sends.
pub(crate) fn exception(error: &ApiError) -> JsValue {
    let exception = Error::new(error.message());
    // Setting a property of a new object does not fail.
    let set = |name: &str, value: &JsValue| drop(Reflect::set(&exception, &name.into(), value));
    set("status", &error.status().into());
    if let serde_json::Value::Object(fields) = &error.to_json()["error"] {
        for (name, value) in fields.iter().filter(|(name, _)| *name != "message") {
            let value = match value {
                serde_json::Value::String(text) => text.into(),
                other => js_sys::JSON::parse(&other.to_string()).unwrap_or(JsValue::NULL),
            };
            set(name, &value);
        }
    }
    exception.into()
}

/// Exception of anything that is an error of a request.
pub(crate) fn thrown(error: impl Into<ApiError>) -> JsValue {
    exception(&error.into())
}

/// Message of an exception.
pub(crate) fn message(exception: &JsValue) -> String {
    match exception.dyn_ref::<Error>() {
        Some(error) => String::from(error.message()),
        None => format!("{exception:?}"),
    }
}
