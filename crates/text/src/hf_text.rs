//! Normalizer and pre-tokenizer of Hugging Face's `tokenizer.json`, for byte-level BPE.
//!
//! Read: NFC, `Split` by a pattern, `Digits`, and `ByteLevel` as the last step. Patterns run on the `regex` crate, of which no
//! search takes more than linear time; the one look-ahead in use, `\s+(?!\S)`, is plain code. Pieces and normalized text are
//! those of the `tokenizers` crate.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use regex::{Regex, RegexBuilder};
use serde_json::Value;
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use crate::byte_level::TextRules;
use crate::error::{Error, Result};
use crate::hf_json::{File, flat, gpt2_only, type_of};
use crate::pretokenize::split_gpt2;

/// Most steps of a pre-tokenizer; published ones have at most six.
const MAX_STEPS: usize = 16;
/// Most bytes of a compiled pattern; the one of GPT-4o takes 0.2 MB.
const MAX_PATTERN_BYTES: usize = 1 << 20;
/// Last alternatives of most patterns: a run of white space leaves its last character to text after it.
const SPACES: &str = r"|\s+(?!\S)|\s+";
/// Possessive repetitions that no other character can end, and the greedy ones that match the same.
const POSSESSIVE: [(&str, &str); 2] = [
    (r"[^\r\n\p{L}\p{N}]?+\p{L}+", r"[^\r\n\p{L}\p{N}]?\p{L}+"),
    (r"[^\s\p{L}\p{N}]++[\r\n]*", r"[^\s\p{L}\p{N}]+[\r\n]*"),
];

/// Rules of a file for text between added tokens.
#[derive(Debug)]
struct HfText {
    composes: bool,
    steps: Vec<Step>,
}

/// Step of a pre-tokenizer; cuts the pieces of the one before.
#[derive(Debug)]
enum Step {
    /// GPT-2's pieces.
    Gpt2,
    /// Each number is a piece.
    EachNumber,
    /// Each run of numbers is a piece.
    Numbers,
    Split(Split),
}

/// Cut around the matches of a pattern.
#[derive(Debug)]
struct Split {
    pattern: Regex,
    /// Whether the pattern ends in [`SPACES`].
    matches_spaces: bool,
    /// Whether text between the matches is dropped.
    drops_rest: bool,
}

/// The rules of a file; none for GPT-2's pieces of text as given.
pub(crate) fn rules(file: &File<'_>) -> Result<Option<Arc<dyn TextRules>>> {
    if gpt2_only(file).is_ok() {
        return Ok(None);
    }
    let composes = composes(file.normalizer.as_ref())?;
    let mut parts = Vec::new();
    flat(file.pre_tokenizer.as_ref(), "pretokenizers", &mut parts);
    let Some((last, parts)) = parts.split_last() else {
        return refuse("pre-tokenizer ByteLevel", "none");
    };
    if parts.len() >= MAX_STEPS {
        return refuse("a pre-tokenizer of at most 16 steps", parts.len() + 1);
    }
    let mut steps = parts.iter().map(|part| Step::read(part)).collect::<Result<Vec<Step>>>()?;
    steps.extend(byte_level(last)?);
    Ok(Some(Arc::new(HfText { composes, steps })))
}

fn refuse<T>(expected: &'static str, got: impl ToString) -> Result<T> {
    Err(Error::Unsupported { expected, got: got.to_string() })
}

/// Whether text is brought into NFC.
fn composes(normalizer: Option<&Value>) -> Result<bool> {
    let mut parts = Vec::new();
    flat(normalizer, "normalizers", &mut parts);
    match parts.iter().find(|part| type_of(part) != "NFC") {
        Some(other) => refuse("normalizer NFC or none", type_of(other)),
        None => Ok(!parts.is_empty()),
    }
}

/// The pieces of `ByteLevel`, which also stands for the printable form of bytes.
fn byte_level(part: &Value) -> Result<Option<Step>> {
    if type_of(part) != "ByteLevel" {
        return refuse("a pre-tokenizer that ends in ByteLevel", type_of(part));
    }
    if part["add_prefix_space"] != Value::Bool(false) {
        return refuse("add_prefix_space false", "true");
    }
    Ok((part["use_regex"] != Value::Bool(false)).then_some(Step::Gpt2))
}

