//! Drafts for speculative decoding: tokens that may follow the texts of a step, verified in one step of the model.
//!
//! | drafter | source of the draft |
//! |---|---|
//! | [`NGramSimple`] | what followed the latest earlier occurrence of the last `n` tokens |
//! | [`NGramMod`] | a hash table from `n` tokens to the token that followed them last |
//! | [`ModelDrafter`] | the greedy continuation of a smaller model with the same vocabulary |
//!
//! Source: llama.cpp `--spec-type ngram-simple`, `ngram-mod`, `draft-simple`; its defaults.

use stonechat_nn::Slot;
use web_time::Instant;

use crate::{Error, ModelDrafter};

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

    /// Drafts for the texts of a step, at most `room` tokens in all; none where there is no good guess. A draft model runs at
    /// most `max_new` tokens of contexts that it lacks. Returns the seconds that the drafts took, without those of such
    /// contexts.
    ///
    /// # Errors
    /// If the device of a draft model fails.
    pub(crate) async fn draft(
        &mut self,
        texts: &mut [DraftText<'_>],
        room: usize,
        max_new: usize,
    ) -> Result<f64, Error> {
        let (started, max_len, mut left) = (Instant::now(), self.max_len(), room);
        for text in &mut *texts {
            text.max = text.max.min(max_len);
        }
        let (length, seconds) = match self {
            Self::NGramSimple(drafter) => {
                for text in &mut *texts {
                    drafter.draft(text.context, text.max.min(left), &mut text.draft);
                    left -= text.draft.len();
                }
                (drafter.length, None)
            }
            Self::NGramMod(drafter) => {
                for text in &mut *texts {
                    drafter.learn(text.context, text.known);
                    drafter.draft(text.context, text.max.min(left), &mut text.draft);
                    left -= text.draft.len();
                }
                (drafter.length, None)
            }
            Self::Model(drafter) => {
                let seconds = drafter.draft(texts, room, max_new).await?;
                (drafter.length, Some(seconds))
            }
        };
        for text in texts.iter_mut().filter(|text| text.draft.len() < length.min) {
            text.draft.clear();
        }
        Ok(seconds.unwrap_or_else(|| started.elapsed().as_secs_f64()))
    }

    /// Gives a draft model a fresh state, after a panic.
    ///
    /// # Errors
    /// If a device is out of memory.
    pub(crate) fn reopen(&mut self) -> Result<(), Error> {
        if let Self::Model(drafter) = self { drafter.reopen() } else { Ok(()) }
    }

    /// Forgets the sequences of a draft model, after a step that failed.
    pub(crate) fn clear(&mut self) {
        if let Self::Model(drafter) = self {
            drafter.clear();
        }
    }
}

/// A text of a step, with its draft.
#[derive(Debug)]
pub(crate) struct DraftText<'a> {
    /// Sequence of the text.
    pub(crate) slot: Slot,
    /// Tokens so far.
    pub(crate) context: &'a [u32],
    /// Tokens of these that the context of an earlier call had.
    pub(crate) known: usize,
    /// Maximum tokens of the draft.
    pub(crate) max: usize,
    /// Tokens that may follow.
    pub(crate) draft: Vec<u32>,
}

/// Drafts from repetitions in the context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    fn short_drafts_are_dropped_and_texts_share_the_room() {
        let length = DraftLength { max: 9, min: 2 };
        let mut drafter = Drafter::NGramSimple(NGramSimple { n: 1, length });
        let mut drafts = |max: [usize; 2], room| {
            let context = [1, 2, 3, 1];
            let text = |max| DraftText {
                slot: Slot::new(0),
                context: &context,
                known: 0,
                max,
                draft: Vec::new(),
            };
            let mut texts = max.map(text);
            pollster::block_on(drafter.draft(&mut texts, room, 0)).unwrap();
            texts.map(|text| text.draft)
        };
        assert_eq!(drafts([8, 8], 20), [vec![2, 3, 1], vec![2, 3, 1]]);
        assert_eq!(drafts([1, 8], 20), [vec![], vec![2, 3, 1]]);
        assert_eq!(drafts([8, 8], 5), [vec![2, 3, 1], vec![2, 3]]);
        assert_eq!(drafts([8, 8], 4), [vec![2, 3, 1], vec![]]);
    }
}
