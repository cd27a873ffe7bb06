//! Search for a text in a stream of bytes, whose tokens may split it anywhere.
//!
//! Source: Knuth, Morris & Pratt, "Fast Pattern Matching in Strings", 1977.

use std::sync::Arc;

/// Search for one text, a byte at a time. A clone shares the text.
#[derive(Debug, Clone)]
pub struct TextMatch {
    text: Arc<[u8]>,
    /// Length of the longest proper border of each non-empty prefix of the text.
    borders: Arc<[usize]>,
    /// Length of the longest prefix of the text that the stream ends with.
    n: usize,
}

impl TextMatch {
    /// Searches for `text`; an empty one never occurs.
    pub fn new(text: impl Into<Arc<[u8]>>) -> Self {
        let text = text.into();
        let mut borders = vec![0; text.len()];
        let mut n = 0;
        for end in 1..text.len() {
            n = extended(&text, &borders, n, text[end]);
            borders[end] = n;
        }
        Self { text, borders: borders.into(), n: 0 }
    }

    /// Length of the text in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.text.len()
    }

    /// Whether the text is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Appends a byte to the stream; returns whether the text ends with it. Occurrences may overlap.
    pub fn push(&mut self, byte: u8) -> bool {
        if self.text.is_empty() {
            return false;
        }
        if self.n == self.text.len() {
            self.n = self.borders[self.n - 1];
        }
        self.n = extended(&self.text, &self.borders, self.n, byte);
        self.n == self.text.len()
    }

    /// Forgets the stream.
    pub fn reset(&mut self) {
        self.n = 0;
    }
}

/// Length of the longest prefix of `text` that ends with `byte`, after one of `n` bytes, which is not the whole text.
fn extended(text: &[u8], borders: &[usize], mut n: usize, byte: u8) -> usize {
    while n > 0 && text[n] != byte {
        n = borders[n - 1];
    }
    n + usize::from(text[n] == byte)
}

#[cfg(test)]
mod tests {
    use super::TextMatch;
    use crate::Rng;

    #[test]
    fn every_occurrence_is_found_where_it_ends() {
        let mut rng = Rng::new(31);
        let mut letters = |n: usize| -> Vec<u8> {
            (0..n).map(|_| if rng.uniform() < 0.6 { b'a' } else { b'b' }).collect()
        };
        let mut found = 0;
        for n in 1..8 {
            for _ in 0..40 {
                let (text, stream) = (letters(n), letters(60));
                let mut search = TextMatch::new(text.clone());
                for end in 1..=stream.len() {
                    let expected = stream[..end].ends_with(&text);
                    assert_eq!(search.push(stream[end - 1]), expected, "{text:?} {stream:?}");
                    found += usize::from(expected);
                }
            }
        }
        assert!(found > 100, "{found}");
    }

    #[test]
    fn a_reset_forgets_the_beginning() {
        let mut search = TextMatch::new(*b"ab");
        assert!(!search.push(b'a'));
        search.reset();
        assert!(!search.push(b'b') && !search.push(b'a') && search.push(b'b'));
        assert!(!TextMatch::new([]).push(b'a'));
    }
}
