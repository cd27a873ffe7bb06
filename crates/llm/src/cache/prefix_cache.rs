//! KV pages of earlier prompts, shared by all requests of a state.
//!
//! ```text
//! root ── page of 64 tokens ── page ── page        a node: one page, keyed by parent, hash of its tokens, salt
//!    └─── page ── 9 tokens                         the last page of a text may hold fewer tokens; it has no children
//!
//! lookup   follows full pages, then the longest common run of tokens inside the best child, whose page the
//!          sequence shares until it writes to it (copy-on-write)
//! insert   replaces last pages of earlier texts that the new one continues
//! evict    removes the least recently used leaf
//! ```
//!
//! The salt separates requests whose keys and values differ for equal tokens (adapter, media) or must not be shared.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::iter::successors;
use std::sync::Arc;

use stonechat_nn::{PAGE_LEN, PageRef, Sequences, Slot};

use crate::cache::page_store::{PageName, PageStore};
use crate::{BatchPlan, Error, ModelInfo, State, StateOptions};

/// Tree of pages. It belongs to one [`State`]: before it is dropped, [`clear`](Self::clear) gives its pages back.
#[derive(Debug)]
pub struct PrefixCache {
    stores: Vec<Box<dyn PageStore>>,
    /// Name of the root in the stores.
    root: PageName,
    nodes: HashMap<u64, Node>,
    /// Node of each key.
    index: HashMap<Key, u64>,
    /// Children of each node; of the root under [`ROOT`], by salt.
    children: HashMap<(u64, u64), Vec<u64>>,
    hasher: RandomState,
    next_id: u64,
    clock: u64,
}

/// Parent, hash of the tokens, salt.
type Key = (u64, u64, u64);

const ROOT: u64 = 0;

#[derive(Debug)]
struct Node {
    key: Key,
    /// 1 to [`PAGE_LEN`] tokens.
    tokens: Vec<u32>,
    page: PageRef,
    /// Name in the stores.
    name: PageName,
    last_used: u64,
}

impl Default for PrefixCache {
    fn default() -> Self {
        Self {
            stores: Vec::new(),
            root: PageName([0; 32]),
            nodes: HashMap::new(),
            index: HashMap::new(),
            children: HashMap::new(),
            hasher: RandomState::new(),
            next_id: ROOT + 1,
            clock: 0,
        }
    }
}

impl PrefixCache {
    /// An empty cache.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty cache whose pages are kept in `stores` when they are dropped.
    #[must_use]
    pub fn with_stores(
        model: &ModelInfo,
        options: StateOptions,
        stores: Vec<Box<dyn PageStore>>,
    ) -> Self {
        Self { stores, root: PageName::root(model, options), ..Self::default() }
    }

    /// The stores, once the state of the pages is gone.
    pub(crate) fn into_stores(self) -> Vec<Box<dyn PageStore>> {
        self.stores
    }

    /// Number of pages.
    #[must_use]
    pub fn n_pages(&self) -> usize {
        self.nodes.len()
    }

    /// Makes the longest cached prefix of `tokens` the content of a sequence; returns its length, which is less than that
    /// of `tokens`: at least one token must run.
    ///
    /// # Panics
    /// If there is no such sequence.
    pub fn attach(&mut self, state: &mut State, slot: Slot, tokens: &[u32], salt: u64) -> usize {
        let max = tokens.len().saturating_sub(1).min(state.options().n_ctx);
        let (path, len) = self.longest(&tokens[..max], salt);
        self.clock += 1;
        for id in &path {
            if let Some(node) = self.nodes.get_mut(id) {
                node.last_used = self.clock;
            }
        }
        let pages = path.iter().filter_map(|id| self.nodes.get(id)).map(|node| &node.page);
        state.rolled_back().attach_pages(pages, len, slot);
        len
    }

    /// Number of tokens that [`attach`](Self::attach) would find.
    #[must_use]
    pub fn cached_len(&self, tokens: &[u32], salt: u64) -> usize {
        self.longest(&tokens[..tokens.len().saturating_sub(1)], salt).1
    }

    /// Nodes of the longest cached prefix, and its length.
    fn longest(&self, tokens: &[u32], salt: u64) -> (Vec<u64>, usize) {
        let (mut path, mut len, mut parent) = (Vec::new(), 0, ROOT);
        for page in tokens.chunks_exact(PAGE_LEN) {
            let Some(id) = self.find(parent, page, salt) else { break };
            path.push(id);
            len += PAGE_LEN;
            parent = id;
        }
        let rest = &tokens[len..];
        let common = |&id: &u64| common_prefix(&self.nodes[&id].tokens, rest);
        if let Some(&best) = self.children(parent, salt).iter().max_by_key(|id| common(id)) {
            let n = common(&best);
            if n > 0 {
                path.push(best);
                len += n;
            }
        }
        (path, len)
    }

    fn key(&self, parent: u64, tokens: &[u32], salt: u64) -> Key {
        (parent, self.hasher.hash_one(tokens), salt)
    }

