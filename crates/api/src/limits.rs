//! Limits of one request, checked on its body before a model is opened or anything is allocated or queued.
//!
//! The tables are those of `docs/guide/serve.md`. A number without a fraction is a whole one, as JSON of JavaScript and
//! Python writes it: `3.0` is `3`.

use serde_json::{Map, Number, Value};
use stonechat::text::prefix_distances;

use crate::{ApiError, ApiResult};

/// Maximum number of probable tokens reported per token.
const MAX_PROBS: i128 = 1000;
/// Maximum texts of a request: prompts times `n`.
pub(crate) const MAX_TEXTS: usize = 1024;
/// Maximum inputs of a request for embeddings.
pub(crate) const MAX_INPUTS: usize = 2048;
/// Maximum log-probabilities of prompts that a request asks for: tokens times `1 + logprobs`, for each text.
pub(crate) const MAX_PROMPT_PROBS: usize = 1 << 19;
/// Maximum bytes of a grammar or a schema.
const MAX_GRAMMAR_BYTES: usize = 256 << 10;
/// Maximum tokens and texts with a bias.
const MAX_BIASES: usize = 4096;
/// Maximum bytes of a text with a bias.
const MAX_BIAS_BYTES: usize = 256;
/// Maximum tokens of any kind: more than every context.
const MAX_TOKENS: i128 = i32::MAX as i128;
/// Maximum milliseconds: 30 days.
const MAX_MS: i128 = 30 * 24 * 3600 * 1000;

/// Whole numbers: name, minimum, maximum.
const INTEGERS: [(&str, i128, i128); 24] = [
    ("max_tokens", -1, MAX_TOKENS),
    ("max_completion_tokens", -1, MAX_TOKENS),
    ("n_predict", -1, MAX_TOKENS),
    ("seed", i64::MIN as i128, u64::MAX as i128),
    ("top_k", -1, MAX_TOKENS),
    ("repeat_last_n", -1, MAX_TOKENS),
    ("dry_allowed_length", 0, MAX_TOKENS),
    ("dry_penalty_last_n", -1, MAX_TOKENS),
    ("mirostat", 0, 2),
    ("min_keep", 0, MAX_TOKENS),
    ("n_probs", 0, MAX_PROBS),
    ("logprobs", 0, MAX_PROBS),
    ("top_logprobs", 0, MAX_PROBS),
    ("priority", i32::MIN as i128, i32::MAX as i128),
    ("id_slot", -1, MAX_TOKENS),
    ("n_keep", -1, MAX_TOKENS),
    ("t_max_predict_ms", -1, MAX_MS),
    ("timeout_ms", 1, MAX_MS),
    ("sse_ping_interval", -1, 24 * 3600),
    ("dimensions", 0, MAX_TOKENS),
    ("embd_normalize", -1, i32::MAX as i128),
    ("n", 1, i128::MAX),
    ("n_cmpl", 1, i128::MAX),
    ("best_of", 1, i128::MAX),
];

/// Numbers that cannot be negative.
const NOT_NEGATIVE: [&str; 4] =
    ["temperature", "dynatemp_range", "dynatemp_exponent", "repeat_penalty"];

/// Lists of strings: name, maximum strings, maximum bytes of one. A string alone is a list of one.
const STRINGS: [(&str, usize, usize); 5] = [
    ("stop", 64, 1024),
    ("dry_sequence_breakers", 32, 256),
    ("samplers", 32, 64),
    ("response_fields", 64, 256),
    ("cache_salt", 1, 1024),
];

/// Fields that are a grammar, or have one in them.
const GRAMMARS: [&str; 3] = ["grammar", "json_schema", "response_format"];

/// Fields of other servers whose names resemble one of these.
const LOOKALIKES: [&str; 5] = ["min_tokens", "models", "tool", "top_a", "top_n"];

/// Checks the fields of a body, and writes its whole numbers as such. `max_choices` is the maximum of `n`.
///
/// # Errors
/// 400 that names the field, its limit and what was found.
pub(crate) fn check(fields: &mut Map<String, Value>, max_choices: usize) -> ApiResult<()> {
    integers(fields, max_choices)?;
    for name in NOT_NEGATIVE {
        if let Some(number) = fields.get(name).filter(|n| n.as_f64().is_some_and(|n| n < 0.0)) {
            return Err(ApiError::field(name, "0 or more", number));
        }
    }
    for (name, most, bytes) in STRINGS {
        strings(name, fields.get(name), most, bytes)?;
    }
    for name in GRAMMARS {
        grammar(name, fields.get(name))?;
    }
    biases(fields.get("logit_bias"))
}

