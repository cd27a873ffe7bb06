//! Responses that clients may continue, read and delete: bounded by their number, their bytes and their age.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use stonechat_api::responses::KeptResponse;
use tokio_rustls::rustls::crypto::ring;

use crate::{ApiError, ApiResult};

/// Maximum responses.
const MAX_RESPONSES: usize = 1024;
/// Maximum bytes of all responses.
const MAX_BYTES: usize = 64 << 20;
/// Maximum bytes of one response: others stay beside it.
const MAX_RESPONSE_BYTES: usize = MAX_BYTES / 8;
/// Maximum age.
const MAX_AGE: Duration = Duration::from_secs(24 * 3600);
/// Bytes of the random part of an identifier.
const ID_BYTES: usize = 24;

/// API key that a response belongs to; `None` for a server without keys.
pub(crate) type Owner = Option<Box<[u8]>>;

/// Responses, of which the one that was used longest ago goes first. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct ResponseStore(Arc<Mutex<Entries>>);

#[derive(Default)]
struct Entries {
    entries: HashMap<String, Entry>,
    n_bytes: usize,
    /// Number of uses so far.
    n_uses: u64,
}

struct Entry {
    owner: Owner,
    response: Arc<KeptResponse>,
    n_bytes: usize,
    inserted: Instant,
    last_use: u64,
}

impl std::fmt::Debug for ResponseStore {
    // Texts and keys stay out of logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResponseStore").finish_non_exhaustive()
    }
}

impl ResponseStore {
    /// Identifier of a response: 192 bits of the system's random generator, which no client guesses.
    ///
    /// # Errors
    /// 500 if the generator fails.
    pub(crate) fn new_id() -> ApiResult<String> {
        let mut bytes = [0; ID_BYTES];
        let random = ring::default_provider().secure_random;
        random.fill(&mut bytes).map_err(|_| ApiError::server("no random numbers"))?;
        bytes.iter().try_fold("resp_".to_owned(), |mut id, byte| {
            write!(id, "{byte:02x}").map_err(|error| ApiError::server(error.to_string()))?;
            Ok(id)
        })
    }

    /// Adds a response. One that is too large is not kept.
    pub(crate) fn insert(&self, owner: Owner, response: KeptResponse) {
        self.insert_at(owner, response, Instant::now());
    }

    fn insert_at(&self, owner: Owner, response: KeptResponse, now: Instant) {
        let id = response.id.clone();
        let key_bytes = owner.as_ref().map_or(0, |key| key.len());
        let n_bytes = 2 * id.len() + key_bytes + response.body.len() + response.messages.len();
        if n_bytes > MAX_RESPONSE_BYTES {
            return;
        }
        let mut all = self.entries();
        all.remove(&id);
        all.expire(now);
        while all.entries.len() >= MAX_RESPONSES || all.n_bytes + n_bytes > MAX_BYTES {
            let oldest = all.entries.iter().min_by_key(|(_, entry)| entry.last_use);
            let Some(oldest) = oldest.map(|(id, _)| id.clone()) else { break };
            all.remove(&oldest);
        }
        let last_use = all.next_use();
        all.n_bytes += n_bytes;
        let response = Arc::new(response);
        all.entries.insert(id, Entry { owner, response, n_bytes, inserted: now, last_use });
    }

    /// The response of an owner; `None` if there is none, or it belongs to another one.
    pub(crate) fn get(&self, owner: &Owner, id: &str) -> Option<Arc<KeptResponse>> {
        self.get_at(owner, id, Instant::now())
    }

    fn get_at(&self, owner: &Owner, id: &str, now: Instant) -> Option<Arc<KeptResponse>> {
        let mut all = self.entries();
        all.expire(now);
        let last_use = all.next_use();
        let entry = all.entries.get_mut(id).filter(|entry| entry.owner == *owner)?;
        entry.last_use = last_use;
        Some(Arc::clone(&entry.response))
    }

    /// Removes the response of an owner; false if there is none.
    pub(crate) fn delete(&self, owner: &Owner, id: &str) -> bool {
        let mut all = self.entries();
        all.expire(Instant::now());
        let is_own = all.entries.get(id).is_some_and(|entry| entry.owner == *owner);
        if is_own {
            all.remove(id);
        }
        is_own
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    fn next_use(&mut self) -> u64 {
        self.n_uses += 1;
        self.n_uses
    }

    fn remove(&mut self, id: &str) {
        if let Some(entry) = self.entries.remove(id) {
            self.n_bytes -= entry.n_bytes;
        }
    }

    /// Removes responses that are too old.
    fn expire(&mut self, now: Instant) {
        let Self { entries, n_bytes, .. } = self;
        entries.retain(|_, entry| {
            let is_young = now.saturating_duration_since(entry.inserted) <= MAX_AGE;
            if !is_young {
                *n_bytes -= entry.n_bytes;
            }
            is_young
        });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::{Duration, Instant};

    use stonechat_api::responses::KeptResponse;

    use super::{MAX_AGE, MAX_BYTES, MAX_RESPONSE_BYTES, MAX_RESPONSES, ResponseStore};

    fn response(id: &str, n_bytes: usize) -> KeptResponse {
        let (body, messages) = ("b".repeat(n_bytes), "[]".to_owned());
        KeptResponse { id: id.to_owned(), body, messages }
    }

    #[test]
    fn a_response_belongs_to_the_key_that_made_it() {
        let store = ResponseStore::default();
        let key = |key: &str| Some(key.as_bytes().into());
        store.insert(key("one"), response("a", 1));
        assert!(store.get(&key("one"), "a").is_some());
        for other in [key("two"), None] {
            assert!(store.get(&other, "a").is_none());
            assert!(!store.delete(&other, "a"));
        }
        assert!(store.delete(&key("one"), "a"));
        assert!(store.get(&key("one"), "a").is_none());
        assert_eq!(store.entries().n_bytes, 0);
    }

    #[test]
    fn number_bytes_and_age_are_bounded() {
        let store = ResponseStore::default();
        let start = Instant::now();
        for i in 0..MAX_RESPONSES {
            store.insert_at(None, response(&i.to_string(), 1), start);
        }
        // The first one was used last.
        assert!(store.get_at(&None, "0", start).is_some());
        store.insert_at(None, response("more", 1), start);
        assert!(store.get_at(&None, "0", start).is_some());
        assert!(store.get_at(&None, "1", start).is_none());
        assert_eq!(store.entries().entries.len(), MAX_RESPONSES);

        let late = start + MAX_AGE + Duration::from_secs(1);
        assert!(store.get_at(&None, "0", late).is_none());
        assert_eq!(store.entries().n_bytes, 0);

        store.insert_at(None, response("large", MAX_RESPONSE_BYTES), late);
        assert!(store.get_at(&None, "large", late).is_none());
        for i in 0..20 {
            store.insert_at(None, response(&i.to_string(), MAX_RESPONSE_BYTES - 100), late);
            assert!(store.entries().n_bytes <= MAX_BYTES);
        }
        assert!(store.get_at(&None, "19", late).is_some());
        assert!(store.get_at(&None, "0", late).is_none());
    }

    #[test]
    fn identifiers_cannot_be_guessed() {
        let ids: HashSet<String> = (0..100).map(|_| ResponseStore::new_id().unwrap()).collect();
        assert_eq!(ids.len(), 100);
        assert!(ids.iter().all(|id| id.starts_with("resp_") && id.len() == 53));
    }
}
