//! Identifiers of requests and answers.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// Letters of an identifier, as OpenAI's have.
const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// An identifier such as `chatcmpl-…`: the prefix and 24 random letters. It is unique, but no secret.
#[must_use]
pub fn new_id(prefix: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let mut id = String::with_capacity(prefix.len() + 24);
    id.push_str(prefix);
    // A new `RandomState` has other keys, so that the hashes of one counter are independent.
    for part in 0..3 {
        let mut bits = RandomState::new().hash_one((count, part));
        for _ in 0..8 {
            id.push(char::from(LETTERS[(bits % 62) as usize]));
            bits /= 62;
        }
    }
    id
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    #[test]
    fn identifiers_are_unique() {
        let ids: HashSet<String> = (0..1000).map(|_| super::new_id("chatcmpl-")).collect();
        assert_eq!(ids.len(), 1000);
        assert!(ids.iter().all(|id| id.starts_with("chatcmpl-") && id.len() == 33));
    }
}
