//! The candidate tokens of the sampler chain.
//!
//! ```text
//! dense  logits [V] by token id       until a sampler removes tokens or needs probabilities;
//!                                     bias and penalties change single floats
//! list   (token, logit, p)            from then on; short after top-k
//!        |-- sorted --|-- any order --|
//! ```
//!
//! Samplers sort the prefix that they need, never the whole vocabulary.

use std::cmp::Ordering;

use stonechat_compute::cpu::{TopKEntry, top_k};

/// One token with its logit and probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// The token.
    pub token: u32,
    /// Logit after the samplers so far.
    pub logit: f32,
    /// Probability among the candidates, if a sampler has computed the softmax.
    pub p: f32,
}

/// Candidates, dense or as a list.
#[derive(Debug, Clone)]
pub(super) struct Candidates {
    /// Logits by token id, `[V]`; valid while `is_dense`.
    dense: Vec<f32>,
    is_dense: bool,
    /// Remaining candidates; empty while `is_dense`.
    list: Vec<Candidate>,
    /// Length of the sorted prefix of `list`, which holds its top candidates.
    sorted: usize,
    /// Scratch of [`Candidates::keep_top_k`].
    top_k_scratch: Vec<TopKEntry>,
    /// Scratch of [`Candidates::keep_by_score`].
    scored: Vec<(f32, Candidate)>,
}

/// Order by descending logit; ties by ascending token id, so that all platforms agree.
fn descending(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.token.cmp(&b.token))
}

impl Candidates {
    /// Candidates for a vocabulary of `vocab_size` tokens.
    pub(super) fn new(vocab_size: usize) -> Self {
        Self {
            dense: vec![0.0; vocab_size],
            is_dense: true,
            list: Vec::with_capacity(vocab_size),
            sorted: 0,
            top_k_scratch: Vec::new(),
            scored: Vec::new(),
        }
    }

    /// Resets to all tokens, dense. NaN counts as −∞, +∞ as `f32::MAX`.
    ///
    /// # Panics
    /// If `logits` is not `[V]`.
    #[track_caller]
    pub(super) fn load(&mut self, logits: &[f32]) {
        assert_eq!(logits.len(), self.dense.len(), "one logit for each token of the vocabulary");
        for (to, &from) in self.dense.iter_mut().zip(logits) {
            *to = if from.is_nan() { f32::NEG_INFINITY } else { from.min(f32::MAX) };
        }
        self.is_dense = true;
        self.list.clear();
        self.sorted = 0;
    }

    /// Resets to the sorted top-k of the logits; equals [`load`](Self::load) then [`keep_top_k`](Self::keep_top_k).
    pub(super) fn load_top_k(&mut self, top_k: &[TopKEntry]) {
        self.is_dense = false;
        self.set_list(top_k);
    }

    /// Replaces the list by the sorted `top_k`.
    fn set_list(&mut self, top_k: &[TopKEntry]) {
        self.list.clear();
        let candidate =
            |&TopKEntry { index, value }| Candidate { token: index, logit: value, p: 0.0 };
        self.list.extend(top_k.iter().map(candidate));
        self.sorted = top_k.len();
    }

    pub(super) fn len(&self) -> usize {
        if self.is_dense { self.dense.len() } else { self.list.len() }
    }

    /// The list; empty while the candidates are dense.
    pub(super) fn as_slice(&self) -> &[Candidate] {
        &self.list
    }

    /// Logits of all candidates, in any order.
    pub(super) fn logits(&self) -> impl Iterator<Item = f32> {
        let dense = if self.is_dense { &self.dense[..] } else { &[] };
        dense.iter().copied().chain(self.list.iter().map(|c| c.logit))
    }

    pub(super) fn max_logit(&self) -> f32 {
        if self.sorted > 0 {
            return self.list[0].logit;
        }
        self.logits().fold(f32::NEG_INFINITY, f32::max)
    }

