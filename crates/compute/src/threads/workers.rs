//! Threads of a rayon pool that wait for the loops of other threads and join them.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::yield_now;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// How long a worker looks for the next loop before it sleeps: longer than the work between two loops of
/// a forward pass, short beside the time slices of a machine that has other work.
const AWAKE: Duration = Duration::from_micros(200);
/// Pauses between two looks at the clock, after which other programs may run.
const PAUSES: usize = 32;

/// What a worker may be late for other reasons than that the system does not run it.
const LATE: Duration = Duration::from_millis(1);
/// How long loops do without workers that the system did not run: some time slices, so that waiting for
/// one costs little beside them.
const ALONE: Duration = Duration::from_millis(40);

/// States are even while no loop runs, odd while one does, and this at the end.
const CLOSED: usize = usize::MAX - 1;

/// What each thread of a loop calls.
type Claim<'a> = &'a (dyn Fn() + Sync);

/// All threads of a team but the one that starts a loop.
#[derive(Debug)]
pub(super) struct Workers {
    shared: Arc<Shared>,
    /// With the one that starts a loop.
    n_threads: usize,
    /// Ends its threads when it is dropped.
    _pool: rayon::ThreadPool,
}

struct Shared {
    /// Held by the thread whose loop runs. Until then it does so without workers.
    leads: Mutex<Option<Instant>>,
    state: AtomicUsize,
    /// Workers inside the loop, or about to find that it is over.
    n_inside: AtomicUsize,
    /// Of the running loop, which outlives it.
    claim: UnsafeCell<Option<Claim<'static>>>,
    /// Of a task that panicked.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    n_asleep: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
}

// SAFETY: a claim is shared with threads, as its `Sync` allows.
unsafe impl Send for Shared {}
// SAFETY: `claim` is written by the thread that leads, while the state is even and has no reader, and read
// by workers that are inside while the state is odd.
unsafe impl Sync for Shared {}

thread_local! {
    /// Whether this thread is inside a loop, of which loops are no part.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

impl Workers {
    /// Starts `n` threads, numbered from 1: whoever starts a loop is 0.
    pub(super) fn start(n: usize) -> Result<Self> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(n)
            .thread_name(|i| format!("stonechat-{}", i + 1))
            .build()
            .map_err(|e| Error::Threads { n_threads: n + 1, reason: e.to_string() })?;
        let shared = Arc::new(Shared {
            leads: Mutex::new(None),
            state: AtomicUsize::new(0),
            n_inside: AtomicUsize::new(0),
            claim: UnsafeCell::new(None),
            panic: Mutex::new(None),
            n_asleep: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
        });
        let of_workers = shared.clone();
        pool.spawn_broadcast(move |_| of_workers.join_loops());
        Ok(Self { shared, n_threads: n + 1, _pool: pool })
    }

    /// The number of this thread in its team.
    pub(super) fn thread_index() -> usize {
        rayon::current_thread_index().map_or(0, |i| i + 1)
    }

    /// Runs a loop of `n_tasks` on this thread and all workers that join; on this thread alone if it is
    /// inside a loop. Loops of several threads follow each other.
    ///
    /// Where other programs keep the cores busy, a worker may hold a task while the system does not run it,
    /// and then the loop waits for a time slice of another program. Loops that follow do without workers
    /// for a while: one thread beside two busy ones is faster than two that wait for each other.
    pub(super) fn run(&self, n_tasks: usize, claim: Claim<'_>) {
        if IS_INSIDE.get() {
            claim();
            return;
        }
        let shared = &*self.shared;
        let mut leads = shared.leads.lock().unwrap_or_else(PoisonError::into_inner);
        let start = Instant::now();
        if leads.is_some_and(|until| start < until) {
            claim();
            return;
        }
        *leads = None;
        // SAFETY: only the lifetime changes. `Ends` waits for all who use the claim, also when it panics.
        let claim_of_all = unsafe { std::mem::transmute::<Claim<'_>, Claim<'static>>(claim) };
        // SAFETY: this thread leads and no loop runs, so nobody reads the claim.
        unsafe { *shared.claim.get() = Some(claim_of_all) };
        IS_INSIDE.set(true);
        shared.set_state(shared.state.load(Ordering::Relaxed) + 1);
        let worked = {
            let _ends = Ends(shared);
            claim();
            Instant::now()
        };
        let (work, wait) = (worked - start, worked.elapsed());
        let task = work * self.n_threads as u32 / n_tasks as u32;
        if wait > LATE + 2 * task {
            *leads = Some(Instant::now() + ALONE);
        }
        let panic = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.set_state(CLOSED);
    }
}

impl Shared {
    /// What a worker does.
    fn join_loops(&self) {
        IS_INSIDE.set(true);
        let mut done = 0;
        loop {
            match self.next_state(done) {
                CLOSED => return,
                state => {
                    done = state;
                    self.join(state);
                }
            }
        }
    }

    /// Waits for a loop other than `done`, or for the end.
    fn next_state(&self, done: usize) -> usize {
        let is_new = |state| state == CLOSED || state % 2 == 1 && state != done;
        let start = Instant::now();
        loop {
            for _ in 0..PAUSES {
                let state = self.state.load(Ordering::Acquire);
                if is_new(state) {
                    return state;
                }
                spin_loop();
            }
            if start.elapsed() > AWAKE {
                break;
            }
            yield_now();
        }
        let mut guard = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        // Either this thread sees a new state or who sets it sees that this thread sleeps.
        self.n_asleep.fetch_add(1, Ordering::SeqCst);
        let state = loop {
            let state = self.state.load(Ordering::SeqCst);
            if is_new(state) {
                break state;
            }
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        };
        self.n_asleep.fetch_sub(1, Ordering::SeqCst);
        state
    }

    /// Takes part in the loop of `state`, unless it is over.
    fn join(&self, state: usize) {
        // Either this thread sees that the loop is over or who leads waits for this thread.
        self.n_inside.fetch_add(1, Ordering::SeqCst);
        if self.state.load(Ordering::SeqCst) == state {
            // SAFETY: who leads set the claim before the state, and does not return, nor set another, before
            // this thread has left.
            if let Some(claim) = unsafe { *self.claim.get() } {
                let result = catch_unwind(AssertUnwindSafe(claim));
                if let Err(payload) = result {
                    *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(payload);
                }
            }
        }
        self.n_inside.fetch_sub(1, Ordering::SeqCst);
    }

    fn set_state(&self, state: usize) {
        self.state.store(state, Ordering::SeqCst);
        if self.n_asleep.load(Ordering::SeqCst) > 0 {
            let _guard = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
            self.wake.notify_all();
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("state", &self.state).finish_non_exhaustive()
    }
}

/// Ends the loop and waits for who is inside.
struct Ends<'a>(&'a Shared);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        IS_INSIDE.set(false);
        let state = self.0.state.load(Ordering::Relaxed);
        self.0.state.store(state + 1, Ordering::SeqCst);
        let mut n = 0;
        while self.0.n_inside.load(Ordering::SeqCst) > 0 {
            n += 1;
            // A worker that holds the last task may need this core.
            if n % PAUSES == 0 { yield_now() } else { spin_loop() }
        }
    }
}
