//! Thread team: fork-join loops with dynamic scheduling on the threads of one rayon pool.
//!
//! Nothing else in this workspace starts threads. A team of `T` is the calling thread (the leader) and `T - 1` workers:
//!
//! ```text
//! run(n_tasks, task):                              worker i, forever:
//!   take the leader lock                             spin on `epoch` for SPIN_TIME, then sleep
//!   publish the loop, epoch += 1   (odd: running)    is_inside[i] = true
//!   work(0)                                          if epoch is still that of the loop: work(i)
//!   epoch += 1                     (even: idle)      is_inside[i] = false
//!   wait until no worker is inside
//!
//! work(i):
//!   for j in i, i+1, …, T-1, 0, …, i-1:              own share first, then those of the others
//!     while (t = next[j]++) < n_tasks (j+1) / T:       next[j] starts at n_tasks j / T
//!       task(t)
//! ```
//!
//! - A loop allocates nothing and starts with one store that spinning workers poll.
//! - Each thread starts with a contiguous share of the tasks: weights are streamed in long runs, and a matrix that is
//!   used again finds its rows in the same core's cache.
//! - A worker that the system has descheduled costs nothing: the others claim its share, and the leader waits only for
//!   workers inside the loop.
//!
//! | target | threads |
//! |---|---|
//! | native | those of a rayon pool |
//! | WebAssembly with atomics | web workers in [`thread_main`], which the host starts beforehand |
//! | WebAssembly without atomics | none: every loop runs inline |

#[cfg(not(target_arch = "wasm32"))]
#[path = "threads/rayon_pool.rs"]
mod pool;
#[cfg(all(target_arch = "wasm32", target_feature = "atomics"))]
#[path = "threads/web_pool.rs"]
mod pool;
#[cfg(all(target_arch = "wasm32", not(target_feature = "atomics")))]
#[path = "threads/no_pool.rs"]
mod pool;
mod workers;

use std::sync::Arc;

use self::workers::Workers;
use crate::error::Result;

#[cfg(all(target_arch = "wasm32", target_feature = "atomics"))]
pub use self::pool::thread_main;
pub use self::pool::usable_cores;

/// A fixed number of threads that run parallel loops. Clones share the threads.
#[derive(Debug, Clone)]
pub struct ThreadTeam {
    n_threads: usize,
    /// `None` for a team of one, which runs everything on the caller.
    workers: Option<Arc<Workers>>,
}

impl ThreadTeam {
    /// Starts a team of `n_threads`; 0 means [`usable_cores`].
    ///
    /// # Errors
    /// [`Error::Threads`](crate::Error::Threads) if the system refuses to start them, or has no threads.
    pub fn new(n_threads: usize) -> Result<Self> {
        let n_threads = if n_threads == 0 { usable_cores() } else { n_threads };
        let workers = match n_threads {
            1 => None,
            _ => Some(Arc::new(Workers::start(n_threads - 1)?)),
        };
        Ok(Self { n_threads, workers })
    }

    /// Number of threads, including the caller.
    #[must_use]
    pub fn n_threads(&self) -> usize {
        self.n_threads
    }

    /// Calls `task(i)` once for every `i < n_tasks`, in any order, on any thread of the team. Returns when all are done.
    /// A nested loop runs on the thread of its task.
    ///
    /// # Panics
    /// If a task panics, or if a team of several threads is given 2³¹ tasks or more.
    pub fn run(&self, n_tasks: usize, task: impl Fn(usize) + Sync) {
        if let Some(workers) = self.workers.as_ref().filter(|_| n_tasks > 1) {
            workers.run(n_tasks, &task);
            return;
        }
        (0..n_tasks).for_each(task);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::thread;
    use std::time::Duration;

    use super::ThreadTeam;

    #[test]
    fn every_index_runs_exactly_once() {
        for n_threads in [1, 2, 3, 8] {
            let team = ThreadTeam::new(n_threads).unwrap();
            for n_tasks in [0, 1, 2, 7, 1000] {
                let hits: Vec<AtomicUsize> = (0..n_tasks).map(|_| AtomicUsize::new(0)).collect();
                let count = |i: usize| {
                    hits[i].fetch_add(1, Ordering::Relaxed);
                };
                team.run(n_tasks, count);
                team.run(n_tasks, count);
                assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 2), "{n_threads}");
            }
        }
    }

    #[test]
    fn loops_nest() {
        let team = ThreadTeam::new(2).unwrap();
        let sum = AtomicUsize::new(0);
        team.run(10, |i| {
            team.run(10, |j| {
                sum.fetch_add(i * 10 + j, Ordering::Relaxed);
            });
        });
        assert_eq!(sum.into_inner(), 4950);
    }

    #[test]
    fn loops_follow_each_other_with_and_without_pauses() {
        let team = ThreadTeam::new(3).unwrap();
        let sum = AtomicUsize::new(0);
        for round in 0..2000 {
            team.run(5, |i| {
                sum.fetch_add(i, Ordering::Relaxed);
            });
            // Longer than `SPIN_TIME`, so that the workers sleep.
            if round % 500 == 0 {
                thread::sleep(Duration::from_millis(2));
            }
        }
        assert_eq!(sum.into_inner(), 20_000);
    }

    #[test]
    fn loops_of_several_threads_share_the_workers() {
        let team = ThreadTeam::new(2).unwrap();
        let barrier = std::sync::Barrier::new(3);
        let sums = thread::scope(|scope| {
            let sums = [(); 3].map(|()| {
                scope.spawn(|| {
                    barrier.wait();
                    let sum = AtomicUsize::new(0);
                    for _ in 0..100 {
                        team.run(100, |i| {
                            sum.fetch_add(i, Ordering::Relaxed);
                        });
                    }
                    sum.into_inner()
                })
            });
            sums.map(|sum| sum.join().unwrap())
        });
        assert_eq!(sums, [495_000; 3]);
    }

    #[test]
    fn a_late_worker_rejoins() {
        let team = ThreadTeam::new(2).unwrap();
        let here = thread::current().id();
        let has_worker = |late: Duration| {
            let has_worker = AtomicBool::new(false);
            team.run(2, |_| {
                if thread::current().id() == here {
                    thread::sleep(Duration::from_millis(1));
                } else {
                    has_worker.store(true, Ordering::Relaxed);
                    thread::sleep(late);
                }
            });
            has_worker.into_inner()
        };
        for _ in 0..3 {
            let is_late = (0..5000).any(|_| has_worker(Duration::from_millis(20)));
            assert!(is_late, "the worker joined no loop");
        }
        assert!((0..5000).any(|_| has_worker(Duration::ZERO)), "the worker stayed away");
    }

    #[test]
    fn a_panic_of_a_task_reaches_who_started_the_loop() {
        let team = ThreadTeam::new(2).unwrap();
        for bad in [0, 99] {
            let loops = || team.run(100, |i| assert_ne!(i, bad, "task {i}"));
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(loops));
            assert!(result.is_err());
            let hits = AtomicUsize::new(0);
            team.run(10, |_| {
                hits.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(hits.into_inner(), 10);
        }
    }

    #[test]
    fn zero_means_the_cores_of_this_machine() {
        assert!(ThreadTeam::new(0).unwrap().n_threads() >= 1);
    }
}
