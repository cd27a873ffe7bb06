//! Beam search on the paged KV: beams share the pages of what they have in common.

use std::ops::ControlFlow;

use stonechat_nn::sample::log_sum_exp;

use crate::probabilities::token_probs;
use crate::session::{MAIN, Wanted};
use crate::{Batch, Devices, Error, Session};

/// How to search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BeamOptions {
    /// Texts that are kept at each step.
    pub width: usize,
    /// Most tokens of a text.
    pub n_predict: usize,
    /// Texts are compared by log-probability divided by their length to this power.
    pub length_penalty: f32,
}

/// A text that the search found.
#[derive(Debug, Clone, PartialEq)]
pub struct Beam {
    /// Its tokens, without the end token.
    pub tokens: Vec<u32>,
    /// Its text.
    pub text: String,
    /// Log-probability, that of the end token included, over length to the power of the penalty.
    pub score: f32,
    /// Whether it ended with an end token.
    pub ended: bool,
}

/// A text on its way.
#[derive(Debug, Clone)]
struct Alive {
    /// The sequence that holds it.
    sequence: usize,
    tokens: Vec<u32>,
    logprob: f32,
}

/// One way to go on.
struct Step {
    /// Index of the beam that goes on.
    parent: usize,
    token: u32,
    logprob: f32,
}

impl<D: Devices> Session<'_, D> {
    /// The `width` best continuations of `prompt`, best first. A beam ends with an end token; the
    /// search ends when `width` beams have, or at `n_predict` tokens or a full context.
    ///
    /// # Errors
    /// If the session has fewer than `2 * width` sequences, the prompt is empty or does not fit
    /// the context, or the device fails.
    pub async fn beam_search(
        &mut self,
        prompt: &[u32],
        options: &BeamOptions,
    ) -> Result<Vec<Beam>, Error> {
        let BeamOptions { width, n_predict, .. } = *options;
        let wrong = |option, expected: String, got: usize| {
            Err(Error::Option { option, expected, got: got.to_string() })
        };
        if width == 0 || 2 * width > self.tokens.len() {
            return wrong("beams", format!("1 to {}", self.tokens.len() / 2), width);
        }
        if prompt.is_empty() {
            return wrong("prompt", "at least one token".to_owned(), 0);
        }
        let never = &mut |_, _| ControlFlow::Continue(());
        if self.feed(MAIN, prompt, Wanted::Logits, never).await?.is_err() {
            return Ok(Vec::new());
        }
        let mut alive = vec![Alive { sequence: MAIN, tokens: Vec::new(), logprob: 0.0 }];
        let mut steps = self.steps(&alive, width, 1).await?;
        let mut finished = Vec::new();
        // Beams alternate between two halves of the sequences, so that a fork never overwrites
        // a beam that others still go on from.
        let mut half = width;
        for n in 1..=n_predict {
            let mut next = Vec::new();
            for step in steps {
                let parent = &alive[step.parent];
                if self.model.tokenizer().is_end_of_generation(step.token) {
                    let score = options.score(step.logprob, n);
                    finished.push(self.beam(parent.tokens.clone(), score, true));
                } else if next.len() < width {
                    let sequence = half + next.len();
                    self.copy(parent.sequence, sequence);
                    let mut tokens = parent.tokens.clone();
                    tokens.push(step.token);
                    next.push(Alive { sequence, tokens, logprob: step.logprob });
                }
            }
            alive = next;
            half = width - half;
            let is_full = prompt.len() + n >= self.n_ctx();
            if finished.len() >= width || alive.is_empty() || n == n_predict || is_full {
                break;
            }
            self.extend(&alive).await?;
            steps = self.steps(&alive, width, alive.len()).await?;
        }
        for beam in alive {
            let score = options.score(beam.logprob, beam.tokens.len());
            finished.push(self.beam(beam.tokens, score, false));
        }
        finished.sort_by(|a, b| b.score.total_cmp(&a.score));
        finished.truncate(width);
        (1..self.tokens.len()).for_each(|sequence| self.truncate(sequence, 0));
        self.truncate(MAIN, 0);
        Ok(finished)
    }

    /// The best `2 * width` ways to go on, best first; that many, so that `width` stay when half
    /// of them end.
    async fn steps(
        &mut self,
        alive: &[Alive],
        width: usize,
        n_outputs: usize,
    ) -> Result<Vec<Step>, Error> {
        let mut steps = Vec::new();
        for (parent, beam) in alive.iter().enumerate().take(n_outputs) {
            self.read(parent).await?;
            let total = log_sum_exp(&self.logits);
            for candidate in token_probs(&self.logits, 0, 2 * width).top {
                let logprob = beam.logprob + candidate.logit - total;
                steps.push(Step { parent, token: candidate.token, logprob });
            }
        }
        steps.sort_by(|a, b| b.logprob.total_cmp(&a.logprob));
        steps.truncate(2 * width);
        Ok(steps)
    }

    /// Runs the last token of every beam in one pass.
    async fn extend(&mut self, alive: &[Alive]) -> Result<(), Error> {
        let tokens: Vec<u32> = alive.iter().filter_map(|b| b.tokens.last().copied()).collect();
        let sequences: Vec<usize> = alive.iter().map(|b| b.sequence).collect();
        let outputs: Vec<usize> = (0..alive.len()).collect();
        let batch = Batch { tokens: &tokens, sequences: &sequences, outputs: &outputs };
        self.model.forward(&mut self.state, batch).await?;
        for (&sequence, &token) in sequences.iter().zip(&tokens) {
            self.tokens[sequence].push(token);
        }
        Ok(())
    }

    /// Makes `to` hold what `from` holds.
    fn copy(&mut self, from: usize, to: usize) {
        self.state.fork(from, to);
        let tokens = self.tokens[from].clone();
        self.tokens[to].clone_from(&tokens);
    }

    fn beam(&self, tokens: Vec<u32>, score: f32, ended: bool) -> Beam {
        let text = self.model.tokenizer().decode(&tokens);
        Beam { tokens, text, score, ended }
    }
}

impl BeamOptions {
    fn score(&self, logprob: f32, len: usize) -> f32 {
        logprob / (len as f32).powf(self.length_penalty)
    }
}