/// Refuses names that are not `known` but nearly are: by one letter, or by two of a long name.
///
/// # Errors
/// 400 with the name that is meant.
pub(crate) fn check_names<'a>(
    names: impl Iterator<Item = &'a String>,
    known: &[&'static str],
) -> ApiResult<()> {
    let known = || known.iter().copied().chain(INTEGERS.map(|(name, ..)| name));
    for name in names.filter(|name| name.len() <= 64 && !LOOKALIKES.contains(&name.as_str())) {
        let nearly = |known: &&str| {
            let distances = prefix_distances(name.as_bytes(), known.as_bytes());
            let distance = distances.last().copied().unwrap_or(usize::MAX);
            distance == 1 && known.len() > 4 || distance == 2 && known.len() > 7
        };
        if known().any(|known| known == name) {
            continue;
        }
        if let Some(known) = known().find(nearly) {
            let error = format!("`{name}`: no such field; did you mean `{known}`?");
            return Err(ApiError::bad_request(error).with_param(name));
        }
    }
    Ok(())
}

fn integers(fields: &mut Map<String, Value>, max_choices: usize) -> ApiResult<()> {
    let max_choices = max_choices.max(1) as i128;
    for (name, least, most) in INTEGERS {
        let Some(Value::Number(number)) = fields.get_mut(name) else { continue };
        let most = if most == i128::MAX { max_choices } else { most };
        let whole = whole(number);
        match whole {
            Some(n) if (least..=most).contains(&n) => {}
            Some(n) if n < least => {
                return Err(ApiError::field(name, &format!("at least {least}"), n));
            }
            Some(n) => return Err(ApiError::field(name, &format!("{least} to {most}"), n)),
            None => {
                let expected = format!("a whole number from {least} to {most}");
                return Err(ApiError::field(name, &expected, number));
            }
        }
        let exact = whole.and_then(Number::from_i128);
        if let Some(exact) = exact {
            *number = exact;
        }
    }
    if fields.get("sse_ping_interval").and_then(Value::as_i64) == Some(0) {
        return Err(ApiError::field("sse_ping_interval", "1 to 86400, or -1", 0));
    }
    let of = |name| fields.get(name).and_then(Value::as_u64);
    match (of("best_of"), of("n").unwrap_or(1)) {
        (Some(best_of), n) if best_of > n => {
            Err(ApiError::field("best_of", &format!("no more than `n`, which is {n}"), best_of))
        }
        _ => Ok(()),
    }
}

/// Value of a number without a fraction.
fn whole(number: &Number) -> Option<i128> {
    let exact = number.as_i64().map(i128::from).or(number.as_u64().map(i128::from));
    exact.or_else(|| {
        let float = number.as_f64().filter(|float| float.fract() == 0.0 && float.is_finite())?;
        // Beyond 2^100 a number exceeds every limit.
        (float.abs() < 2f64.powi(100)).then_some(float as i128)
    })
}

fn strings(name: &str, value: Option<&Value>, most: usize, bytes: usize) -> ApiResult<()> {
    let items = match value {
        Some(Value::Array(items)) => items.as_slice(),
        Some(one) => std::slice::from_ref(one),
        None => return Ok(()),
    };
    if items.len() > most {
        return Err(ApiError::field(name, &format!("at most {most} strings"), items.len()));
    }
    match items.iter().filter_map(Value::as_str).find(|text| text.len() > bytes) {
        Some(text) => {
            let expected = format!("strings of at most {bytes} bytes");
            Err(ApiError::field(name, &expected, format!("{} bytes", text.len())))
        }
        None => Ok(()),
    }
}

fn grammar(name: &str, value: Option<&Value>) -> ApiResult<()> {
    let n_bytes = match value {
        None => 0,
        Some(Value::String(text)) => text.len(),
        Some(other) => other.to_string().len(),
    };
    if n_bytes > MAX_GRAMMAR_BYTES {
        let expected = format!("at most {MAX_GRAMMAR_BYTES} bytes");
        return Err(ApiError::field(name, &expected, n_bytes));
    }
    Ok(())
}

fn biases(value: Option<&Value>) -> ApiResult<()> {
    let (n, longest) = match value {
        Some(Value::Object(biases)) => (biases.len(), biases.keys().map(String::len).max()),
        Some(Value::Array(pairs)) => {
            let texts = pairs.iter().filter_map(|pair| pair.get(0)?.as_str());
            (pairs.len(), texts.map(str::len).max())
        }
        _ => return Ok(()),
    };
    if n > MAX_BIASES {
        return Err(ApiError::field("logit_bias", &format!("at most {MAX_BIASES} entries"), n));
    }
    match longest.filter(|&n| n > MAX_BIAS_BYTES) {
        Some(n) => {
            let expected = format!("texts of at most {MAX_BIAS_BYTES} bytes");
            Err(ApiError::field("logit_bias", &expected, format!("{n} bytes")))
        }
        None => Ok(()),
    }
}

