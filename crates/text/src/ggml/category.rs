//! Character classes of llama.cpp's pre-tokenizers, one byte per character.
//!
//! ASCII stands for itself; any other white space becomes a vertical tab, so that `\s` of a byte
//! pattern finds it; everything else becomes a byte of its general category. Patterns that know
//! only categories then run on one byte per character.
//!
//! Source: `unicode_regex_split` of llama.cpp `src/unicode.cpp`, whose table is Unicode 15.1.

use unicode_general_category::{GeneralCategory, get_general_category};

/// Characters of no category that a pattern names.
pub(super) const OTHER: u8 = 0xD0;
pub(super) const NUMBER: u8 = 0xD1;
pub(super) const LETTER: u8 = 0xD2;
pub(super) const PUNCTUATION: u8 = 0xD3;
pub(super) const MARK: u8 = 0xD4;
pub(super) const SYMBOL: u8 = 0xD5;
/// A letter of the Han script; only [`with_han`] gives it.
pub(super) const HAN_LETTER: u8 = 0xD6;
/// Another character of the blocks of the Han script; only [`with_han`] gives it.
pub(super) const HAN_OTHER: u8 = 0xD7;

/// Blocks that `unicode_cpt_is_han` of llama.cpp lists.
const HAN: [(u32, u32); 9] = [
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0x2CEB0, 0x2EBEF),
    (0x2F800, 0x2FA1F),
];

/// Ranges that Unicode 16.0 assigned and 15.1 has not.
const NEWER: [(u32, u32); 47] = [
    (0x897, 0x897),
    (0x1B4E, 0x1B4F),
    (0x1B7F, 0x1B7F),
    (0x1C89, 0x1C8A),
    (0x2427, 0x2429),
    (0x31E4, 0x31E5),
    (0xA7CB, 0xA7CD),
    (0xA7DA, 0xA7DC),
    (0x105C0, 0x105F3),
    (0x10D40, 0x10D65),
    (0x10D69, 0x10D85),
    (0x10D8E, 0x10D8F),
    (0x10EC2, 0x10EC4),
    (0x10EFC, 0x10EFC),
    (0x11380, 0x11389),
    (0x1138B, 0x1138B),
    (0x1138E, 0x1138E),
    (0x11390, 0x113B5),
    (0x113B7, 0x113C0),
    (0x113C2, 0x113C2),
    (0x113C5, 0x113C5),
    (0x113C7, 0x113CA),
    (0x113CC, 0x113D5),
    (0x113D7, 0x113D8),
    (0x113E1, 0x113E2),
    (0x116D0, 0x116E3),
    (0x11BC0, 0x11BE1),
    (0x11BF0, 0x11BF9),
    (0x11F5A, 0x11F5A),
    (0x13460, 0x143FA),
    (0x16100, 0x16139),
    (0x16D40, 0x16D79),
    (0x18CFF, 0x18CFF),
    (0x1CC00, 0x1CCF9),
    (0x1CD00, 0x1CEB3),
    (0x1E5D0, 0x1E5FA),
    (0x1E5FF, 0x1E5FF),
    (0x1F8B2, 0x1F8BB),
    (0x1F8C0, 0x1F8C1),
    (0x1FA89, 0x1FA89),
    (0x1FA8F, 0x1FA8F),
    (0x1FABE, 0x1FABE),
    (0x1FAC6, 0x1FAC6),
    (0x1FADC, 0x1FADC),
    (0x1FADF, 0x1FADF),
    (0x1FAE9, 0x1FAE9),
    (0x1FBCB, 0x1FBEF),
];

/// Class byte of a character.
pub(super) fn collapsed(c: char) -> u8 {
    if c.is_ascii() {
        return c as u8;
    }
    if c.is_whitespace() {
        return 0x0B;
    }
    match major(c) {
        Major::Number => NUMBER,
        Major::Letter => LETTER,
        Major::Punctuation => PUNCTUATION,
        Major::Mark => MARK,
        Major::Symbol => SYMBOL,
        Major::Separator | Major::Control | Major::Unassigned => OTHER,
    }
}

/// As [`collapsed`], with a class for the Han script.
pub(super) fn with_han(c: char) -> u8 {
    let byte = collapsed(c);
    if !is_han(c) {
        return byte;
    }
    if byte == LETTER { HAN_LETTER } else { HAN_OTHER }
}

fn is_han(c: char) -> bool {
    HAN.iter().any(|&(first, last)| (first..=last).contains(&u32::from(c)))
}

/// General categories by their first letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Major {
    Number,
    Letter,
    Separator,
    Mark,
    Punctuation,
    Symbol,
    Control,
    Unassigned,
}

/// The category of `c` in Unicode 15.1.
pub(super) fn major(c: char) -> Major {
    use GeneralCategory as G;
    if is_newer(c) {
        return Major::Unassigned;
    }
    match get_general_category(c) {
        G::UppercaseLetter
        | G::LowercaseLetter
        | G::TitlecaseLetter
        | G::ModifierLetter
        | G::OtherLetter => Major::Letter,
        G::DecimalNumber | G::LetterNumber | G::OtherNumber => Major::Number,
        G::NonspacingMark | G::SpacingMark | G::EnclosingMark => Major::Mark,
        G::ConnectorPunctuation
        | G::DashPunctuation
        | G::OpenPunctuation
        | G::ClosePunctuation
        | G::InitialPunctuation
        | G::FinalPunctuation
        | G::OtherPunctuation => Major::Punctuation,
        G::MathSymbol | G::CurrencySymbol | G::ModifierSymbol | G::OtherSymbol => Major::Symbol,
        G::SpaceSeparator | G::LineSeparator | G::ParagraphSeparator => Major::Separator,
        G::Unassigned => Major::Unassigned,
        _ => Major::Control,
    }
}

/// Whether `c` was assigned after Unicode 15.1.
fn is_newer(c: char) -> bool {
    let code = u32::from(c);
    let at = NEWER.partition_point(|&(_, last)| last < code);
    NEWER.get(at).is_some_and(|&(first, _)| first <= code)
}
