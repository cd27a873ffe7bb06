//! The search for the text of a window: beams at temperature 0, independent draws above.
//!
//! Source: openai/whisper `decoding.py`: `BeamSearchDecoder`, `GreedyDecoder`,
//! `MaximumLikelihoodRanker`. A beam search of width 1 is greedy decoding.

use stonechat_nn::sample::Rng;

use crate::loops::{self, Limits};
use crate::sampling::{Scores, sample};

/// How to search.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SearchOptions {
    /// 0 for beams.
    pub(crate) temperature: f32,
    /// Beams or draws; so many sequences of the decoder are needed.
    pub(crate) width: usize,
    /// Finished texts that end a beam search, over its width.
    pub(crate) patience: f32,
    /// Exponent of Google's length penalty; without one, log-probabilities are divided by lengths.
    pub(crate) length_penalty: Option<f32>,
    /// The end token; smaller ids are text.
    pub(crate) eot: u32,
    /// Most tokens to choose.
    pub(crate) max_tokens: usize,
}

/// Why a text ends where it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Finish {
    /// The model said that it ends.
    End,
    /// It has as many tokens as it may.
    #[default]
    Limit,
    /// It repeats itself without end.
    Loop,
}

/// A text on its way.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Hypothesis {
    /// Which of the window's sequences holds all but its last token.
    pub(crate) sequence: usize,
    /// The prefix and what was chosen, without the end token.
    pub(crate) tokens: Vec<u32>,
    /// Of each of them; 0 of those of the prefix.
    pub(crate) logprobs: Vec<f32>,
    /// Log-probability of what was chosen, the end token included.
    pub(crate) sum_logprob: f64,
    /// Why it is finished, if it is.
    pub(crate) finish: Finish,
}

/// The search over one window.
#[derive(Debug)]
pub(crate) struct Search {
    options: SearchOptions,
    /// Tokens of the prefix, which nobody chose.
    n_given: usize,
    n_steps: usize,
    /// Best first where they are beams.
    alive: Vec<Hypothesis>,
    finished: Vec<Hypothesis>,
    rng: Rng,
}

/// A way to go on.
#[derive(Debug, Clone, Copy)]
struct Step {
    parent: usize,
    token: u32,
    logprob: f32,
    sum_logprob: f64,
}

impl Search {
    /// A search that goes on from `prefix`, which sequence 0 holds with what comes before it.
    pub(crate) fn new(options: SearchOptions, prefix: &[u32], seed: u64) -> Self {
        let (tokens, logprobs) = (prefix.to_vec(), vec![0.0; prefix.len()]);
        let first = Hypothesis { tokens, logprobs, ..Hypothesis::default() };
        Self {
            options,
            n_given: prefix.len(),
            n_steps: 0,
            alive: vec![first],
            finished: Vec::new(),
            rng: Rng::new(seed),
        }
    }

    /// The texts that go on; none when the search is over.
    pub(crate) fn alive(&self) -> &[Hypothesis] {
        &self.alive
    }

    /// How many of the greatest logits of each text a step looks at.
    pub(crate) fn n_top(&self) -> usize {
        if self.options.temperature == 0.0 { self.options.width + 1 } else { 0 }
    }

    /// Chooses the next tokens from `logits`, `[alive, V]`, and their scores. Each pair of `forks` says that
    /// the second sequence has to continue where the first stands, before either goes on.
    pub(crate) fn step(
        &mut self,
        logits: &[f32],
        scores: &[Scores],
        forks: &mut Vec<(usize, usize)>,
    ) {
        forks.clear();
        if self.options.temperature == 0.0 {
            self.step_beams(scores, forks);
        } else {
            self.step_draws(logits, scores, forks);
        }
        self.n_steps += 1;
        if self.n_steps >= self.options.max_tokens {
            self.end();
        }
    }

