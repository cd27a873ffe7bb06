//! Counters of device objects and work, for tests and reports.

use std::sync::atomic::{AtomicU64, Ordering};

/// Totals since the device was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Buffers created, readback buffers included.
    pub buffers: u64,
    /// Bind groups created.
    pub bind_groups: u64,
    /// Pipelines compiled.
    pub pipelines: u64,
    /// Time spent compiling pipelines.
    pub compiling_us: u64,
    /// Kernels dispatched.
    pub dispatches: u64,
    /// Queue submissions, weight uploads included.
    pub submissions: u64,
    /// Lists submitted.
    pub lists: u64,
    /// Lists encoded, ahead of their submission or for it.
    pub encodings: u64,
    /// Writes of words, such as the inputs of a step; none of weights.
    pub uploads: u64,
    /// Buffers mapped for reading.
    pub readbacks: u64,
    /// Time from the start of steps to their submission.
    pub host_us: u64,
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
            lists: self.lists - earlier.lists,
            encodings: self.encodings - earlier.encodings,
            uploads: self.uploads - earlier.uploads,
            readbacks: self.readbacks - earlier.readbacks,
            host_us: self.host_us - earlier.host_us,
        }
    }
}

/// [`Counters`] as atomics.
#[derive(Debug, Default)]
pub(super) struct AtomicCounters {
    pub(super) buffers: AtomicU64,
    pub(super) bind_groups: AtomicU64,
    pub(super) pipelines: AtomicU64,
    pub(super) compiling_us: AtomicU64,
    pub(super) dispatches: AtomicU64,
    pub(super) submissions: AtomicU64,
    pub(super) lists: AtomicU64,
    pub(super) encodings: AtomicU64,
    pub(super) uploads: AtomicU64,
    pub(super) readbacks: AtomicU64,
    pub(super) host_us: AtomicU64,
}

/// Increments a counter.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl AtomicCounters {
    pub(super) fn snapshot(&self) -> Counters {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters {
            buffers: get(&self.buffers),
            bind_groups: get(&self.bind_groups),
            pipelines: get(&self.pipelines),
            compiling_us: get(&self.compiling_us),
            dispatches: get(&self.dispatches),
            submissions: get(&self.submissions),
            lists: get(&self.lists),
            encodings: get(&self.encodings),
            uploads: get(&self.uploads),
            readbacks: get(&self.readbacks),
            host_us: get(&self.host_us),
        }
    }
}
