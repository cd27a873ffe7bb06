//! Calls without the markers of their template: small models write the object in a fence, in `<tools>`, or alone. One is a
//! call if it has the name of a tool.

use super::opening::Skip;

/// Markers before such a call. The last ones are prefixes of others.
pub(super) const OPENINGS: [&str; 3] = ["```json", "<tools>", "```"];
/// Markers after it.
pub(super) const CLOSERS: [(&str, bool); 2] = [("```", true), ("</tools>", true)];

/// Finds the object in `text`, which begins with a marker of `marker` bytes or with the object.
pub(super) fn object(text: &str, marker: usize, is_end: bool) -> Skip {
    let is_bare = text.starts_with(['{', '[']);
    let mut at = if is_bare { 0 } else { marker };
    let blank = |at: usize| text[at..].len() - text[at..].trim_start().len();
    at += blank(at);
    if text[at..].starts_with('[') {
        at += 1;
        at += blank(at);
    }
    match text[at..].chars().next() {
        Some('{') => Skip::Yes { at, is_in_section: true },
        None if !is_end => Skip::More,
        _ => Skip::No,
    }
}
