//! Methods, filters and tests of Python and jinja2 whose results differ from the engine's.

use minijinja::formatting::FormatStyle;
use minijinja::value::{Kwargs, Rest, Tuple, Value, ValueKind, from_args};
use minijinja::{Environment, Error, State};

use super::limits::{MAX_VALUE_BYTES, charge, fits, invalid, printed};
use super::operators::formatted;

/// Registers the filters and tests of jinja2 whose results differ from those of the engine.
pub(super) fn register(env: &mut Environment<'_>) {
    env.set_unknown_method_callback(call_method);
    env.add_filter("trim", trim);
    env.add_filter("length", length);
    env.add_filter("count", length);
    env.add_filter("items", items);
    env.add_filter("join", join);
    env.add_filter("replace", replace_filter);
    env.add_filter("format", format_filter);
    env.add_filter("string", string);
    env.add_filter("indent", indent);
    // Not in jinja2, or without bounds and of no use in a chat template.
    for name in ["bool", "chain", "lines", "split", "zip", "pprint"] {
        env.remove_filter(name);
    }
    env.add_test("sequence", is_sequence);
    env.add_test("iterable", is_iterable);
    env.add_test("number", |value: &Value| {
        matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
    });
    env.add_test("integer", |value: &Value| {
        value.kind() == ValueKind::Number && value.is_integer()
    });
    env.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain);
}

/// `str.isspace` of Python: Unicode's white space and the four ASCII separators.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// Undefined values have no length in the engine, and 0 in jinja2.
fn length(value: &Value) -> Result<usize, Error> {
    match value.len() {
        Some(length) => Ok(length),
        None if value.is_undefined() => Ok(0),
        None if value.kind() == ValueKind::Iterable => Ok(value.try_iter()?.count()),
        None => Err(invalid(format!("length: expected a list or string, got {}", value.kind()))),
    }
}

fn string(state: &mut State<'_, '_>, value: &Value) -> Result<Value, Error> {
    if value.is_safe() {
        return Ok(value.clone());
    }
    printed(state, value).map(Value::from)
}

fn format_filter(
    state: &mut State<'_, '_>,
    text: String,
    args: Rest<Value>,
) -> Result<Value, Error> {
    formatted(state, FormatStyle::Printf, &text, &args)
}

fn trim(state: &mut State<'_, '_>, value: &Value, chars: Option<String>) -> Result<String, Error> {
    let text = printed(state, value)?;
    Ok(strip(&text, chars.as_deref(), true, true).to_owned())
}

/// `value|join(d='', attribute=None)`.
fn join(
    state: &mut State<'_, '_>,
    value: &Value,
    separator: Option<String>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let separator = match separator {
        Some(separator) => separator,
        None => kwargs.get::<Option<String>>("d")?.unwrap_or_default(),
    };
    let attribute: Option<String> = kwargs.get("attribute")?;
    kwargs.assert_all_used()?;
    let mut out = String::new();
    if value.is_undefined() {
        return Ok(out);
    }
    for (i, item) in value.try_iter()?.checked().enumerate() {
        let item = match &attribute {
            Some(attribute) => item?.get_attr(attribute)?,
            None => item?,
        };
        if i > 0 {
            out.push_str(&separator);
        }
        out.push_str(&printed(state, &item)?);
        if out.len() > MAX_VALUE_BYTES {
            break;
        }
    }
    fits(state, out.len())?;
    Ok(out)
}

/// `str.replace`; a negative `count` replaces everything.
fn replace(
    state: &mut State<'_, '_>,
    text: &str,
    [old, new]: [&str; 2],
    count: Option<i64>,
) -> Result<String, Error> {
    let count = count.and_then(|count| usize::try_from(count).ok()).unwrap_or(usize::MAX);
    let found = text.matches(old).take(count).count();
    fits(state, text.len().saturating_add(found.saturating_mul(new.len())))?;
    Ok(text.replacen(old, new, count))
}

