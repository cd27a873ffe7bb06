//! Draft of a text: its place among the texts of a step, and the limits of its length.

use stonechat_nn::Slot;

/// Length of drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftLength {
    /// Maximum tokens of a draft.
    pub max: usize,
    /// Shorter drafts are dropped.
    pub min: usize,
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
