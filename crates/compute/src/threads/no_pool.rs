//! WebAssembly without atomics: the calling thread alone.

use crate::error::{Error, Result};

/// Threads of [`ThreadTeam::new`](super::ThreadTeam::new) with 0: the caller.
#[must_use]
pub fn usable_cores() -> usize {
    1
}

/// Pool of a target without threads, which never starts.
#[derive(Debug)]
pub(super) struct Pool;

impl Pool {
    /// Refuses to start threads.
    pub(super) fn start(n: usize, _body: impl Fn(usize) + Send + Sync + 'static) -> Result<Self> {
        let reason = "expected 1: this build of WebAssembly has no threads".to_owned();
        Err(Error::Threads { n_threads: n + 1, reason })
    }
}
