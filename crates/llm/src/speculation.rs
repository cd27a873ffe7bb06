//! Drafts for speculative decoding: tokens that a text may continue with, verified in one step of the model.
//!
//! | drafter | source of the draft |
//! |---|---|
//! | [`NGramSimple`] | what followed the latest earlier occurrence of the last `n` tokens |
//! | [`NGramMod`] | a hash table from `n` tokens to the token that followed them last |
//! | [`ModelDrafter`] | the greedy continuation of a smaller model with the same vocabulary |
//!
//! Source: llama.cpp `--spec-type ngram-simple`, `ngram-mod`, `draft-simple`; its defaults.

use stonechat_nn::Slot;

use crate::session::common_prefix;
use crate::{Error, Model, ModelInfo, OutputRequest, OutputRow, State, StateOptions};

/// Source of drafts.
#[derive(Debug)]
#[non_exhaustive]
pub enum Drafter {
    /// Repetitions in the context.
    NGramSimple(NGramSimple),
    /// Hashed n-grams of all contexts so far.
    NGramMod(NGramMod),
    /// A smaller model.
    Model(Box<ModelDrafter>),
}

/// Length of drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftLength {
    /// Maximum tokens of a draft.
    pub max: usize,
    /// Shorter drafts are dropped.
    pub min: usize,
}

impl Drafter {
    /// Maximum tokens of a draft.
    #[must_use]
    pub fn max_len(&self) -> usize {
        match self {
            Self::NGramSimple(drafter) => drafter.length.max,
            Self::NGramMod(drafter) => drafter.length.max,
            Self::Model(drafter) => drafter.length.max,
        }
    }

    /// Writes at most `room` tokens that may follow `context` to `draft`; none if there is no good guess. The first `known`
    /// tokens of the context were those of an earlier call.
    ///
    /// # Errors
    /// If the device of a draft model fails.
    pub async fn draft(
        &mut self,
        context: &[u32],
        known: usize,
        room: usize,
        draft: &mut Vec<u32>,
    ) -> Result<(), Error> {
        draft.clear();
        let n = self.max_len().min(room);
        let min = match self {
            Self::NGramSimple(drafter) => {
                drafter.draft(context, n, draft);
                drafter.length.min
            }
            Self::NGramMod(drafter) => {
                drafter.learn(context, known);
                drafter.draft(context, n, draft);
                drafter.length.min
            }
            Self::Model(drafter) => {
                drafter.draft(context, n, draft).await?;
                drafter.length.min
            }
        };
        if draft.len() < min {
            draft.clear();
        }
        Ok(())
    }
}

/// Drafts from repetitions in the context.
#[derive(Debug, Clone, Copy)]
pub struct NGramSimple {
    /// Tokens that must repeat.
    pub n: usize,
    /// Length of a draft.
    pub length: DraftLength,
}

impl Default for NGramSimple {
    fn default() -> Self {
        Self { n: 12, length: DraftLength { max: 48, min: 0 } }
    }
}

impl NGramSimple {
    fn draft(&self, context: &[u32], max: usize, draft: &mut Vec<u32>) {
        let Some(start) = context.len().checked_sub(self.n).filter(|_| self.n > 0) else { return };
        let (earlier, last) = (&context[..context.len() - 1], &context[start..]);
        // The occurrence must end before the last token.
        if let Some(at) = earlier.windows(self.n).rposition(|tokens| tokens == last) {
            let following = &context[at + self.n..];
            draft.extend_from_slice(&following[..following.len().min(max)]);
        }
    }
}

/// Drafts from a hash table of n-grams, which keeps those of earlier texts.
#[derive(Debug)]
pub struct NGramMod {
    n: usize,
    length: DraftLength,
    /// Token that followed the n-grams of each hash; `u32::MAX` for none.
    table: Vec<u32>,
}

/// Entries of the table: 16 MB.
const TABLE_LEN: usize = 1 << 22;

impl NGramMod {
    /// Default number of tokens of an n-gram.
    pub const N: usize = 24;
    /// Default length of drafts.
    pub const LENGTH: DraftLength = DraftLength { max: 64, min: 48 };

    /// An empty table of n-grams of `n` tokens.
    #[must_use]
    pub fn new(n: usize, length: DraftLength) -> Self {
        Self { n: n.max(1), length, table: vec![u32::MAX; TABLE_LEN] }
    }

    fn slot(tokens: impl Iterator<Item = u32>) -> usize {
        // FNV-1a, by tokens.
        let hash = tokens.fold(0xcbf2_9ce4_8422_2325_u64, |hash, token| {
            (hash ^ u64::from(token)).wrapping_mul(0x100_0000_01b3)
        });
        (hash ^ (hash >> 32)) as usize % TABLE_LEN
    }

    /// Adds the n-grams of a context, of which the first `known` tokens are in the table.
    fn learn(&mut self, context: &[u32], known: usize) {
        let first = known.min(context.len()).saturating_sub(self.n);
        for tokens in context[first..].windows(self.n + 1) {
            let slot = Self::slot(tokens[..self.n].iter().copied());
            self.table[slot] = tokens[self.n];
        }
    }

    fn draft(&self, context: &[u32], max: usize, draft: &mut Vec<u32>) {
        let Some(start) = context.len().checked_sub(self.n) else { return };
        while draft.len() < max {
            let last = context[start..].iter().chain(&*draft).copied().skip(draft.len());
            match self.table[Self::slot(last)] {
                u32::MAX => break,
                token => draft.push(token),
            }
        }
    }
}

