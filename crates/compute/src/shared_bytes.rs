//! Reference-counted byte ranges of files and buffers.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use crate::{AlignedBytes, Parts, ThreadTeam};

/// Bytes per task of a copy.
const COPIED_BYTES: usize = 1 << 20;

/// Owner of shared memory: a memory-mapped file or a vector.
pub trait ByteOwner: Send + Sync {
    /// All bytes; every call returns the same slice.
    fn bytes(&self) -> &[u8];

    /// Releases the physical memory of `range` if the system can read it again, as from a memory-mapped file. The bytes
    /// stay readable.
    fn release(&self, range: Range<usize>) {
        // Heap memory is the only copy.
        let _ = range;
    }
}

impl ByteOwner for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

impl ByteOwner for AlignedBytes {
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// Range of shared memory; its start may have any alignment.
#[derive(Clone)]
pub struct SharedBytes {
    owner: Arc<dyn ByteOwner>,
    range: Range<usize>,
}

impl SharedBytes {
    /// All bytes of `owner`.
    #[must_use]
    pub fn new(owner: Arc<dyn ByteOwner>) -> Self {
        let range = 0..owner.bytes().len();
        Self { owner, range }
    }

    /// Subrange `range`.
    ///
    /// # Panics
    /// If `range` does not lie inside.
    #[must_use]
    #[track_caller]
    pub fn slice(&self, range: Range<usize>) -> Self {
        let len = self.range.len();
        assert!(
            range.start <= range.end && range.end <= len,
            "bytes {range:?}: expected a range of {len}"
        );
        let start = self.range.start;
        Self { owner: Arc::clone(&self.owner), range: start + range.start..start + range.end }
    }

    /// Concatenates `parts`: without a copy if they are adjacent in one owner, else into new memory, and releases the
    /// parts.
    #[must_use]
    pub fn joined(parts: &[Self]) -> Self {
        let follows = |pair: &[Self]| {
            Arc::ptr_eq(&pair[0].owner, &pair[1].owner) && pair[0].range.end == pair[1].range.start
        };
        if let (Some(first), Some(last), true) =
            (parts.first(), parts.last(), parts.windows(2).all(follows))
        {
            let range = first.range.start..last.range.end;
            return Self { owner: Arc::clone(&first.owner), range };
        }
        let mut bytes = Vec::with_capacity(parts.iter().map(|part| part.len()).sum());
        for part in parts {
            bytes.extend_from_slice(part);
            part.release();
        }
        Self::from(bytes)
    }

    /// Whether the range is all bytes of the owner.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.len() == self.owner.bytes().len()
    }

    /// Copies to memory on a cache line boundary, in parallel, and releases the source. `None` if there is no memory.
    #[must_use]
    pub fn copied(&self, threads: &ThreadTeam) -> Option<Self> {
        let mut copy = AlignedBytes::try_zeroed(self.len())?;
        let to = Parts::new(&mut copy);
        threads.run(self.len().div_ceil(COPIED_BYTES), |task| {
            let range = task * COPIED_BYTES..self.len().min((task + 1) * COPIED_BYTES);
            let from = self.slice(range.clone());
            // SAFETY: ranges of tasks are disjoint, and each task runs once.
            let to: &mut [u8] = unsafe { to.part(range) };
            to.copy_from_slice(&from);
            from.release();
        });
        Some(Self::from(copy))
    }

    /// Releases the physical memory of a memory-mapped file until it is read again. Called after a copy, so that file and
    /// copy are not both resident.
    pub fn release(&self) {
        self.owner.release(self.range.clone());
    }
}

impl From<AlignedBytes> for SharedBytes {
    fn from(bytes: AlignedBytes) -> Self {
        Self::new(Arc::new(bytes))
    }
}

impl From<Vec<u8>> for SharedBytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self::new(Arc::new(bytes))
    }
}

impl Deref for SharedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.owner.bytes()[self.range.clone()]
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBytes({} bytes)", self.range.len())
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::sync::{Arc, Mutex};

    use super::{ByteOwner, SharedBytes};
    use crate::ThreadTeam;

    /// Records the released ranges.
    #[derive(Default)]
    struct RecordingOwner {
        bytes: Vec<u8>,
        released: Mutex<Vec<Range<usize>>>,
    }

    impl ByteOwner for RecordingOwner {
        fn bytes(&self) -> &[u8] {
            &self.bytes
        }

        fn release(&self, range: Range<usize>) {
            self.released.lock().unwrap().push(range);
        }
    }

    #[test]
    fn neighbours_are_joined_in_place_and_others_copied() {
        let owner =
            Arc::new(RecordingOwner { bytes: (0..10).collect(), ..RecordingOwner::default() });
        let all = SharedBytes::new(owner.clone());
        let inner = all.slice(2..9);
        let parts = [inner.slice(0..3), inner.slice(3..3), inner.slice(3..6)];
        let joined = SharedBytes::joined(&parts);
        assert_eq!(joined.as_ptr_range(), all[2..8].as_ptr_range());
        assert!(owner.released.lock().unwrap().is_empty());

        let swapped = SharedBytes::joined(&[all.slice(5..7), all.slice(1..2)]);
        assert_eq!(*swapped, [5, 6, 1]);
        assert_eq!(*owner.released.lock().unwrap(), [5..7, 1..2]);
        let of_two = SharedBytes::joined(&[all.slice(0..1), SharedBytes::from(vec![9])]);
        assert_eq!(*of_two, [0, 9]);
        assert!(of_two.is_whole() && !joined.is_whole());
        assert!(SharedBytes::joined(&[]).is_empty());
    }

    #[test]
    fn copies_are_aligned_whole_and_release_what_they_are_of() {
        let bytes: Vec<u8> = (0..2_500_000).map(|i| (i % 251) as u8).collect();
        let owner = Arc::new(RecordingOwner { bytes, ..RecordingOwner::default() });
        let part = SharedBytes::new(owner.clone()).slice(1..2_400_002);
        let copy = part.copied(&ThreadTeam::new(2).unwrap()).unwrap();
        assert!(*copy == *part && copy.as_ptr().addr().is_multiple_of(64));
        let mut released = std::mem::take(&mut *owner.released.lock().unwrap());
        released.sort_by_key(|range| range.start);
        assert_eq!(released.iter().map(Range::len).sum::<usize>(), part.len());
        assert!(released.windows(2).all(|pair| pair[0].end == pair[1].start), "{released:?}");
    }

    #[test]
    #[should_panic(expected = "bytes 1..4: expected a range of 3")]
    fn a_slice_ends_where_its_bytes_end() {
        drop(SharedBytes::from(vec![1, 2, 3, 4]).slice(0..3).slice(1..4));
    }
}
