//! Fields in their forms, and wrong ones.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stonechat::sampling::SamplingOptions;

use super::GenerationFields;
use crate::json::JsonFields;
use crate::{ApiResult, Defaults};

fn parse(body: Value) -> ApiResult<GenerationFields> {
    JsonFields::new(body)?.take()
}

fn fields(body: Value) -> GenerationFields {
    parse(body).unwrap()
}

#[test]
fn errors_name_the_field() {
    for (body, expected) in [
        (json!({"temperature": "hot"}), "`temperature`: invalid type: string \"hot\""),
        (json!({"stop": 7}), "`stop`: expected a string or a list of strings"),
        (json!({"stream_options": {"include_usage": 1}}), "`stream_options.include_usage`"),
        (json!([]), "expected an object, got a list"),
    ] {
        let error = parse(body).unwrap_err();
        assert!(error.message().contains(expected), "{error}");
    }
}

#[test]
fn limits_of_tokens_have_three_names() {
    let sampling = SamplingOptions::default();
    let defaults = Defaults { n_predict: Some(9), ..Defaults::new(&sampling) };
    for (body, expected) in [
        (json!({}), Some(9)),
        (json!({"max_tokens": null}), Some(9)),
        (json!({"n_predict": -1}), None),
        (json!({"n_predict": 5, "max_tokens": 7}), Some(7)),
        (json!({"max_tokens": 7, "max_completion_tokens": 0}), Some(0)),
    ] {
        assert_eq!(fields(body).max_tokens(&defaults), expected);
    }
    assert_eq!(fields(json!({"n_cmpl": 3})).n_choices(), 3);
}

#[test]
fn probabilities_are_asked_for_in_three_ways() {
    assert_eq!(fields(json!({"n_probs": 3})).n_probs(), 3);
    assert_eq!(fields(json!({"logprobs": 4})).n_probs(), 4);
    let chat = |body| fields(body).chat_probs();
    assert_eq!(chat(json!({"logprobs": true, "top_logprobs": 2})).unwrap(), Some(2));
    assert_eq!(chat(json!({"logprobs": false})).unwrap(), None);
    assert!(chat(json!({"top_logprobs": 2})).is_err());
    assert!(chat(json!({"logprobs": 2})).is_err());
    assert_eq!(fields(json!({"logprobs": 2})).completion_probs().unwrap(), Some(2));
}

#[test]
fn a_text_has_one_grammar() {
    let source = |body| fields(body).grammar_source();
    assert!(source(json!({"grammar": "root ::= \"a\"", "json_schema": {}})).is_err());
    assert!(source(json!({"response_format": {"type": "text"}})).unwrap().is_none());
    assert!(source(json!({"response_format": {"type": "json_object"}})).unwrap().is_some());
    let error = source(json!({"response_format": {"type": "json_schema"}})).unwrap_err();
    assert!(error.message().contains("expected an object, got nothing"), "{error}");
    assert!(source(json!({"response_format": {"type": "xml"}})).is_err());
    for (schema, is_valid) in [(json!(null), true), (json!({}), true), (json!(123), false)] {
        let format = json!({"response_format": {"type": "json_object", "schema": schema}});
        assert_eq!(source(format).is_ok(), is_valid, "{schema}");
    }
}

#[test]
fn a_request_has_a_deadline_of_its_own_or_that_of_the_server() {
    let second = Duration::from_secs(1);
    let deadline = |body, default| {
        let mut fields = fields(body);
        fields.set_deadline(default);
        fields.deadline()
    };
    assert_eq!(deadline(json!({}), None), None);
    let now = Instant::now();
    let own = deadline(json!({"timeout_ms": 60_000}), Some(second)).unwrap();
    let default = deadline(json!({}), Some(second)).unwrap();
    assert!(now + second <= default && default < own && now + 60 * second <= own);
}

#[test]
fn salts_differ() {
    assert_eq!(fields(json!({})).salt(), 0);
    let salt = |salt: &str| fields(json!({"cache_salt": salt})).salt();
    assert_eq!(salt("a"), salt("a"));
    assert_ne!(salt("a"), salt("b"));
    assert_ne!(salt(""), 0);
}
