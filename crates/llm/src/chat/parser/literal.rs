//! Values that models write, as JSON: JSON itself byte for byte, Python's literals, Gemma's objects.
//!
//! Repairs what cannot be meant otherwise: line feeds in strings, `\p`, single quotes, bare keys, trailing commas.

use super::GEMMA_QUOTE;

/// State of one value. The text arrives in pieces, its JSON goes out as it comes.
#[derive(Debug, Clone, Default)]
pub(super) struct Literal {
    /// Open brackets: `{`, `[`, `(` of a tuple, `C` of keyword arguments.
    stack: Vec<u8>,
    mode: Mode,
    /// Bare word so far.
    word: String,
    /// White space after a comma, which is written before the next item.
    gap: Option<String>,
    /// Whether strings are in `<|"|>`.
    is_gemma: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    Value,
    Key,
    /// Between a key and its value.
    Colon,
    AfterValue,
    String {
        quote: Quote,
        is_key: bool,
    },
    Word {
        is_key: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quote {
    Double,
    Single,
    Gemma,
}

/// State of a value after a piece of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// The value goes on.
    More,
    /// The value is complete.
    Done,
    /// The text is no value.
    Malformed,
}

impl Literal {
    /// Value of Gemma's notation.
    pub(super) fn gemma() -> Self {
        Self { is_gemma: true, ..Self::default() }
    }

    /// Python's keyword arguments after `(`, as an object; its `{` is written to `out`.
    pub(super) fn keywords(out: &mut String) -> Self {
        out.push('{');
        Self { stack: vec![b'C'], mode: Mode::Key, ..Self::default() }
    }

    /// Reads `text` and appends JSON to `out`. Returns the number of bytes read; the others are to be given again, with
    /// more text.
    pub(super) fn read(&mut self, text: &str, is_end: bool, out: &mut String) -> (usize, Progress) {
        let mut at = 0;
        while at < text.len() {
            let (rest, before) = (&text[at..], self.mode);
            let (n, progress) = match before {
                Mode::String { quote, is_key } => self.string(rest, quote, is_key, is_end, out),
                Mode::Word { is_key } => self.word(rest, is_key, out),
                _ => self.structure(rest, is_end, out),
            };
            at += n;
            match progress {
                Progress::More if n == 0 && self.mode == before => break,
                Progress::More => {}
                end => return (at, end),
            }
        }
        (at, Progress::More)
    }

    /// One character outside of strings and words.
    fn structure(&mut self, rest: &str, is_end: bool, out: &mut String) -> (usize, Progress) {
        let Some(c) = rest.chars().next() else { return (0, Progress::More) };
        let top = self.stack.last().copied();
        if c.is_whitespace() {
            match &mut self.gap {
                Some(gap) => gap.push(c),
                None if self.stack.is_empty() => {}
                // JSON has no other white space.
                None => out.push(if matches!(c, ' ' | '\n' | '\t' | '\r') { c } else { ' ' }),
            }
            return (c.len_utf8(), Progress::More);
        }
        let closes =
            matches!((c, top), ('}', Some(b'{')) | (']', Some(b'[')) | (')', Some(b'(' | b'C')));
        match (self.mode, c) {
            (Mode::Colon, ':' | '=') => {
                out.push(':');
                self.mode = Mode::Value;
                (1, Progress::More)
            }
            (Mode::Key | Mode::Value | Mode::AfterValue, _) if closes => {
                // After a colon there must be a value.
                if self.mode == Mode::Value && matches!(top, Some(b'{' | b'C')) {
                    return (0, Progress::Malformed);
                }
                self.gap = None;
                out.push(if matches!(top, Some(b'{' | b'C')) { '}' } else { ']' });
                self.stack.pop();
                (1, self.end_value())
            }
            (Mode::AfterValue, ',') => {
                self.gap = Some(String::new());
                self.mode = if matches!(top, Some(b'{' | b'C')) { Mode::Key } else { Mode::Value };
                (1, Progress::More)
            }
            (Mode::Key | Mode::Value, _) => self.begin(c, rest, is_end, out),
            _ => (0, Progress::Malformed),
        }
    }

    /// Begins a key or a value.
    fn begin(&mut self, c: char, rest: &str, is_end: bool, out: &mut String) -> (usize, Progress) {
        let is_key = self.mode == Mode::Key;
        let quote = match c {
            '"' => Some((1, Quote::Double)),
            '\'' => Some((1, Quote::Single)),
            '<' if self.is_gemma => {
                if rest.starts_with(GEMMA_QUOTE) {
                    Some((GEMMA_QUOTE.len(), Quote::Gemma))
                } else if GEMMA_QUOTE.starts_with(rest) && !is_end {
                    return (0, Progress::More);
                } else {
                    return (0, Progress::Malformed);
                }
            }
            _ => None,
        };
        let opens = matches!(c, '{' | '[' | '(') && !is_key;
        let is_word = c.is_alphanumeric() || matches!(c, '-' | '+' | '.' | '_');
        if quote.is_none() && !opens && !is_word {
            return (0, Progress::Malformed);
        }
        if let Some(gap) = self.gap.take() {
            out.push(',');
            out.push_str(&gap);
        }
        if let Some((n, quote)) = quote {
            out.push('"');
            self.mode = Mode::String { quote, is_key };
            return (n, Progress::More);
        }
        if opens {
            out.push(if c == '{' { '{' } else { '[' });
            self.stack.push(c as u8);
            self.mode = if c == '{' { Mode::Key } else { Mode::Value };
            return (1, Progress::More);
        }
        self.word.clear();
        self.mode = Mode::Word { is_key };
        self.word(rest, is_key, out)
    }

