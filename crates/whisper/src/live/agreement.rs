//! LocalAgreement-2: commits the words that two consecutive hypotheses have in common.
//!
//! ```text
//! trimmed │ committed      │ unconfirmed (last hypothesis)
//!   a b   │ c d e          │ f g h
//!         │ c d e          │ f g x     new hypothesis: f g are committed
//! ```
//!
//! Source: Macháček, Dabre, Bojar 2023, `whisper_streaming`. It finds the committed words in a
//! hypothesis by their times, which vary between hypotheses. Here the edit distance finds them, and
//! times decide between equal distances.

use stonechat_text::prefix_distances;

use crate::transcript::Word;

/// Seconds between the end of the committed words and the next word that count as one edit.
const SECONDS_PER_EDIT: f64 = 1.0;
/// Maximum trimmed words to compare with the first words of a hypothesis.
const MAX_TRIMMED: usize = 5;
/// Maximum seconds of a trimmed word's audio left in the buffer.
const MAX_REMNANT: f64 = 0.3;

/// Words of an audio buffer.
#[derive(Debug, Default)]
pub(super) struct Agreement {
    /// Committed words whose audio is in the buffer.
    committed: Vec<Word>,
    /// Words of the last hypothesis in their place; none if it has others there, or the buffer was trimmed since.
    heard: Option<Vec<Word>>,
    /// Last committed words whose audio was trimmed.
    trimmed: Vec<Word>,
    /// Words after the committed ones in the last hypothesis.
    unconfirmed: Vec<Word>,
}

impl Agreement {
    /// Adds a hypothesis of the whole buffer and commits the words it has in common with the last one.
    pub(super) fn push(&mut self, hypothesis: Vec<Word>) -> Vec<Word> {
        let previous = std::mem::take(&mut self.unconfirmed);
        self.take(hypothesis);
        let same =
            previous.iter().zip(&self.unconfirmed).take_while(|(a, b)| key(a) == key(b)).count();
        self.commit(same)
    }

    /// Adds a hypothesis and commits its words that end at or before `end` (seconds).
    pub(super) fn push_until(&mut self, hypothesis: Vec<Word>, end: f64) -> Vec<Word> {
        self.take(hypothesis);
        self.commit(self.unconfirmed.partition_point(|word| word.end <= end))
    }

    /// Replaces committed words in the buffer by those of the last hypothesis, which was decoded from more audio. Returns
    /// both, or nothing if they are equal.
    pub(super) fn revise(&mut self) -> Option<(Vec<Word>, Vec<Word>)> {
        let heard = self.heard.take()?;
        if self.committed.iter().map(|word| &word.word).eq(heard.iter().map(|word| &word.word)) {
            return None;
        }
        Some((std::mem::replace(&mut self.committed, heard.clone()), heard))
    }

    /// Commits all words of the last hypothesis.
    pub(super) fn commit_unconfirmed(&mut self) -> Vec<Word> {
        self.commit(self.unconfirmed.len())
    }

    fn commit(&mut self, n: usize) -> Vec<Word> {
        let words: Vec<Word> = self.unconfirmed.drain(..n).collect();
        self.committed.extend_from_slice(&words);
        if let Some(heard) = &mut self.heard {
            heard.extend_from_slice(&words);
        }
        words
    }

    /// End of the last committed word in the buffer, in seconds.
    pub(super) fn committed_until(&self) -> Option<f64> {
        self.committed.last().map(|word| word.end)
    }

    /// Removes and returns the committed words that end at or before `time` (seconds), whose audio is
    /// trimmed.
    pub(super) fn trim_until(&mut self, time: f64) -> Vec<Word> {
        self.heard = None;
        let n = self.committed.partition_point(|word| word.end <= time);
        let taken: Vec<Word> = self.committed.drain(..n).collect();
        self.trimmed.extend_from_slice(&taken);
        self.trimmed.drain(..self.trimmed.len().saturating_sub(MAX_TRIMMED));
        taken
    }

