//! A fixed-length f32 buffer that starts on a cache line.

use std::ops::{Deref, DerefMut};

#[cfg(target_os = "linux")]
use memmap2::{Advice, MmapMut};

/// Bytes of a cache line, on which values start.
pub(crate) const CACHE_LINE: usize = 64;
/// The most values that lie before one that starts a cache line.
const MAX_BEFORE: usize = CACHE_LINE / size_of::<f32>() - 1;
/// Values from which on memory is asked for in huge pages.
#[cfg(target_os = "linux")]
const MIN_HUGE: usize = (4 << 20) / size_of::<f32>();

/// f32 values that start on a 64-byte boundary, so that full-width loads split no cache line.
///
/// They lie somewhere in memory that is a little larger: asked for such an alignment, the standard library
/// writes zeros itself, where an allocator has pages of them that take no memory before they are used.
#[derive(Debug, Default)]
pub struct AlignedVec {
    memory: Memory,
    /// Of the first value in `memory`.
    start: usize,
    len: usize,
}

/// Where values are.
#[derive(Debug)]
enum Memory {
    Heap(Vec<f32>),
    /// Pages of their own.
    #[cfg(target_os = "linux")]
    Pages(MmapMut),
}

impl Default for Memory {
    fn default() -> Self {
        Self::Heap(Vec::new())
    }
}

impl AlignedVec {
    pub(crate) const EMPTY: Self = Self { memory: Memory::Heap(Vec::new()), start: 0, len: 0 };

    /// `len` zeros, all of which are going to be used: large ones are in huge pages where the system has them, so that
    /// reading them needs few translations and taking them few faults.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        #[cfg(target_os = "linux")]
        if len >= MIN_HUGE
            && let Ok(pages) = MmapMut::map_anon(len * size_of::<f32>())
        {
            // Without huge pages there are others.
            let _ = pages.advise(Advice::HugePage);
            return Self { memory: Memory::Pages(pages), start: 0, len };
        }
        Self::within(bytemuck::allocation::zeroed_vec(len + MAX_BEFORE), len)
    }

    /// `len` zeros, or `None` if there is no memory for them. Pages that are never touched, such as those
    /// of sequences that are never used, are never taken.
    #[must_use]
    pub fn try_zeroed(len: usize) -> Option<Self> {
        let n_values = len.checked_add(MAX_BEFORE)?;
        let memory = bytemuck::allocation::try_zeroed_slice_box(n_values).ok()?.into_vec();
        Some(Self::within(memory, len))
    }

    /// `len` values of `memory`, which has [`MAX_BEFORE`] more.
    fn within(memory: Vec<f32>, len: usize) -> Self {
        let address = memory.as_ptr().addr();
        let start = (address.next_multiple_of(CACHE_LINE) - address) / size_of::<f32>();
        Self { memory: Memory::Heap(memory), start, len }
    }
}

impl Clone for AlignedVec {
    fn clone(&self) -> Self {
        let mut clone = Self::zeroed(self.len);
        clone.copy_from_slice(self);
        clone
    }
}

impl Deref for AlignedVec {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        let memory = match &self.memory {
            Memory::Heap(values) => values,
            #[cfg(target_os = "linux")]
            Memory::Pages(pages) => bytemuck::cast_slice(pages),
        };
        &memory[self.start..self.start + self.len]
    }
}

impl DerefMut for AlignedVec {
    fn deref_mut(&mut self) -> &mut [f32] {
        let memory = match &mut self.memory {
            Memory::Heap(values) => values,
            #[cfg(target_os = "linux")]
            Memory::Pages(pages) => bytemuck::cast_slice_mut(pages),
        };
        &mut memory[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::AlignedVec;

    #[test]
    fn starts_on_a_cache_line() {
        for len in [0, 1, 16, 17, 1000] {
            let mut v = AlignedVec::try_zeroed(len).unwrap();
            v.fill(1.0);
            assert_eq!(v.len(), len);
            let clone = v.clone();
            assert_eq!(*clone, *v);
            for v in [&v, &clone] {
                assert!(v.as_ptr().addr().is_multiple_of(64));
            }
        }
        assert!(AlignedVec::try_zeroed(usize::MAX / 4).is_none());
    }

    #[test]
    fn large_ones_are_zeros_too() {
        let mut v = AlignedVec::zeroed(5 << 20);
        assert!(v.as_ptr().addr().is_multiple_of(64) && v.iter().all(|&x| x == 0.0));
        v[5 << 18] = 1.0;
        assert_eq!(*v.clone(), *v);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn memory_is_taken_when_it_is_used() {
        // Pages of this process: other tests take some meanwhile, but not as much.
        let resident_bytes = || {
            let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
            pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
        };
        let before = resident_bytes();
        let v = AlignedVec::try_zeroed(256 << 20).unwrap();
        let taken = resident_bytes().saturating_sub(before);
        assert!(taken < v.len(), "{taken} bytes of {}", 4 * v.len());
    }
}