fn replace_filter(
    state: &mut State<'_, '_>,
    value: &Value,
    args: Rest<Value>,
) -> Result<String, Error> {
    let (old, new, count): (String, String, Option<i64>) = from_args(&args)?;
    let text = printed(state, value)?;
    replace(state, &text, [&old, &new], count)
}

/// `value|indent(width=4, first=False, blank=False)`; `width` may be the indentation itself.
fn indent(
    state: &mut State<'_, '_>,
    value: &Value,
    args: Rest<Value>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let (width, first, blank): (Option<Value>, Option<bool>, Option<bool>) = from_args(&args)?;
    let width = width.or(kwargs.get("width")?);
    let first = first.or(kwargs.get("first")?).unwrap_or(false);
    let blank = blank.or(kwargs.get("blank")?).unwrap_or(false);
    kwargs.assert_all_used()?;
    let indentation = match &width {
        None => " ".repeat(4),
        Some(width) => match (width.as_str(), width.as_usize()) {
            (Some(text), _) => text.to_owned(),
            (None, Some(width)) if width <= 256 => " ".repeat(width),
            _ => return Err(invalid(format!("indent: expected at most 256 spaces, got {width}"))),
        },
    };
    let text = format!("{}\n", printed(state, value)?.replace("\r\n", "\n"));
    let lines: Vec<&str> = text.strip_suffix('\n').unwrap_or(&text).split('\n').collect();
    fits(state, text.len().saturating_add(lines.len().saturating_mul(indentation.len())))?;
    let mut out = String::new();
    for (i, line) in lines.into_iter().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        if (i > 0 || first) && (blank || !line.is_empty()) {
            out.push_str(&indentation);
        }
        out.push_str(line);
    }
    Ok(out)
}

fn items(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(Value::from(Vec::<Value>::new())),
        ValueKind::Map => {
            let mut pairs = Vec::new();
            for key in value.try_iter()?.checked() {
                let key = key?;
                let item = value.get_item(&key)?;
                pairs.push(Value::from(Tuple::from([key, item])));
            }
            Ok(Value::from(pairs))
        }
        kind => Err(invalid(format!("items: expected a mapping, got {kind}"))),
    }
}

/// Whether a value has a length and an index: strings and mappings, too, and even an undefined value.
fn is_sequence(value: &Value) -> bool {
    match value.kind() {
        ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined => true,
        // Slices and sums of lists, which are lists in Python.
        ValueKind::Iterable => value.len().is_some(),
        _ => false,
    }
}

fn is_iterable(value: &Value) -> bool {
    value.is_undefined() || value.try_iter().is_ok() && !value.is_none()
}

/// Methods of Python's types that differ from those of the engine's compatibility layer or are
/// not in it.
fn call_method(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let result = match value.kind() {
        ValueKind::String => string_method(state, value, method, args),
        ValueKind::Seq | ValueKind::Iterable if method == "index" => {
            let (wanted,): (Value,) = from_args(args)?;
            value
                .try_iter()?
                .position(|item| item == wanted)
                .map(|position| Some(Value::from(position)))
                .ok_or_else(|| invalid(format!("{wanted} is not in list")))
        }
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map
            if matches!(
                method,
                "append"
                    | "clear"
                    | "extend"
                    | "insert"
                    | "pop"
                    | "popitem"
                    | "remove"
                    | "reverse"
                    | "setdefault"
                    | "sort"
                    | "update"
            ) =>
        {
            Err(invalid(format!("{method} changes its object, which templates must not")))
        }
        ValueKind::Map if method == "copy" => Ok(Some(value.clone())),
        _ => Ok(None),
    };
    match result? {
        Some(result) => Ok(result),
        None => minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args),
    }
}

