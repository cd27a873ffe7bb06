//! Token healing: constrains the next tokens to start with given bytes.
//!
//! A prompt that ends within a word gets a tokenization that is rare in the training data. Healing removes the last
//! token of the prompt and constrains the continuation to start with its bytes, so that the model can generate a longer
//! token there.
//!
//! Source: Lundberg, "The Art of Prompt Design: Prompt Boundaries and Token Healing", 2023.

/// Required prefix of the generated text, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PrefixConstraint {
    /// Bytes of the prefix that are still to be generated.
    rest: Vec<u8>,
}

impl PrefixConstraint {
    /// Requires the prefix `bytes`; an empty one is satisfied.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self { rest: bytes.into() }
    }

    /// Whether the prefix is complete.
    #[must_use]
    pub fn is_satisfied(&self) -> bool {
        self.rest.is_empty()
    }

    /// Whether a token with these bytes may come next: it is a prefix of the rest, or the rest is a prefix of it. An empty
    /// token may not.
    #[must_use]
    pub fn allows(&self, token: &[u8]) -> bool {
        let n = token.len().min(self.rest.len());
        self.rest.is_empty() || (n > 0 && token[..n] == self.rest[..n])
    }

    /// Sets the logits of disallowed tokens to −∞. If no token with a logit above −∞ is allowed, drops the constraint
    /// instead.
    pub fn mask<'a>(&mut self, logits: &mut [f32], token_bytes: impl Fn(u32) -> &'a [u8]) {
        if self.rest.is_empty() {
            return;
        }
        let possible = |(token, logit): (u32, &f32)| {
            *logit > f32::NEG_INFINITY && self.allows(token_bytes(token))
        };
        if !(0..).zip(logits.iter()).any(possible) {
            self.rest.clear();
            return;
        }
        for (token, logit) in (0..).zip(logits) {
            if !self.allows(token_bytes(token)) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }

    /// Appends a token with these bytes to the text. A disallowed one drops the constraint.
    pub fn accept(&mut self, token: &[u8]) {
        if self.allows(token) {
            self.rest.drain(..token.len().min(self.rest.len()));
        } else {
            self.rest.clear();
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
    fn constrains_until_the_prefix_is_complete() {
        let mut constraint = PrefixConstraint::new("http");
        assert_eq!(allowed(&constraint), [1, 2, 3, 4]);
        constraint.accept(b"ht");
        assert!(!constraint.is_satisfied());
        assert_eq!(allowed(&constraint), [6]);
        constraint.accept(b"tp");
        assert!(constraint.is_satisfied());
        assert_eq!(allowed(&constraint).len(), 7);
        let mut longer = PrefixConstraint::new("http");
        longer.accept(b"https://");
        assert!(longer.is_satisfied());
    }

    #[test]
    fn a_prefix_that_no_token_can_spell_is_dropped() {
        let mut constraint = PrefixConstraint::new("zebra");
        let mut logits = [1.0; 7];
        constraint.mask(&mut logits, |token| VOCAB[token as usize]);
        assert_eq!(logits, [1.0; 7]);
        assert!(constraint.is_satisfied());
        // The same if only forbidden tokens can.
        let mut constraint = PrefixConstraint::new("x");
        logits[5] = f32::NEG_INFINITY;
        constraint.mask(&mut logits, |token| VOCAB[token as usize]);
        assert_eq!(logits[1], 1.0);
        let mut off = PrefixConstraint::new("http");
        off.accept(b"x");
        assert!(off.is_satisfied());
    }
}
