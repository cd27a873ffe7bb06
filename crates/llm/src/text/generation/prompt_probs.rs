//! Log-probabilities of the tokens of a prompt, from the rows of the steps that run it.
//!
//! ```text
//! prompt      A  B  C  D        row of A: log-probability of B
//! rows        A  B  C           in chunks of as many as a step has; the row of D is that of the first token of the text
//! ```
//!
//! A row of logits is reduced to its result at once, so that a prompt keeps no `[T, V]`. A preempted prompt runs again, but
//! only its missing rows are asked for.

use crate::text::generation::Generation;
use crate::text::options::GenerateOptions;
use crate::text::probabilities::{TokenProbs, token_probs};
use crate::{Error, OutputRow};

/// Log-probabilities of a prompt's tokens that are known so far.
#[derive(Debug, Clone)]
pub(super) struct PromptProbs {
    /// Most probable tokens of each.
    n_top: usize,
    /// Token `i` is token `i + 1` of the prompt.
    probs: Vec<TokenProbs>,
}

impl PromptProbs {
    /// No token yet; `None` if they are not asked for.
    ///
    /// # Errors
    /// With guidance or token healing, which change the prompt or its logits.
    pub(super) fn new(options: &GenerateOptions) -> Result<Option<Self>, Error> {
        let Some(n_top) = options.prompt_probs else { return Ok(None) };
        if options.guidance.is_some() || options.heal {
            return Err(Error::Option {
                option: "probabilities of the prompt",
                expected: "none beside guidance or token healing".to_owned(),
                got: "both".to_owned(),
            });
        }
        Ok(Some(Self { n_top, probs: Vec::new() }))
    }
}

impl Generation {
    /// Whether log-probabilities of the prompt's tokens are asked for, and not all known.
    #[must_use]
    pub fn scores_prompt(&self) -> bool {
        self.prompt_probs.is_some()
    }

    /// Rows of [`output`](Self::output) of a step that runs the first `n` pending tokens which are for
    /// [`accept_prompt`](Self::accept_prompt). They come before the others.
    #[must_use]
    pub fn prompt_rows(&self, n: usize) -> usize {
        let Some(prompt) = &self.prompt_probs else { return 0 };
        let n_cached = self.context.n_cached;
        let end = (n_cached + n).min(self.n_accepted - 1);
        end.saturating_sub(n_cached.max(prompt.probs.len()))
    }

    /// Takes the [`prompt_rows`](Self::prompt_rows) of a step. Returns the log-probabilities of all tokens of the prompt but
    /// the first, once they are known.
    ///
    /// # Panics
    /// If a row has no logits.
    pub fn accept_prompt<'a>(
        &mut self,
        rows: impl IntoIterator<Item = OutputRow<'a>>,
    ) -> Option<Vec<TokenProbs>> {
        let prompt = self.prompt_probs.as_mut()?;
        for row in rows {
            let OutputRow::Logits(logits) = row else { panic!("a row of logits") };
            let token = self.context.tokens[prompt.probs.len() + 1];
            prompt.probs.push(token_probs(logits, token, prompt.n_top));
        }
        let is_complete = prompt.probs.len() + 1 == self.n_accepted;
        self.prompt_probs.take_if(|_| is_complete).map(|prompt| prompt.probs)
    }
}
