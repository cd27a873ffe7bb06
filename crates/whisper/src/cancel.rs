//! Cancellation of runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Cancels runs and jobs from another thread or a signal handler; see
/// [`Transcriber::cancelled_by`](crate::Transcriber::cancelled_by).
///
/// Clones share one state. Cancellation is permanent.
#[derive(Debug, Clone, Default)]
pub struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    /// Creates a token that is not cancelled.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancels running transcriptions, at their next decoder step, and later ones.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the token was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