    fn end_value(&mut self) -> Progress {
        self.mode = Mode::AfterValue;
        if self.stack.is_empty() { Progress::Done } else { Progress::More }
    }

    fn word(&mut self, rest: &str, is_key: bool, out: &mut String) -> (usize, Progress) {
        let is_delimiter =
            |c: char| c.is_whitespace() || matches!(c, ',' | '}' | ']' | ')' | ':' | '=');
        let Some(end) = rest.find(is_delimiter) else {
            self.word.push_str(rest);
            return (rest.len(), Progress::More);
        };
        self.word.push_str(&rest[..end]);
        self.end_word(is_key, out);
        if is_key {
            self.mode = Mode::Colon;
            return (end, Progress::More);
        }
        (end, self.end_value())
    }

    fn end_word(&mut self, is_key: bool, out: &mut String) {
        let word = match self.word.as_str() {
            word if is_key => Err(word),
            "true" | "True" => Ok("true"),
            "false" | "False" => Ok("false"),
            "null" | "None" | "none" | "nil" => Ok("null"),
            word if serde_json::from_str::<serde_json::Number>(word).is_ok() => Ok(word),
            word => Err(word),
        };
        match word {
            Ok(word) => out.push_str(word),
            Err(word) => {
                out.push('"');
                word.chars().for_each(|c| escape(c, out));
                out.push('"');
            }
        }
    }

    fn string(
        &mut self,
        rest: &str,
        quote: Quote,
        is_key: bool,
        is_end: bool,
        out: &mut String,
    ) -> (usize, Progress) {
        let is_plain = |byte: u8| match byte {
            b'"' | b'\\' => false,
            b'\'' => quote != Quote::Single,
            b'<' => quote != Quote::Gemma,
            byte => byte >= 0x20,
        };
        let run = rest.bytes().position(|byte| !is_plain(byte)).unwrap_or(rest.len());
        out.push_str(&rest[..run]);
        let rest = &rest[run..];
        let Some(c) = rest.chars().next() else { return (run, Progress::More) };
        let end = match (quote, c) {
            (Quote::Double, '"') | (Quote::Single, '\'') => 1,
            (Quote::Gemma, '<') if rest.starts_with(GEMMA_QUOTE) => GEMMA_QUOTE.len(),
            (Quote::Gemma, '<') if GEMMA_QUOTE.starts_with(rest) && !is_end => {
                return (run, Progress::More);
            }
            (Quote::Double | Quote::Single, '\\') => {
                return match escaped(rest, is_end, out) {
                    0 => (run, Progress::More),
                    n => (run + n, Progress::More),
                };
            }
            _ => {
                escape(c, out);
                return (run + c.len_utf8(), Progress::More);
            }
        };
        out.push('"');
        if is_key {
            self.mode = Mode::Colon;
            return (run + end, Progress::More);
        }
        (run + end, self.end_value())
    }
}

/// Copies an escape sequence as JSON has it; returns its length, or 0 if more text decides.
fn escaped(text: &str, is_end: bool, out: &mut String) -> usize {
    let mut chars = text[1..].chars();
    match chars.next() {
        None => {
            if is_end {
                out.push_str("\\\\");
            }
            usize::from(is_end)
        }
        Some(c @ ('"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't')) => {
            out.extend(['\\', c]);
            2
        }
        Some('\'') => {
            out.push('\'');
            2
        }
        Some('u') => {
            let digits = chars.clone().take(4).take_while(char::is_ascii_hexdigit).count();
            let is_cut = text.len() == 2 + digits && digits < 4;
            if is_cut && !is_end {
                return 0;
            }
            // `C:\users` is no Unicode escape.
            out.push_str(if digits == 4 { "\\u" } else { "\\\\u" });
            2
        }
        Some(_) => {
            out.push_str("\\\\");
            1
        }
    }
}

/// Appends a character of a JSON string.
pub(super) fn escape(c: char, out: &mut String) {
    match c {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c if c < ' ' => {
            let digit = |n: u32| char::from_digit(n, 16).unwrap_or('0');
            out.push_str("\\u00");
            out.extend([digit(c as u32 >> 4), digit(c as u32 & 15)]);
        }
        c => out.push(c),
    }
}
