//! A fixed-length f32 buffer that starts on a cache line.

use std::ops::{Deref, DerefMut};

use bytemuck::{Pod, Zeroable};

/// A cache line.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

// SAFETY: all zero bits are sixteen zeros.
unsafe impl Zeroable for Line {}
// SAFETY: sixteen floats fill the 64 bytes without padding, and any bits are floats.
unsafe impl Pod for Line {}

/// f32 values that start on a 64-byte boundary, so that full-width loads split no cache line.
#[derive(Debug, Clone, Default)]
pub struct AlignedVec {
    lines: Vec<Line>,
    len: usize,
}

impl AlignedVec {
    pub(crate) const EMPTY: Self = Self { lines: Vec::new(), len: 0 };

    /// `len` zeros.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        Self { lines: vec![Line::zeroed(); len.div_ceil(16)], len }
    }

    /// `len` zeros, or `None` if there is no memory for them.
    #[must_use]
    pub fn try_zeroed(len: usize) -> Option<Self> {
        let n_lines = len.div_ceil(16);
        // Zeroed by the allocator: memory that is never touched, such as the pages of sequences
        // that are never used, is never taken.
        let lines = bytemuck::allocation::try_zeroed_slice_box(n_lines).ok()?.into_vec();
        Some(Self { lines, len })
    }
}

impl Deref for AlignedVec {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }
}

impl DerefMut for AlignedVec {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
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
            assert!(v.as_ptr().addr().is_multiple_of(64));
        }
    }
}
