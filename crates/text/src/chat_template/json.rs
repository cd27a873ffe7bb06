//! The `tojson` filter: values of a template as Python's `json.dumps` prints them.
//!
//! Own writer: with any formatter, `serde_json` refuses `None` as a key and prints NaN as null.

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

use super::limits;

/// The arguments of `json.dumps` that templates use.
struct Layout {
    /// Ends each item, and starts the first on a line of its own.
    indent: Option<String>,
    between_items: String,
    after_key: String,
    ensure_ascii: bool,
    sort_keys: bool,
}

/// `value|tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`, as
/// transformers defines it for chat templates: no HTML escapes, key order kept.
///
/// # Errors
/// If the value holds something that JSON does not have, or an argument is of another kind.
pub(super) fn tojson(
    state: &mut State<'_, '_>,
    value: &Value,
    ensure_ascii: Option<Value>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let indent: Option<Value> = kwargs.get("indent")?;
    let separators: Option<Value> = kwargs.get("separators")?;
    let layout = Layout {
        between_items: match &separators {
            Some(pair) if !pair.is_none() => text(&pair.get_item_by_index(0)?)?,
            _ if indent.as_ref().is_some_and(|indent| !indent.is_none()) => ",".into(),
            _ => ", ".into(),
        },
        after_key: match &separators {
            Some(pair) if !pair.is_none() => text(&pair.get_item_by_index(1)?)?,
            _ => ": ".into(),
        },
        indent: indent.filter(|indent| !indent.is_none()).map(indent_text).transpose()?,
        ensure_ascii: match ensure_ascii {
            Some(given) => given.is_true(),
            None => kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        },
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    kwargs.assert_all_used()?;
    limits::check(state, value)?;
    let mut out = String::new();
    write_value(&mut out, value, &layout, 0)?;
    Ok(out)
}

fn text(value: &Value) -> Result<String, Error> {
    value.as_str().map(str::to_owned).ok_or_else(|| {
        let detail = format!("tojson: expected a string as separator, got {}", value.kind());
        Error::new(ErrorKind::InvalidOperation, detail)
    })
}

/// A number of spaces, or the indentation itself.
fn indent_text(indent: Value) -> Result<String, Error> {
    if let Some(text) = indent.as_str() {
        return Ok(text.to_owned());
    }
    let width = if indent.kind() == ValueKind::Bool {
        Some(i64::from(indent.is_true()))
    } else {
        indent.as_i64()
    };
    match width {
        Some(width) => Ok(" ".repeat(usize::try_from(width.clamp(0, 64)).unwrap_or_default())),
        None => {
            let detail = format!("tojson: expected a number as indent, got {}", indent.kind());
            Err(Error::new(ErrorKind::InvalidOperation, detail))
        }
    }
}

fn write_value(
    out: &mut String,
    value: &Value,
    layout: &Layout,
    depth: usize,
) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => write_number(out, value),
        ValueKind::String => {
            write_string(out, value.as_str().unwrap_or_default(), layout.ensure_ascii);
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let mut items = Vec::new();
            for item in value.try_iter()?.checked() {
                items.push(item?);
            }
            write_items(out, '[', ']', &items, layout, depth, |out, item| {
                write_value(out, item, layout, depth + 1)
            })?;
        }
        ValueKind::Map => {
            let mut entries = Vec::new();
            for key in value.try_iter()?.checked() {
                let key = key?;
                let entry = value.get_item(&key)?;
                entries.push((key_text(&key)?, entry));
            }
            if layout.sort_keys {
                entries.sort_by(|a, b| a.0.cmp(&b.0));
            }
            write_items(out, '{', '}', &entries, layout, depth, |out, (key, entry)| {
                write_string(out, key, layout.ensure_ascii);
                out.push_str(&layout.after_key);
                write_value(out, entry, layout, depth + 1)
            })?;
        }
        kind => {
            let detail = format!("tojson: expected a value that JSON has, got {kind}");
            return Err(Error::new(ErrorKind::BadSerialization, detail));
        }
    }
    Ok(())
}

fn write_items<T>(
    out: &mut String,
    open: char,
    close: char,
    items: &[T],
    layout: &Layout,
    depth: usize,
    mut write: impl FnMut(&mut String, &T) -> Result<(), Error>,
) -> Result<(), Error> {
    let new_line = |out: &mut String, depth: usize| {
        if let Some(indent) = &layout.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    };
    out.push(open);
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            out.push_str(&layout.between_items);
        }
        new_line(out, depth + 1);
        write(out, item)?;
    }
    if !items.is_empty() {
        new_line(out, depth);
    }
    out.push(close);
    Ok(())
}

/// JSON's keys are strings; Python converts the other simple kinds.
fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::None => Ok("null".into()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.into()),
        ValueKind::Number => {
            let mut out = String::new();
            write_number(&mut out, key);
            Ok(out)
        }
        kind => {
            let detail = format!("tojson: expected a string as key, got {kind}");
            Err(Error::new(ErrorKind::BadSerialization, detail))
        }
    }
}

fn write_number(out: &mut String, number: &Value) {
    if number.is_integer() {
        out.push_str(&number.to_string());
        return;
    }
    match f64::try_from(number.clone()) {
        Ok(float) if float.is_nan() => out.push_str("NaN"),
        Ok(float) if float.is_infinite() => {
            out.push_str(if float > 0.0 { "Infinity" } else { "-Infinity" });
        }
        Ok(float) => out.push_str(&float_text(float)),
        Err(_) => out.push_str(&number.to_string()),
    }
}

/// `repr(float)` of Python: the shortest digits that read back as `float`, with an exponent of at
/// least two digits below 1e-4 and from 1e16 on.
pub(super) fn float_text(float: f64) -> String {
    let scientific = format!("{float:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if float != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = float.to_string();
    if plain.contains('.') { plain } else { format!("{plain}.0") }
}

fn write_string(out: &mut String, text: &str, ensure_ascii: bool) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c if ensure_ascii && !c.is_ascii() => {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(float: f64, expected: &str) {
        assert_eq!(float_text(float), expected);
    }

    // Expected: `repr` of CPython.
    #[test]
    fn floats_are_printed_as_python_prints_them() {
        check(0.0, "0.0");
        check(-0.0, "-0.0");
        check(1.0, "1.0");
        check(0.1, "0.1");
        check(-2.5, "-2.5");
        check(0.0001, "0.0001");
        check(0.00001, "1e-05");
        check(1.5e-7, "1.5e-07");
        check(1e15, "1000000000000000.0");
        check(1e16, "1e+16");
        check(1.2345e22, "1.2345e+22");
        check(1e100, "1e+100");
    }
}
