//! Beam search on the paged KV cache: beams share the pages of their common prefix.
//!
//! ```text
//! slots     0..width              width..2*width
//! step 1    beams        ─fork─►  next beams
//! step 2    next beams  ◄─fork─   beams           the halves alternate
//! ```

use stonechat_nn::Slot;
use stonechat_sampling::log_sum_exp;

use crate::text::probabilities::token_probs;
use crate::{Error, OutputRequest, OutputRow, Outputs, Session, StateOptions};

/// Options of a beam search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BeamOptions {
    /// Beam width.
    pub width: usize,
    /// Maximum tokens of a text.
    pub n_predict: usize,
    /// Score of a text: log-probability over length to the power of this.
    pub length_penalty: f32,
}

/// Result of a beam search.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Beam {
    /// Tokens, without the end token.
    pub tokens: Vec<u32>,
    /// Text of the tokens.
    pub text: String,
    /// Log-probability, the end token included, over length to the power of the penalty.
    pub score: f32,
    /// Whether the text ended with an end token.
    pub ended: bool,
}

/// Unfinished beam.
#[derive(Debug, Clone)]
struct Alive {
    slot: Slot,
    tokens: Vec<u32>,
    logprob: f32,
}

/// Candidate: a beam and its next token.
struct Step {
    /// Index of the beam.
    parent: usize,
    token: u32,
    /// Log-probability of the beam with the token.
    logprob: f32,
}

impl Session {
    /// Finds the `width` best continuations of `prompt`, best first, in an empty session. A beam ends with an end token;
    /// the search ends after `width` such beams, at `n_predict` tokens or at a full context.
    ///
    /// # Errors
    /// If the session has fewer than `2 * width` sequences, `n_predict` is 0, the prompt is empty or longer than the
    /// context, or the device fails.
    pub async fn beam_search(
        &mut self,
        prompt: &[u32],
        options: &BeamOptions,
    ) -> Result<Vec<Beam>, Error> {
        let BeamOptions { width, n_predict, .. } = *options;
        let wrong = |option, expected: String, got: usize| {
            Err(Error::Option { option, expected, got: got.to_string() })
        };
        let StateOptions { n_sequences, n_batch, n_ctx, .. } = self.options();
        // The division avoids `2 * width`, which may overflow.
        if width == 0 || width > n_sequences / 2 {
            return wrong("beams", format!("1 to {}", n_sequences / 2), width);
        }
        if n_predict == 0 {
            return wrong("n-predict", "at least 1".to_owned(), n_predict);
        }
        if prompt.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        self.clear();
        let first = Slot::new(0);
        let mut alive = vec![Alive { slot: first, tokens: Vec::new(), logprob: 0.0 }];
        let mut steps = Vec::new();
        let n_chunks = prompt.len().div_ceil(n_batch);
        for (i, chunk) in prompt.chunks(n_batch).enumerate() {
            let n_outputs = usize::from(i + 1 == n_chunks);
            steps = self.run_beams(&[(first, chunk)], &alive, (width, n_outputs)).await?;
        }
        let mut finished = Vec::new();
        // The halves of the slots alternate, so that a fork never overwrites a beam with more forks to come.
        let mut half = width;
        for n in 1..=n_predict {
            let mut next = Vec::new();
            for step in steps {
                let parent = &alive[step.parent];
                if self.model.tokenizer().is_end_of_generation(step.token) {
                    let score = options.score(step.logprob, n);
                    finished.push(self.beam(parent.tokens.clone(), score, true));
                } else if next.len() < width {
                    let slot = Slot::new(half + next.len());
                    self.scheduler.state.fork(parent.slot, slot);
                    let mut tokens = parent.tokens.clone();
                    tokens.push(step.token);
                    next.push(Alive { slot, tokens, logprob: step.logprob });
                }
            }
            alive = next;
            half = width - half;
            let is_full = prompt.len() + n >= n_ctx;
            if finished.len() >= width || alive.is_empty() || n == n_predict || is_full {
                break;
            }
            let runs: Vec<_> = alive
                .iter()
                .map(|beam| (beam.slot, &beam.tokens[beam.tokens.len() - 1..]))
                .collect();
            steps = self.run_beams(&runs, &alive, (width, 1)).await?;
        }
        for beam in alive {
            let score = options.score(beam.logprob, beam.tokens.len());
            finished.push(self.beam(beam.tokens, score, false));
        }
        finished.sort_by(|a, b| b.score.total_cmp(&a.score));
        finished.truncate(width);
        self.clear();
        Ok(finished)
    }

    /// Runs tokens of each beam in one step, with outputs of the last `n_outputs` of each, and ranks the candidates.
    async fn run_beams(
        &mut self,
        runs: &[(Slot, &[u32])],
        alive: &[Alive],
        (width, n_outputs): (usize, usize),
    ) -> Result<Vec<Step>, Error> {
        let Self { model, scheduler } = self;
        let request = match 2 * width {
            k if k <= model.max_top_k() => OutputRequest::LogProbs(k),
            _ => OutputRequest::Logits,
        };
        let mut plan = scheduler.state.plan();
        for &(slot, run) in runs {
            plan.add(slot, run, request, n_outputs)?;
        }
        let ticket = plan.run()?;
        Ok(candidates(scheduler.state.outputs(ticket).await?, alive, width))
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

/// Best `2 * width` candidates, best first: at least `width` remain if half of them are end tokens.
fn candidates(outputs: Outputs<'_>, alive: &[Alive], width: usize) -> Vec<Step> {
    let mut steps = Vec::new();
    for (parent, (row, beam)) in outputs.rows(0..outputs.len()).zip(alive).enumerate() {
        let mut add = |token, logit, total: f32| {
            steps.push(Step { parent, token, logprob: beam.logprob + logit - total });
        };
        match row {
            OutputRow::LogProbs { top_k, log_sum_exp } => {
                top_k.iter().for_each(|entry| add(entry.index, entry.value, log_sum_exp));
            }
            OutputRow::Logits(logits) => {
                let (total, top) = (log_sum_exp(logits), token_probs(logits, 0, 2 * width).top);
                top.iter().for_each(|entry| add(entry.token, entry.logit, total));
            }
            _ => unreachable!("`run_beams` asks for logits"),
        }
    }
    steps.sort_by(|a, b| b.logprob.total_cmp(&a.logprob));
    steps.truncate(2 * width);
    steps
}
