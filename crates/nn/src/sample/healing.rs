//! Token healing: the next tokens must start with given bytes.
//!
//! A prompt that ends within a word is tokenized as no text would be. Healing takes the last token
//! off the prompt and asks that the continuation starts with its bytes, so that the model may
//! choose a longer token there.
//!
//! Source: Lundberg, "The Art of Prompt Design: Prompt Boundaries and Token Healing", 2023.

/// Bytes that the text to come must start with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PrefixConstraint {
    left: Vec<u8>,
}

impl PrefixConstraint {
    /// Asks for `bytes`; none at all asks for nothing.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self { left: bytes.into() }
    }

    /// Whether the bytes have come.
    #[must_use]
    pub fn is_satisfied(&self) -> bool {
        self.left.is_empty()
    }

    /// Whether a token of these bytes may come next: it starts with what is left, or what is left
    /// starts with it. A token without bytes may not.
    #[must_use]
    pub fn allows(&self, token: &[u8]) -> bool {
        let n = token.len().min(self.left.len());
        self.left.is_empty() || (n > 0 && token[..n] == self.left[..n])
    }

    /// Sets the logits of tokens that may not come next to −∞, unless that would leave none:
    /// then the vocabulary cannot spell the bytes, and nothing is asked any more.
    pub fn mask<'a>(&mut self, logits: &mut [f32], token_bytes: impl Fn(u32) -> &'a [u8]) {
        if self.left.is_empty() {
            return;
        }
        let possible = |(token, logit): (u32, &f32)| {
            *logit > f32::NEG_INFINITY && self.allows(token_bytes(token))
        };
        if !(0..).zip(logits.iter()).any(possible) {
            self.left.clear();
            return;
        }
        for (token, logit) in (0..).zip(logits) {
            if !self.allows(token_bytes(token)) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }

    /// Goes on with a token of these bytes. One that was not allowed ends the constraint.
    pub fn accept(&mut self, token: &[u8]) {
        if self.allows(token) {
            self.left.drain(..token.len().min(self.left.len()));
        } else {
            self.left.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::PrefixConstraint;

    const VOCAB: [&[u8]; 7] = [b"", b"h", b"ht", b"http", b"https://", b"x", b"tp"];

    fn allowed(constraint: &PrefixConstraint) -> Vec<u32> {
        let mut logits = [1.0; 7];
        constraint.clone().mask(&mut logits, |token| VOCAB[token as usize]);
        (0..7).filter(|&token| logits[token as usize] == 1.0).collect()
    }

    #[test]
    fn asks_until_the_bytes_have_come() {
        let mut constraint = PrefixConstraint::new("http");
        assert_eq!(allowed(&constraint), [1, 2, 3, 4]);
        constraint.accept(b"ht");
        assert_eq!(allowed(&constraint), [6]);
        constraint.accept(b"tp");
        assert!(constraint.is_satisfied());
        assert_eq!(allowed(&constraint).len(), 7);
        let mut longer = PrefixConstraint::new("http");
        longer.accept(b"https://");
        assert!(longer.is_satisfied());
    }

    #[test]
    fn what_cannot_be_spelled_is_not_asked() {
        let mut constraint = PrefixConstraint::new("zebra");
        let mut logits = [1.0; 7];
        constraint.mask(&mut logits, |token| VOCAB[token as usize]);
        assert_eq!(logits, [1.0; 7]);
        assert!(constraint.is_satisfied());
        // Nor is what only forbidden tokens could spell.
        let mut constraint = PrefixConstraint::new("x");
        logits[5] = f32::NEG_INFINITY;
        constraint.mask(&mut logits, |token| VOCAB[token as usize]);
        assert_eq!(logits[1], 1.0);
        let mut off = PrefixConstraint::new("http");
        off.accept(b"x");
        assert!(off.is_satisfied());
    }
}
