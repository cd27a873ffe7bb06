//! Tokens of one forward pass.

/// Tokens of any number of sequences, of which each may prefill or decode in the same pass.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// Token ids, `[T]`; tokens of one sequence are adjacent and in order.
    pub tokens: &'a [u32],
    /// Sequence slot of each token, `[T]`. Sequences that attend to the same keys are best adjacent: each key is
    /// then read once for all of them.
    pub sequences: &'a [usize],
    /// Rows of `tokens` to compute logits for, ascending.
    pub outputs: &'a [usize],
}
