//! The thread team: parallel loops with dynamic claiming over one rayon pool.
//!
//! Each thread of a team of `T` first claims the indices of a `T`th of the loop that is its own, in
//! order, then what others have left of theirs. Weights are so read in long runs, which memory
//! serves faster than runs of two threads in turns, and a matrix that is used again finds its rows
//! in the same core's cache.
//!
//! Nothing else in this workspace starts threads. A loop is split with `rayon::join` alone, whose
//! tasks live on the stack: inside [`ThreadTeam::install`] a loop allocates nothing. Entering the
//! pool from outside goes through rayon's injection queue, which allocates a block now and then,
//! and wakes a sleeping worker; so enter once around many loops. Rayon bounds its spinning and
//! then parks, and a worker that the system does not run costs nothing: the caller claims the
//! remaining indices itself.
//!
//! WebAssembly has no threads: there every loop runs inline.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::Result;

#[cfg(not(target_arch = "wasm32"))]
use {crate::error::Error, std::sync::Arc};

/// Parts of a loop that are counted apart; threads of a larger team share them.
const MAX_PARTS: usize = 64;

/// A fixed number of threads that run parallel loops. Clones share the threads.
#[derive(Debug, Clone)]
pub struct ThreadTeam {
    n_threads: usize,
    /// `None` for a team of one, which runs everything on the caller.
    #[cfg(not(target_arch = "wasm32"))]
    pool: Option<Arc<rayon::ThreadPool>>,
}

#[cfg(not(target_arch = "wasm32"))]
impl ThreadTeam {
    /// A team of `n_threads`; 0 means one a physical core that this process may use.
    ///
    /// # Errors
    /// [`Error::Threads`] if the system refuses to start them.
    pub fn new(n_threads: usize) -> Result<Self> {
        let n_threads = if n_threads == 0 { usable_cores() } else { n_threads };
        if n_threads == 1 {
            return Ok(Self { n_threads, pool: None });
        }
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(n_threads)
            .thread_name(|i| format!("stonechat-{i}"))
            .build()
            .map_err(|e| Error::Threads { n_threads, reason: e.to_string() })?;
        Ok(Self { n_threads, pool: Some(Arc::new(pool)) })
    }

    /// Runs `f` on a thread of the team; loops inside it start without entering the pool again.
    pub fn install<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        match &self.pool {
            Some(pool) => pool.install(f),
            None => f(),
        }
    }

    fn run_split(&self, n_workers: usize, claim: &(impl Fn() + Sync)) {
        match &self.pool {
            Some(pool) if pool.current_thread_index().is_some() => split(n_workers, claim),
            Some(pool) => pool.install(|| split(n_workers, claim)),
            None => claim(),
        }
    }
}

#[cfg(target_arch = "wasm32")]
impl ThreadTeam {
    /// A team of one, whatever was asked for.
    ///
    /// # Errors
    /// None on this target.
    pub fn new(_n_threads: usize) -> Result<Self> {
        Ok(Self { n_threads: 1 })
    }

    /// Runs `f`.
    pub fn install<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        f()
    }

    fn run_split(&self, _n_workers: usize, claim: &(impl Fn() + Sync)) {
        claim();
    }
}

impl ThreadTeam {
    /// Threads that take part in a loop.
    #[must_use]
    pub fn n_threads(&self) -> usize {
        self.n_threads
    }

    /// Calls `task(i)` once for every `i < n_tasks`, in any order, from any thread of the team;
    /// each thread claims another index when it is done with one. Returns when all are done.
    ///
    /// # Panics
    /// If a task panics.
    pub fn run(&self, n_tasks: usize, task: impl Fn(usize) + Sync) {
        if n_tasks <= 1 || self.n_threads == 1 {
            (0..n_tasks).for_each(task);
            return;
        }
        let n_parts = self.n_threads.min(MAX_PARTS);
        let part = |i: usize| n_tasks * i / n_parts;
        let mut next = [const { AtomicUsize::new(0) }; MAX_PARTS];
        for (i, next) in next[..n_parts].iter_mut().enumerate() {
            *next.get_mut() = part(i);
        }
        let claim = || {
            let own = thread_index() % n_parts;
            for i in (own..n_parts).chain(0..own) {
                // Only a thread that sees work left writes to a counter.
                while next[i].load(Ordering::Relaxed) < part(i + 1) {
                    let index = next[i].fetch_add(1, Ordering::Relaxed);
                    if index >= part(i + 1) {
                        break;
                    }
                    task(index);
                }
            }
        };
        self.run_split(self.n_threads.min(n_tasks), &claim);
    }
}

/// Offers `claim` to up to `n_workers` threads; the caller is one of them.
#[cfg(not(target_arch = "wasm32"))]
fn split(n_workers: usize, claim: &(impl Fn() + Sync)) {
    if n_workers <= 1 {
        claim();
    } else {
        let half = n_workers / 2;
        rayon::join(|| split(n_workers - half, claim), || split(half, claim));
    }
}

/// A slice of which each task of a loop writes parts of its own.
#[derive(Debug, Clone, Copy)]
pub struct Parts<'a, T> {
    data: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: as for the `&mut [T]` it was made from; `part`'s callers promise disjointness.
unsafe impl<T: Send> Send for Parts<'_, T> {}
// SAFETY: a shared `Parts` gives no access but through `part`, as above.
unsafe impl<T: Send> Sync for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    /// All of `slice`.
    pub fn new(slice: &'a mut [T]) -> Self {
        Self { data: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// The elements of `range`.
    ///
    /// # Safety
    /// No other reference to them lives at the same time.
    ///
    /// # Panics
    /// If the range ends outside the slice.
    #[must_use]
    pub unsafe fn part(self, range: Range<usize>) -> &'a mut [T] {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "part {range:?} of {}",
            self.len
        );
        // SAFETY: inside the slice by the assertion; the caller vouches that nobody else has it.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(range.start), range.len()) }
    }
}

/// The number of this thread in its team.
fn thread_index() -> usize {
    #[cfg(not(target_arch = "wasm32"))]
    let index = rayon::current_thread_index().unwrap_or(0);
    #[cfg(target_arch = "wasm32")]
    let index = 0;
    index
}

#[cfg(not(target_arch = "wasm32"))]
fn usable_cores() -> usize {
    // The first honours affinity and cgroup quotas but counts hyperthreads, which share the
    // vector units that the kernels saturate.
    let allowed = std::thread::available_parallelism().map_or(1, usize::from);
    allowed.min(num_cpus::get_physical()).max(1)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

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
                team.install(|| team.run(n_tasks, count));
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
    fn zero_means_the_cores_of_this_machine() {
        assert!(ThreadTeam::new(0).unwrap().n_threads() >= 1);
    }
}
