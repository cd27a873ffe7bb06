//! Items as tasks of a thread team.

use std::sync::{Mutex, PoisonError};

use stonechat_compute::ThreadTeam;

/// Calls `task` for each of `n` items in parallel.
pub(crate) fn for_each<T>(
    threads: &ThreadTeam,
    n: usize,
    items: impl Iterator<Item = T> + Send,
    task: impl Fn(T) + Sync,
) {
    let items = Mutex::new(items);
    threads.run(n, |_| {
        let item = items.lock().unwrap_or_else(PoisonError::into_inner).next();
        item.into_iter().for_each(&task);
    });
}
