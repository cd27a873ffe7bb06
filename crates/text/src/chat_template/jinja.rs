//! Filters of jinja2 that the engine lacks, or has without bounds.

use minijinja::value::{Kwargs, Rest, Value, from_args};
use minijinja::{Environment, Error, State};

use super::limits::{check_items, fits, invalid, printed};

pub(super) fn register(env: &mut Environment<'_>) {
    env.add_filter("batch", batch);
    env.add_filter("slice", slice);
    env.add_filter("truncate", truncate);
    env.add_filter("wordcount", wordcount);
}

/// Items of a list, number of the lists to be made, and the item that fills them up.
fn list_of_lists(
    state: &mut State<'_, '_>,
    value: &Value,
    (args, named): (&[Value], &Kwargs),
    name: &str,
) -> Result<(Vec<Value>, usize, Option<Value>), Error> {
    let (n, fill): (Option<usize>, Option<Value>) = from_args(args)?;
    let n = n.or(named.get(name)?).filter(|&n| n > 0);
    let n = n.ok_or_else(|| invalid(format!("expected `{name}` of at least 1")))?;
    let fill = fill.or(named.get("fill_with")?).filter(|fill| !fill.is_none());
    named.assert_all_used()?;
    let items = if value.is_undefined() { Vec::new() } else { value.try_iter()?.collect() };
    check_items(state, n.saturating_add(items.len()))?;
    Ok((items, n, fill))
}

/// `value|batch(linecount, fill_with=None)`: lists of `linecount` items.
fn batch(
    state: &mut State<'_, '_>,
    value: &Value,
    args: Rest<Value>,
    named: Kwargs,
) -> Result<Value, Error> {
    let (items, n, fill) = list_of_lists(state, value, (&args, &named), "linecount")?;
    let line = |items: &[Value]| {
        let mut line = items.to_vec();
        if let Some(fill) = &fill {
            line.resize(n, fill.clone());
        }
        Value::from(line)
    };
    Ok(items.chunks(n).map(line).collect())
}

/// `value|slice(slices, fill_with=None)`: `slices` lists, the first ones longer by an item.
fn slice(
    state: &mut State<'_, '_>,
    value: &Value,
    args: Rest<Value>,
    named: Kwargs,
) -> Result<Value, Error> {
    let (items, n, fill) = list_of_lists(state, value, (&args, &named), "slices")?;
    let (each, n_longer) = (items.len() / n, items.len() % n);
    let mut rest = items.as_slice();
    let column = |i: usize| {
        let (column, after) = rest.split_at(each + usize::from(i < n_longer));
        rest = after;
        let mut column = column.to_vec();
        column.extend(fill.clone().filter(|_| i >= n_longer));
        Value::from(column)
    };
    Ok((0..n).map(column).collect())
}

/// `value|truncate(length=255, killwords=False, end='...', leeway=5)`.
fn truncate(
    state: &mut State<'_, '_>,
    value: &Value,
    args: Rest<Value>,
    named: Kwargs,
) -> Result<String, Error> {
    let (length, killwords, end, leeway): (
        Option<usize>,
        Option<bool>,
        Option<String>,
        Option<usize>,
    ) = from_args(&args)?;
    let length = length.or(named.get("length")?).unwrap_or(255);
    let killwords = killwords.or(named.get("killwords")?).unwrap_or(false);
    let end = end.or(named.get("end")?).unwrap_or_else(|| "...".to_owned());
    let leeway = leeway.or(named.get("leeway")?).unwrap_or(5);
    named.assert_all_used()?;
    let text = printed(state, value)?;
    fits(state, text.len().saturating_add(end.len()))?;
    if text.chars().count() <= length.saturating_add(leeway) {
        return Ok(text);
    }
    let kept = length.checked_sub(end.chars().count()).ok_or_else(|| {
        invalid(format!("truncate: expected a length of at least that of `{end}`, got {length}"))
    })?;
    let kept: String = text.chars().take(kept).collect();
    let kept = if killwords { &kept } else { kept.rsplit_once(' ').map_or(&*kept, |cut| cut.0) };
    Ok(format!("{kept}{end}"))
}

/// Number of runs of letters, digits and `_`.
fn wordcount(state: &mut State<'_, '_>, value: &Value) -> Result<usize, Error> {
    let text = printed(state, value)?;
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    Ok(words.filter(|word| !word.is_empty()).count())
}

/// A format of `printf` in which `%r` is `%s` of the value's notation in Python.
pub(super) fn with_notation(
    state: &mut State<'_, '_>,
    text: &str,
    args: &[Value],
) -> Result<(String, Vec<Value>), Error> {
    let (mut out, mut args) = (String::with_capacity(text.len()), args.to_vec());
    let (mut chars, mut next) = (text.chars(), 0);
    while let Some(c) = chars.next() {
        out.push(c);
        if c != '%' {
            continue;
        }
        let is_flag = |c: &char| c.is_ascii_digit() || "#-+ .hlL".contains(*c);
        let mut kind = chars.next();
        while let Some(flag) = kind.filter(is_flag) {
            out.push(flag);
            kind = chars.next();
        }
        let Some(kind) = kind else { break };
        match (kind, args.get_mut(next)) {
            ('r', Some(arg)) => {
                let listed = printed(state, &Value::from(vec![arg.clone()]))?;
                *arg = Value::from(&listed[1..listed.len() - 1]);
                out.push('s');
            }
            _ => out.push(kind),
        }
        next += usize::from(kind != '%');
    }
    Ok((out, args))
}
