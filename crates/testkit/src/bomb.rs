//! Panics on demand.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Calls until the next panic; it panics at the last one, and at each further one that is asked for.
#[derive(Debug, Clone, Default)]
pub struct Bomb(Arc<AtomicUsize>);

impl Bomb {
    /// Sets the number of calls; none panics at 0.
    pub fn set(&self, n_calls: usize) {
        self.0.store(n_calls, Ordering::SeqCst);
    }

    /// Counts a call.
    ///
    /// # Panics
    /// At the last one.
    pub fn call(&self) {
        let left = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        assert!(left != Ok(1), "boom");
    }
}
