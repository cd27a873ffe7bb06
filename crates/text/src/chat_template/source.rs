//! Rewriting of a template's source before parsing.
//!
//! Two differences from transformers' jinja2 cannot be configured in the engine:
//! jinja2 turns every line ending into `\n`, and transformers adds the tag `generation`, which
//! marks the assistant's tokens for training and has no effect on the text. A block `with` has the
//! same scope as the block that transformers makes of it.

use super::limits;
use crate::error::{Error, Result};

/// `source` with `\n` as its only line ending and blocks `generation` as blocks `with`.
///
/// Lines keep their numbers.
///
/// # Errors
/// If the source is longer, or one of its tags is more deeply nested, than [`limits`] allows.
pub(super) fn rewrite(source: &str) -> Result<String> {
    if source.len() > limits::MAX_SOURCE_BYTES {
        let expected = limits::MAX_SOURCE_BYTES;
        let reason = format!("expected at most {expected} bytes, got {}", source.len());
        return Err(Error::ChatTemplate { line: 0, reason });
    }
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut branches = 0;
    let mut out = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some(start) = rest.find("{") {
        out.push_str(&rest[..start]);
        rest = &rest[start..];
        let length = if rest.starts_with("{#") {
            rest.find("#}").map_or(rest.len(), |end| end + 2)
        } else if rest.starts_with("{{") {
            tag_length(rest, "}}")
        } else if rest.starts_with("{%") {
            let length = tag_length(rest, "%}");
            if tag_word(&rest[..length]) == "raw" {
                length + raw_length(&rest[length..])
            } else {
                length
            }
        } else {
            1
        };
        let (piece, after) = rest.split_at(length);
        branches += usize::from(tag_word(piece) == "elif");
        let tag = piece.starts_with("{{") || piece.starts_with("{%") && tag_word(piece) != "raw";
        if branches > limits::MAX_BRANCHES || tag && tokens(piece) > limits::MAX_TAG_TOKENS {
            let line = out.matches('\n').count() + 1;
            return Err(Error::ChatTemplate { line, reason: "too complex".to_owned() });
        }
        match tag_word(piece) {
            "generation" => out.push_str(&piece.replacen("generation", "with", 1)),
            "endgeneration" => out.push_str(&piece.replacen("endgeneration", "endwith", 1)),
            _ => out.push_str(piece),
        }
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

/// An upper bound for how deep the expression of a tag can nest: its punctuation and the words that
/// are operators, outside of string literals.
fn tokens(tag: &str) -> usize {
    let mut count = 0;
    let mut quote = None;
    let mut word = String::new();
    let mut chars = tag.chars();
    while let Some(c) = chars.next() {
        match quote {
            Some(_) if c == '\\' => {
                chars.next();
            }
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if c.is_alphanumeric() || c == '_' => word.push(c),
            None => {
                count +=
                    usize::from(matches!(word.as_str(), "and" | "if" | "in" | "is" | "not" | "or"));
                word.clear();
                if c == '"' || c == '\'' {
                    quote = Some(c);
                }
                // Commas and colons separate siblings.
                count +=
                    usize::from(c.is_ascii_punctuation() && !matches!(c, '"' | '\'' | ',' | ':'));
            }
        }
    }
    count
}

/// The first word of a tag `{% word …`; empty for anything else.
fn tag_word(piece: &str) -> &str {
    let Some(inner) = piece.strip_prefix("{%") else { return "" };
    let inner = inner.strip_prefix(['-', '+']).unwrap_or(inner).trim_start();
    let end = inner.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(inner.len());
    &inner[..end]
}

/// Bytes of the tag that `rest` starts with, up to and with `close`, which may also stand in a
/// string literal.
fn tag_length(rest: &str, close: &str) -> usize {
    let mut quote = None;
    let mut chars = rest.char_indices();
    while let Some((i, c)) = chars.next() {
        match quote {
            Some(_) if c == '\\' => {
                chars.next();
            }
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if c == '"' || c == '\'' => quote = Some(c),
            None if rest[i..].starts_with(close) => return i + close.len(),
            None => {}
        }
    }
    rest.len()
}

/// Bytes up to and with the tag `endraw`.
fn raw_length(rest: &str) -> usize {
    let mut from = 0;
    while let Some(start) = rest[from..].find("{%") {
        let start = from + start;
        let length = tag_length(&rest[start..], "%}");
        if tag_word(&rest[start..start + length]) == "endraw" {
            return start + length;
        }
        from = start + 2;
    }
    rest.len()
}

#[cfg(test)]
mod tests {
    use super::rewrite;

    #[track_caller]
    fn check(source: &str, expected: &str) {
        assert_eq!(rewrite(source).unwrap(), expected);
    }

    #[test]
    fn generation_blocks_become_scopes() {
        check(
            "{%- generation -%}\n{{ x }}{% endgeneration %}",
            "{%- with -%}\n{{ x }}{% endwith %}",
        );
        check("{%+generation%}a{%endgeneration+%}", "{%+with%}a{%endwith+%}");
    }

    #[test]
    fn the_word_stays_where_it_is_no_tag() {
        for source in [
            "{% if add_generation_prompt %}generation{% endif %}",
            "{# {% generation %} #}",
            "{% raw %}{% generation %}{% endraw %}",
            "{{ '{% generation %}' }}",
            "{% set a = '%}{% generation %}' %}",
            "{% generation",
            "{%raw%} generation",
            "{ generation }",
        ] {
            if source == "{% generation" {
                check(source, "{% with");
            } else {
                check(source, source);
            }
        }
    }

    #[test]
    fn line_endings_are_one_character() {
        check("a\r\nb\rc\n", "a\nb\nc\n");
    }
}