    /// Child of `parent` with exactly these tokens.
    fn find(&self, parent: u64, tokens: &[u32], salt: u64) -> Option<u64> {
        let id = *self.index.get(&self.key(parent, tokens, salt))?;
        (self.nodes[&id].tokens == *tokens).then_some(id)
    }

    fn children(&self, parent: u64, salt: u64) -> &[u64] {
        self.children.get(&(parent, salt)).map_or(&[], Vec::as_slice)
    }

    /// Adds the full pages of a sequence that goes on and holds `tokens`. Pages that the cache has are kept.
    ///
    /// # Panics
    /// If the sequence is shorter than `tokens` or there is no such sequence.
    pub fn insert(&mut self, state: &mut State, slot: Slot, tokens: &[u32], salt: u64) {
        let full = tokens.len() - tokens.len() % PAGE_LEN;
        self.insert_ended(state, slot, &tokens[..full], salt);
    }

    /// Adds all pages of a sequence that holds `tokens` and has ended: one that goes on would have to copy its last page.
    ///
    /// # Panics
    /// If the sequence is shorter than `tokens` or there is no such sequence.
    pub fn insert_ended(&mut self, state: &mut State, slot: Slot, tokens: &[u32], salt: u64) {
        assert!(tokens.len() <= state.len(slot), "tokens of the sequence");
        let sequences = state.rolled_back();
        self.clock += 1;
        let mut parent = ROOT;
        for (index, page) in tokens.chunks(PAGE_LEN).enumerate() {
            let Some(id) = self.insert_page(sequences, parent, (slot, index), page, salt) else {
                return;
            };
            if let Some(node) = self.nodes.get_mut(&id) {
                node.last_used = self.clock;
            }
            parent = id;
        }
    }

    /// Node of page `index` of a sequence; `None` if another page has the same hash.
    fn insert_page(
        &mut self,
        sequences: &mut Sequences,
        parent: u64,
        (slot, index): (Slot, usize),
        tokens: &[u32],
        salt: u64,
    ) -> Option<u64> {
        let starts = |id: &&u64| self.nodes[id].tokens.starts_with(tokens);
        let known = if tokens.len() == PAGE_LEN {
            self.find(parent, tokens, salt)
        } else {
            self.children(parent, salt).iter().find(starts).copied()
        };
        if known.is_some() {
            return known;
        }
        let key = self.key(parent, tokens, salt);
        if self.index.contains_key(&key) {
            return None;
        }
        let continued = |id: &&u64| tokens.starts_with(&self.nodes[id].tokens);
        let replaced: Vec<u64> =
            self.children(parent, salt).iter().filter(continued).copied().collect();
        replaced.into_iter().for_each(|id| self.remove(sequences, id));
        let id = self.next_id;
        self.next_id += 1;
        let page = sequences.detach_page(slot, index);
        let name = match (self.stores.is_empty(), self.nodes.get(&parent)) {
            // Nobody asks for it.
            (true, _) => self.root,
            (false, None) => self.root.child(tokens, salt),
            (false, Some(parent)) => parent.name.child(tokens, salt),
        };
        self.nodes.insert(id, Node { key, tokens: tokens.to_vec(), page, name, last_used: 0 });
        self.index.insert(key, id);
        self.children.entry((parent, salt)).or_default().push(id);
        Some(id)
    }

    /// Number of pages that only the cache holds.
    #[must_use]
    pub fn n_evictable(&self, state: &State) -> usize {
        let is_alone = |node: &&Node| state.page_ref_count(&node.page) == 1;
        self.nodes.values().filter(is_alone).count()
    }

    /// Removes least recently used leaves until `n` pages are free, as far as possible; returns whether they are. Pages
    /// that a sequence shares stay in use by it. If it lacks the page for a copy of one of them, [`clear`](Self::clear)
    /// makes it the only holder, which needs no copy. Pages that would be lost go to the stores.
    ///
    /// # Errors
    /// If the device cannot read a page for the stores.
    pub async fn evict(&mut self, state: &mut State, n: usize) -> Result<bool, Error> {
        while state.rolled_back().pages().n_free() < n {
            let Some(id) = self.victim(state.rolled_back()) else { return Ok(false) };
            self.store(state, id, |_| true).await?;
            self.remove(state.rolled_back(), id);
        }
        Ok(true)
    }

    /// [`evict`](Self::evict) while a step is planned; the stores get nothing.
    pub fn evict_for(&mut self, plan: &mut BatchPlan<'_>, n: usize) -> bool {
        let sequences = plan.sequences();
        while sequences.pages().n_free() < n {
            let Some(id) = self.victim(sequences) else { return false };
            self.remove(sequences, id);
        }
        true
    }

    /// Gives the full page of a node to the stores that `choose` accepts and that lack it.
    async fn store(
        &mut self,
        state: &mut State,
        id: u64,
        choose: impl Fn(&dyn PageStore) -> bool,
    ) -> Result<(), Error> {
        let node = &self.nodes[&id];
        let (name, is_full) = (node.name, node.tokens.len() == PAGE_LEN);
        if !is_full || !self.stores.iter().any(|store| choose(&**store)) {
            return Ok(());
        }
        let mut bytes = Vec::new();
        state.read_page_ref(&node.page, &mut bytes).await?;
        let bytes = Arc::new(bytes);
        let stores = self.stores.iter_mut().filter(|store| choose(&***store));
        stores.for_each(|store| store.put(name, &bytes));
        Ok(())
    }

