//! Identifiers and times of requests and answers.

use web_time::{SystemTime, UNIX_EPOCH};

/// An identifier such as `chatcmpl-…`: the prefix and 24 random letters. It is unique, but no secret.
pub fn new_id(prefix: &str) -> String {
    prefix.chars().chain(std::iter::repeat_with(fastrand::alphanumeric).take(24)).collect()
}

/// Seconds since 1970.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
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
