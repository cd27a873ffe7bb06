//! Which words of a hypothesis can be committed: those that the one before it had too.
//!
//! Source: LocalAgreement-2, Macháček, Dabre, Bojar 2023 (`whisper_streaming`). There, the words that
//! are committed already are found in a hypothesis by their times; here by the smallest edit
//! distance, which times only decide between: they move from one hypothesis to the next.

use stonechat_text::prefix_distances;

use crate::Word;

/// An edit counts as much as so many seconds between where committed words end and the rest begins.
const SECONDS_PER_EDIT: f64 = 1.0;
/// Words that left the buffer which its first words are compared with.
const MAX_LEFT: usize = 5;
/// How far into the buffer the sound of a word that left it may reach, in seconds.
const MAX_REMNANT: f64 = 0.3;

/// The words of an audio buffer.
#[derive(Debug, Default)]
pub(super) struct Agreement {
    /// Words of the buffer that are committed.
    committed: Vec<Word>,
    /// The last words before those.
    left: Vec<Word>,
    /// What followed them in the last hypothesis.
    rest: Vec<Word>,
}

impl Agreement {
    /// Takes a hypothesis of the whole buffer and commits what it has in common with the last one.
    pub(super) fn push(&mut self, hypothesis: Vec<Word>) -> Vec<Word> {
        let before = std::mem::take(&mut self.rest);
        self.rest = self.continuation(hypothesis);
        let same = before.iter().zip(&self.rest).take_while(|(a, b)| key(a) == key(b)).count();
        self.commit(same)
    }

    /// Takes a hypothesis and commits those of its words that end up to `end`.
    pub(super) fn push_until(&mut self, hypothesis: Vec<Word>, end: f64) -> Vec<Word> {
        self.rest = self.continuation(hypothesis);
        self.commit(self.rest.partition_point(|word| word.end <= end))
    }

    /// Commits what followed the committed words in the last hypothesis.
    pub(super) fn commit_rest(&mut self) -> Vec<Word> {
        self.commit(self.rest.len())
    }

    fn commit(&mut self, n: usize) -> Vec<Word> {
        let words: Vec<Word> = self.rest.drain(..n).collect();
        self.committed.extend_from_slice(&words);
        words
    }

    /// Where the last word ends that was committed.
    pub(super) fn committed_until(&self) -> Option<f64> {
        self.committed.last().map(|word| word.end)
    }

    /// Takes out the committed words that end up to `time`: their sound has left the buffer.
    pub(super) fn take_until(&mut self, time: f64) -> Vec<Word> {
        let n = self.committed.partition_point(|word| word.end <= time);
        let taken: Vec<Word> = self.committed.drain(..n).collect();
        self.left.extend_from_slice(&taken);
        self.left.drain(..self.left.len().saturating_sub(MAX_LEFT));
        taken
    }

    /// The text that nothing has confirmed yet.
    pub(super) fn rest_text(&self) -> String {
        self.rest.iter().map(|word| word.word.as_str()).collect()
    }

    /// Where that text begins.
    pub(super) fn rest_start(&self) -> Option<f64> {
        self.rest.first().map(|word| word.start)
    }

    /// What of a hypothesis follows the committed words.
    fn continuation(&self, mut hypothesis: Vec<Word>) -> Vec<Word> {
        let Some(until) = self.committed_until() else {
            return hypothesis.split_off(self.n_remnants(&hypothesis));
        };
        let keys = |words: &[Word]| words.iter().map(key).collect::<Vec<_>>();
        let distances = prefix_distances(&keys(&self.committed), &keys(&hypothesis));
        let cost = |n: usize| {
            // How far the end of the committed words is from the gap before word `n`.
            let (before, after) = hypothesis.split_at(n);
            let early = before.last().map_or(0.0, |word| word.end - until);
            let late = after.first().map_or(0.0, |word| until - word.start);
            distances[n] as f64 + early.max(late).max(0.0) / SECONDS_PER_EDIT
        };
        let best = (0..distances.len()).min_by(|&a, &b| cost(a).total_cmp(&cost(b)));
        hypothesis.split_off(best.unwrap_or(0))
    }

    /// How many words at the beginning of a hypothesis are heard in what is left of the sound of words
    /// that left the buffer.
    fn n_remnants(&self, hypothesis: &[Word]) -> usize {
        let Some(last) = self.left.last() else { return 0 };
        let most = self.left.len().min(hypothesis.len());
        let is_remnant = |n: usize| {
            let left = &self.left[self.left.len() - n..];
            hypothesis[n - 1].end <= last.end + MAX_REMNANT
                && left.iter().zip(hypothesis).all(|(a, b)| key(a) == key(b))
        };
        (1..=most).rev().find(|&n| is_remnant(n)).unwrap_or(0)
    }
}

/// What makes two words the same: letters and digits in lower case, or all of it if there are none.
pub(super) fn key(word: &Word) -> String {
    let key = letters(&word.word);
    if key.is_empty() { word.word.trim().to_owned() } else { key }
}

/// The letters and digits of a text in lower case.
pub(super) fn letters(text: &str) -> String {
    text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::Agreement;
    use crate::Word;

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

    /// Hypotheses, and what each commits.
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
        assert_eq!(agreement.rest_text(), " jumps");
        assert_eq!(agreement.committed_until(), Some(2.0));
    }

    #[test]
    fn what_is_committed_is_found_by_its_text() {
        // Times moved by nearly two words, a word is missing, one is spelled in another way.
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
        // A word that is said again is not taken for the one before.
        check(&[(0.0, "no", ""), (0.0, "no", "no"), (0.0, "no no", ""), (0.0, "no no no", "no")]);
    }

    #[test]
    fn a_pause_after_what_is_committed_changes_nothing() {
        let mut agreement = check(&[(0.0, "a b c", ""), (0.0, "a b c", "a b c")]);
        let mut later = words(0.0, "a b c");
        later.extend(words(6.0, "d e"));
        assert_eq!(text(&agreement.push(later)), "");
        assert_eq!(agreement.rest_text(), " d e");
    }

    #[test]
    fn sound_that_left_the_buffer_takes_its_words_along() {
        let mut agreement = check(&[(0.0, "a b c d", ""), (0.0, "a b c d e", "a b c d")]);
        assert_eq!(text(&agreement.take_until(1.0)), "a b");
        assert_eq!(text(&agreement.push(words(1.0, "c d e f"))), "e");
        assert_eq!(text(&agreement.push_until(words(1.0, "c d e f g"), 3.0)), "f");
        assert_eq!(agreement.rest_text(), " g");
        // What remains of the sound of a word is not heard as another; a whole word is one.
        let _ = agreement.take_until(3.0);
        let mut remnant = words(2.7, "f g");
        assert_eq!(text(&agreement.continuation(remnant.clone())), "g");
        remnant[0].end = 3.5;
        assert_eq!(text(&agreement.continuation(remnant)), "f g");
    }
}