    /// Text of the unconfirmed words.
    pub(super) fn unconfirmed_text(&self) -> String {
        self.unconfirmed.iter().map(|word| word.word.as_str()).collect()
    }

    /// Start of the first unconfirmed word, in seconds.
    pub(super) fn unconfirmed_start(&self) -> Option<f64> {
        self.unconfirmed.first().map(|word| word.start)
    }

    /// Takes a hypothesis: its words in the place of the committed ones, and those after them.
    fn take(&mut self, mut hypothesis: Vec<Word>) {
        let n_trimmed = self.n_trimmed_words(&hypothesis);
        let (n_known, n_edits) = self.place_of_committed(&hypothesis).unwrap_or((n_trimmed, 0));
        self.unconfirmed = hypothesis.split_off(n_known);
        let is_same_text = 2 * n_edits <= self.committed.len();
        self.heard = is_same_text.then(|| hypothesis.split_off(n_trimmed.min(n_known)));
    }

    /// Number of words of a hypothesis up to the last committed one, and of their differences; none without committed words.
    fn place_of_committed(&self, hypothesis: &[Word]) -> Option<(usize, usize)> {
        let until = self.committed_until()?;
        let keys = |words: &[Word]| words.iter().map(key).collect::<Vec<_>>();
        let distances = prefix_distances(&keys(&self.committed), &keys(hypothesis));
        let cost = |n: usize| {
            // Seconds between the end of the committed words and the gap before word `n`.
            let (before, after) = hypothesis.split_at(n);
            let early = before.last().map_or(0.0, |word| word.end - until);
            let late = after.first().map_or(0.0, |word| until - word.start);
            distances[n] as f64 + early.max(late).max(0.0) / SECONDS_PER_EDIT
        };
        let best = (0..distances.len()).min_by(|&a, &b| cost(a).total_cmp(&cost(b)))?;
        Some((best, distances[best]))
    }

    /// Number of words at the start of a hypothesis that were decoded from the remaining audio of
    /// trimmed words.
    fn n_trimmed_words(&self, hypothesis: &[Word]) -> usize {
        let Some(last) = self.trimmed.last() else { return 0 };
        let most = self.trimmed.len().min(hypothesis.len());
        let is_remnant = |n: usize| {
            let trimmed = &self.trimmed[self.trimmed.len() - n..];
            hypothesis[n - 1].end <= last.end + MAX_REMNANT
                && trimmed.iter().zip(hypothesis).all(|(a, b)| key(a) == key(b))
        };
        (1..=most).rev().find(|&n| is_remnant(n)).unwrap_or(0)
    }
}

/// Comparison key of a word: letters and digits in lower case, or the whole text without any.
pub(super) fn key(word: &Word) -> String {
    let key = letters(&word.word);
    if key.is_empty() { word.word.trim().to_owned() } else { key }
}

