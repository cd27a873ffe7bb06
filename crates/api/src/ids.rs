//! Identifiers of requests and answers.

/// An identifier such as `chatcmpl-…`: the prefix and 24 random letters. It is unique, but no secret.
pub fn new_id(prefix: &str) -> String {
    prefix.chars().chain(std::iter::repeat_with(fastrand::alphanumeric).take(24)).collect()
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
