//! Hash index from byte strings to their numbers. The strings stay in [`Slices`].

use std::hash::{BuildHasher, Hasher, RandomState};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use super::slices::Slices;

/// Numbers of byte strings in a [`Slices`], by content. Every call must pass the same [`Slices`].
///
/// The hash has random keys, so that no file can choose texts that collide.
#[derive(Debug, Clone)]
pub(super) struct Index {
    numbers: HashTable<u32>,
    state: RandomState,
}

impl Index {
    pub(super) fn with_capacity(n: usize) -> Self {
        Self { numbers: HashTable::with_capacity(n), state: RandomState::new() }
    }

    /// Adds a number, in place of another one with the same bytes.
    pub(super) fn insert(&mut self, slices: &Slices, number: u32) {
        let bytes = slices.get(number);
        let state = &self.state;
        let equals = |&other: &u32| slices.get(other) == bytes;
        let hash_of = |&other: &u32| hash(state, slices.get(other));
        match self.numbers.entry(hash(state, bytes), equals, hash_of) {
            Entry::Occupied(mut entry) => *entry.get_mut() = number,
            Entry::Vacant(entry) => drop(entry.insert(number)),
        }
    }

    /// The number last added with these bytes.
    pub(super) fn find(&self, slices: &Slices, bytes: &[u8]) -> Option<u32> {
        let equals = |&number: &u32| slices.get(number) == bytes;
        self.numbers.find(hash(&self.state, bytes), equals).copied()
    }
}

fn hash(state: &RandomState, bytes: &[u8]) -> u64 {
    let mut hasher = state.build_hasher();
    hasher.write(bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_equal_texts_is_found() {
        let (mut slices, mut index) = (Slices::with_capacity(0, 0), Index::with_capacity(0));
        for (number, bytes) in (0..).zip([&b"a"[..], b"bc", b"", b"a", b"abc"]) {
            slices.push(bytes);
            index.insert(&slices, number);
        }
        let find = |bytes: &[u8]| index.find(&slices, bytes);
        assert_eq!([find(b"a"), find(b"bc"), find(b"abc")], [Some(3), Some(1), Some(4)]);
        assert_eq!([find(b""), find(b"b"), find(b"aabc")], [Some(2), None, None]);
        assert_eq!((slices.len(), slices.get(1)), (5, &b"bc"[..]));
        assert_eq!([slices.get(5), slices.get(u32::MAX)], [b"", b""]);
    }
}
