//! Prompts that look like prose and share no prefix: a Markov chain over the words of the evaluation text.

use std::collections::HashMap;
use std::fs;

use anyhow::{Context, Result, ensure};

use crate::shell;

const SOURCE: &str = "test-data/text/evaluation.txt";

/// Chain of order 2: the words that follow each pair of words.
#[derive(Debug)]
pub(crate) struct Prompts {
    words: Vec<String>,
    /// Indices of the words that stand after a pair.
    after: HashMap<(String, String), Vec<usize>>,
}

impl Prompts {
    /// Reads the text of this checkout.
    pub(crate) fn read() -> Result<Self> {
        let path = shell::workspace_root().join(SOURCE);
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::new(&text)
    }

    fn new(text: &str) -> Result<Self> {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        ensure!(words.len() > 2, "{SOURCE}: expected at least 3 words, got {}", words.len());
        let mut after: HashMap<_, Vec<usize>> = HashMap::new();
        for (i, pair) in words.windows(3).enumerate() {
            after.entry((pair[0].clone(), pair[1].clone())).or_default().push(i + 2);
        }
        Ok(Self { words, after })
    }

    /// `n` words, the same for the same seed. The first is a number of 9 digits, so that two seeds agree in a few
    /// tokens at most.
    pub(crate) fn prompt(&self, n: usize, seed: u64) -> String {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut prompt = random.u32(100_000_000..1_000_000_000).to_string();
        // The index of the word after the current one: its pair is found by position, not by a search.
        let mut next = random.usize(0..self.words.len() - 2);
        for _ in 1..n {
            let word = &self.words[next];
            prompt.push(' ');
            prompt.push_str(word);
            let pair = next.checked_sub(1).map(|before| (self.words[before].clone(), word.clone()));
            next = pair
                .and_then(|pair| random.choice(self.after.get(&pair)?).copied())
                .unwrap_or_else(|| random.usize(0..self.words.len() - 2));
        }
        prompt
    }
}

/// Seed of one of many independent random choices.
pub(crate) fn mix(parts: &[u64]) -> u64 {
    parts.iter().fold(0x9e37_79b9_7f4a_7c15, |state, &part| {
        // SplitMix64 (Steele, Lea and Flood 2014).
        let mut z = (state ^ part).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn prompts_have_their_length_and_follow_the_seed() {
        let prompts = Prompts::read().unwrap();
        for n in [1, 2, 100, 3000] {
            let prompt = prompts.prompt(n, 7);
            assert_eq!(prompt.split_whitespace().count(), n);
            assert_eq!(prompt, prompts.prompt(n, 7));
            assert_ne!(prompt, prompts.prompt(n, 8));
        }
    }

    #[test]
    fn prompts_differ_from_the_first_word_on() {
        let prompts = Prompts::read().unwrap();
        let heads: HashSet<String> = (0..200)
            .map(|i| prompts.prompt(100, mix(&[1, i])).split(' ').take(1).collect())
            .collect();
        assert_eq!(heads.len(), 200);
    }

    #[test]
    fn words_follow_words_that_they_follow_in_the_text() {
        let prompts = Prompts::new("one two three one two four one two three").unwrap();
        let text = prompts.prompt(40, 3);
        let words: Vec<&str> = text.split(' ').skip(1).collect();
        let known = ["three", "four", "one"];
        let after_two = words.windows(2).filter(|pair| pair[0] == "two").map(|pair| pair[1]);
        assert!(after_two.clone().count() > 3, "{text}");
        assert!(after_two.into_iter().all(|word| known.contains(&word)), "{text}");
        assert!(Prompts::new("too short").is_err());
    }

    #[test]
    fn mixed_seeds_differ() {
        let seeds: HashSet<u64> =
            (0..10).flat_map(|a| (0..10).map(move |b| mix(&[a, b]))).collect();
        assert_eq!(seeds.len(), 100);
    }
}
