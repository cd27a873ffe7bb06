//! Hash index of the merges by their two symbols.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

/// Two symbols and their merge.
#[derive(Debug, Clone, Copy)]
struct Merge {
    left: u32,
    right: u32,
    result: u32,
}

/// Merges, best first.
#[derive(Debug, Clone)]
pub(super) struct Pairs {
    merges: Vec<Merge>,
    /// Indices into `merges` by the two sides.
    ranks: HashTable<u32>,
    keys: Keys,
}

impl Pairs {
    pub(super) fn with_capacity(n: usize) -> Self {
        Self {
            merges: Vec::with_capacity(n),
            ranks: HashTable::with_capacity(n),
            keys: Keys::random(),
        }
    }

    /// Adds a merge after the others, unless its sides already have one.
    pub(super) fn add(&mut self, left: u32, right: u32, result: u32) {
        let (merges, keys) = (&mut self.merges, self.keys);
        let equals = |&rank: &u32| merges[rank as usize].has(left, right);
        let hash_of = |&rank: &u32| {
            let merge = merges[rank as usize];
            keys.hash(merge.left, merge.right)
        };
        if let Entry::Vacant(entry) = self.ranks.entry(keys.hash(left, right), equals, hash_of) {
            entry.insert(merges.len() as u32);
            merges.push(Merge { left, right, result });
        }
    }

    /// Rank and result of merging two symbols.
    pub(super) fn get(&self, left: u32, right: u32) -> Option<(u32, u32)> {
        let equals = |&rank: &u32| self.merges[rank as usize].has(left, right);
        let rank = *self.ranks.find(self.keys.hash(left, right), equals)?;
        Some((rank, self.merges[rank as usize].result))
    }
}

impl Merge {
    fn has(self, left: u32, right: u32) -> bool {
        self.left == left && self.right == right
    }
}

/// Hash of two numbers, with random keys so that no file can choose merges that collide.
#[derive(Debug, Clone, Copy)]
struct Keys {
    sum: u64,
    factor: u64,
}

impl Keys {
    fn random() -> Self {
        let state = RandomState::new();
        Self { sum: state.hash_one(0), factor: state.hash_one(1) | 1 }
    }

    fn hash(self, left: u32, right: u32) -> u64 {
        let pair = (u64::from(left) << 32 | u64::from(right)) ^ self.sum;
        let product = u128::from(pair) * u128::from(self.factor);
        // The table takes bits of both ends: each half of the product lends the other its good one.
        product as u64 ^ (product >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_equal_merges_counts() {
        let mut pairs = Pairs::with_capacity(0);
        for (left, right, result) in [(1, 2, 9), (2, 1, 8), (1, 2, 7), (0, u32::MAX, 6)] {
            pairs.add(left, right, result);
        }
        assert_eq!([pairs.get(1, 2), pairs.get(2, 1)], [Some((0, 9)), Some((1, 8))]);
        assert_eq!([pairs.get(0, u32::MAX), pairs.get(1, 1)], [Some((2, 6)), None]);
    }
}
