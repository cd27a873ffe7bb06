//! What the runtime made and did, for tests and reports.

use std::sync::atomic::{AtomicU64, Ordering};

/// Totals since the device was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Device buffers made, those for reading back included.
    pub buffers: u64,
    /// Bind groups made.
    pub bind_groups: u64,
    /// Pipelines compiled.
    pub pipelines: u64,
    /// Time that this took, in microseconds.
    pub compiling_us: u64,
    /// Kernels run.
    pub dispatches: u64,
    /// Submissions to the queue, those that only upload weights included.
    pub submissions: u64,
    /// Submissions whose commands had been encoded while the device was busy with the one before.
    pub repeats: u64,
    /// Results that were mapped to be read.
    pub readbacks: u64,
}

impl std::ops::Sub for Counters {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            buffers: self.buffers - earlier.buffers,
            bind_groups: self.bind_groups - earlier.bind_groups,
            pipelines: self.pipelines - earlier.pipelines,
            compiling_us: self.compiling_us - earlier.compiling_us,
            dispatches: self.dispatches - earlier.dispatches,
            submissions: self.submissions - earlier.submissions,
            repeats: self.repeats - earlier.repeats,
            readbacks: self.readbacks - earlier.readbacks,
        }
    }
}

/// The counters as they run.
#[derive(Debug, Default)]
pub(super) struct Running {
    pub(super) buffers: AtomicU64,
    pub(super) bind_groups: AtomicU64,
    pub(super) pipelines: AtomicU64,
    pub(super) compiling_us: AtomicU64,
    pub(super) dispatches: AtomicU64,
    pub(super) submissions: AtomicU64,
    pub(super) repeats: AtomicU64,
    pub(super) readbacks: AtomicU64,
}

/// Counts one.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Running {
    pub(super) fn snapshot(&self) -> Counters {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters {
            buffers: get(&self.buffers),
            bind_groups: get(&self.bind_groups),
            pipelines: get(&self.pipelines),
            compiling_us: get(&self.compiling_us),
            dispatches: get(&self.dispatches),
            submissions: get(&self.submissions),
            repeats: get(&self.repeats),
            readbacks: get(&self.readbacks),
        }
    }
}
