//! JSON schemas as the compiler takes them: annotations dropped, objects with named members closed.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

/// Optional white space between JSON tokens, as in llama.cpp. Unlimited white space lets a model generate blank lines
/// forever.
const JSON_SPACE: &str = " |\n{1,2}[ \t]{0,20}";

/// Values of `format` that limit a text. All others are annotations.
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];

/// Keywords whose value is a schema, or a list of schemas.
const INNER: [&str; 9] = [
    "items",
    "prefixItems",
    "additionalItems",
    "additionalProperties",
    "unevaluatedProperties",
    "unevaluatedItems",
    "contains",
    "propertyNames",
    "contentSchema",
];

/// Keywords whose value is a schema or a list of schemas for the same value.
const SAME: [&str; 7] = ["allOf", "anyOf", "oneOf", "not", "if", "then", "else"];

/// Keywords whose value has a schema for each name.
const NAMED: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];

/// Prepares a schema:
///
/// * an object with `properties` and without `additionalProperties` has no other members, unless several schemas
///   describe it together;
/// * a `format` that limits nothing is dropped;
/// * [`JSON_SPACE`] is the white space, if the schema has no setting of its own.
///
/// # Errors
/// If a pattern ends in a lone backslash.
pub(super) fn prepared(schema: Value) -> Result<Value, String> {
    let mut schema = match schema {
        Value::Bool(true) => Value::Object(Map::new()),
        Value::Object(members) => Value::Object(members),
        other => return Ok(other),
    };
    let mut open = BTreeSet::new();
    find_open(&schema, false, &mut open);
    prepare(&mut schema, "#", false, &open)?;
    if let Value::Object(members) = &mut schema {
        let own = members.entry("x-guidance").or_insert_with(|| json!({}));
        if let Value::Object(own) = own
            && !own.contains_key("whitespace_flexible")
        {
            own.entry("whitespace_pattern").or_insert_with(|| JSON_SPACE.into());
        }
    }
    Ok(schema)
}

/// Refuses a regular expression that ends in a lone backslash, which the compiler would drop.
///
/// # Errors
/// With the expression.
pub(super) fn check_regex(regex: &str) -> Result<(), String> {
    let n_backslashes = regex.len() - regex.trim_end_matches('\\').len();
    if n_backslashes % 2 == 1 {
        return Err(format!("expected a character after the last `\\`, got the end of `{regex}`"));
    }
    Ok(())
}

/// Whether the schemas of the keyword `name` describe, together with others, the same value.
fn is_joined(members: &Map<String, Value>, name: &str) -> bool {
    let is_alone = match name {
        "allOf" => members["allOf"].as_array().is_none_or(|all| all.len() < 2),
        "anyOf" | "oneOf" | "$ref" => true,
        _ => false,
    };
    let is_described = |other: &str| {
        other != name && (SAME.contains(&other) || matches!(other, "$ref" | "properties"))
    };
    !is_alone || members.keys().any(|other| is_described(other))
}

/// Collects the targets of `$ref` that describe a value together with other schemas.
fn find_open(schema: &Value, is_open: bool, open: &mut BTreeSet<String>) {
    match schema {
        Value::Array(items) => items.iter().for_each(|item| find_open(item, is_open, open)),
        Value::Object(members) => {
            for (name, value) in members {
                match name.as_str() {
                    "$ref" if is_open || is_joined(members, name) => {
                        open.extend(value.as_str().map(str::to_owned));
                    }
                    same if SAME.contains(&same) => {
                        find_open(value, is_open || is_joined(members, same), open);
                    }
                    inner if INNER.contains(&inner) => find_open(value, false, open),
                    named if NAMED.contains(&named) => {
                        let schemas = value.as_object().into_iter().flat_map(Map::values);
                        schemas.for_each(|schema| find_open(schema, false, open));
                    }
                    _ => {}
                }
            }
        }
        _ => {}
    }
}

