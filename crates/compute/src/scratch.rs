//! Per-thread scratch memory that is kept between calls.

use std::cell::RefCell;

use crate::aligned::AlignedVec;

thread_local! {
    /// What calls on this thread have used, that of the outermost last.
    static SCRATCH: RefCell<Vec<AlignedVec>> = const { RefCell::new(Vec::new()) };
}

/// Calls `f` with `len` floats of unspecified content, 64-byte aligned. The memory stays with the
/// thread, so that only a call larger than all before it allocates. A nested call on the same
/// thread is allowed and gets memory of its own.
pub fn with_scratch<R>(len: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    let mut buffer = SCRATCH.with_borrow_mut(Vec::pop).unwrap_or(AlignedVec::EMPTY);
    if buffer.len() < len {
        buffer = AlignedVec::zeroed(len);
    }
    let result = f(&mut buffer[..len]);
    SCRATCH.with_borrow_mut(|scratch| scratch.push(buffer));
    result
}
