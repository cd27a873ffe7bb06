//! The normalizer for every language: lower case, no brackets, no symbols and punctuation.

use unicode_general_category::{GeneralCategory as Category, get_general_category};
use unicode_normalization::UnicodeNormalization;
use unicode_segmentation::UnicodeSegmentation;

use super::pattern::Pattern;

/// `BasicTextNormalizer` with its default options.
#[derive(Debug)]
pub(super) struct BasicNormalizer {
    brackets: Brackets,
    spaces: Pattern,
}

impl BasicNormalizer {
    pub(super) fn new() -> Self {
        Self { brackets: Brackets::new(), spaces: Pattern::new(r"\s+") }
    }

    pub(super) fn normalize(&self, text: &str) -> String {
        self.spaces.replace(&self.clean(text), " ")
    }

    /// The same with a space between letters (grapheme clusters).
    pub(super) fn normalize_letters(&self, text: &str) -> String {
        let letters: Vec<_> = self.clean(text).graphemes(true).map(str::to_owned).collect();
        self.spaces.replace(&letters.join(" "), " ")
    }

    fn clean(&self, text: &str) -> String {
        remove_symbols(&self.brackets.remove(&text.to_lowercase())).to_lowercase()
    }
}

/// Removes what stands between brackets: descriptions of sounds, names of speakers.
#[derive(Debug)]
pub(super) struct Brackets {
    angle_and_square: Pattern,
    round: Pattern,
}

impl Brackets {
    pub(super) fn new() -> Self {
        Self {
            angle_and_square: Pattern::new(r"[<\[][^>\]]*[>\]]"),
            round: Pattern::new(r"\(([^)]+?)\)"),
        }
    }

    pub(super) fn remove(&self, text: &str) -> String {
        self.round.replace(&self.angle_and_square.replace(text, ""), "")
    }
}

/// Whether the character is a mark, a symbol or punctuation.
fn is_mark_symbol_or_punctuation(c: char) -> bool {
    // The abbreviation of each such category starts with M, S or P.
    let name = get_general_category(c).abbreviation();
    name.starts_with(['M', 'S', 'P'])
}

fn remove_symbols(text: &str) -> String {
    text.nfkc().map(|c| if is_mark_symbol_or_punctuation(c) { ' ' } else { c }).collect()
}

/// Like [`remove_symbols`], and letters lose their diacritics; the characters of `keep` stay.
pub(super) fn remove_symbols_and_diacritics(text: &str, keep: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.nfkd() {
        if keep.contains(c) {
            out.push(c);
        } else if let Some(plain) = without_stroke_or_ligature(c) {
            out.push_str(plain);
        } else if get_general_category(c) == Category::NonspacingMark {
            // Decomposition left the diacritic of the letter before.
        } else if is_mark_symbol_or_punctuation(c) {
            out.push(' ');
        } else {
            out.push(c);
        }
    }
    out
}

/// Letters that Unicode does not decompose.
fn without_stroke_or_ligature(c: char) -> Option<&'static str> {
    Some(match c {
        'œ' => "oe",
        'Œ' => "OE",
        'ø' => "o",
        'Ø' => "O",
        'æ' => "ae",
        'Æ' => "AE",
        'ß' => "ss",
        'ẞ' => "SS",
        'đ' | 'ð' => "d",
        'Đ' | 'Ð' => "D",
        'þ' | 'Þ' => "th",
        'ł' => "l",
        'Ł' => "L",
        _ => return None,
    })
}