    fn step_beams(&mut self, scores: &[Scores], forks: &mut Vec<(usize, usize)>) {
        let SearchOptions { width, patience, eot, .. } = self.options;
        let mut steps = Vec::with_capacity(self.alive.len() * (width + 1));
        for (parent, Scores { total, top }) in scores.iter().enumerate() {
            let before = self.alive[parent].sum_logprob;
            steps.extend(top.iter().map(|&(token, logit)| Step {
                parent,
                token,
                logprob: logit - total,
                sum_logprob: before + f64::from(logit - total),
            }));
        }
        steps.sort_by(|a, b| b.sum_logprob.total_cmp(&a.sum_logprob));
        let max_finished = (width as f32 * patience).round() as usize;
        let mut next: Vec<Hypothesis> = Vec::with_capacity(width);
        for step in steps {
            let Step { token, logprob, sum_logprob, .. } = step;
            let is_end = token == eot;
            if is_end && self.finished.len() >= max_finished {
                continue;
            }
            let parent = &self.alive[step.parent];
            let mut hypothesis = Hypothesis {
                sequence: parent.sequence,
                tokens: with_room(&parent.tokens),
                logprobs: with_room(&parent.logprobs),
                sum_logprob,
                finish: Finish::default(),
            };
            if is_end {
                hypothesis.finish = Finish::End;
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
        self.alive = next;
        self.share_sequences(forks);
        let is_loop = self.alive.first().is_some_and(|best| self.is_loop(best));
        if is_loop {
            // What the model is surest of is a loop: other texts are variations of it, or were cut
            // short. Whoever asked tries again at another temperature.
            self.finished.clear();
            self.alive.truncate(1);
            self.alive[0].finish = Finish::Loop;
        }
        if is_loop || self.finished.len() >= max_finished {
            self.end();
        }
    }

    /// The first child of a sequence keeps it, the others get sequences that nobody goes on from.
    fn share_sequences(&mut self, forks: &mut Vec<(usize, usize)>) {
        let mut n_children = vec![0; self.options.width];
        self.alive.iter().for_each(|child| n_children[child.sequence] += 1);
        let mut free = (0..self.options.width).filter(|&i| n_children[i] == 0).collect::<Vec<_>>();
        for child in self.alive.iter_mut().rev() {
            if n_children[child.sequence] > 1 {
                n_children[child.sequence] -= 1;
                let to = free.pop().expect("there are as many sequences as beams");
                forks.push((child.sequence, to));
                child.sequence = to;
            }
        }
    }

    fn step_draws(&mut self, logits: &[f32], scores: &[Scores], forks: &mut Vec<(usize, usize)>) {
        let SearchOptions { temperature, width, eot, .. } = self.options;
        let is_first = self.n_steps == 0;
        if is_first {
            forks.extend((1..width).map(|to| (0, to)));
            let first = self.alive.swap_remove(0);
            let draw = |sequence| Hypothesis { sequence, ..first.clone() };
            self.alive.extend((0..width).map(draw));
        }
        let vocab_size = if is_first { logits.len() } else { logits.len() / self.alive.len() };
        let mut rows = logits.chunks_exact(vocab_size).zip(scores).cycle();
        for mut hypothesis in std::mem::take(&mut self.alive) {
            let Some((row, scores)) = rows.next() else { return };
            let Some(choice) = sample(row, scores.total, temperature, &mut self.rng) else {
                self.finished.push(hypothesis);
                continue;
            };
            hypothesis.sum_logprob += f64::from(choice.logprob);
            if choice.token == eot {
                hypothesis.finish = Finish::End;
                self.finished.push(hypothesis);
                continue;
            }
            hypothesis.tokens.push(choice.token);
            hypothesis.logprobs.push(choice.logprob);
            if self.is_loop(&hypothesis) {
                hypothesis.finish = Finish::Loop;
                self.finished.push(hypothesis);
            } else {
                self.alive.push(hypothesis);
            }
        }
    }

    fn is_loop(&self, hypothesis: &Hypothesis) -> bool {
        let eot = self.options.eot;
        loops::period(&hypothesis.tokens[self.n_given..], |token| token < eot, Limits::WINDOW)
            .is_some()
    }

    /// Ends the search; where fewer texts than the width have finished, the best of those that
    /// have not count too.
    fn end(&mut self) {
        let missing = self.options.width.saturating_sub(self.finished.len());
        self.finished.extend(self.alive.drain(..).take(missing));
    }

    /// The best text, and how many of its tokens were chosen.
    pub(crate) fn best(mut self) -> (Hypothesis, usize) {
        self.end();
        let n_given = self.n_given;
        let penalty = self.options.length_penalty;
        let rank = |h: &Hypothesis| {
            (h.finish != Finish::Loop, score(h, h.tokens.len() - n_given, penalty))
        };
        let worse = |a: &Hypothesis, b: &Hypothesis| {
            let (a, b) = (rank(a), rank(b));
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
        };
        // `max_by` keeps the last of equals and the reference the first.
        let best = self.finished.into_iter().rev().max_by(worse).unwrap_or_default();
        let n_chosen = best.tokens.len().saturating_sub(n_given);
        (best, n_chosen)
    }
}

/// A copy that one more value fits in.
fn with_room<T: Copy>(values: &[T]) -> Vec<T> {
    let mut copy = Vec::with_capacity(values.len() + 1);
    copy.extend_from_slice(values);
    copy
}

/// What texts are compared by: log-probability over length, or over Google's penalty (Wu et al.
/// 2016, eq. 14).
fn score(hypothesis: &Hypothesis, n_chosen: usize, length_penalty: Option<f32>) -> f64 {
    let n = n_chosen as f64;
    hypothesis.sum_logprob
        / length_penalty.map_or(n.max(1.0), |alpha| ((5.0 + n) / 6.0).powf(f64::from(alpha)))
}

#[cfg(test)]
mod tests;
