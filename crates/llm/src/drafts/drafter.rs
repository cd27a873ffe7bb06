//! Drafts for speculative decoding: tokens that may follow the texts of a step, verified in one step of the model.
//!
//! | drafter | source of the draft |
//! |---|---|
//! | [`NGramSimple`] | what followed the latest earlier occurrence of the last `n` tokens |
//! | [`NGramMod`] | a hash table from `n` tokens to the token that followed them last |
//! | [`ModelDrafter`] | the greedy continuation of a smaller model with the same vocabulary |
//!
//! Source: llama.cpp `--spec-type ngram-simple`, `ngram-mod`, `draft-simple`; its defaults.

use web_time::Instant;

use crate::Error;
use crate::drafts::draft::DraftText;
use crate::drafts::model::ModelDrafter;
use crate::drafts::n_gram::{NGramMod, NGramSimple};

/// Source of drafts.
#[derive(Debug)]
#[non_exhaustive]
pub enum Drafter {
    /// N-grams that repeat in the context.
    NGramSimple(NGramSimple),
    /// Hashed n-grams of all contexts so far.
    NGramMod(NGramMod),
    /// A smaller model.
    Model(Box<ModelDrafter>),
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

    /// Drafts for the texts of a step, at most `max_total` tokens; an empty draft where nothing is known to follow. A draft model runs at
    /// most `max_new` tokens of contexts that it lacks. Returns the seconds that the drafts took, without those of such
    /// contexts.
    ///
    /// # Errors
    /// If the device of a draft model fails.
    pub(crate) async fn draft(
        &mut self,
        texts: &mut [DraftText<'_>],
        max_total: usize,
        max_new: usize,
    ) -> Result<f64, Error> {
        let (started, max_len, mut left) = (Instant::now(), self.max_len(), max_total);
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
                let seconds = drafter.draft(texts, max_total, max_new).await?;
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

#[cfg(test)]
mod tests {
    use stonechat_nn::Slot;

    use super::*;
    use crate::DraftLength;

    #[test]
    fn short_drafts_are_dropped_and_texts_share_the_limit() {
        let length = DraftLength { max: 9, min: 2 };
        let mut drafter = Drafter::NGramSimple(NGramSimple { n: 1, length });
        let mut drafts = |max: [usize; 2], max_total| {
            let context = [1, 2, 3, 1];
            let text = |max| DraftText {
                slot: Slot::new(0),
                context: &context,
                known: 0,
                max,
                draft: Vec::new(),
            };
            let mut texts = max.map(text);
            pollster::block_on(drafter.draft(&mut texts, max_total, 0)).unwrap();
            texts.map(|text| text.draft)
        };
        assert_eq!(drafts([8, 8], 20), [vec![2, 3, 1], vec![2, 3, 1]]);
        assert_eq!(drafts([1, 8], 20), [vec![], vec![2, 3, 1]]);
        assert_eq!(drafts([8, 8], 5), [vec![2, 3, 1], vec![2, 3]]);
        assert_eq!(drafts([8, 8], 4), [vec![2, 3, 1], vec![]]);
    }
}
