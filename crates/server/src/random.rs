//! Random identifiers that no client guesses.

use std::fmt::Write;

use tokio_rustls::rustls::crypto::ring;

use crate::{ApiError, ApiResult};

/// Random bytes of an identifier.
const RANDOM_BYTES: usize = 24;

/// `prefix` with 192 bits of the system's random generator, in hexadecimal digits.
///
/// # Errors
/// 500 if the generator fails.
pub(crate) fn random_id(prefix: &str) -> ApiResult<String> {
    let mut bytes = [0; RANDOM_BYTES];
    let filled = ring::default_provider().secure_random.fill(&mut bytes);
    filled.map_err(|_| ApiError::server("the system has no random numbers"))?;
    bytes.iter().try_fold(prefix.to_owned(), |mut id, byte| {
        write!(id, "{byte:02x}").map_err(|error| ApiError::server(error.to_string()))?;
        Ok(id)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::random_id;

    #[test]
    fn identifiers_cannot_be_guessed() {
        let ids: HashSet<String> = (0..100).map(|_| random_id("resp_").unwrap()).collect();
        assert_eq!(ids.len(), 100);
        assert!(ids.iter().all(|id| id.starts_with("resp_") && id.len() == 53));
    }
}