impl Step {
    fn read(part: &Value) -> Result<Self> {
        match (type_of(part).as_str(), part["individual_digits"].as_bool()) {
            ("Split", _) => Ok(Self::Split(Split::read(part)?)),
            ("Digits", Some(true)) => Ok(Self::EachNumber),
            ("Digits", Some(false)) => Ok(Self::Numbers),
            (other, _) => refuse("pre-tokenizers Split and Digits before ByteLevel", other),
        }
    }

    fn cut(&self, text: &str, piece: &mut dyn FnMut(&str)) {
        match self {
            Self::Gpt2 => split_gpt2(text, piece),
            Self::EachNumber => {
                for run in runs(text) {
                    if run.starts_with(char::is_numeric) {
                        run.char_indices().for_each(|(at, c)| piece(&run[at..at + c.len_utf8()]));
                    } else {
                        piece(run);
                    }
                }
            }
            Self::Numbers => runs(text).for_each(piece),
            Self::Split(split) => split.cut(text, piece),
        }
    }
}

/// The runs of numbers and of other characters in `text`.
fn runs(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let is_number = rest.chars().next()?.is_numeric();
        let end = rest.find(|c: char| c.is_numeric() != is_number).unwrap_or(rest.len());
        let (run, tail) = rest.split_at(end);
        rest = tail;
        Some(run)
    })
}

impl Split {
    fn read(part: &Value) -> Result<Self> {
        let behavior = part["behavior"].as_str().unwrap_or_default();
        let drops_rest = match (behavior, part["invert"].as_bool()) {
            ("Isolated", Some(_)) => false,
            ("Removed", Some(true)) => true,
            _ => return refuse("Split into its matches", format!("{behavior} matches")),
        };
        let pattern = &part["pattern"];
        if let Some(text) = pattern["String"].as_str() {
            return Self::new(&regex::escape(text), false, drops_rest);
        }
        let Some(source) = pattern["Regex"].as_str() else {
            return refuse("Split by Regex or String", "neither");
        };
        let (source, matches_spaces) =
            source.strip_suffix(SPACES).map_or((source, false), |source| (source, true));
        let mut source = source.to_owned();
        for (possessive, greedy) in POSSESSIVE {
            source = source.replace(possessive, greedy);
        }
        check_syntax(&source)?;
        Self::new(&source, matches_spaces, drops_rest)
    }

    fn new(source: &str, matches_spaces: bool, drops_rest: bool) -> Result<Self> {
        match RegexBuilder::new(source).size_limit(MAX_PATTERN_BYTES).build() {
            Ok(pattern) if pattern.is_match("") => {
                refuse("Split by a pattern that does not match the empty text", "one that does")
            }
            Ok(pattern) => Ok(Self { pattern, matches_spaces, drops_rest }),
            Err(error) => {
                // The lines before quote the pattern.
                let error = error.to_string();
                let reason = error.lines().last().unwrap_or_default();
                refuse("Split by a regular expression without look-around", reason)
            }
        }
    }

    fn cut(&self, text: &str, piece: &mut dyn FnMut(&str)) {
        let mut from = 0;
        let rest = |range: Range<usize>, piece: &mut dyn FnMut(&str)| {
            if !self.drops_rest && !range.is_empty() {
                piece(&text[range]);
            }
        };
        self.find_all(text, |found| {
            rest(from..found.start, piece);
            from = found.end;
            piece(&text[found]);
        });
        rest(from..text.len(), piece);
    }

    /// Calls `found` with each match in order. Earlier alternatives of the pattern win against white space that starts where
    /// they do.
    fn find_all(&self, text: &str, mut found: impl FnMut(Range<usize>)) {
        let mut at = 0;
        let mut next = self.pattern.find(text);
        loop {
            if next.is_some_and(|next| next.start() < at) {
                next = self.pattern.find_at(text, at);
            }
            let limit = next.map_or(text.len(), |next| next.start());
            let spaces = if self.matches_spaces { spaces(text, at..limit) } else { None };
            let Some(range) = spaces.or(next.map(|next| next.range())) else { break };
            at = range.end;
            found(range);
        }
    }
}

/// The first white space that starts in a range: the run without its last character if text follows, unless that is the only
/// one.
fn spaces(text: &str, range: Range<usize>) -> Option<Range<usize>> {
    let start = range.start + text[range].find(char::is_whitespace)?;
    let run = &text[start..];
    let len = run.find(|c: char| !c.is_whitespace()).unwrap_or(run.len());
    let last = run[..len].char_indices().next_back().map_or(0, |(at, _)| at);
    Some(start..start + if len < run.len() && last > 0 { last } else { len })
}

