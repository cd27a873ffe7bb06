//! Jobs on several threads.

use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::Result;

/// Runs `work` on each of `jobs`, at most `n_threads` at a time in their order. Gives the results in the order of the jobs.
///
/// # Errors
/// The first one; jobs that have not started by then never start.
///
/// # Panics
/// If `work` panics.
pub fn in_parallel<J, T: Send>(
    n_threads: usize,
    jobs: impl IntoIterator<Item = J, IntoIter: Send>,
    work: impl Fn(J) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let queue = Mutex::new(Some(jobs.into_iter().enumerate()));
    let lock = || queue.lock().unwrap_or_else(PoisonError::into_inner);
    let run = || {
        let mut done = Vec::new();
        loop {
            let Some((i, job)) = lock().as_mut().and_then(Iterator::next) else { return Ok(done) };
            let result = work(job);
            if result.is_err() {
                *lock() = None;
            }
            done.push((i, result?));
        }
    };
    let results: Result<Vec<Vec<(usize, T)>>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..n_threads).map(|_| scope.spawn(run)).collect();
        threads.into_iter().map(|thread| thread.join().expect("jobs do not panic")).collect()
    });
    let mut results: Vec<_> = results?.into_iter().flatten().collect();
    results.sort_by_key(|(i, _)| *i);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use anyhow::ensure;

    use super::*;

    #[test]
    fn results_are_in_the_order_of_jobs() {
        for n_threads in [1, 3] {
            let squares = in_parallel(n_threads, 0..50, |i| Ok(i * i)).unwrap();
            assert_eq!(squares, (0..50).map(|i| i * i).collect::<Vec<_>>());
        }
    }

    #[test]
    fn an_error_ends_the_jobs_behind_it() {
        let n_started = AtomicUsize::new(0);
        let result = in_parallel(1, 0..50, |i| {
            n_started.fetch_add(1, Ordering::Relaxed);
            ensure!(i < 7, "job {i}");
            Ok(())
        });
        assert_eq!(result.unwrap_err().to_string(), "job 7");
        assert_eq!(n_started.into_inner(), 8);
    }
}
