//! Storage of KV pages outside of the pool: pages that the prefix cache drops, and later finds again.
//!
//! ```text
//! pool ──► prefix cache ──evict──► stores, in order        lookup: prefix cache, then the first store that has the page
//! ```
//!
//! A page is stored under a hash of all that its keys and values depend on: model, its configuration, KV type, salt, and
//! every token up to its end. Only full pages are stored.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use stonechat_nn::PAGE_LEN;

use crate::{ModelInfo, StateOptions};

/// Name of a page: SHA-256 of the name of the page before it and of its tokens.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageName(pub [u8; 32]);

impl fmt::Debug for PageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..8].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl PageName {
    /// Name of the root: what all pages of a model have in common.
    pub(crate) fn root(model: &ModelInfo, options: StateOptions) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"stonechat KV pages 2");
        hash.update(model.kv_fingerprint(options.n_ctx).to_le_bytes());
        hash.update([options.kv_dtype as u8]);
        hash.update((PAGE_LEN as u64).to_le_bytes());
        Self(hash.finalize().into())
    }

    /// Name of the page of these tokens after this one.
    pub(crate) fn child(&self, tokens: &[u32], salt: u64) -> Self {
        let mut hash = Sha256::new();
        hash.update(self.0);
        hash.update(salt.to_le_bytes());
        tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
        Self(hash.finalize().into())
    }
}

/// Storage of pages.
pub trait PageStore: fmt::Debug + Send {
    /// Calls `read` with the bytes of a page; false if it has no such page.
    fn read(&mut self, name: PageName, read: &mut dyn FnMut(&[u8])) -> bool;

    /// Whether it has a page, which counts as a use of it.
    fn contains(&mut self, name: PageName) -> bool;

    /// Stores a page. Others may be dropped for it.
    fn put(&mut self, name: PageName, bytes: &Arc<Vec<u8>>);

    /// Whether a page is stored as soon as it is full, and not only when the cache drops it.
    fn takes_new(&self) -> bool {
        false
    }
}

/// Pages in memory, up to a number of bytes; the least recently used ones are dropped.
#[derive(Debug)]
pub struct MemoryStore {
    limit: usize,
    used: usize,
    pages: HashMap<PageName, (u64, Arc<Vec<u8>>)>,
    /// Names by time of the last use.
    by_use: BTreeMap<u64, PageName>,
    clock: u64,
}

impl MemoryStore {
    /// An empty store of at most `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { limit, used: 0, pages: HashMap::new(), by_use: BTreeMap::new(), clock: 0 }
    }

    /// Bytes of the pages.
    #[must_use]
    pub fn n_bytes(&self) -> usize {
        self.used
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}

impl PageStore for MemoryStore {
    fn read(&mut self, name: PageName, read: &mut dyn FnMut(&[u8])) -> bool {
        self.pages.get(&name).map(|(_, bytes)| read(bytes)).is_some()
    }

    fn contains(&mut self, name: PageName) -> bool {
        let now = self.tick();
        let Some((used, _)) = self.pages.get_mut(&name) else { return false };
        self.by_use.remove(&std::mem::replace(used, now));
        self.by_use.insert(now, name);
        true
    }

    fn put(&mut self, name: PageName, bytes: &Arc<Vec<u8>>) {
        if bytes.len() > self.limit || self.contains(name) {
            return;
        }
        while self.used + bytes.len() > self.limit {
            let Some((_, oldest)) = self.by_use.pop_first() else { return };
            if let Some((_, bytes)) = self.pages.remove(&oldest) {
                self.used -= bytes.len();
            }
        }
        let now = self.tick();
        self.used += bytes.len();
        self.by_use.insert(now, name);
        self.pages.insert(name, (now, Arc::clone(bytes)));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{MemoryStore, PageName, PageStore};

    #[test]
    fn the_least_recently_used_pages_are_dropped() {
        let name = |i: u8| PageName([i; 32]);
        let page = |i: u8| -> Arc<Vec<u8>> { vec![i; 10].into() };
        let mut store = MemoryStore::new(35);
        for i in 0..3 {
            store.put(name(i), &page(i));
        }
        assert!(store.contains(name(0)));
        assert!(store.read(name(0), &mut |bytes| assert_eq!(bytes, &page(0)[..])));
        store.put(name(3), &page(3));
        store.put(name(3), &page(3));
        assert_eq!(store.n_bytes(), 30);
        let kept: Vec<u8> = (0..4).filter(|&i| store.contains(name(i))).collect();
        assert_eq!(kept, [0, 2, 3]);
        store.put(name(4), &vec![0; 36].into());
        assert_eq!(store.n_bytes(), 30);
    }

    #[test]
    fn names_depend_on_all_tokens_and_the_salt() {
        let root = PageName([0; 32]);
        let names = [
            root.child(&[1, 2], 0),
            root.child(&[1, 2], 1),
            root.child(&[1, 3], 0),
            root.child(&[1], 0).child(&[2], 0),
        ];
        for (i, a) in names.iter().enumerate() {
            assert!(names[..i].iter().all(|b| a != b));
        }
    }
}
