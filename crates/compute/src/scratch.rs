//! Thread-local scratch memory, kept between calls.

use std::cell::RefCell;

use crate::aligned::AlignedVec;

thread_local! {
    /// Free buffers of this thread, a stack: the one of the outermost call is on top.
    static SCRATCH: RefCell<Vec<AlignedVec>> = const { RefCell::new(Vec::new()) };
}

/// Calls `f` with `len` floats of unspecified content, 64-byte aligned. The buffer stays with the thread, so that only
/// calls larger than the previous ones allocate. A nested call gets a buffer of its own.
pub fn with_scratch<R>(len: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    let mut buffer = SCRATCH.with_borrow_mut(Vec::pop).unwrap_or(AlignedVec::EMPTY);
    if buffer.len() < len {
        buffer = AlignedVec::zeroed(len);
    }
    let result = f(&mut buffer[..len]);
    SCRATCH.with_borrow_mut(|scratch| scratch.push(buffer));
    result
}
