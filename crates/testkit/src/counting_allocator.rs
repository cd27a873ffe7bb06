//! An allocator for tests of code that must not allocate.
#![expect(unsafe_code, reason = "`GlobalAlloc` is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

thread_local! {
    /// Allocations of this thread. Needs neither an allocation nor a destructor.
    static OF_THREAD: Cell<usize> = const { Cell::new(0) };
}

/// Counts allocations and passes them on to the system allocator. Install one per test binary:
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: stonechat_testkit::CountingAllocator = stonechat_testkit::CountingAllocator::new();
/// ```
#[derive(Debug)]
pub struct CountingAllocator {
    of_process: AtomicUsize,
}

impl CountingAllocator {
    /// An allocator that has counted nothing.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "a static needs a const fn")]
    pub const fn new() -> Self {
        Self { of_process: AtomicUsize::new(0) }
    }

    /// Allocations and reallocations of all threads so far, those of the test harness included.
    pub fn count(&self) -> usize {
        self.of_process.load(Ordering::Relaxed)
    }

    /// Allocations and reallocations of the calling thread so far.
    pub fn thread_count(&self) -> usize {
        OF_THREAD.get()
    }

    fn add_one(&self) {
        self.of_process.fetch_add(1, Ordering::Relaxed);
        OF_THREAD.set(OF_THREAD.get() + 1);
    }
}

// SAFETY: every call is passed on to `System` with its arguments unchanged; counting does not allocate.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.add_one();
        // SAFETY: the caller upholds the contract of `alloc`, which is that of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` was allocated by `System` with `layout`, in `alloc` or `realloc`.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        self.add_one();
        // SAFETY: as in `dealloc`; the caller vouches for `new_size`.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}
