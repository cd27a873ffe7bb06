//! Resource limits of a template, which may come from an untrusted file.

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

/// Instructions of one rendering: enough for every template of the corpus at a thousand messages,
/// also for the few that look through all messages for each.
pub(super) const FUEL: u64 = 10_000_000;

/// Nesting of statements, macro calls and values.
pub(super) const MAX_RECURSION: usize = 300;

/// Nesting of a value.
pub(super) const MAX_DEPTH: usize = 200;

/// Bytes of a string that an operator makes.
pub(super) const MAX_VALUE_BYTES: usize = 1 << 24;

/// Items of a list that an operator makes.
pub(super) const MAX_ITEMS: usize = 1 << 18;

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
            made = operators::printed(state, value)?;
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
