//! Search for the text of one window: beam search at temperature 0, best-of sampling above.
//!
//! ```text
//! beam search, per step:                            best of n, per step:
//!   candidates: top (width + 1) of each hypothesis    draw one token for each hypothesis
//!   sort by sum of log-probabilities                  end token: finished
//!   end token: finished; else active, up to `width`   else active
//!   over at round(width * patience) finished          over when all are finished
//! both: over at max_tokens; the best finished hypothesis by length-normalized log-probability wins
//! ```
//!
//! Source: openai/whisper `decoding.py`: `BeamSearchDecoder`, `GreedyDecoder`,
//! `MaximumLikelihoodRanker`. Greedy decoding is beam search of width 1.

use stonechat_sampling::Rng;

use crate::loops::{self, LoopLimits};
use crate::sampling::{LogitStats, sample};

/// Options of one search.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SearchOptions {
    /// 0 for beam search.
    pub(crate) temperature: f32,
    /// Hypotheses (beam size or best-of); each takes one sequence of the decoder.
    pub(crate) width: usize,
    /// Beam search ends when `round(width * patience)` hypotheses have finished.
    pub(crate) patience: f32,
    /// Exponent of the length penalty (Wu et al. 2016); `None` divides by the length.
    pub(crate) length_penalty: Option<f32>,
    /// End token; smaller ids are text.
    pub(crate) eot: u32,
    /// Maximum tokens to choose, the end token included.
    pub(crate) max_tokens: usize,
}

/// Reason why the text of a window ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum FinishReason {
    /// The end token was chosen.
    Eot,
    /// The limit of tokens was reached, or the search ended first.
    #[default]
    Limit,
    /// Repetition loop.
    Loop,
}

/// One candidate text.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Hypothesis {
    /// Sequence of the window whose KV cache holds all tokens but the last.
    pub(crate) sequence: usize,
    /// Prefix and chosen tokens, without the end token.
    pub(crate) tokens: Vec<u32>,
    /// Log-probability of each token; 0 for the prefix.
    pub(crate) logprobs: Vec<f32>,
    /// Sum over the chosen tokens, the end token included.
    pub(crate) sum_logprob: f64,
    /// Reason of the end; valid for finished hypotheses only.
    pub(crate) finish: FinishReason,
}

/// State of the search over one window.
#[derive(Debug)]
pub(crate) struct Search {
    options: SearchOptions,
    /// Tokens of the prefix.
    n_prefix: usize,
    n_steps: usize,
    /// Unfinished hypotheses; in beam search the best first.
    active: Vec<Hypothesis>,
    finished: Vec<Hypothesis>,
    rng: Rng,
}

/// One token after one hypothesis.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    /// Index of the hypothesis.
    parent: usize,
    token: u32,
    logprob: f32,
    sum_logprob: f64,
}

impl Search {
    /// A search that continues `prefix`, which sequence 0 holds after the rest of the prompt.
    pub(crate) fn new(options: SearchOptions, prefix: &[u32], seed: u64) -> Self {
        let (tokens, logprobs) = (prefix.to_vec(), vec![0.0; prefix.len()]);
        let first = Hypothesis { tokens, logprobs, ..Hypothesis::default() };
        Self {
            options,
            n_prefix: prefix.len(),
            n_steps: 0,
            active: vec![first],
            finished: Vec::new(),
            rng: Rng::new(seed),
        }
    }

    /// Unfinished hypotheses; empty when the search has ended.
    pub(crate) fn active(&self) -> &[Hypothesis] {
        &self.active
    }

    /// Length of [`LogitStats::top`] that a step needs.
    pub(crate) fn top_k(&self) -> usize {
        if self.samples() { 0 } else { self.options.width + 1 }
    }

    /// Whether a step samples tokens, for which it needs all logits.
    pub(crate) fn samples(&self) -> bool {
        self.options.temperature != 0.0
    }

    /// Chooses the next tokens from the statistics of logits, or from `logits`, `[active, V]`, where it [samples](Self::samples). For each pair
    /// `(from, to)` of `forks`, sequence `to` must become a copy of `from` before the next step.
    pub(crate) fn step(
        &mut self,
        logits: &[f32],
        stats: &[LogitStats],
        forks: &mut Vec<(usize, usize)>,
    ) {
        forks.clear();
        if self.samples() {
            self.step_samples(logits, stats, forks);
        } else {
            self.step_beams(stats, forks);
        }
        self.n_steps += 1;
        if self.n_steps >= self.options.max_tokens {
            self.finish();
        }
    }

