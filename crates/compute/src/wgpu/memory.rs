//! Memory of a device: bytes in use.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes in use by a device's buffers, with an optional limit.
#[derive(Debug)]
pub(super) struct Memory {
    used: AtomicU64,
    limit: AtomicU64,
}

impl Memory {
    pub(super) fn new() -> Self {
        Self { used: AtomicU64::new(0), limit: AtomicU64::new(u64::MAX) }
    }

    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub(super) fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// Reserves `bytes`; returns false if that exceeds the limit.
    pub(super) fn reserve(&self, bytes: u64) -> bool {
        let used = self.used.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let fits = used <= self.limit.load(Ordering::Relaxed);
        if !fits {
            self.release(bytes);
        }
        fits
    }

    pub(super) fn release(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}