/// Checks the number of texts of a request: `n` for each of `n_prompts`.
///
/// # Errors
/// 400 with both.
pub(crate) fn check_texts(n_prompts: usize, n: usize) -> ApiResult<()> {
    match n_prompts.checked_mul(n).filter(|&texts| texts <= MAX_TEXTS) {
        Some(_) => Ok(()),
        None => {
            let expected = format!("at most {MAX_TEXTS} texts, counting `n` for each prompt");
            Err(ApiError::field("prompt", &expected, format!("{n_prompts} prompts with `n` {n}")))
        }
    }
}

/// Checks the number of items of a list of texts or of lists of tokens, before it is tokenized.
///
/// # Errors
/// 400 with the number.
pub(crate) fn check_items(name: &str, value: &Value, most: usize) -> ApiResult<()> {
    match value {
        Value::Array(items) if items.len() > most && !items.iter().any(Value::is_number) => {
            Err(ApiError::field(name, &format!("at most {most} items"), items.len()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{INTEGERS, check, check_names, check_texts};

    fn checked(mut body: Value) -> Result<Value, String> {
        let fields = body.as_object_mut().unwrap();
        let result = check(fields, 16);
        let result =
            result.and_then(|()| check_names(fields.keys(), &["max_tokens", "temperature"]));
        result.map(|()| body).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn whole_numbers_may_have_a_point() {
        let body = json!({"max_tokens": 3.0, "seed": 1e3, "top_k": 40.0, "temperature": 1.5});
        let expected = json!({"max_tokens": 3, "seed": 1000, "top_k": 40, "temperature": 1.5});
        assert_eq!(checked(body).unwrap(), expected);
        assert!(checked(json!({"seed": u64::MAX})).is_ok());
        for (name, ..) in INTEGERS {
            for wrong in [json!(1.5), json!(-1e30), json!(1e30), json!(1e300)] {
                let error = checked(json!({name: wrong})).unwrap_err();
                assert!(error.starts_with(&format!("`{name}`: expected ")), "{error}");
            }
            assert!(checked(json!({name: null})).is_ok());
        }
    }

    #[test]
    fn limits_are_named() {
        for (body, expected) in [
            (json!({"n": 17}), "`n`: expected 1 to 16, got 17"),
            (json!({"n": 0}), "`n`: expected at least 1, got 0"),
            (json!({"n_cmpl": 0}), "`n_cmpl`: expected at least 1, got 0"),
            (json!({"max_tokens": -2}), "`max_tokens`: expected at least -1, got -2"),
            (json!({"n_predict": -2}), "`n_predict`: expected at least -1, got -2"),
            (json!({"n_probs": 1001}), "`n_probs`: expected 0 to 1000, got 1001"),
            (json!({"timeout_ms": 0}), "`timeout_ms`: expected at least 1, got 0"),
            (json!({"timeout_ms": -1}), "`timeout_ms`: expected at least 1, got -1"),
            (
                json!({"n": 2, "best_of": 3}),
                "`best_of`: expected no more than `n`, which is 2, got 3",
            ),
            (json!({"sse_ping_interval": -7}), "`sse_ping_interval`: expected at least -1, got -7"),
            (
                json!({"sse_ping_interval": 0}),
                "`sse_ping_interval`: expected 1 to 86400, or -1, got 0",
            ),
            (json!({"temperature": -0.1}), "`temperature`: expected 0 or more, got -0.1"),
            (json!({"stop": vec!["a"; 65]}), "`stop`: expected at most 64 strings, got 65"),
            (
                json!({"stop": "a".repeat(1025)}),
                "`stop`: expected strings of at most 1024 bytes, got 1025 bytes",
            ),
            (
                json!({"samplers": vec!["top_k"; 33]}),
                "`samplers`: expected at most 32 strings, got 33",
            ),
            (
                json!({"grammar": "a".repeat(1 << 19)}),
                "`grammar`: expected at most 262144 bytes, got 524288",
            ),
            (
                json!({"logit_bias": vec![[1, 1]; 4097]}),
                "`logit_bias`: expected at most 4096 entries, got 4097",
            ),
            (json!({"max_tokns": 1}), "`max_tokns`: no such field; did you mean `max_tokens`?"),
            (json!({"temprature": 1}), "`temprature`: no such field; did you mean `temperature`?"),
        ] {
            assert_eq!(checked(body).unwrap_err(), expected);
        }
        assert!(checked(json!({"min_tokens": 1, "top_a": 1, "guidance": 2, "safety": {}})).is_ok());
        assert!(check_texts(1024, 1).is_ok());
        assert!(check_texts(usize::MAX, 2).is_err() && check_texts(100, 16).is_err());
    }
}