    fn step_beams(&mut self, stats: &[LogitStats], forks: &mut Vec<(usize, usize)>) {
        let SearchOptions { width, patience, eot, .. } = self.options;
        let mut candidates = Vec::with_capacity(self.active.len() * (width + 1));
        for (parent, LogitStats { log_sum_exp, top }) in stats.iter().enumerate() {
            let parent_sum = self.active[parent].sum_logprob;
            candidates.extend(top.iter().map(|&(token, logit)| Candidate {
                parent,
                token,
                logprob: logit - log_sum_exp,
                sum_logprob: parent_sum + f64::from(logit - log_sum_exp),
            }));
        }
        candidates.sort_by(|a, b| b.sum_logprob.total_cmp(&a.sum_logprob));
        let max_finished = (width as f32 * patience).round() as usize;
        let mut next: Vec<Hypothesis> = Vec::with_capacity(width);
        for Candidate { parent, token, logprob, sum_logprob } in candidates {
            let is_end = token == eot;
            if is_end && self.finished.len() >= max_finished {
                continue;
            }
            let parent = &self.active[parent];
            let mut hypothesis = Hypothesis {
                sequence: parent.sequence,
                tokens: clone_with_spare(&parent.tokens),
                logprobs: clone_with_spare(&parent.logprobs),
                sum_logprob,
                finish: FinishReason::default(),
            };
            if is_end {
                hypothesis.finish = FinishReason::Eot;
                self.finished.push(hypothesis);
                continue;
            }
            hypothesis.tokens.push(token);
            hypothesis.logprobs.push(logprob);
            next.push(hypothesis);
            if next.len() == width {
                break;
            }
        }
        self.active = next;
        self.assign_sequences(forks);
        let is_loop = self.active.first().is_some_and(|best| self.is_loop(best));
        if is_loop {
            // The most probable hypothesis is a loop; the others are variations of it or were cut
            // short. The window fails, and the next attempt has another temperature.
            self.finished.clear();
            self.active.truncate(1);
            self.active[0].finish = FinishReason::Loop;
        }
        if is_loop || self.finished.len() >= max_finished {
            self.finish();
        }
    }

    /// Gives every hypothesis a sequence of its own: one child keeps the sequence of its parent, the
    /// others fork it into sequences without children.
    fn assign_sequences(&mut self, forks: &mut Vec<(usize, usize)>) {
        let mut n_children = vec![0; self.options.width];
        self.active.iter().for_each(|child| n_children[child.sequence] += 1);
        let mut free = (0..self.options.width).filter(|&i| n_children[i] == 0).collect::<Vec<_>>();
        for child in self.active.iter_mut().rev() {
            if n_children[child.sequence] > 1 {
                n_children[child.sequence] -= 1;
                let to = free.pop().expect("there are as many sequences as beams");
                forks.push((child.sequence, to));
                child.sequence = to;
            }
        }
    }

    fn step_samples(
        &mut self,
        logits: &[f32],
        stats: &[LogitStats],
        forks: &mut Vec<(usize, usize)>,
    ) {
        let SearchOptions { temperature, width, eot, .. } = self.options;
        let is_first = self.n_steps == 0;
        if is_first {
            forks.extend((1..width).map(|to| (0, to)));
            let first = self.active.swap_remove(0);
            let copy = |sequence| Hypothesis { sequence, ..first.clone() };
            self.active.extend((0..width).map(copy));
        }
        // The first step has one row of logits for all hypotheses.
        let vocab_size = if is_first { logits.len() } else { logits.len() / self.active.len() };
        let mut rows = logits.chunks_exact(vocab_size).zip(stats).cycle();
        for mut hypothesis in std::mem::take(&mut self.active) {
            let Some((row, stats)) = rows.next() else { return };
            let sampled = sample(row, stats.log_sum_exp, temperature, &mut self.rng);
            let Some(sampled) = sampled else {
                self.finished.push(hypothesis);
                continue;
            };
            hypothesis.sum_logprob += f64::from(sampled.logprob);
            if sampled.token == eot {
                hypothesis.finish = FinishReason::Eot;
                self.finished.push(hypothesis);
                continue;
            }
            hypothesis.tokens.push(sampled.token);
            hypothesis.logprobs.push(sampled.logprob);
            if self.is_loop(&hypothesis) {
                hypothesis.finish = FinishReason::Loop;
                self.finished.push(hypothesis);
            } else {
                self.active.push(hypothesis);
            }
        }
    }

    fn is_loop(&self, hypothesis: &Hypothesis) -> bool {
        let eot = self.options.eot;
        let chosen = &hypothesis.tokens[self.n_prefix..];
        loops::period(chosen, |token| token < eot, LoopLimits::WINDOW).is_some()
    }

    /// Ends the search; the best active hypotheses fill up the finished ones to `width`.
    fn finish(&mut self) {
        let missing = self.options.width.saturating_sub(self.finished.len());
        self.finished.extend(self.active.drain(..).take(missing));
    }

    /// Ends the search and takes the best hypothesis, with its number of chosen tokens; loops lose against all others.
    pub(crate) fn take_best(&mut self) -> (Hypothesis, usize) {
        self.finish();
        let n_prefix = self.n_prefix;
        let penalty = self.options.length_penalty;
        let rank = |h: &Hypothesis| {
            (h.finish != FinishReason::Loop, score(h, h.tokens.len() - n_prefix, penalty))
        };
        let compare = |a: &Hypothesis, b: &Hypothesis| {
            let (a, b) = (rank(a), rank(b));
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
        };
        // `max_by` keeps the last of equals and the reference the first.
        let best = self.finished.drain(..).rev().max_by(compare).unwrap_or_default();
        let n_chosen = best.tokens.len().saturating_sub(n_prefix);
        (best, n_chosen)
    }
}

/// Clones `values` with room for one more.
fn clone_with_spare<T: Copy>(values: &[T]) -> Vec<T> {
    let mut copy = Vec::with_capacity(values.len() + 1);
    copy.extend_from_slice(values);
    copy
}

/// `sum_logprob / n`, or with a length penalty `sum_logprob / ((5 + n) / 6)^alpha` (Wu et al. 2016,
/// eq. 14).
fn score(hypothesis: &Hypothesis, n_chosen: usize, length_penalty: Option<f32>) -> f64 {
    let n = n_chosen as f64;
    hypothesis.sum_logprob
        / length_penalty.map_or(n.max(1.0), |alpha| ((5.0 + n) / 6.0).powf(f64::from(alpha)))
}

#[cfg(test)]
mod tests;
