//! Splitting text into the pieces that BPE works on, as llama.cpp does it.
//!
//! A pre-tokenizer is a list of steps; each cuts the pieces of the one before. Patterns have no
//! look-ahead: the only one in use, `\s+(?!\S)`, gives the last white space of a run back to the
//! text after it, which is plain code here, so that every pattern runs in linear time.
//!
//! Source: `unicode_regex_split` of llama.cpp `src/unicode.cpp`.

use std::ops::Range;

use regex::Regex;
use regex::bytes::{Regex as ByteRegex, RegexBuilder as ByteRegexBuilder};

use super::category::{collapsed, with_han};
use super::pre_types::{Spaces, Step};

/// Compiled step.
#[derive(Debug, Clone)]
pub(super) enum Splitter {
    /// A pattern over one byte per character.
    Classes { pattern: ByteRegex, spaces: Spaces, han: bool },
    /// A pattern over the characters themselves, in which white space beyond ASCII is `\x0B`.
    Text(Regex),
    /// Runs of numbers, cut into threes from their end.
    NumberGroups,
    /// Runs of the ten ASCII digits, cut into threes from their end; a first group of less than
    /// three stays with the text before it.
    DigitGroups,
}

impl Splitter {
    pub(super) fn new(step: &Step) -> Self {
        let classes = |pattern: &str, spaces, han| Self::Classes {
            pattern: ByteRegexBuilder::new(&with_categories(pattern))
                .unicode(false)
                .build()
                .expect("the constant pattern is valid"),
            spaces,
            han,
        };
        match *step {
            Step::Classes(pattern, spaces) => classes(pattern, spaces, false),
            Step::HanClasses(pattern, spaces) => classes(pattern, spaces, true),
            Step::Text(pattern) => {
                Self::Text(Regex::new(pattern).expect("the constant pattern is valid"))
            }
            Step::NumberGroups => Self::NumberGroups,
            Step::DigitGroups => Self::DigitGroups,
        }
    }
}

/// Replaces the categories of a pattern (always inside brackets) by their class bytes.
fn with_categories(pattern: &str) -> String {
    pattern
        .replace(r"\p{N}", r"\xD10-9")
        .replace(r"\p{L}", r"\xD2A-Za-z")
        .replace(r"\p{P}", r"\xD3!-#%-*,-/:;?@\[\\\]_{}")
        .replace(r"\p{M}", r"\xD4")
        .replace(r"\p{S}", r"\xD5$+<->^`|~")
        .replace(r"\p{Han}", r"\xD6\xD7")
        .replace(r"\p{HanOther}", r"\xD7")
}

/// Calls `piece` with each piece of `text` in order; together they are the whole text.
pub(super) fn split<'t>(splitters: &[Splitter], text: &'t str, mut piece: impl FnMut(&'t str)) {
    let mut views = Views { text, classes: None, han_classes: None, wide: None };
    let n_chars = text.chars().count();
    let mut lens = vec![n_chars];
    for splitter in splitters {
        let mut cut = Vec::with_capacity(lens.len());
        let mut start = 0;
        for &len in &lens {
            let mut cuts = Cuts { lens: &mut cut, from: start };
            views.cut(splitter, start..start + len, &mut cuts);
            cuts.until(start + len);
            start += len;
        }
        lens = cut;
    }
    let mut rest = text;
    for len in lens {
        let end = if text.len() == n_chars {
            len
        } else {
            rest.char_indices().nth(len).map_or(rest.len(), |(at, _)| at)
        };
        let (head, tail) = rest.split_at(end);
        piece(head);
        rest = tail;
    }
}

/// Lengths of the pieces so far, in characters.
struct Cuts<'l> {
    lens: &'l mut Vec<usize>,
    from: usize,
}

impl Cuts<'_> {
    /// Ends a piece at `at`, if there is one to end.
    fn until(&mut self, at: usize) {
        if at > self.from {
            self.lens.push(at - self.from);
            self.from = at;
        }
    }
}

/// Forms of a text that steps match against, computed on first use.
struct Views<'t> {
    text: &'t str,
    classes: Option<Vec<u8>>,
    han_classes: Option<Vec<u8>>,
    wide: Option<Wide>,
}

/// The characters with white space beyond ASCII replaced, and where each one starts.
struct Wide {
    text: String,
    starts: Vec<usize>,
}

impl Wide {
    fn new(text: &str) -> Self {
        let replaced = |c: char| if !c.is_ascii() && c.is_whitespace() { '\u{B}' } else { c };
        let text: String = text.chars().map(replaced).collect();
        let mut starts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        starts.push(text.len());
        Self { text, starts }
    }
}

