//! Line breaks between words, for text that arrives in pieces.

use console::measure_text_width;

/// Breaks lines before words that do not fit; a word is held back until it is whole.
#[derive(Debug)]
pub(super) struct WordWrap {
    /// Columns of a line; `None` breaks none.
    width: Option<usize>,
    column: usize,
    word: String,
}

impl WordWrap {
    pub(super) fn new(width: Option<usize>) -> Self {
        Self { width, column: 0, word: String::new() }
    }

    /// Adds text; returns what can be printed.
    pub(super) fn push(&mut self, text: &str) -> String {
        if self.width.is_none() {
            return text.to_owned();
        }
        let mut out = String::new();
        for c in text.chars() {
            if !c.is_whitespace() {
                self.word.push(c);
                continue;
            }
            out += &self.flush();
            // A space at the end of a full line would begin the next one.
            let c = if self.width.is_some_and(|width| self.column >= width) { '\n' } else { c };
            out.push(c);
            self.column = if c == '\n' { 0 } else { self.column + 1 };
        }
        out
    }

    /// Returns the word that was held back.
    pub(super) fn flush(&mut self) -> String {
        let word = std::mem::take(&mut self.word);
        let (Some(width), n) = (self.width, measure_text_width(&word)) else { return word };
        if self.column > 0 && self.column + n > width && n <= width {
            self.column = n;
            return format!("\n{word}");
        }
        // The terminal breaks a word that is longer than a line.
        let column = self.column + n;
        self.column = if column <= width { column } else { column % width.max(1) };
        word
    }
}

#[cfg(test)]
mod tests {
    use super::WordWrap;

    #[test]
    fn lines_break_between_words() {
        let mut wrap = WordWrap::new(Some(10));
        let mut out: String = ["Stones ar", "e hard", " and\nold, so", " they last"]
            .map(|text| wrap.push(text))
            .concat();
        out += &wrap.flush();
        assert_eq!(out, "Stones are\nhard and\nold, so \nthey last");
    }

    #[test]
    fn long_words_stay_whole() {
        let mut wrap = WordWrap::new(Some(4));
        assert_eq!(wrap.push("abcdefgh i"), "abcdefgh ");
        let mut full = WordWrap::new(Some(4));
        assert_eq!(full.push("abcd efg "), "abcd\nefg ");
        assert_eq!(WordWrap::new(None).push("as it is"), "as it is");
    }
}