/// Drafts from a smaller model.
#[derive(Debug)]
pub struct ModelDrafter {
    model: Model,
    state: State,
    length: DraftLength,
    /// Cached tokens.
    tokens: Vec<u32>,
}

const SLOT: usize = 0;

impl ModelDrafter {
    /// Default length of drafts.
    pub const LENGTH: DraftLength = DraftLength { max: 3, min: 0 };

    /// A drafter for `target`, with a context of `n_ctx` tokens.
    ///
    /// # Errors
    /// If the vocabularies differ or the device is out of memory.
    pub fn new(
        model: Model,
        target: &ModelInfo,
        length: DraftLength,
        n_ctx: usize,
    ) -> Result<Self, Error> {
        check_vocabulary(&model, target)?;
        let state = model.state(StateOptions::new(n_ctx))?;
        Ok(Self { model, state, length, tokens: Vec::with_capacity(n_ctx) })
    }

    async fn draft(
        &mut self,
        context: &[u32],
        max: usize,
        draft: &mut Vec<u32>,
    ) -> Result<(), Error> {
        let Self { model, state, tokens, .. } = self;
        let (slot, n_ctx, n_batch) =
            (Slot::new(SLOT), state.options().n_ctx, state.options().n_batch);
        if context.len() + max > n_ctx || max == 0 {
            return Ok(());
        }
        let vocab_size = model.config().vocab_size;
        if context.iter().any(|&token| token as usize >= vocab_size) {
            return Ok(());
        }
        let request =
            if model.max_top_k() > 0 { OutputRequest::TopK(1) } else { OutputRequest::Logits };
        let known = common_prefix(tokens, context).min(context.len() - 1);
        state.truncate(slot, known);
        tokens.truncate(known);
        let mut pending = context[known..].to_vec();
        while draft.len() < max {
            let n = pending.len().min(n_batch);
            let n_outputs = usize::from(n == pending.len());
            let outputs = state.run(slot, &pending[..n], request, n_outputs).await?;
            tokens.extend(pending.drain(..n));
            if n_outputs == 0 {
                continue;
            }
            let token = match outputs.row(0) {
                OutputRow::TopK(top_k) => top_k[0].index,
                OutputRow::Logits(row) | OutputRow::Hidden(row) => {
                    (0..row.len()).rev().max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap_or(0)
                        as u32
                }
            };
            if model.tokenizer().is_end_of_generation(token) {
                break;
            }
            draft.push(token);
            pending.push(token);
        }
        Ok(())
    }
}

/// Checks that the tokens of both models have the same text. The size of a vocabulary may differ by unused tokens.
fn check_vocabulary(model: &ModelInfo, target: &ModelInfo) -> Result<(), Error> {
    const MAX_DIFFERENCE: usize = 128;
    let (n, n_target) = (model.config().vocab_size, target.config().vocab_size);
    let piece = |info: &ModelInfo, token| info.tokenizer().token_piece(token, true).to_vec();
    let differs = |&token: &u32| piece(model, token) != piece(target, token);
    if n.abs_diff(n_target) <= MAX_DIFFERENCE && !(0..n.min(n_target) as u32).any(|t| differs(&t)) {
        return Ok(());
    }
    Err(Error::Option {
        option: "draft model",
        expected: format!("the vocabulary of {}", target.summary().name),
        got: format!("that of {}", model.summary().name),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_tokens_are_followed_by_what_followed_them() {
        let simple = NGramSimple { n: 2, length: DraftLength { max: 9, min: 0 } };
        let draft = |context: &[u32], max| {
            let mut draft = Vec::new();
            simple.draft(context, max, &mut draft);
            draft
        };
        assert_eq!(draft(&[1, 2, 3, 4, 1, 2], 9), [3, 4, 1, 2]);
        assert_eq!(draft(&[1, 2, 3, 4, 1, 2], 1), [3]);
        // The latest occurrence, which may overlap the end.
        assert_eq!(draft(&[1, 2, 3, 1, 2, 4, 1, 2], 1), [4]);
        assert_eq!(draft(&[7, 7, 7], 5), [7]);
        assert!(draft(&[1, 2, 3], 9).is_empty());
        assert!(draft(&[1], 9).is_empty());
    }

    #[test]
    fn hashed_n_grams_continue_their_own_draft() {
        let mut hashed = NGramMod::new(2, DraftLength { max: 9, min: 0 });
        let mut draft = |context: &[u32]| {
            let mut draft = Vec::new();
            hashed.learn(context, 0);
            hashed.draft(context, 6, &mut draft);
            draft
        };
        assert!(draft(&[1, 2, 3, 4]).is_empty());
        // A new text knows the n-grams of the one before, and follows them in a circle.
        assert_eq!(draft(&[9, 1, 2]), [3, 4]);
        assert_eq!(draft(&[9, 1, 2, 3, 1, 2]), [3, 1, 2, 3, 1, 2]);
        assert!(draft(&[5]).is_empty());
    }

    #[test]
    fn short_drafts_are_dropped() {
        let length = DraftLength { max: 9, min: 3 };
        let mut drafter = Drafter::NGramSimple(NGramSimple { n: 1, length });
        let mut draft = vec![5];
        pollster::block_on(drafter.draft(&[1, 2, 3, 1], 0, 8, &mut draft)).unwrap();
        assert_eq!(draft, [2, 3, 1]);
        pollster::block_on(drafter.draft(&[1, 2, 3, 1], 4, 2, &mut draft)).unwrap();
        assert!(draft.is_empty());
    }
}
