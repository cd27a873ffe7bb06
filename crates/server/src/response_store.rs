//! Responses that clients may continue, read and delete: bounded by their number, their bytes and their age.
//!
//! Each API key has a shelf of its own. What exceeds the bounds leaves the largest shelf, so that a key with at most its share
//! of the store loses nothing to the others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use stonechat_api::responses::KeptResponse;

/// Maximum responses.
const MAX_RESPONSES: usize = 1024;
/// Maximum bytes of all responses.
const MAX_BYTES: usize = 64 << 20;
/// Maximum bytes of one response; of others the store keeps the identifier.
pub(crate) const MAX_RESPONSE_BYTES: usize = MAX_BYTES / 8;
/// Maximum age.
const MAX_AGE: Duration = Duration::from_secs(24 * 3600);

/// API key that a response belongs to; `None` for a server without keys.
pub(crate) type Owner = Option<Box<[u8]>>;

/// Reason why there is no response. Another client's response is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    Unknown,
    TooLarge,
}

/// Responses of all owners. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct ResponseStore(Arc<Mutex<Shelves>>);

#[derive(Default)]
struct Shelves {
    shelves: HashMap<Owner, Shelf>,
    /// Number of uses so far.
    n_uses: u64,
}

/// Responses of one owner, of which the one that was used longest ago goes first.
#[derive(Default)]
struct Shelf {
    entries: HashMap<String, Entry>,
    /// Identifiers of responses by those of their items.
    items: HashMap<String, String>,
    n_bytes: usize,
}

struct Entry {
    /// The response; `None` if it was too large.
    response: Option<Arc<KeptResponse>>,
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
    /// Adds a response.
    pub(crate) fn insert(&self, owner: &Owner, response: KeptResponse) {
        self.insert_at(owner, response, Instant::now());
    }

    fn insert_at(&self, owner: &Owner, response: KeptResponse, now: Instant) {
        let id = response.id.clone();
        let items = response.items.iter().map(|item| 2 * item.len() + id.len());
        let texts = response.body.len() + response.messages.len();
        let n_bytes = 2 * id.len() + items.sum::<usize>() + texts;
        let is_kept = n_bytes <= MAX_RESPONSE_BYTES;
        let mut all = self.lock(now);
        let last_use = all.next_use();
        let shelf = all.shelves.entry(owner.clone()).or_default();
        shelf.remove(&id);
        let n_bytes = if is_kept { n_bytes } else { id.len() };
        if is_kept {
            shelf.items.extend(response.items.iter().map(|item| (item.clone(), id.clone())));
        }
        shelf.n_bytes += n_bytes;
        let response = is_kept.then(|| Arc::new(response));
        shelf.entries.insert(id, Entry { response, n_bytes, inserted: now, last_use });
        all.make_room();
    }

    /// The response of an owner.
    ///
    /// # Errors
    /// The reason why there is none.
    pub(crate) fn get(&self, owner: &Owner, id: &str) -> Result<Arc<KeptResponse>, Missing> {
        self.get_at(owner, id, Instant::now())
    }

    fn get_at(&self, owner: &Owner, id: &str, now: Instant) -> Result<Arc<KeptResponse>, Missing> {
        let mut all = self.lock(now);
        let last_use = all.next_use();
        let shelf = all.shelves.get_mut(owner);
        let entry = shelf.and_then(|shelf| shelf.entries.get_mut(id)).ok_or(Missing::Unknown)?;
        entry.last_use = last_use;
        entry.response.clone().ok_or(Missing::TooLarge)
    }

    /// The response of an owner that has this output item.
    pub(crate) fn with_item(&self, owner: &Owner, item: &str) -> Option<Arc<KeptResponse>> {
        let now = Instant::now();
        let id = self.lock(now).shelves.get(owner)?.items.get(item)?.clone();
        self.get_at(owner, &id, now).ok()
    }

    /// Removes the response of an owner; false if there is none.
    pub(crate) fn delete(&self, owner: &Owner, id: &str) -> bool {
        let mut all = self.lock(Instant::now());
        all.shelves.get_mut(owner).is_some_and(|shelf| shelf.remove(id))
    }

    /// The shelves without the responses that are too old.
    fn lock(&self, now: Instant) -> MutexGuard<'_, Shelves> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.shelves.retain(|_, shelf| {
            shelf.expire(now);
            !shelf.entries.is_empty()
        });
        all
    }
}

impl Shelves {
    fn next_use(&mut self) -> u64 {
        self.n_uses += 1;
        self.n_uses
    }

    /// Removes responses until the bounds hold: each time the oldest of the shelf with the most bytes, or the most responses.
    fn make_room(&mut self) {
        loop {
            let shelves = self.shelves.values();
            let n_responses: usize = shelves.clone().map(|shelf| shelf.entries.len()).sum();
            let n_bytes: usize = shelves.map(|shelf| shelf.n_bytes).sum();
            let shelves = self.shelves.values_mut();
            let largest = if n_bytes > MAX_BYTES {
                shelves.max_by_key(|shelf| shelf.n_bytes)
            } else if n_responses > MAX_RESPONSES {
                shelves.max_by_key(|shelf| shelf.entries.len())
            } else {
                return;
            };
            let Some(shelf) = largest else { return };
            let oldest = shelf.entries.iter().min_by_key(|(_, entry)| entry.last_use);
            let Some(oldest) = oldest.map(|(id, _)| id.clone()) else { return };
            shelf.remove(&oldest);
        }
    }
}

impl Shelf {
    /// Removes a response; false if there is none.
    fn remove(&mut self, id: &str) -> bool {
        let Some(entry) = self.entries.remove(id) else { return false };
        self.n_bytes -= entry.n_bytes;
        for item in entry.response.iter().flat_map(|response| &response.items) {
            self.items.remove(item);
        }
        true
    }

    /// Removes responses that are too old.
    fn expire(&mut self, now: Instant) {
        let is_old = |entry: &Entry| now.saturating_duration_since(entry.inserted) > MAX_AGE;
        let old = self.entries.iter().filter(|(_, entry)| is_old(entry));
        for id in old.map(|(id, _)| id.clone()).collect::<Vec<_>>() {
            self.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests;