    /// Replaces the logit of each token of `touched` by `change(token, logit)`. `touched` has no duplicates, and `change`
    /// is the identity for other tokens.
    pub(super) fn adjust(&mut self, touched: &[u32], change: impl Fn(u32, f32) -> f32) {
        if self.is_dense {
            for &token in touched {
                if let Some(logit) = self.dense.get_mut(token as usize) {
                    *logit = change(token, *logit).min(f32::MAX);
                }
            }
        } else if !touched.is_empty() {
            for candidate in &mut self.list {
                candidate.logit = change(candidate.token, candidate.logit).min(f32::MAX);
            }
            self.sorted = 0;
        }
    }

    /// Replaces every logit by a monotonic (non-decreasing) function of it.
    pub(super) fn map_logits(&mut self, change: impl Fn(f32) -> f32) {
        if self.is_dense {
            self.dense.iter_mut().for_each(|logit| *logit = change(*logit));
        } else {
            self.list.iter_mut().for_each(|candidate| candidate.logit = change(candidate.logit));
        }
    }

    /// Replaces every logit by any function of the candidate.
    pub(super) fn reshape(&mut self, change: impl Fn(&Candidate) -> f32) {
        for candidate in self.list_mut() {
            candidate.logit = change(candidate);
        }
        self.sorted = 0;
    }

    /// Converts the candidates to a list.
    fn list_mut(&mut self) -> &mut Vec<Candidate> {
        if self.is_dense {
            let all = self.dense.iter().zip(0..);
            self.list.extend(all.map(|(&logit, token)| Candidate { token, logit, p: 0.0 }));
            self.is_dense = false;
        }
        &mut self.list
    }

    /// Softmax of the logits: sets `p` of every candidate.
    pub(super) fn softmax(&mut self) -> &[Candidate] {
        let max = self.max_logit();
        let list = self.list_mut();
        if max == f32::NEG_INFINITY {
            // All logits are −∞: the first candidate gets the draw.
            list.iter_mut().enumerate().for_each(|(i, c)| c.p = if i == 0 { 1.0 } else { 0.0 });
            return list;
        }
        let mut sum = 0.0;
        for candidate in list.iter_mut() {
            candidate.p = (candidate.logit - max).exp();
            sum += f64::from(candidate.p);
        }
        for candidate in list.iter_mut() {
            candidate.p = (f64::from(candidate.p) / sum) as f32;
        }
        list
    }

    /// Sorts the top `n` to the front.
    pub(super) fn sort_prefix(&mut self, n: usize) -> &[Candidate] {
        let sorted = self.sorted;
        let list = self.list_mut();
        let n = n.min(list.len());
        if n > sorted {
            let rest = &mut list[sorted..];
            if n - sorted < rest.len() {
                rest.select_nth_unstable_by(n - sorted - 1, descending);
            }
            rest[..n - sorted].sort_unstable_by(descending);
            self.sorted = n;
        }
        &self.list
    }

    /// Keeps the top `k`, sorted.
    pub(super) fn keep_top_k(&mut self, k: usize) {
        if self.is_dense && k < self.dense.len() / 4 {
            let mut entries = std::mem::take(&mut self.top_k_scratch);
            top_k(&self.dense, k.max(1), &mut entries);
            self.set_list(&entries);
            (self.top_k_scratch, self.is_dense) = (entries, false);
        }
        self.sort_prefix(k);
        self.truncate(k);
    }

    /// Keeps candidates with a logit of at least `min_logit`, but at least the top `min_keep`.
    pub(super) fn keep_above(&mut self, min_logit: f32, min_keep: usize) {
        let enough = self.logits().filter(|&logit| logit >= min_logit).take(min_keep.max(1));
        if enough.count() < min_keep.max(1) {
            return self.keep_top_k(min_keep.max(1));
        }
        if self.is_dense {
            let above = self.dense.iter().zip(0..).filter(|&(&logit, _)| logit >= min_logit);
            self.list.extend(above.map(|(&logit, token)| Candidate { token, logit, p: 0.0 }));
            self.is_dense = false;
        } else {
            self.list.retain(|candidate| candidate.logit >= min_logit);
            self.sorted = self.sorted.min(self.list.len());
        }
    }

    /// Keeps the first `n` candidates of the list.
    pub(super) fn truncate(&mut self, n: usize) {
        self.list_mut().truncate(n);
        self.sorted = self.sorted.min(n);
    }

