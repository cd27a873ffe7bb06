//! A fixed-length f32 buffer that starts on a cache line.

use std::ops::{Deref, DerefMut};

#[cfg(target_os = "linux")]
use memmap2::{Advice, MmapMut};

#[cfg(target_os = "linux")]
use crate::huge_pages::MIN_VALUES;

/// Bytes of a cache line.
pub(crate) const CACHE_LINE: usize = 64;
/// Maximum values before the first one on a cache line boundary.
const MAX_BEFORE: usize = CACHE_LINE / size_of::<f32>() - 1;

/// Fixed-length f32 buffer on a 64-byte boundary, so that full-width loads split no cache line.
///
/// The allocation is up to one cache line larger, and unaligned: for a larger alignment the standard library writes the
/// zeros itself, instead of using the zero pages of the allocator, which take no memory until they are written.
#[derive(Debug, Default)]
pub struct AlignedVec {
    memory: Memory,
    /// Index of the first value in `memory`.
    start: usize,
    len: usize,
}

/// Backing memory.
#[derive(Debug)]
enum Memory {
    Heap(Vec<f32>),
    /// Anonymous map with huge pages.
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

    /// Allocates `len` zeros that will all be used: large buffers get huge pages, if the system has them, to save TLB misses
    /// and page faults. The program ends if there is no memory.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        Self::try_zeroed_for_use(len).unwrap_or_else(|| {
            Self::within(bytemuck::allocation::zeroed_vec(len + MAX_BEFORE), len)
        })
    }

    /// Like [`zeroed`](Self::zeroed), but `None` if there is no memory.
    #[must_use]
    pub fn try_zeroed_for_use(len: usize) -> Option<Self> {
        #[cfg(target_os = "linux")]
        if len >= MIN_VALUES
            && let Ok(pages) = MmapMut::map_anon(len.checked_mul(size_of::<f32>())?)
        {
            // Without huge pages the map has normal ones.
            let _ = pages.advise(Advice::HugePage);
            return Some(Self { memory: Memory::Pages(pages), start: 0, len });
        }
        Self::try_zeroed(len)
    }

    /// Allocates `len` zeros; `None` if there is no memory. Pages that are never touched, such as those of unused KV pages,
    /// are never committed.
    #[must_use]
    pub fn try_zeroed(len: usize) -> Option<Self> {
        let n_values = len.checked_add(MAX_BEFORE)?;
        let memory = bytemuck::allocation::try_zeroed_slice_box(n_values).ok()?.into_vec();
        Some(Self::within(memory, len))
    }

    /// Places `len` values in `memory`, which has [`MAX_BEFORE`] more.
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

/// Fixed-length byte buffer on a 64-byte boundary.
#[derive(Debug)]
pub struct AlignedBytes {
    /// `len` bytes, then zeros up to a whole f32.
    memory: AlignedVec,
    len: usize,
}

impl AlignedBytes {
    /// Allocates `len` zeros; `None` if there is no memory.
    #[must_use]
    pub fn try_zeroed(len: usize) -> Option<Self> {
        Some(Self { memory: AlignedVec::try_zeroed(len.div_ceil(size_of::<f32>()))?, len })
    }
}

impl Deref for AlignedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.memory)[..self.len]
    }
}

impl DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.memory)[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::{AlignedBytes, AlignedVec};

    #[test]
    fn bytes_have_any_length() {
        for len in [0, 1, 4, 63, 1001] {
            let mut bytes = AlignedBytes::try_zeroed(len).unwrap();
            assert!(bytes.len() == len && bytes.as_ptr().addr().is_multiple_of(64));
            bytes.fill(7);
            assert!(bytes.iter().all(|&b| b == 7));
        }
    }

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
        // More than an address space, and more than a size.
        for len in [1 << 60, usize::MAX / 4, usize::MAX] {
            assert!(AlignedVec::try_zeroed_for_use(len).is_none());
        }
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
    fn memory_is_committed_on_first_use() {
        // Resident pages of the process: other tests commit some meanwhile, but not as many.
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
