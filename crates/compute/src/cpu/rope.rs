//! Rotary position embedding.

/// Which channels of a head form a pair that is rotated together; `R` channels are rotated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RopePairs {
    /// `(2i, 2i + 1)`: the paper's order and GGUF's for `llama`.
    Adjacent,
    /// `(i, i + R/2)`: GPT-NeoX, Hugging Face.
    Halves,
}