    /// Removes the first `n` candidates of the list, which must be sorted.
    pub(super) fn drop_prefix(&mut self, n: usize) {
        debug_assert!(n <= self.sorted, "the dropped candidates are sorted");
        self.list.drain(..n);
        self.sorted -= n;
    }

    /// Keeps the argmax; of equal logits the lowest token id.
    pub(super) fn keep_max(&mut self) {
        if self.is_dense {
            let mut best = 0;
            for (token, &logit) in self.dense.iter().enumerate() {
                if logit > self.dense[best] {
                    best = token;
                }
            }
            self.list.push(Candidate { token: best as u32, logit: self.dense[best], p: 1.0 });
            self.is_dense = false;
        } else {
            self.sort_prefix(1);
            self.list.truncate(1);
        }
        self.sorted = 1;
    }

    /// Sorts by ascending `score` and keeps the shortest prefix with `enough(n, mass)`, `n` its length, `mass` its total
    /// probability. Needs [`softmax`](Self::softmax).
    pub(super) fn keep_by_score(
        &mut self,
        score: impl Fn(&Candidate) -> f32,
        enough: impl Fn(usize, f64) -> bool,
    ) {
        let mut scored = std::mem::take(&mut self.scored);
        scored.clear();
        scored.extend(self.list_mut().iter().map(|candidate| (score(candidate), *candidate)));
        let ascending = |a: &(f32, Candidate), b: &(f32, Candidate)| {
            a.0.total_cmp(&b.0).then(descending(&a.1, &b.1))
        };
        self.list.clear();
        self.sorted = 0;
        let (mut ordered, mut mass) = (0, 0.0);
        for i in 0..scored.len() {
            if i == ordered {
                // Sorts four times as many at a time: most prefixes are short.
                ordered = (4 * ordered).max(256).min(scored.len());
                let rest = &mut scored[i..];
                if ordered - i < rest.len() {
                    rest.select_nth_unstable_by(ordered - i - 1, ascending);
                }
                rest[..ordered - i].sort_unstable_by(ascending);
            }
            self.list.push(scored[i].1);
            mass += f64::from(scored[i].1.p);
            if enough(i + 1, mass) {
                break;
            }
        }
        self.scored = scored;
    }
}

#[cfg(test)]
mod tests {
    use super::{Candidates, descending};
    use crate::Rng;

    fn random(n: usize, rng: &mut Rng) -> Vec<f32> {
        // Few distinct values, so that there are ties.
        (0..n).map(|_| (rng.uniform() * 50.0).floor() as f32 - 25.0).collect()
    }

    #[test]
    fn the_top_k_are_those_of_a_full_sort() {
        let mut rng = Rng::new(3);
        for n in [1, 2, 31, 32, 33, 500, 4097] {
            let logits = random(n, &mut rng);
            let mut candidates = Candidates::new(n);
            candidates.load(&logits);
            let mut all = candidates.softmax().to_vec();
            all.sort_by(descending);
            for k in [1, 2, 7, 40, 100, n] {
                candidates.load(&logits);
                candidates.keep_top_k(k);
                let got: Vec<_> =
                    candidates.as_slice().iter().map(|c| (c.token, c.logit)).collect();
                let want: Vec<_> = all.iter().take(k).map(|c| (c.token, c.logit)).collect();
                assert_eq!(got, want, "{k} of {n}");
            }
        }
    }

    #[test]
    fn growing_the_sorted_prefix_ends_in_a_full_sort() {
        let mut rng = Rng::new(4);
        let logits = random(1000, &mut rng);
        let mut candidates = Candidates::new(1000);
        candidates.load(&logits);
        let mut all = candidates.softmax().to_vec();
        all.sort_by(descending);
        for n in [1, 5, 300, 999, 1000, 2000] {
            assert_eq!(candidates.sort_prefix(n)[..n.min(1000)], all[..n.min(1000)]);
        }
    }

    #[test]
    fn what_follows_a_dropped_prefix_is_sorted_when_it_is_asked_for() {
        let mut rng = Rng::new(5);
        let logits = random(1000, &mut rng);
        let mut candidates = Candidates::new(1000);
        candidates.load(&logits);
        let mut all = candidates.softmax().to_vec();
        all.sort_by(descending);
        for (sorted, dropped, n) in [(10, 3, 8), (10, 3, 200), (600, 600, 1), (5, 0, 90)] {
            candidates.load(&logits);
            candidates.softmax();
            candidates.sort_prefix(sorted);
            candidates.drop_prefix(dropped);
            assert_eq!(candidates.sort_prefix(n)[..n], all[dropped..dropped + n]);
        }
    }

