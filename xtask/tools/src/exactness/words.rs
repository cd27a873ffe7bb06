//! Times of words in two transcripts.
//!
//! Words are paired by a longest common subsequence of their letters and digits; words of one transcript only have no
//! counterpart and are skipped.

use xtask::exactness::WordTimes;

use crate::wer::{Word, quantile};

/// Absolute differences of start and end of every word that both transcripts have, in seconds.
pub(super) fn edge_differences(own: &[Word], peer: &[Word]) -> Vec<f64> {
    let letters = |words: &[Word]| words.iter().map(|word| letters(&word.word)).collect::<Vec<_>>();
    let edges = |(i, j): (usize, usize)| {
        let (a, b) = (&own[i], &peer[j]);
        [(a.start - b.start).abs(), (a.end - b.end).abs()]
    };
    common(&letters(own), &letters(peer)).into_iter().flat_map(edges).collect()
}

/// Median and 95th percentile.
pub(super) fn times(mut differences: Vec<f64>) -> WordTimes {
    differences.sort_by(f64::total_cmp);
    if differences.is_empty() {
        return WordTimes::default();
    }
    let at = |q| quantile(&differences, q);
    WordTimes { n_edges: differences.len(), median_s: at(0.5), p95_s: at(0.95) }
}

/// A word without case and punctuation.
fn letters(word: &str) -> String {
    word.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// Pairs of indices of a longest common subsequence.
fn common(a: &[String], b: &[String]) -> Vec<(usize, usize)> {
    // `longest[i * width + j]`: length of the longest one of `a[i..]` and `b[j..]`.
    let width = b.len() + 1;
    let mut longest = vec![0u32; (a.len() + 1) * width];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            let (down, right) = (longest[(i + 1) * width + j], longest[i * width + j + 1]);
            let both = longest[(i + 1) * width + j + 1] + 1;
            longest[i * width + j] = if a[i] == b[j] { both } else { down.max(right) };
        }
    }
    let (mut i, mut j, mut pairs) = (0, 0, Vec::new());
    while i < a.len() && j < b.len() {
        if a[i] == b[j] {
            pairs.push((i, j));
            (i, j) = (i + 1, j + 1);
        } else if longest[(i + 1) * width + j] >= longest[i * width + j + 1] {
            i += 1;
        } else {
            j += 1;
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(of: &[(&str, f64, f64)]) -> Vec<Word> {
        of.iter().map(|&(word, start, end)| Word { word: word.to_owned(), start, end }).collect()
    }

    #[test]
    fn equal_words_are_paired_in_order() {
        let own = words(&[(" So,", 0.0, 0.5), (" it", 0.5, 1.0), (" is", 1.0, 1.5)]);
        let peer = words(&[(" so", 0.25, 0.5), (" that", 0.5, 0.75), (" is.", 1.0, 2.0)]);
        assert_eq!(edge_differences(&own, &peer), [0.25, 0.0, 0.0, 0.5]);
        assert!(edge_differences(&own, &[]).is_empty());
        // The word that comes twice is paired once, with the words around it.
        let twice = words(&[(" is", 0.0, 0.1), (" it", 0.5, 1.0), (" is", 1.0, 1.5)]);
        assert_eq!(edge_differences(&own, &twice), [0.0; 4]);
    }

    #[test]
    fn percentiles_are_of_all_edges() {
        let times_of = times((0..100).rev().map(f64::from).collect());
        assert_eq!(times_of, WordTimes { n_edges: 100, median_s: 50.0, p95_s: 95.0 });
        assert_eq!(times(Vec::new()), WordTimes::default());
    }
}
