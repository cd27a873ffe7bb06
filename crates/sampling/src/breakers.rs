//! Sequence breakers of DRY, tokenized.

use std::collections::HashMap;

/// Maximum bytes of a breaker; the rest is cut.
const MAX_BYTES: usize = 40;
/// Maximum tokens of a breaker after its first.
const MAX_TAIL: usize = 20;

/// Token sequences that end a repetition for DRY: tokens that contain a breaker, and tokens that end in a prefix of
/// one, followed by its tokenized rest.
#[derive(Debug, Clone, Default)]
pub struct DryBreakers {
    /// First token of a sequence to its possible tails.
    tails: HashMap<u32, Vec<Vec<u32>>>,
}

impl DryBreakers {
    /// Finds the token sequences of each of `breakers` in the vocabulary. Empty breakers are ignored.
    ///
    /// `token_bytes(token, buffer)` appends the text of a token (special tokens by their name) to
    /// the empty buffer. `tokenize` tokenizes the rest of a breaker, which may start within a
    /// character, without adding or recognizing special tokens.
    ///
    /// Source: koboldcpp PR 982 (pi6am), as in llama.cpp.
    pub fn new<S: AsRef<str>>(
        breakers: &[S],
        vocab_size: usize,
        mut token_bytes: impl FnMut(u32, &mut Vec<u8>),
        mut tokenize: impl FnMut(&[u8]) -> Vec<u32>,
    ) -> Self {
        let mut new = Self::default();
        let mut word = Vec::new();
        // Many tokens end in the same part of a breaker: its rest is tokenized once.
        let mut rests = HashMap::new();
        for token in 0..vocab_size as u32 {
            word.clear();
            token_bytes(token, &mut word);
            for (index, breaker) in breakers.iter().enumerate() {
                let breaker = breaker.as_ref().as_bytes();
                let breaker = &breaker[..breaker.len().min(MAX_BYTES)];
                if breaker.is_empty() {
                    continue;
                }
                if word.windows(breaker.len()).any(|part| part == breaker) {
                    new.add(token, &[]);
                    continue;
                }
                // The word does not contain the breaker: an overlap is a suffix of the word.
                for overlap in (1..breaker.len().min(word.len() + 1)).rev() {
                    if word.ends_with(&breaker[..overlap]) {
                        let rest = rests.entry((index, overlap)).or_insert_with(|| {
                            let mut rest = tokenize(&breaker[overlap..]);
                            rest.truncate(MAX_TAIL);
                            rest
                        });
                        new.add(token, rest);
                    }
                }
            }
        }
        new
    }

    /// Breakers from token sequences; empty ones are ignored.
    #[must_use]
    pub fn from_tokens(sequences: &[Vec<u32>]) -> Self {
        let mut new = Self::default();
        for sequence in sequences {
            if let Some((&head, tail)) = sequence.split_first() {
                new.add(head, tail);
            }
        }
        new
    }

    fn add(&mut self, head: u32, tail: &[u32]) {
        let tails = self.tails.entry(head).or_default();
        if !tails.iter().any(|known| known == tail) {
            tails.push(tail.to_vec());
        }
    }

    /// Length of the longest tail of `head` for which `follows(i, token)` holds for each of its tokens.
    pub(super) fn longest_match(
        &self,
        head: u32,
        follows: impl Fn(usize, u32) -> bool,
    ) -> Option<usize> {
        let matches =
            |tail: &&Vec<u32>| tail.iter().enumerate().all(|(i, &token)| follows(i, token));
        self.tails.get(&head)?.iter().filter(matches).map(Vec::len).max()
    }

    /// Whether `token` contains a breaker.
    pub(super) fn is_breaker(&self, token: u32) -> bool {
        self.tails.get(&token).is_some_and(|tails| tails.iter().any(Vec::is_empty))
    }
}

#[cfg(test)]
mod tests {
    use super::DryBreakers;

    #[test]
    fn finds_whole_and_overlapping_tokens() {
        let vocab = ["a", "b", "ab", "xab", "c", "bcx", "bab"];
        let tokenize = |text: &[u8]| -> Vec<u32> {
            let id = |byte: &u8| vocab.iter().position(|v| v.as_bytes() == [*byte]).unwrap() as u32;
            text.iter().map(id).collect()
        };
        let bytes = |token: u32, out: &mut Vec<u8>| out.extend(vocab[token as usize].as_bytes());
        let breakers = DryBreakers::new(&["abc", "", "bcx"], vocab.len(), bytes, |text| {
            // `x` has no token of its own in this vocabulary.
            tokenize(&text.iter().copied().filter(|b| *b != b'x').collect::<Vec<_>>())
        });
        let tails = |token| breakers.tails.get(&token).cloned().unwrap_or_default();
        assert_eq!(tails(0), [vec![1, 4]]);
        assert_eq!(tails(1), [vec![4]]);
        // "ab" starts "abc", its "b" starts "bcx"; the tails are the same here.
        assert_eq!(tails(2), [vec![4]]);
        assert_eq!(tails(3), [vec![4]]);
        assert!(tails(4).is_empty());
        assert_eq!(tails(5), [Vec::<u32>::new()]);
        assert!(breakers.is_breaker(5) && !breakers.is_breaker(0) && !breakers.is_breaker(4));
    }

    #[test]
    fn the_rest_of_a_breaker_is_tokenized_once() {
        let words: Vec<Vec<u8>> = (0..5000).map(|i| vec![b'a'; 1 + i % 30]).collect();
        let breakers = ["a".repeat(40), format!("{}b", "a".repeat(39))];
        let mut n_calls = 0;
        let bytes = |token: u32, out: &mut Vec<u8>| out.extend(&words[token as usize]);
        let found = DryBreakers::new(&breakers, words.len(), bytes, |rest| {
            n_calls += 1;
            vec![rest.len() as u32]
        });
        assert!(n_calls <= 2 * 40, "{n_calls}");
        assert_eq!(found.tails[&29].len(), 30);
    }

    #[test]
    fn the_longest_tail_wins() {
        let breakers = DryBreakers::from_tokens(&[vec![1], vec![1, 2, 3], vec![1, 2], vec![]]);
        let next = [2, 3];
        let follows = |i: usize, token| next.get(i) == Some(&token);
        assert_eq!(breakers.longest_match(1, follows), Some(2));
        assert_eq!(breakers.longest_match(1, |_, _| false), Some(0));
        assert_eq!(breakers.longest_match(2, follows), None);
    }
}
