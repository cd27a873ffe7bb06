//! Threads of the host beside a GPU, for spectrograms and speech detection.

use std::sync::{Arc, OnceLock};

use stonechat_compute::ThreadTeam;

use crate::device::HostTask;
use crate::tasks::for_each;

/// Thread team that is started for its first tasks. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct HostThreads(Arc<OnceLock<Option<ThreadTeam>>>);

impl HostThreads {
    /// Runs `tasks` on a thread per core, on the calling thread if the system refuses to start threads.
    pub(crate) fn run(&self, tasks: &mut [HostTask<'_>]) {
        match self.0.get_or_init(|| ThreadTeam::new(0).ok()) {
            Some(threads) => for_each(threads, tasks.len(), tasks.iter_mut(), |task| task()),
            None => tasks.iter_mut().for_each(|task| task()),
        }
    }
}
