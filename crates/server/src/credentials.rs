//! API keys and TLS of a server, which can be replaced while it runs, and the secrets that keys made.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use tokio_rustls::TlsAcceptor;

use crate::ServerError;
use crate::client_secrets::ClientSecrets;

/// The keys, and TLS for new connections. Clones share them.
#[derive(Clone)]
pub(crate) struct Credentials(Arc<Shared>);

struct Shared {
    keys: RwLock<Arc<[String]>>,
    tls: RwLock<Option<TlsAcceptor>>,
    secrets: ClientSecrets,
}

impl fmt::Debug for Credentials {
    // Keys stay out of logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

impl Credentials {
    /// Keys without TLS.
    pub(crate) fn new(keys: &[String]) -> Self {
        let (keys, tls) = (RwLock::new(keys.into()), RwLock::default());
        Self(Arc::new(Shared { keys, tls, secrets: ClientSecrets::default() }))
    }

    pub(crate) fn keys(&self) -> Arc<[String]> {
        Arc::clone(&self.0.keys.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Client secrets.
    pub(crate) fn secrets(&self) -> &ClientSecrets {
        &self.0.secrets
    }

    /// Replaces the keys; other ones end the client secrets. An empty list is an error for a server with keys: it would open the server to everybody.
    pub(crate) fn set_keys(&self, keys: &[String]) -> Result<(), ServerError> {
        check_keys(keys)?;
        let mut held = self.0.keys.write().unwrap_or_else(PoisonError::into_inner);
        if keys.is_empty() && !held.is_empty() {
            return Err(ServerError::NoKeys);
        }
        if **held != *keys {
            self.secrets().clear();
        }
        *held = keys.into();
        Ok(())
    }

    pub(crate) fn tls(&self) -> Option<TlsAcceptor> {
        self.0.tls.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_tls(&self, tls: Option<TlsAcceptor>) {
        *self.0.tls.write().unwrap_or_else(PoisonError::into_inner) = tls;
    }
}

/// Refuses an empty key, which anybody has.
pub(crate) fn check_keys(keys: &[String]) -> Result<(), ServerError> {
    let is_empty = keys.iter().any(|key| key.trim().is_empty());
    if is_empty { Err(ServerError::EmptyKey) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::Credentials;
    use crate::ServerError;

    #[test]
    fn keys_are_replaced_but_never_lost() {
        let credentials = Credentials::new(&["old".to_owned()]);
        credentials.set_keys(&["new".to_owned()]).unwrap();
        assert_eq!(*credentials.keys(), ["new"]);
        assert!(matches!(credentials.set_keys(&[]), Err(ServerError::NoKeys)));
        assert!(matches!(credentials.set_keys(&[" ".to_owned()]), Err(ServerError::EmptyKey)));
        assert_eq!(*credentials.keys(), ["new"]);
        assert!(!format!("{credentials:?}").contains("new"));
    }
}