impl Views<'_> {
    fn classes(&mut self) -> &[u8] {
        self.classes.get_or_insert_with(|| self.text.chars().map(collapsed).collect())
    }

    fn cut(&mut self, splitter: &Splitter, chars: Range<usize>, cuts: &mut Cuts<'_>) {
        match splitter {
            Splitter::Classes { pattern, spaces, han: false } => {
                cut_classes(pattern, *spaces, &self.classes()[chars.clone()], chars.start, cuts);
            }
            Splitter::Classes { pattern, spaces, han: true } => {
                let text = self.text;
                let classes =
                    self.han_classes.get_or_insert_with(|| text.chars().map(with_han).collect());
                cut_classes(pattern, *spaces, &classes[chars.clone()], chars.start, cuts);
            }
            Splitter::Text(pattern) => {
                let text = self.text;
                let wide = self.wide.get_or_insert_with(|| Wide::new(text));
                let part = &wide.text[wide.starts[chars.start]..wide.starts[chars.end]];
                cut_text(pattern, part, chars.start, cuts);
            }
            Splitter::NumberGroups => {
                let is_number =
                    |class: u8| class == super::category::NUMBER || class.is_ascii_digit();
                cut_groups(
                    &self.classes()[chars.clone()],
                    chars.start,
                    is_number,
                    |run, cuts| {
                        // The text before the first number stays one piece with a short first group.
                        let first = run.start + run.len() % 3;
                        if first > run.start {
                            cuts.until(first);
                        }
                        (first + 3..=run.end).step_by(3).for_each(|at| cuts.until(at));
                    },
                    cuts,
                );
            }
            Splitter::DigitGroups => {
                let is_digit = |class: u8| class.is_ascii_digit();
                cut_groups(
                    &self.classes()[chars.clone()],
                    chars.start,
                    is_digit,
                    |run, cuts| {
                        let first = run.start + run.len() % 3;
                        (first..run.end).step_by(3).for_each(|at| cuts.until(at));
                    },
                    cuts,
                );
            }
        }
    }
}

fn cut_text(pattern: &Regex, part: &str, offset: usize, cuts: &mut Cuts<'_>) {
    let (mut at_byte, mut at) = (0, offset);
    for found in pattern.find_iter(part) {
        at += part[at_byte..found.start()].chars().count();
        cuts.until(at);
        at += found.as_str().chars().count();
        cuts.until(at);
        at_byte = found.end();
    }
}

fn cut_groups(
    part: &[u8],
    offset: usize,
    belongs: impl Fn(u8) -> bool,
    cut_run: impl Fn(Range<usize>, &mut Cuts<'_>),
    cuts: &mut Cuts<'_>,
) {
    let mut at = 0;
    while at < part.len() {
        let len = part[at..].iter().take_while(|&&class| belongs(class)).count();
        if len > 0 {
            cut_run(offset + at..offset + at + len, cuts);
        }
        at += len.max(1);
    }
}

fn cut_classes(
    pattern: &ByteRegex,
    spaces: Spaces,
    part: &[u8],
    offset: usize,
    cuts: &mut Cuts<'_>,
) {
    let mut at = 0;
    while let Some(found) = pattern.find_at(part, at) {
        cuts.until(offset + found.start());
        let followed = found.end() < part.len();
        let kept = match spaces {
            Spaces::Whole => found.len(),
            _ => spaces.kept(found.as_bytes(), followed),
        };
        if spaces == Spaces::Powers && kept > 1 && is_space_run(found.as_bytes()) {
            cut_powers(offset + found.start(), kept, cuts);
        }
        at = found.start() + kept;
        cuts.until(offset + at);
    }
}

/// Cuts `len` white spaces into the powers of two that jais-2's pattern lists.
fn cut_powers(start: usize, len: usize, cuts: &mut Cuts<'_>) {
    let (mut at, end) = (start, start + len);
    for power in [512, 256, 128, 64, 32, 16, 8, 4, 2, 1] {
        while end - at >= power {
            at += power;
            cuts.until(at);
        }
    }
}

/// Whether `\s+` matched, and not an alternative that ends in a line break.
fn is_space_run(matched: &[u8]) -> bool {
    matched.iter().all(|&class| matches!(class, b'\t'..=b'\r' | b' '))
        && !matches!(matched.last(), Some(b'\r' | b'\n'))
}

impl Spaces {
    /// Length of the match to keep: a run of white space with text after it leaves its last
    /// character to that text, unless it is the only one.
    fn kept(self, matched: &[u8], followed: bool) -> usize {
        let gives_back = match matched.last() {
            Some(b'\r' | b'\n') => self == Self::GiveBack,
            Some(b'\t' | 0x0B | 0x0C | b' ') => true,
            _ => false,
        };
        let len = matched.len();
        if gives_back && followed && len > 1 { len - 1 } else { len }
    }
}
