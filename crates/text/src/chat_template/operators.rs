//! Operators of templates as filters, which `hooks` inserts: Python's results, with limits.

use minijinja::formatting::{FormatStyle, format};
use minijinja::value::{Rest, Tuple, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};

use super::limits::{ITEM_BYTES, charge, check, check_items, fits, invalid, printed};
use super::{hooks, jinja};

pub(super) fn register(env: &mut Environment<'_>) {
    env.add_filter(hooks::ADD, add);
    env.add_filter(hooks::BOUNDED, bounded);
    env.add_filter(hooks::CONCAT, concat);
    env.add_filter(hooks::ITERATE, iterate);
    env.add_filter(hooks::MULTIPLY, multiply);
    env.add_filter(hooks::REMAINDER, remainder);
    env.add_filter(hooks::SLICE, slice);
    env.add_filter("safe", |value: &Value| match value.as_str() {
        Some(text) => Value::from_safe_string(text.to_owned()),
        None => Value::from_safe_string(value.to_string()),
    });
}

fn unsupported(operator: &str, left: &Value, right: &Value) -> Error {
    invalid(format!("{operator} takes no {} and {}", left.kind(), right.kind()))
}

/// A string made of `pieces`, if it is not too long.
fn joined(state: &mut State<'_, '_>, pieces: [&str; 2]) -> Result<String, Error> {
    fits(state, pieces[0].len().saturating_add(pieces[1].len()))?;
    Ok(pieces.concat())
}

fn add(state: &mut State<'_, '_>, left: &Value, right: &Value) -> Result<Value, Error> {
    if let (Some(a), Some(b)) = (left.as_str(), right.as_str()) {
        // A string marked as safe escapes the other operand: `Markup` of markupsafe.
        return match (left.is_safe(), right.is_safe()) {
            (false, false) => joined(state, [a, b]).map(Value::from),
            (true, true) => joined(state, [a, b]).map(Value::from_safe_string),
            (true, false) => joined(state, [a, &escaped(b)]).map(Value::from_safe_string),
            (false, true) => joined(state, [&escaped(a), b]).map(Value::from_safe_string),
        };
    }
    if let (Some(a), Some(b)) = (list(state, left)?, list(state, right)?) {
        if left.is_tuple() != right.is_tuple() {
            return Err(unsupported("+", left, right));
        }
        check_items(state, a.len() + b.len())?;
        let items: Vec<Value> = a.into_iter().chain(b).collect();
        return Ok(if left.is_tuple() {
            Value::from(Tuple::from(items))
        } else {
            Value::from(items)
        });
    }
    number(left, right, "+", i128::checked_add, |a, b| a + b)
}

fn concat(state: &mut State<'_, '_>, left: &Value, right: &Value) -> Result<Value, Error> {
    let (left, right) = (printed(state, left)?, printed(state, right)?);
    joined(state, [&left, &right]).map(Value::from)
}

fn multiply(state: &mut State<'_, '_>, left: &Value, right: &Value) -> Result<Value, Error> {
    let repeated = [(left, right), (right, left)].into_iter().find(|(value, times)| {
        matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Iterable)
            && times.as_i64().is_some()
    });
    let Some((value, times)) = repeated else {
        return number(left, right, "*", i128::checked_mul, |a, b| a * b);
    };
    let times = usize::try_from(times.as_i64().unwrap_or_default()).unwrap_or_default();
    if let Some(text) = value.as_str() {
        fits(state, text.len().saturating_mul(times))?;
        return Ok(Value::from(text.repeat(times)));
    }
    let items = list(state, value)?.unwrap_or_default();
    let n = items.len().saturating_mul(times);
    check_items(state, n)?;
    Ok(items.iter().cloned().cycle().take(n).collect())
}

/// The remainder with the sign of the divisor, or a string filled in as `%` does it.
fn remainder(state: &mut State<'_, '_>, left: &Value, right: &Value) -> Result<Value, Error> {
    if let Some(text) = left.as_str() {
        let args = match right.is_tuple() {
            true => list(state, right)?.unwrap_or_default(),
            false => vec![right.clone()],
        };
        return formatted(state, FormatStyle::Printf, text, &args);
    }
    let integer = |a: i128, b: i128| {
        let remainder = a.checked_rem(b)?;
        Some(if remainder != 0 && (remainder < 0) != (b < 0) { remainder + b } else { remainder })
    };
    if right.as_i64() == Some(0) || f64::try_from(right.clone()).is_ok_and(|b| b == 0.0) {
        return Err(invalid("division by zero"));
    }
    number(left, right, "%", integer, |a, b| {
        let remainder = a % b;
        if remainder != 0.0 && (remainder < 0.0) != (b < 0.0) { remainder + b } else { remainder }
    })
}

