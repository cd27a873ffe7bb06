//! A mutable slice that the tasks of a parallel loop share, each for ranges of its own.

use std::marker::PhantomData;
use std::ops::Range;

/// A `&mut [T]` that can be copied into every task of a loop. Ranges are bounds-checked; that they are disjoint is the
/// contract of [`part`](Self::part).
#[derive(Debug)]
pub struct Parts<'a, T> {
    data: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

impl<T> Clone for Parts<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Parts<'_, T> {}

// SAFETY: as for the `&mut [T]` it was made from; callers of `part` promise disjoint ranges.
unsafe impl<T: Send> Send for Parts<'_, T> {}
// SAFETY: a shared `Parts` gives access only through `part`, as above.
unsafe impl<T: Send> Sync for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    /// All of `slice`.
    pub fn new(slice: &'a mut [T]) -> Self {
        Self { data: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// The elements of `range`.
    ///
    /// # Safety
    /// - No other reference to any of these elements is alive while the result is.
    /// - No copy of `self` hands out any of them meanwhile, on any thread.
    ///
    /// # Panics
    /// If the range does not lie inside the slice.
    #[must_use]
    #[inline(always)]
    pub unsafe fn part(self, range: Range<usize>) -> &'a mut [T] {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "part {range:?}: expected a range of {}",
            self.len
        );
        // SAFETY: inside the slice by the assertion; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(range.start), range.len()) }
    }

    /// Address of element `index`, to prefetch it; it may lie outside the slice.
    #[inline(always)]
    pub(crate) fn address(self, index: usize) -> *const T {
        self.data.wrapping_add(index)
    }
}

#[cfg(test)]
mod tests {
    use super::Parts;

    #[test]
    #[should_panic(expected = "part 2..4: expected a range of 3")]
    fn a_range_beyond_the_slice_is_refused() {
        let mut values = [1, 2, 3];
        let parts = Parts::new(&mut values);
        // SAFETY: this is the only reference.
        let _ = unsafe { parts.part(2..4) };
    }
}
