//! Threads of a rayon pool, which the system starts.

use crate::error::{Error, Result};

/// Threads of [`ThreadTeam::new`](super::ThreadTeam::new) with 0: one per physical core that this process may use.
#[must_use]
pub fn usable_cores() -> usize {
    // `available_parallelism` honours affinity and cgroup quotas but counts hyperthreads, which share the vector units
    // that the kernels saturate.
    std::thread::available_parallelism().map_or(1, usize::from).min(num_cpus::get_physical()).max(1)
}

/// Threads that end with their bodies.
#[derive(Debug)]
pub(super) struct Pool {
    _threads: rayon::ThreadPool,
}

impl Pool {
    /// Starts `n` threads, each with `body` of its index.
    pub(super) fn start(n: usize, body: impl Fn(usize) + Send + Sync + 'static) -> Result<Self> {
        let threads = rayon::ThreadPoolBuilder::new()
            .num_threads(n)
            .thread_name(|i| format!("stonechat-{}", i + 1))
            .build()
            .map_err(|e| Error::Threads { n_threads: n + 1, reason: e.to_string() })?;
        threads.spawn_broadcast(move |worker| body(worker.index()));
        Ok(Self { _threads: threads })
    }
}