fn string_method(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Option<Value>, Error> {
    let text = value.as_str().unwrap_or_default();
    charge(state, text.len())?;
    Ok(Some(match method {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<String>,) = from_args(args)?;
            let (start, end) = (method != "rstrip", method != "lstrip");
            Value::from(strip(text, chars.as_deref(), start, end))
        }
        "split" | "rsplit" => {
            let (separator, limit, kwargs): (Option<String>, Option<i64>, Kwargs) =
                from_args(args)?;
            let separator = match separator {
                None => kwargs.get::<Option<String>>("sep")?,
                given => given,
            };
            let limit = match limit {
                None => kwargs.get::<Option<i64>>("maxsplit")?,
                given => given,
            };
            kwargs.assert_all_used()?;
            let limit = usize::try_from(limit.unwrap_or(-1)).unwrap_or(usize::MAX);
            let pieces = split(text, separator.as_deref(), limit, method == "rsplit")?;
            pieces.into_iter().map(Value::from).collect()
        }
        "partition" | "rpartition" => {
            let (separator,): (String,) = from_args(args)?;
            let found = if method == "partition" {
                text.split_once(&separator)
            } else {
                text.rsplit_once(&separator)
            };
            let parts = match found {
                Some((before, after)) => [before, &separator, after],
                None if method == "partition" => [text, "", ""],
                None => ["", "", text],
            };
            Value::from(Tuple::from(parts.map(Value::from)))
        }
        "replace" => {
            let (old, new, count): (String, String, Option<i64>) = from_args(args)?;
            Value::from(replace(state, text, [&old, &new], count)?)
        }
        "join" => {
            let (values,): (Value,) = from_args(args)?;
            let kwargs = Kwargs::from_iter([] as [(&str, Value); 0]);
            Value::from(join(state, &values, Some(text.to_owned()), kwargs)?)
        }
        "format" => formatted(state, FormatStyle::StrFormat, text, args)?,
        "removeprefix" => {
            let (prefix,): (String,) = from_args(args)?;
            Value::from(text.strip_prefix(&prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (String,) = from_args(args)?;
            Value::from(text.strip_suffix(&suffix).unwrap_or(text))
        }
        "index" => {
            let (wanted,): (String,) = from_args(args)?;
            match text.find(&wanted) {
                Some(offset) => Value::from(text[..offset].chars().count()),
                None => return Err(invalid("substring not found")),
            }
        }
        "isspace" => {
            let Rest(none): Rest<Value> = from_args(args).map(|(rest,)| rest)?;
            Value::from(none.is_empty() && !text.is_empty() && text.chars().all(is_space))
        }
        _ => return Ok(None),
    }))
}

fn strip<'a>(text: &'a str, chars: Option<&str>, start: bool, end: bool) -> &'a str {
    let strips = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let text = if start { text.trim_start_matches(strips) } else { text };
    if end { text.trim_end_matches(strips) } else { text }
}

/// `str.split` and, from the right, `str.rsplit`: at most `limit` cuts.
fn split(
    text: &str,
    separator: Option<&str>,
    limit: usize,
    from_right: bool,
) -> Result<Vec<String>, Error> {
    let mut pieces: Vec<&str> = Vec::new();
    match separator {
        Some("") => return Err(invalid("split: expected a separator, got an empty string")),
        Some(separator) if from_right => {
            pieces.extend(text.rsplitn(limit.saturating_add(1), separator));
        }
        Some(separator) => pieces.extend(text.splitn(limit.saturating_add(1), separator)),
        None => {
            let mut rest = strip(text, None, !from_right, from_right);
            while !rest.is_empty() {
                let cut = if pieces.len() == limit {
                    None
                } else if from_right {
                    rest.rfind(is_space).map(|at| (rest.split_at(at).0, at))
                } else {
                    rest.find(is_space).map(|at| (rest.split_at(at).1, at))
                };
                let Some((remaining, at)) = cut else {
                    pieces.push(rest);
                    break;
                };
                let piece =
                    if from_right { strip(&rest[at..], None, true, false) } else { &rest[..at] };
                pieces.push(piece);
                rest = strip(remaining, None, !from_right, from_right);
            }
        }
    }
    if from_right {
        pieces.reverse();
    }
    Ok(pieces.into_iter().map(str::to_owned).collect())
}
