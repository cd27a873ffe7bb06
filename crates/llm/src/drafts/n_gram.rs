//! Drafts from repeated tokens: a search in the context, or a hash table of n-grams.

use crate::drafts::draft::DraftLength;

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
    pub(crate) fn draft(&self, context: &[u32], max: usize, draft: &mut Vec<u32>) {
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
    pub(crate) length: DraftLength,
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
    pub(crate) fn learn(&mut self, context: &[u32], known: usize) {
        let first = known.min(context.len()).saturating_sub(self.n);
        for tokens in context[first..].windows(self.n + 1) {
            let slot = Self::slot(tokens[..self.n].iter().copied());
            self.table[slot] = tokens[self.n];
        }
    }

    pub(crate) fn draft(&self, context: &[u32], max: usize, draft: &mut Vec<u32>) {
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
}
