//! Identifiers of requests and answers.

/// An identifier such as `chatcmpl-…`: the prefix and 24 random letters and digits. It is unique, but no secret.
#[must_use]
pub fn new_id(prefix: &str) -> String {
    prefix.chars().chain((0..24).map(|_| fastrand::alphanumeric())).collect()
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
