//! What a template may use, so that one from a stranger's file cannot take the machine.

use minijinja::value::Value;
use minijinja::{Error, ErrorKind, Output, State};

use super::operators;

/// Bytes of template source; the longest in use are below 20 KB.
pub(super) const MAX_SOURCE_BYTES: usize = 1 << 18;

/// Operators, brackets and the like in one tag: the engine's tree of an expression, and the stack
/// that walks it, is as deep.
pub(super) const MAX_TAG_TOKENS: usize = 600;

/// Branches `elif` of the whole template, which nest as well.
pub(super) const MAX_BRANCHES: usize = 400;

/// Instructions of one rendering; a conversation of a thousand messages takes some hundred
/// thousand.
pub(super) const FUEL: u64 = 20_000_000;

/// Nesting of statements, macro calls and values.
pub(super) const MAX_RECURSION: usize = 300;

/// Nesting of a value.
pub(super) const MAX_DEPTH: usize = 200;

/// Bytes of a string that an operator makes.
pub(super) const MAX_VALUE_BYTES: usize = 1 << 24;

/// Items of a list that an operator makes.
pub(super) const MAX_ITEMS: usize = 1 << 20;

/// Bytes of the rendered prompt, and of everything that expressions printed on the way to it.
pub(super) const MAX_OUTPUT_BYTES: usize = 1 << 26;

/// Bytes that expressions printed, into the output or into a variable.
#[derive(Debug, Default)]
struct Printed(usize);

/// Prints `value` as the engine does and counts it, also where the output is captured by a macro or
/// a variable.
pub(super) fn print_counted(
    out: &mut Output<'_>,
    state: &mut State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    let printed = state.get_or_insert_extension_with(Printed::default);
    printed.0 += value.as_str().map_or(0, str::len);
    if printed.0 > MAX_OUTPUT_BYTES {
        let detail = format!("expected at most {MAX_OUTPUT_BYTES} bytes, got more");
        return Err(Error::new(ErrorKind::WriteFailure, detail));
    }
    match value.as_str() {
        Some(text) => out.write_str(text).map_err(Error::from),
        None => out.write_str(&operators::printed(value)?).map_err(Error::from),
    }
}