/// Letters and digits of a text in lower case.
pub(super) fn letters(text: &str) -> String {
    text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::Agreement;
    use crate::transcript::Word;

    /// Words of half a second each.
    fn words(start: f64, text: &str) -> Vec<Word> {
        let word = |(i, word): (usize, &str)| Word {
            word: format!(" {word}"),
            start: start + 0.5 * i as f64,
            end: start + 0.5 * (i + 1) as f64,
            probability: 0.9,
        };
        text.split_whitespace().enumerate().map(word).collect()
    }

    fn text(words: &[Word]) -> String {
        words.iter().map(|word| word.word.as_str()).collect::<String>().trim().to_owned()
    }

    /// Hypotheses (start, text) and the words each commits.
    #[track_caller]
    fn check(steps: &[(f64, &str, &str)]) -> Agreement {
        let mut agreement = Agreement::default();
        for (start, hypothesis, committed) in steps {
            let got = agreement.push(words(*start, hypothesis));
            assert_eq!(text(&got), *committed, "after `{hypothesis}`");
        }
        agreement
    }

    #[test]
    fn two_in_a_row_agree() {
        let agreement = check(&[
            (0.0, "the quick", ""),
            (0.0, "The quick, round", "The quick,"),
            (0.0, "the quick brown fox", ""),
            (0.0, "the quick brown fox jumps", "brown fox"),
        ]);
        assert_eq!(agreement.unconfirmed_text(), " jumps");
        assert_eq!(agreement.committed_until(), Some(2.0));
    }

    #[test]
    fn committed_words_are_found_by_their_text() {
        // Times are off by nearly two words; a word is missing, or has another spelling.
        check(&[
            (0.0, "a b c d", ""),
            (0.0, "a b c d", "a b c d"),
            (0.9, "a b c d e", ""),
            (0.0, "a b c d e f", "e"),
        ]);
        check(&[
            (0.0, "a b c d", ""),
            (0.0, "a b c d", "a b c d"),
            (0.0, "a b d e", ""),
            (0.0, "a x c d e f", "e"),
        ]);
        // A repeated word is another word.
        check(&[(0.0, "no", ""), (0.0, "no", "no"), (0.0, "no no", ""), (0.0, "no no no", "no")]);
    }

    #[test]
    fn a_pause_after_committed_words_changes_nothing() {
        let mut agreement = check(&[(0.0, "a b c", ""), (0.0, "a b c", "a b c")]);
        let mut later = words(0.0, "a b c");
        later.extend(words(6.0, "d e"));
        assert_eq!(text(&agreement.push(later)), "");
        assert_eq!(agreement.unconfirmed_text(), " d e");
    }

    #[test]
    fn trimmed_audio_takes_its_words_along() {
        let mut agreement = check(&[(0.0, "a b c d", ""), (0.0, "a b c d e", "a b c d")]);
        assert_eq!(text(&agreement.trim_until(1.0)), "a b");
        assert_eq!(text(&agreement.push(words(1.0, "c d e f"))), "e");
        assert_eq!(text(&agreement.push_until(words(1.0, "c d e f g"), 3.0)), "f");
        assert_eq!(agreement.unconfirmed_text(), " g");
        // A word from the remaining audio of a trimmed word is dropped; a whole word is kept.
        let _ = agreement.trim_until(3.0);
        let mut remnant = words(2.7, "f g");
        agreement.take(remnant.clone());
        assert_eq!(agreement.unconfirmed_text(), " g");
        remnant[0].end = 3.5;
        agreement.take(remnant);
        assert_eq!(agreement.unconfirmed_text(), " f g");
    }

    #[test]
    fn the_last_hypothesis_revises_committed_words() {
        let revised = |agreement: &mut Agreement| {
            agreement.revise().map(|(old, new)| (text(&old), text(&new)))
        };
        let mut agreement = check(&[
            (0.0, "the american", ""),
            (0.0, "the american man", "the american"),
            (0.0, "The medical man has", "man"),
        ]);
        let expected = ("the american man".to_owned(), "The medical man".to_owned());
        assert_eq!(revised(&mut agreement), Some(expected));
        assert_eq!(revised(&mut agreement), None);
        assert_eq!(
            text(&agreement.push_until(words(0.0, "The medical man has two"), 9.0)),
            "has two"
        );
        assert_eq!(revised(&mut agreement), None, "nothing differs");
        // More than half of the words differ: this is no hypothesis of the same words.
        let _ = agreement.push(words(0.0, "a b c has two duties"));
        assert_eq!(revised(&mut agreement), None);
        // The words of trimmed audio are not known to the next hypothesis.
        let mut agreement = check(&[(0.0, "a b c d", ""), (0.0, "a b c d", "a b c d")]);
        let _ = agreement.push(words(0.0, "x b c d e"));
        let _ = agreement.trim_until(1.0);
        assert_eq!(revised(&mut agreement), None);
        let _ = agreement.push(words(1.0, "C d e"));
        assert_eq!(revised(&mut agreement), Some(("c d e".to_owned(), "C d e".to_owned())));
    }
}
