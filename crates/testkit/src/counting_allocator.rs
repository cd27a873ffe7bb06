//! An allocator for tests of code that must not allocate, or not much.
#![expect(unsafe_code, reason = "`GlobalAlloc` is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

thread_local! {
    /// Allocations of this thread. Needs neither an allocation nor a destructor.
    static OF_THREAD: Cell<usize> = const { Cell::new(0) };
}

/// Counts allocations and their bytes, and passes them on to the system allocator. Install one per test binary:
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: stonechat_testkit::CountingAllocator = stonechat_testkit::CountingAllocator::new();
/// ```
#[derive(Debug)]
pub struct CountingAllocator {
    of_process: AtomicUsize,
    bytes: AtomicUsize,
    peak_bytes: AtomicUsize,
}

impl CountingAllocator {
    /// An allocator that has counted nothing.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "a static needs a const fn")]
    pub const fn new() -> Self {
        Self {
            of_process: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            peak_bytes: AtomicUsize::new(0),
        }
    }

    /// Allocations and reallocations of all threads so far, those of the test harness included.
    pub fn count(&self) -> usize {
        self.of_process.load(Ordering::Relaxed)
    }

    /// Allocations and reallocations of the calling thread so far.
    pub fn thread_count(&self) -> usize {
        OF_THREAD.get()
    }

    /// Bytes of all threads that are allocated now.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Runs `f`; returns its result and the peak of allocated bytes during the call. Calls must not overlap.
    pub fn peak_bytes<R>(&self, f: impl FnOnce() -> R) -> (R, usize) {
        self.peak_bytes.store(self.bytes(), Ordering::Relaxed);
        let result = f();
        (result, self.peak_bytes.load(Ordering::Relaxed))
    }

    fn add_one(&self, bytes: usize) {
        self.of_process.fetch_add(1, Ordering::Relaxed);
        OF_THREAD.set(OF_THREAD.get() + 1);
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.peak_bytes.fetch_max(before + bytes, Ordering::Relaxed);
    }

    fn subtract(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

// SAFETY: every call is passed on to `System` with its arguments unchanged; counting does not allocate.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.add_one(layout.size());
        // SAFETY: the caller upholds the contract of `alloc`, which is that of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        self.subtract(layout.size());
        // SAFETY: `ptr` was allocated by `System` with `layout`, in `alloc` or `realloc`.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // A moving reallocation holds both blocks during the copy.
        self.add_one(new_size);
        self.subtract(layout.size());
        // SAFETY: as in `dealloc`; the caller vouches for `new_size`.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}
