//! JSON with short numbers.

use serde::Serialize;
use serde_json::Value;

/// Serializes a value with its fractions rounded to three digits: milliseconds of times in seconds.
pub(super) fn rounded(value: &impl Serialize) -> serde_json::Result<Value> {
    let mut value = serde_json::to_value(value)?;
    round(&mut value);
    Ok(value)
}

fn round(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            if let Some(x) = number.as_f64() {
                *value = ((x * 1e3).round() / 1e3).into();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(round),
        Value::Object(fields) => fields.values_mut().for_each(round),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn fractions_have_three_digits() {
        let value =
            json!({"at": 2.074_521_703_000_000_2, "n": 12345, "words": [0.1, {"end": 3.0}]});
        let expected = json!({"at": 2.075, "n": 12345, "words": [0.1, {"end": 3.0}]});
        assert_eq!(super::rounded(&value).unwrap(), expected);
    }
}