/// Prepares the schema at `path`. `is_open`: other schemas describe the same value.
fn prepare(
    schema: &mut Value,
    path: &str,
    is_open: bool,
    open: &BTreeSet<String>,
) -> Result<(), String> {
    if let Value::Array(items) = schema {
        let mut items = items.iter_mut().enumerate();
        return items
            .try_for_each(|(i, item)| prepare(item, &format!("{path}/{i}"), is_open, open));
    }
    let Value::Object(members) = schema else { return Ok(()) };
    let is_open = is_open || open.contains(path);
    if let Some(Value::String(pattern)) = members.get("pattern") {
        check_regex(pattern)?;
    }
    if let Some(Value::Object(patterns)) = members.get("patternProperties") {
        patterns.keys().try_for_each(|pattern| check_regex(pattern))?;
    }
    let is_annotation =
        |format: &Value| format.as_str().is_some_and(|format| !FORMATS.contains(&format));
    if members.get("format").is_some_and(is_annotation) {
        members.remove("format");
    }
    let has = |name: &&str| members.contains_key(*name);
    let has_others = ["patternProperties", "unevaluatedProperties", "$ref"].iter().any(has);
    let is_whole = !is_open && !has_others && !SAME.iter().any(has);
    let joined = SAME.map(|name| members.contains_key(name) && is_joined(members, name));
    if is_whole && members.get("properties").is_some_and(Value::is_object) {
        members.entry("additionalProperties").or_insert(Value::Bool(false));
    }
    for (name, value) in members {
        let path = format!("{path}/{}", name.replace('~', "~0").replace('/', "~1"));
        if let Some(same) = SAME.iter().position(|same| same == name) {
            prepare(value, &path, is_open || joined[same], open)?;
        } else if INNER.contains(&name.as_str()) {
            prepare(value, &path, false, open)?;
        } else if NAMED.contains(&name.as_str())
            && let Value::Object(schemas) = value
        {
            for (name, schema) in schemas {
                let name = name.replace('~', "~0").replace('/', "~1");
                prepare(schema, &format!("{path}/{name}"), false, open)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{check_regex, prepared};

    /// A prepared schema without its white space.
    fn schema(schema: Value) -> Value {
        let mut schema = prepared(schema).unwrap();
        schema.as_object_mut().unwrap().remove("x-guidance");
        schema
    }

    #[test]
    fn objects_with_members_are_closed() {
        let closed = json!({"properties": {"a": {}}, "additionalProperties": false});
        let given = json!({"properties": {"a": {}}});
        assert_eq!(schema(given.clone()), closed);
        assert_eq!(schema(json!({"type": "object"})), json!({"type": "object"}));
        for own in [json!(true), json!(false), json!({"type": "string"})] {
            let own = json!({"properties": {"a": {}}, "additionalProperties": own});
            assert_eq!(schema(own.clone()), own);
        }
        for name in ["items", "anyOf", "oneOf", "allOf"] {
            let list = schema(json!({ name: [given] }));
            assert_eq!(list, json!({ name: [closed] }), "{name}");
        }
        // A member may have the name of a keyword.
        let named = schema(json!({"properties": {"properties": given, "format": {}}}));
        assert_eq!(named["properties"]["properties"], closed);
        assert_eq!(named["properties"]["format"], json!({}));
    }

    #[test]
    fn schemas_of_the_same_value_stay_open() {
        let (a, b) = (json!({"properties": {"a": {}}}), json!({"properties": {"b": {}}}));
        for open in [
            json!({"allOf": [a, b]}),
            json!({"properties": {"a": {}}, "anyOf": [b, {}]}),
            json!({"$ref": "#/$defs/b", "properties": {"a": {}}, "$defs": {"b": b}}),
            json!({"allOf": [{"$ref": "#/definitions/b"}, a], "definitions": {"b": b}}),
            json!({"properties": {"a": {}}, "patternProperties": {"^x": {}}}),
        ] {
            assert_eq!(schema(open.clone()), open);
        }
        let once = json!({"$ref": "#/$defs/b", "$defs": {"b": b}});
        assert_eq!(schema(once)["$defs"]["b"]["additionalProperties"], false);
    }

    #[test]
    fn formats_are_annotations_unless_they_limit() {
        for format in ["password", "binary", "int64", "uri-reference", "regex", "color", "unknown"]
        {
            let given = json!({"items": {"type": "string", "format": format}});
            assert_eq!(schema(given), json!({"items": {"type": "string"}}));
        }
        let date = json!({"type": "string", "format": "date"});
        assert_eq!(schema(date.clone()), date);
        let data = json!({"const": {"format": "color"}, "enum": [{"format": "color"}]});
        assert_eq!(schema(data.clone()), data);
    }

    #[test]
    fn a_regex_does_not_end_in_a_lone_backslash() {
        for wrong in ["\\", "a\\", "a\\\\\\"] {
            assert!(check_regex(wrong).unwrap_err().contains("after the last `\\`"));
            assert!(prepared(json!({"items": {"pattern": wrong}})).is_err());
            assert!(prepared(json!({"patternProperties": { wrong: {} }})).is_err());
        }
        for fine in ["", "\\\\", "a\\:", "\\d"] {
            check_regex(fine).unwrap();
        }
    }
}