/// `text` with `args` filled in; a width of more than four digits is refused.
pub(super) fn formatted(
    state: &mut State<'_, '_>,
    style: FormatStyle,
    text: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let longest = text.split(|c: char| !c.is_ascii_digit()).map(str::len).max();
    if longest.unwrap_or_default() > 4 || text.contains('*') && text.contains('%') {
        return Err(invalid("expected a format with fixed widths of at most four digits"));
    }
    for arg in args {
        check(state, arg)?;
    }
    let filled = if style == FormatStyle::Printf && text.contains('r') {
        let (text, args) = jinja::with_notation(state, text, args)?;
        format(style, &text, &args)?
    } else {
        format(style, text, args)?
    };
    joined(state, [&filled, ""]).map(Value::from)
}

fn number(
    left: &Value,
    right: &Value,
    operator: &str,
    integer: impl Fn(i128, i128) -> Option<i128>,
    float: impl Fn(f64, f64) -> f64,
) -> Result<Value, Error> {
    let is_number = |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool);
    if !is_number(left) || !is_number(right) {
        return Err(unsupported(operator, left, right));
    }
    let is_float = |value: &Value| value.kind() == ValueKind::Number && !value.is_integer();
    if is_float(left) || is_float(right) {
        return Ok(Value::from(float(as_float(left)?, as_float(right)?)));
    }
    let result = integer(i128::try_from(left.clone())?, i128::try_from(right.clone())?);
    let result =
        result.ok_or_else(|| invalid(format!("{left} {operator} {right} is too large")))?;
    Ok(i64::try_from(result).map_or_else(|_| Value::from(result), Value::from))
}

fn as_float(value: &Value) -> Result<f64, Error> {
    match value.kind() {
        ValueKind::Bool => Ok(f64::from(u8::from(value.is_true()))),
        _ => f64::try_from(value.clone()),
    }
}

/// The items of a list or tuple; `None` for anything else.
fn list(state: &mut State<'_, '_>, value: &Value) -> Result<Option<Vec<Value>>, Error> {
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
            charge(state, items.len().saturating_mul(ITEM_BYTES))?;
            Ok(Some(items))
        }
        _ => Ok(None),
    }
}

/// Refuses values that no loop can run over: Python refuses `none`, and so do models' own tests.
fn iterate(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::None | ValueKind::Bool | ValueKind::Number => {
            Err(invalid(format!("expected a list to loop over, got {}", value.kind())))
        }
        _ => Ok(value.clone()),
    }
}

/// `value[start:stop:step]`.
fn slice(state: &mut State<'_, '_>, value: &Value, bounds: Rest<Value>) -> Result<Value, Error> {
    let [start, stop, step] = &bounds[..] else {
        return Err(invalid("a slice has three bounds"));
    };
    let bound = |bound: &Value| match bound.is_none() {
        true => Ok(None),
        false => i64::try_from(bound.clone()).map(Some),
    };
    let (start, stop, step) = (bound(start)?, bound(stop)?, bound(step)?.unwrap_or(1));
    if step == 0 {
        return Err(invalid("expected a step other than 0"));
    }
    if let Some(text) = value.as_str() {
        charge(state, text.len())?;
        let chars: Vec<char> = text.chars().collect();
        let picked: String = indices(chars.len(), start, stop, step).map(|i| chars[i]).collect();
        return Ok(if value.is_safe() { Value::from_safe_string(picked) } else { picked.into() });
    }
    if value.is_undefined() {
        return Err(Error::new(ErrorKind::UndefinedError, "an undefined value has no parts"));
    }
    let Some(items) = list(state, value)? else {
        return Err(invalid(format!("expected a string or list to slice, got {}", value.kind())));
    };
    let picked: Vec<Value> =
        indices(items.len(), start, stop, step).map(|i| items[i].clone()).collect();
    Ok(if value.is_tuple() { Value::from(Tuple::from(picked)) } else { Value::from(picked) })
}

/// The indices below `len` that Python's `slice(start, stop, step).indices(len)` gives.
fn indices(
    len: usize,
    start: Option<i64>,
    stop: Option<i64>,
    step: i64,
) -> impl Iterator<Item = usize> {
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    let (lowest, highest) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let place = |bound: Option<i64>, default: i64| match bound {
        None => default,
        Some(bound) if bound < 0 => bound.saturating_add(len).max(lowest),
        Some(bound) => bound.min(highest),
    };
    let start = place(start, if step > 0 { lowest } else { highest });
    let stop = place(stop, if step > 0 { highest } else { lowest });
    std::iter::successors(Some(start), move |i| i.checked_add(step))
        .take_while(move |i| if step > 0 { *i < stop } else { *i > stop })
        .filter_map(|i| usize::try_from(i).ok())
}

/// `value` itself, if its strings are not too long and it is not nested too deeply.
fn bounded(state: &mut State<'_, '_>, value: Value) -> Result<Value, Error> {
    check(state, &value)?;
    Ok(value)
}

/// `html.escape` in markupsafe's spelling.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}