    /// Whether a store takes pages as soon as they are full.
    #[must_use]
    pub fn stores_new(&self) -> bool {
        self.stores.iter().any(|store| store.takes_new())
    }

    /// Gives the pages of a text that stores take as soon as they are full to these.
    ///
    /// # Errors
    /// If the device cannot read a page.
    pub async fn store_new(
        &mut self,
        state: &mut State,
        tokens: &[u32],
        salt: u64,
    ) -> Result<(), Error> {
        if !self.stores_new() {
            return Ok(());
        }
        for id in self.longest(tokens, salt).0 {
            let name = self.nodes[&id].name;
            let mut takers = self.stores.iter_mut().filter(|store| store.takes_new());
            if takers.any(|store| !store.contains(name)) {
                self.store(state, id, |store| store.takes_new()).await?;
            }
        }
        Ok(())
    }

    /// Takes the pages that continue the longest cached prefix of `tokens` from the stores; `slot` is an empty sequence.
    ///
    /// # Errors
    /// If the device cannot write a page or read one for the stores.
    pub async fn load(
        &mut self,
        state: &mut State,
        slot: Slot,
        tokens: &[u32],
        salt: u64,
    ) -> Result<(), Error> {
        if self.stores.is_empty() {
            return Ok(());
        }
        // At least one token must run.
        let tokens = &tokens[..tokens.len().saturating_sub(1)];
        let (mut parent, mut name) = (ROOT, self.root);
        for page in tokens.as_chunks::<PAGE_LEN>().0 {
            self.clock += 1;
            name = name.child(page, salt);
            let id = match self.find(parent, page, salt) {
                Some(id) => id,
                None => {
                    let mut stores = self.stores.iter_mut();
                    let Some(index) = stores.position(|store| store.contains(name)) else { break };
                    // The pages before this one are the ones that were used last.
                    if !self.evict(state, 1).await? || !self.has(parent) {
                        break;
                    }
                    let mut restored = Ok(());
                    let mut restore =
                        |bytes: &[u8]| restored = state.restore(slot, PAGE_LEN, &[bytes]);
                    if !self.stores[index].read(name, &mut restore) {
                        break;
                    }
                    restored?;
                    let sequences = state.rolled_back();
                    let id = self.insert_page(sequences, parent, (slot, 0), page, salt);
                    sequences.truncate(slot, 0);
                    let Some(id) = id else { break };
                    id
                }
            };
            if let Some(node) = self.nodes.get_mut(&id) {
                node.last_used = self.clock;
            }
            parent = id;
        }
        Ok(())
    }

    fn has(&self, id: u64) -> bool {
        id == ROOT || self.nodes.contains_key(&id)
    }

    /// The least recently used leaf, if a page on the path to it is in no other use.
    fn victim(&self, sequences: &Sequences) -> Option<u64> {
        let is_leaf = |id: u64, node: &Node| self.children(id, node.key.2).is_empty();
        // A page that a sequence shares would not be free without the cache either, but those before it may be.
        let is_alone = |node: &Node| sequences.pages().ref_count(node.page.id()) == 1;
        let path = |leaf| successors(Some(leaf), |node: &&Node| self.nodes.get(&node.key.0));
        let leaves = self.nodes.iter().filter(|(id, node)| is_leaf(**id, node));
        let leaves = leaves.filter(|(_, leaf)| path(*leaf).any(is_alone));
        leaves.min_by_key(|(id, node)| (node.last_used, **id)).map(|(id, _)| *id)
    }

    fn remove(&mut self, sequences: &mut Sequences, id: u64) {
        if let Some(node) = self.nodes.remove(&id) {
            self.index.remove(&node.key);
            let (parent, _, salt) = node.key;
            if let Some(siblings) = self.children.get_mut(&(parent, salt)) {
                siblings.retain(|&sibling| sibling != id);
                if siblings.is_empty() {
                    self.children.remove(&(parent, salt));
                }
            }
            sequences.release_page(node.page);
        }
    }

    /// Removes the pages of a text from its end on, up to one that another text continues.
    pub fn remove_text(&mut self, state: &mut State, tokens: &[u32], salt: u64) {
        let (path, len) = self.longest(tokens, salt);
        for (index, id) in path.iter().enumerate().rev() {
            let end = (index * PAGE_LEN + self.nodes[id].tokens.len()).min(len);
            let is_own = self.nodes[id].tokens.len() + index * PAGE_LEN == end;
            if !is_own || !self.children(*id, salt).is_empty() {
                return;
            }
            self.remove(state.rolled_back(), *id);
        }
    }

    /// Removes every page.
    pub fn clear(&mut self, state: &mut State) {
        self.index.clear();
        self.children.clear();
        let sequences = state.rolled_back();
        self.nodes.drain().for_each(|(_, node)| sequences.release_page(node.page));
    }
}

/// Number of equal tokens at the start.
pub(crate) fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
