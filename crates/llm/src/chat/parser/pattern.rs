//! Patterns of short headers, such as `{name}[CALL_ID]{id}[ARGS]`.
//!
//! White space in a pattern stands for any, also none. `{name}`, `{key}` and `{id}` stand for text up to the next
//! character of the pattern; at the end of a pattern, up to white space or one of `<{(`. `{index}` is the end of an
//! identifier that is the whole header so far. `{type}` is `string`, `true`, or another word; `{number}` is dropped.

/// Maximum bytes of a header.
const MAX_BYTES: usize = 512;

/// Result of matching text with a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Match<'a> {
    /// The text may begin with the pattern.
    More,
    /// The text does not begin with the pattern.
    No,
    /// The text begins with the pattern.
    Yes(Header<'a>),
}

/// Captures of a pattern.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Header<'a> {
    /// Bytes of the header.
    pub(super) len: usize,
    /// `{name}` or `{key}`.
    pub(super) name: &'a str,
    /// `{id}`, or all up to `{index}`.
    pub(super) id: Option<&'a str>,
    /// `{type}`.
    pub(super) kind: Option<&'a str>,
}

/// Matches the first pattern that fits.
pub(super) fn match_any<'a>(
    patterns: &[impl AsRef<str>],
    text: &'a str,
    is_end: bool,
) -> Match<'a> {
    for pattern in patterns {
        match match_one(pattern.as_ref(), text, is_end) {
            Match::No => {}
            other => return other,
        }
    }
    Match::No
}

fn match_one<'a>(mut pattern: &str, text: &'a str, is_end: bool) -> Match<'a> {
    let mut header = Header::default();
    let more = if is_end || text.len() > MAX_BYTES { Match::No } else { Match::More };
    while let Some(first) = pattern.chars().next() {
        let rest = &text[header.len..];
        if first.is_whitespace() {
            pattern = pattern.trim_start();
            header.len += rest.len() - rest.trim_start().len();
            if header.len == text.len() && !pattern.is_empty() {
                return more;
            }
            continue;
        }
        if let Some((field, after)) =
            pattern.strip_prefix('{').and_then(|pattern| pattern.split_once('}'))
        {
            let next = after.chars().next();
            let is_stop = |c: char| match next {
                Some(next) => c == next || c == '\n' || (next.is_whitespace() && c.is_whitespace()),
                None => c.is_whitespace() || matches!(c, '<' | '{' | '('),
            };
            let end = match rest.find(is_stop) {
                Some(end) => end,
                None if is_end && next.is_none() => rest.len(),
                None => return more,
            };
            let captured = &rest[..end];
            if captured.is_empty() || captured.len() > MAX_BYTES {
                return Match::No;
            }
            header.len += end;
            match field {
                "id" => header.id = Some(captured),
                "index" => header.id = Some(&text[..header.len]),
                "type" => header.kind = Some(captured),
                "number" => {}
                _ => header.name = captured,
            }
            pattern = after;
            continue;
        }
        match rest.chars().next() {
            None => return more,
            Some(c) if c == first => {
                header.len += c.len_utf8();
                pattern = &pattern[first.len_utf8()..];
            }
            Some(_) => return Match::No,
        }
    }
    Match::Yes(header)
}

#[cfg(test)]
mod tests {
    use super::{Header, Match, match_any};

    #[track_caller]
    fn check(patterns: &[&str], text: &str, name: &str, id: Option<&str>, len: usize) {
        let expected = Header { len, name, id, kind: None };
        assert_eq!(match_any(patterns, text, false), Match::Yes(expected));
        for end in (0..len).filter(|&end| text.is_char_boundary(end)) {
            assert_eq!(match_any(patterns, &text[..end], false), Match::More, "{end}");
        }
    }

    #[test]
    fn headers_are_matched_as_soon_as_they_are_complete() {
        let mistral = ["{name}[CALL_ID]{id}[ARGS]", "{name}[ARGS]"];
        check(&mistral, "f[ARGS]{", "f", None, 7);
        check(&mistral, "f[CALL_ID]a1[ARGS]{", "f", Some("a1"), 18);
        check(
            &["functions.{name}:{index}<|a|>"],
            "functions.f:0<|a|>{}",
            "f",
            Some("functions.f:0"),
            18,
        );
        check(&["{key}</k>\n<v>"], "größe</k><v>1", "größe", None, 14);
        check(&["{key}</k>\n<v>"], "a</k>\n  <v>1", "a", None, 11);
    }

    #[test]
    fn a_pattern_at_its_end_needs_one_more_character() {
        assert_eq!(match_any(&["{name}"], "f", false), Match::More);
        assert!(matches!(match_any(&["{name}"], "f", true), Match::Yes(_)));
        assert!(matches!(match_any(&["{name}"], "f\n", false), Match::Yes(_)));
        assert_eq!(match_any(&["{name}>"], "f\n", false), Match::No);
        assert_eq!(match_any(&["{name}>"], &"f".repeat(600), false), Match::No);
    }
}
