//! Ports: values that come from the host, or that the host reads.

/// Values that come from the host, or that the host reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Port {
    /// `[T, D]`: the residual stream between two stages of a model.
    Stream,
    /// `[H, D]`: hidden states after the last norm.
    Hidden,
    /// `[P, V]`: logits.
    Logits,
    /// `[Q, 2k]`: top-k logits, then their tokens.
    TopK,
    /// `[R, 1]`: log-sum-exp of logits.
    LogSumExp,
    /// `[W * 3000, n_mels]`: mel frames.
    Mel,
    /// `[W * positions, D]`: output of the encoder.
    Audio,
    /// `[W * positions, C]` of each captured window: keys of alignment head `i`.
    CapturedKeys(usize),
    /// `[T, C]`: queries of alignment head `i`.
    CapturedQueries(usize),
    /// A value of a program that is no model.
    Value(usize),
}
