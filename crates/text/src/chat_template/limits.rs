//! Resource limits of a template, which may come from an untrusted file.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind, Output, State};

/// Bytes of template source; the longest in use are below 20 KB.
pub(super) const MAX_SOURCE_BYTES: usize = 1 << 18;

/// Operators, brackets and the like in one tag: the engine's tree of an expression, and the stack
/// that walks it, is as deep.
pub(super) const MAX_TAG_TOKENS: usize = 600;

/// Branches `elif` of the whole template, which nest as well.
pub(super) const MAX_BRANCHES: usize = 400;

/// Instructions of one rendering: enough for every template of the corpus at a thousand messages,
/// also for the few that look through all messages for each.
pub(super) const FUEL: u64 = 10_000_000;

/// Nesting of statements, macro calls and values.
pub(super) const MAX_RECURSION: usize = 300;

/// Nesting of a value.
const MAX_DEPTH: usize = 200;

/// Bytes of a string that an operator makes.
pub(super) const MAX_VALUE_BYTES: usize = 1 << 24;

/// Items of a list that an operator makes.
const MAX_ITEMS: usize = 1 << 18;

/// Work of one item of a list or mapping in bytes: going through it takes about as long.
pub(super) const ITEM_BYTES: usize = 32;

/// Bytes that the operators of one rendering may go through.
const MAX_WORK: usize = 1 << 28;

/// Bytes of the rendered prompt, and of everything that expressions printed on the way to it.
pub(super) const MAX_OUTPUT_BYTES: usize = 1 << 26;

/// Resources used by a rendering.
#[derive(Debug, Default)]
struct Used {
    /// Bytes that expressions printed, into the output or into a variable.
    printed: usize,
    /// Bytes that operators went through.
    work: usize,
}

/// Counts `work` bytes; an error when the rendering has had its share.
pub(super) fn charge(state: &mut State<'_, '_>, work: usize) -> Result<(), Error> {
    let used = state.get_or_insert_extension_with(Used::default);
    used.work = used.work.saturating_add(work);
    if used.work > MAX_WORK {
        return Err(Error::from(ErrorKind::OutOfFuel));
    }
    Ok(())
}

/// Prints `value` as the engine does and counts it, also where the output is captured by a macro or
/// a variable.
pub(super) fn print_counted(
    out: &mut Output<'_>,
    state: &mut State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    let made;
    let text = match value.as_str() {
        Some(text) => text,
        None => {
            made = printed(state, value)?;
            &made
        }
    };
    let used = state.get_or_insert_extension_with(Used::default);
    used.printed = used.printed.saturating_add(text.len());
    if used.printed > MAX_OUTPUT_BYTES {
        let detail = format!("expected at most {MAX_OUTPUT_BYTES} bytes, got more");
        return Err(Error::new(ErrorKind::WriteFailure, detail));
    }
    out.write_str(text).map_err(Error::from)
}

pub(super) fn invalid(detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail.into())
}

/// Refuses a string of more than [`MAX_VALUE_BYTES`], and counts it as work.
pub(super) fn fits(state: &mut State<'_, '_>, bytes: usize) -> Result<(), Error> {
    charge(state, bytes)?;
    if bytes > MAX_VALUE_BYTES {
        return Err(invalid(format!("expected a string of at most {MAX_VALUE_BYTES} bytes")));
    }
    Ok(())
}

/// Printed form of a value; an error if it is nested too deeply.
pub(super) fn printed(state: &mut State<'_, '_>, value: &Value) -> Result<String, Error> {
    check(state, value)?;
    Ok(value.to_string())
}

/// Refuses a list of more than [`MAX_ITEMS`], and counts it as work.
pub(super) fn check_items(state: &mut State<'_, '_>, items: usize) -> Result<(), Error> {
    charge(state, items.saturating_mul(ITEM_BYTES))?;
    if items > MAX_ITEMS {
        return Err(invalid(format!("expected a list of at most {MAX_ITEMS} items")));
    }
    Ok(())
}

/// Goes through all of `value`: it must not be nested too deeply, nor be larger as a tree than
/// [`MAX_VALUE_BYTES`], for everything that prints it walks the tree.
pub(super) fn check(state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    let mut size = 0;
    let result = measure(value, MAX_DEPTH, &mut size);
    charge(state, size)?;
    result
}

fn measure(value: &Value, depth_left: usize, size: &mut usize) -> Result<(), Error> {
    *size += ITEM_BYTES + value.as_str().map_or(0, str::len);
    if *size > MAX_VALUE_BYTES + ITEM_BYTES {
        return Err(invalid(format!("expected a value of at most {MAX_VALUE_BYTES} bytes")));
    }
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable) {
        return Ok(());
    }
    if depth_left == 0 {
        return Err(invalid(format!("expected at most {MAX_DEPTH} levels of nesting")));
    }
    for item in value.try_iter()?.checked() {
        let item = item?;
        measure(&item, depth_left - 1, size)?;
        if value.kind() == ValueKind::Map {
            measure(&value.get_item(&item)?, depth_left - 1, size)?;
        }
    }
    Ok(())
}
