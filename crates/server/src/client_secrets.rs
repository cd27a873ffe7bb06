//! Client secrets: short-lived keys of `/v1/realtime`, each with the configuration of its sessions.
//!
//! A server keeps them in memory. One without API keys has them, too: clients of OpenAI's API fetch one before they connect.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use stonechat_api::realtime::Config;
use subtle::ConstantTimeEq;

use crate::random::random_id;
use crate::{ApiError, ApiResult};

/// Maximum secrets that have not expired.
const MAX_SECRETS: usize = 1024;
/// Maximum bytes of the texts of their configurations.
const MAX_BYTES: usize = 4 << 20;

/// Secrets that have not expired.
#[derive(Default)]
pub(crate) struct ClientSecrets(Mutex<Vec<Secret>>);

struct Secret {
    value: String,
    expires: Instant,
    config: Config,
}

/// Configuration of the session of a client secret, an extension of its request.
#[derive(Debug, Clone)]
pub(crate) struct SecretConfig(pub(crate) Config);

impl ClientSecrets {
    fn lock(&self) -> MutexGuard<'_, Vec<Secret>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a secret that expires `seconds` after `now`.
    ///
    /// # Errors
    /// 429 if there are too many, 500 without random numbers.
    pub(crate) fn create(&self, config: Config, seconds: u64, now: Instant) -> ApiResult<String> {
        let value = random_id("ek_")?;
        let mut secrets = self.lock();
        secrets.retain(|secret| secret.expires > now);
        let n_bytes: usize = secrets.iter().map(|secret| secret.config.text_bytes()).sum();
        if secrets.len() >= MAX_SECRETS || n_bytes + config.text_bytes() > MAX_BYTES {
            return Err(ApiError::overloaded("too many client secrets have not expired"));
        }
        let expires = now + Duration::from_secs(seconds);
        secrets.push(Secret { value: value.clone(), expires, config });
        Ok(value)
    }

    /// Configuration of the secret that is one of `keys`. Each comparison takes a time that depends on lengths alone.
    pub(crate) fn find<'a>(
        &self,
        mut keys: impl Iterator<Item = &'a [u8]>,
        now: Instant,
    ) -> Option<Config> {
        let secrets = self.lock();
        let found = keys.find_map(|key| {
            let is_equal = |secret: &Secret| bool::from(secret.value.as_bytes().ct_eq(key));
            secrets.iter().find(|secret| secret.expires > now && is_equal(secret))
        });
        found.map(|secret| secret.config.clone())
    }

    /// Drops all secrets: the keys that made them were replaced.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use stonechat_api::realtime::Config;

    use super::{ClientSecrets, MAX_SECRETS};

    fn config(language: &str) -> Config {
        Config { language: Some(language.to_owned()), ..Config::default() }
    }

    #[test]
    fn a_secret_finds_its_configuration_until_it_expires() {
        let (secrets, now) = (ClientSecrets::default(), Instant::now());
        let [de, fr] = ["de", "fr"].map(|name| secrets.create(config(name), 10, now).unwrap());
        assert!(de != fr && de.starts_with("ek_") && de.len() == 51, "{de}");
        let find = |key: &str, seconds| {
            let found =
                secrets.find([key.as_bytes()].into_iter(), now + Duration::from_secs(seconds));
            found.and_then(|config| config.language)
        };
        assert_eq!(find(&de, 9).as_deref(), Some("de"));
        assert_eq!(find(&fr, 9).as_deref(), Some("fr"));
        assert_eq!((find(&de, 10), find(&de[..50], 0), find("", 0)), (None, None, None));
        secrets.clear();
        assert_eq!(find(&fr, 0), None);
    }

    #[test]
    fn secrets_are_bounded_in_number_and_bytes() {
        let (secrets, now) = (ClientSecrets::default(), Instant::now());
        for _ in 0..MAX_SECRETS {
            secrets.create(Config::default(), 10, now).unwrap();
        }
        let refused = secrets.create(Config::default(), 10, now).unwrap_err();
        assert_eq!(refused.status(), 429);
        // Expired ones make room.
        let later = now + Duration::from_secs(10);
        let prompt = || Config { prompt: Some("x".repeat(16 << 10)), ..Config::default() };
        let n = std::iter::repeat_with(|| secrets.create(prompt(), 10, later)).take(MAX_SECRETS);
        let n = n.take_while(Result::is_ok).count();
        assert!((200..256).contains(&n), "{n}");
    }
}
