//! Per-thread scratch memory that is kept between calls.

use std::cell::Cell;

use crate::aligned::AlignedVec;

thread_local! {
    static SCRATCH: Cell<AlignedVec> = const { Cell::new(AlignedVec::EMPTY) };
}

/// Calls `f` with `len` floats of unspecified content, 64-byte aligned. The memory stays with the
/// thread, so that only a call larger than all before it allocates. A nested call on the same
/// thread is allowed and gets memory of its own.
pub fn with_scratch<R>(len: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    let mut buffer = SCRATCH.take();
    if buffer.len() < len {
        buffer = AlignedVec::zeroed(len);
    }
    let result = f(&mut buffer[..len]);
    SCRATCH.set(buffer);
    result
}