/// Refuses syntax that `regex` reads in another way than the engine of the `tokenizers` crate, and does not refuse itself.
fn check_syntax(pattern: &str) -> Result<()> {
    let mut rest = pattern;
    let mut in_class = 0_usize;
    while let Some(c) = rest.chars().next() {
        let tail = &rest[c.len_utf8()..];
        let next = tail.chars().next();
        let is_repeated = matches!(c, '?' | '*' | '+' | '}') && in_class == 0;
        match c {
            '\\' if next.is_some_and(is_known_escape) => {
                rest = &tail[1..];
                if next.is_some_and(|c| "pPxu".contains(c)) && rest.starts_with('{') {
                    rest = rest.split_once('}').map_or("", |(_, rest)| rest);
                }
                continue;
            }
            '\\' => {
                return refuse(
                    "Split by a pattern of known escapes",
                    format!("\\{}", next.unwrap_or_default()),
                );
            }
            '[' => in_class += 1,
            ']' => in_class = in_class.saturating_sub(1),
            '(' if in_class == 0 && next == Some('?') => {
                if !["?:", "?i:"].iter().any(|start| tail.starts_with(start)) {
                    let start: String = rest.chars().take(4).collect();
                    return refuse("Split by a pattern of plain groups", start);
                }
                rest = &tail[1..];
                continue;
            }
            '{' if in_class == 0 && next == Some(',') => {
                return refuse("Split by a pattern without {,n}", "{,");
            }
            _ if is_repeated && next == Some('+') => {
                return refuse("Split by a pattern without possessive repetition", format!("{c}+"));
            }
            _ => {}
        }
        rest = tail;
    }
    Ok(())
}

fn is_known_escape(c: char) -> bool {
    "rntsSdDwWpPux".contains(c) || (c.is_ascii_punctuation() && !"<>".contains(c))
}

impl TextRules for HfText {
    fn normalized<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if !self.composes || is_nfc_quick(text.chars()) == IsNormalized::Yes {
            return Cow::Borrowed(text);
        }
        let mut composed = String::with_capacity(text.len());
        for part in text.split_inclusive(is_newer) {
            let newer = part.chars().next_back().filter(|&c| is_newer(c));
            let known = &part[..part.len() - newer.map_or(0, char::len_utf8)];
            composed.extend(known.nfc());
            composed.extend(newer);
        }
        Cow::Owned(composed)
    }

    fn split(&self, text: &str, piece: &mut dyn FnMut(&str)) {
        cut(&self.steps, text, piece);
    }
}

fn cut(steps: &[Step], text: &str, piece: &mut dyn FnMut(&str)) {
    match steps.split_first() {
        _ if text.is_empty() => {}
        Some((first, steps)) => first.cut(text, &mut |part| cut(steps, part, piece)),
        None => piece(text),
    }
}

/// Ranges with all characters that have a class or a composition now and had none in Unicode 9, whose NFC the `tokenizers`
/// crate applies. The other characters in the ranges are inert in both.
const NEWER: [(u32, u32); 23] = [
    (0x5C8, 0x5C9),
    (0x7FD, 0x7FD),
    (0x897, 0x8D3),
    (0x9FE, 0x9FE),
    (0xC3C, 0xC3C),
    (0xD3B, 0xD3C),
    (0xEBA, 0xEBA),
    (0x1715, 0x1715),
    (0x1ABF, 0x1AF0),
    (0x1DF6, 0x1DFA),
    (0xA82C, 0xA82C),
    (0x105C9, 0x105E4),
    (0x10D24, 0x10F85),
    (0x11070, 0x11070),
    (0x1133B, 0x1133B),
    (0x11382, 0x113D0),
    (0x1145E, 0x1145E),
    (0x11839, 0x11A99),
    (0x11D42, 0x1612F),
    (0x16D63, 0x16FF1),
    (0x1D127, 0x1D128),
    (0x1D250, 0x1D281),
    (0x1E08F, 0x1E6F5),
];

/// Whether NFC leaves `c` alone, as text that separates its neighbours.
fn is_newer(c: char) -> bool {
    let code = u32::from(c);
    let at = NEWER.partition_point(|&(_, last)| last < code);
    NEWER.get(at).is_some_and(|&(first, _)| first <= code)
}
