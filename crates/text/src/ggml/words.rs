//! WordPiece (`tokenizer.ggml.model` `bert`): words are normalized and covered by the longest
//! tokens from the left.
//!
//! Source: `llm_tokenizer_wpm_session` of llama.cpp `src/llama-vocab.cpp`.

use unicode_normalization::char::decompose_canonical;

use super::category::{Major, major};
use super::tokens::Tokens;

/// Ideographs, which are words of their own. The fourth last block starts where Hugging Face's
/// implementation has it.
const IDEOGRAPHS: [(u32, u32); 8] = [
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
];

/// Normalization and look-up of words.
#[derive(Debug, Clone)]
pub(super) struct Words {
    pub(super) lowercase: bool,
    pub(super) strip_accents: bool,
    pub(super) longest: usize,
    pub(super) unk: Option<u32>,
}

impl Words {
    /// Appends the tokens of `text` to `out`.
    pub(super) fn encode(&self, tokens: &Tokens, text: &str, out: &mut Vec<u32>) {
        for word in self.words(text) {
            // Tokens that start a word are written with U+2581 before them.
            let word = format!("\u{2581}{word}");
            let n_before = out.len();
            let mut at = 0;
            while at < word.len() {
                let Some((end, id)) = self.longest_token(tokens, &word, at) else {
                    out.truncate(n_before);
                    break;
                };
                out.push(id);
                at = end;
            }
            if out.len() == n_before {
                out.extend(self.unk);
            }
        }
    }

    /// The longest token of `word` that starts at byte `at`, with its end.
    fn longest_token(&self, tokens: &Tokens, word: &str, at: usize) -> Option<(usize, u32)> {
        let limit = word.len().min(at + self.longest + 1);
        (at + 1..=limit)
            .rev()
            .filter(|&end| word.is_char_boundary(end))
            .find_map(|end| Some((end, tokens.id(&word[at..end])?)))
    }

    fn words(&self, text: &str) -> Vec<String> {
        let mut words = Vec::new();
        let mut word = String::new();
        for c in text.chars() {
            let c = if self.strip_accents { first_decomposed(c) } else { c };
            if c.is_whitespace() {
                words.push(std::mem::take(&mut word));
                continue;
            }
            let category = major(c);
            let is_dropped = c == '\0' || c == '\u{FFFD}' || category == Major::Control;
            if is_dropped || (self.strip_accents && category == Major::Mark) {
                continue;
            }
            let shown = if self.lowercase { lowercase(c) } else { c };
            let is_symbol = category == Major::Symbol && u32::from(c) < 0x7F;
            if category == Major::Punctuation || is_symbol || is_ideograph(c) {
                words.push(std::mem::take(&mut word));
                words.push(shown.to_string());
            } else {
                word.push(shown);
            }
        }
        words.push(word);
        words.retain(|word| !word.is_empty());
        words
    }
}

fn is_ideograph(c: char) -> bool {
    IDEOGRAPHS.iter().any(|&(first, last)| (first..=last).contains(&u32::from(c)))
}

/// The base character of `c`: the first of its decomposition.
fn first_decomposed(c: char) -> char {
    let mut first = None;
    decompose_canonical(c, |part| {
        first.get_or_insert(part);
    });
    first.unwrap_or(c)
}

/// `text` with each character in lower case.
pub(super) fn lowercased(text: &str) -> String {
    text.chars().map(lowercase).collect()
}

/// Lower case of `c`, if it is one character.
fn lowercase(c: char) -> char {
    let mut lower = c.to_lowercase();
    match (lower.next(), lower.next()) {
        (Some(only), None) => only,
        _ => c,
    }
}