    #[test]
    fn impossible_and_broken_logits_have_no_probability() {
        let mut candidates = Candidates::new(4);
        candidates.load(&[f32::NAN, 1.0, f32::NEG_INFINITY, f32::INFINITY]);
        let p: Vec<f32> = candidates.softmax().iter().map(|c| c.p).collect();
        assert_eq!(p, [0.0, 0.0, 0.0, 1.0]);
        candidates.load(&[f32::NEG_INFINITY; 4]);
        let p: Vec<f32> = candidates.softmax().iter().map(|c| c.p).collect();
        assert_eq!(p, [1.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn the_sorted_prefix_shrinks_with_what_is_dropped() {
        let mut candidates = Candidates::new(8);
        candidates.load(&[3.0, 7.0, 1.0, 8.0, 2.0, 6.0, 4.0, 5.0]);
        let tokens = |candidates: &Candidates| -> Vec<u32> {
            candidates.as_slice().iter().map(|c| c.token).collect()
        };
        candidates.sort_prefix(4);
        candidates.drop_prefix(1);
        candidates.sort_prefix(4);
        assert_eq!(tokens(&candidates)[..4], [1, 5, 7, 6]);
        assert_eq!((candidates.len(), candidates.max_logit()), (7, 7.0));
        candidates.sort_prefix(7);
        assert_eq!(tokens(&candidates), [1, 5, 7, 6, 0, 4, 2]);
        candidates.truncate(2);
        candidates.sort_prefix(9);
        assert_eq!(tokens(&candidates), [1, 5]);
    }

    #[test]
    fn the_prefix_by_score_is_that_of_a_full_sort() {
        let mut rng = Rng::new(8);
        for n in [1, 255, 256, 257, 1024, 1025, 6000] {
            let logits = random(n, &mut rng);
            let mut candidates = Candidates::new(n);
            candidates.load(&logits);
            let score = |c: &super::Candidate| (c.logit / 4.0).round().abs();
            let mut all = candidates.softmax().to_vec();
            all.sort_by(|a, b| score(a).total_cmp(&score(b)).then(descending(a, b)));
            for k in [1, 100, 256, 300, 1500, n] {
                candidates.load(&logits);
                candidates.softmax();
                candidates.keep_by_score(score, |i, _| i >= k);
                assert_eq!(candidates.as_slice(), &all[..k.min(n)], "{k} of {n}");
            }
            // By mass: the prefix that reaches half of the probability.
            candidates.load(&logits);
            candidates.softmax();
            candidates.keep_by_score(score, |_, mass| mass >= 0.5);
            let kept = candidates.len();
            let mass = |k: usize| all[..k].iter().map(|c| f64::from(c.p)).sum::<f64>();
            assert!(mass(kept) >= 0.5 && mass(kept - 1) < 0.5, "{kept} of {n}");
        }
    }

    #[test]
    fn a_minimum_keeps_equal_logits_and_the_top_ones() {
        let logits = [1.0, 5.0, 3.0, 3.0, 2.0, 4.0];
        for is_list in [false, true] {
            let kept = |min_logit, min_keep| {
                let mut candidates = Candidates::new(6);
                candidates.load(&logits);
                if is_list {
                    candidates.softmax();
                }
                candidates.keep_above(min_logit, min_keep);
                let mut tokens: Vec<u32> = candidates.as_slice().iter().map(|c| c.token).collect();
                tokens.sort_unstable();
                tokens
            };
            assert_eq!(kept(3.0, 0), [1, 2, 3, 5]);
            assert_eq!(kept(3.0, 4), [1, 2, 3, 5]);
            assert_eq!(kept(3.0, 5), [1, 2, 3, 4, 5]);
            assert_eq!(kept(9.0, 0), [1]);
            assert_eq!(kept(9.0, 3), [1, 2, 5]);
        }
    }
}
