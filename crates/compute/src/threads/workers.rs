//! Threads of a rayon pool that wait for the loops of other threads and join them.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::hint::spin_loop;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::{Thread, current, park, yield_now};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// How long a worker looks for the next loop before it sleeps: longer than the work between two loops of
/// a forward pass, short beside the time slices of a machine that has other work.
const AWAKE: Duration = Duration::from_micros(200);
/// Pauses between two looks at the clock, after which other programs may run.
const PAUSES: usize = 32;

/// What a worker may be late for other reasons than that the system does not run it.
const LATE: Duration = Duration::from_millis(1);
/// How long a worker that the system did not run stays away: some time slices, so that waiting for it costs
/// little beside them. Twice as long at each time that it is late again, up to 640 ms, is no faster.
const AWAY: Duration = Duration::from_millis(40);

/// What a claim's half of a counter holds, and leaves all threads room to find that nothing is left.
const MAX_TASKS: usize = u32::MAX as usize / 2;

/// States are even while no loop runs, odd while one does, and this at the end.
const CLOSED: usize = usize::MAX - 1;

/// All threads of a team but the one that starts a loop.
#[derive(Debug)]
pub(super) struct Workers {
    shared: Arc<Shared>,
    /// Ends its threads when it is dropped.
    _pool: rayon::ThreadPool,
}

struct Shared {
    loops: Loops,
    /// Of the team, whose first member is the one that starts a loop.
    seats: Box<[Seat]>,
    /// Held by the thread whose loop runs: when workers that are away come back.
    leads: Mutex<Vec<Option<Instant>>>,
    /// Of a task that panicked.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    n_asleep: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
}

/// What all threads look at, on a cache line that changes only when a loop starts or ends.
#[repr(align(128))]
struct Loops {
    state: AtomicUsize,
    running: UnsafeCell<Option<Loop>>,
}

/// A loop, which outlives its running.
#[derive(Clone, Copy)]
struct Loop {
    n_tasks: usize,
    task: &'static (dyn Fn(usize) + Sync),
}

/// What one thread of the team writes at each loop, on a cache line of its own.
#[repr(align(128))]
#[derive(Default)]
struct Seat {
    /// The next index of the thread's own part of a loop, below the loop's state in the upper half.
    next: AtomicU64,
    /// Whether the worker is inside a loop, or about to find that it is over.
    is_inside: AtomicBool,
    /// Whether loops do without the worker, which is parked then.
    is_away: AtomicBool,
    thread: OnceLock<Thread>,
}

// SAFETY: a task is shared with threads, as its `Sync` allows.
unsafe impl Send for Loops {}
// SAFETY: `running` is written by the thread that leads, while the state is even and has no reader, and read
// by threads that are inside while the state is odd.
unsafe impl Sync for Loops {}

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
            loops: Loops { state: AtomicUsize::new(0), running: UnsafeCell::new(None) },
            seats: (0..=n).map(|_| Seat::default()).collect(),
            leads: Mutex::new(vec![None; n]),
            panic: Mutex::new(None),
            n_asleep: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
        });
        let of_workers = shared.clone();
        pool.spawn_broadcast(move |worker| of_workers.join_loops(worker.index() + 1));
        Ok(Self { shared, _pool: pool })
    }

    /// Runs a loop of `n_tasks` on this thread and all workers that join; on this thread alone if it is
    /// inside a loop. Loops of several threads follow each other.
    ///
    /// Where other programs keep the cores busy, a worker may hold a task while the system does not run it,
    /// and then the loop waits for a time slice of another program. Loops that follow do without that worker
    /// for a while: one thread beside two busy ones is faster than two that wait for each other.
    pub(super) fn run(&self, n_tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        if IS_INSIDE.get() {
            (0..n_tasks).for_each(task);
            return;
        }
        assert!(n_tasks <= MAX_TASKS, "a loop of {n_tasks} tasks");
        let shared = &*self.shared;
        let mut comes_back = shared.leads.lock().unwrap_or_else(PoisonError::into_inner);
        let start = Instant::now();
        // SAFETY: only the lifetime changes. `Ends` waits for all who use the task, also when it panics.
        let task = unsafe {
            std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(task)
        };
        // SAFETY: this thread leads and no loop runs, so nobody reads it.
        unsafe { *shared.loops.running.get() = Some(Loop { n_tasks, task }) };
        IS_INSIDE.set(true);
        let state = shared.loops.state.load(Ordering::Relaxed) + 1;
        shared.set_state(state);
        for (comes_back, seat) in comes_back.iter_mut().zip(&shared.seats[1..]) {
            if comes_back.take_if(|&mut at| at <= start).is_some() {
                seat.come_back();
            }
        }
        let ends = Ends { shared, comes_back: &mut comes_back, start, n_tasks };
        shared.work(0, state);
        drop(ends);
        let panic = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.set_state(CLOSED);
        self.shared.seats.iter().for_each(Seat::come_back);
    }
}

impl Seat {
    fn come_back(&self) {
        self.is_away.store(false, Ordering::Release);
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Claims the next index of a part of the loop of `state`.
    fn claim(&self, state: usize, part: Range<usize>) -> Option<usize> {
        // States of equal lower halves are 2³¹ loops apart, each of which was claimed from.
        let first = (state as u64) << 32 | part.start as u64;
        let mut next = self.next.load(Ordering::Relaxed);
        while (next ^ first) >> 32 != 0 {
            let claimed =
                self.next.compare_exchange(next, first + 1, Ordering::Relaxed, Ordering::Relaxed);
            match claimed {
                Ok(_) => return (!part.is_empty()).then_some(part.start),
                Err(now) => next = now,
            }
        }
        // Only a thread that sees work left writes to a counter.
        if next as u32 as usize >= part.end {
            return None;
        }
        let index = self.next.fetch_add(1, Ordering::Relaxed) as u32 as usize;
        (index < part.end).then_some(index)
    }
}

impl Shared {
    /// What a worker does.
    fn join_loops(&self, index: usize) {
        IS_INSIDE.set(true);
        let seat = &self.seats[index];
        seat.thread.get_or_init(current);
        let mut done = 0;
        loop {
            done = match self.next_state(done) {
                CLOSED => return,
                state => state,
            };
            while seat.is_away.load(Ordering::Acquire) {
                park();
            }
            self.join(index, done);
        }
    }

    /// Waits for a loop other than `done`, or for the end.
    fn next_state(&self, done: usize) -> usize {
        let is_new = |state| state == CLOSED || state % 2 == 1 && state != done;
        let start = Instant::now();
        loop {
            for _ in 0..PAUSES {
                let state = self.loops.state.load(Ordering::Acquire);
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
            let state = self.loops.state.load(Ordering::SeqCst);
            if is_new(state) {
                break state;
            }
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        };
        self.n_asleep.fetch_sub(1, Ordering::SeqCst);
        state
    }

    /// Takes part in the loop of `state`, unless it is over.
    fn join(&self, index: usize, state: usize) {
        let seat = &self.seats[index];
        // Either this thread sees that the loop is over or who leads waits for this thread.
        seat.is_inside.store(true, Ordering::SeqCst);
        if self.loops.state.load(Ordering::SeqCst) == state {
            let result = catch_unwind(AssertUnwindSafe(|| self.work(index, state)));
            if let Err(payload) = result {
                *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(payload);
            }
        }
        seat.is_inside.store(false, Ordering::Release);
    }

    /// Runs tasks of the loop of `state`: those of this thread's part, in order, then what others have left of
    /// theirs.
    fn work(&self, index: usize, state: usize) {
        // SAFETY: who leads set the loop before the state, and does not return, nor set another, before all who
        // are inside have left.
        let Some(Loop { n_tasks, task }) = (unsafe { *self.loops.running.get() }) else { return };
        let n = self.seats.len();
        for i in (index..n).chain(0..index) {
            let part = n_tasks * i / n..n_tasks * (i + 1) / n;
            while let Some(index) = self.seats[i].claim(state, part.clone()) {
                task(index);
            }
        }
    }

    fn set_state(&self, state: usize) {
        self.loops.state.store(state, Ordering::SeqCst);
        if self.n_asleep.load(Ordering::SeqCst) > 0 {
            let _guard = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
            self.wake.notify_all();
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("state", &self.loops.state).finish_non_exhaustive()
    }
}

/// Ends the loop and waits for who is inside.
struct Ends<'a> {
    shared: &'a Shared,
    comes_back: &'a mut [Option<Instant>],
    start: Instant,
    n_tasks: usize,
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        IS_INSIDE.set(false);
        let Loops { state, .. } = &self.shared.loops;
        state.store(state.load(Ordering::Relaxed) + 1, Ordering::SeqCst);
        let worked = Instant::now();
        let workers = &self.shared.seats[1..];
        let task = (worked - self.start) * (workers.len() + 1) as u32 / self.n_tasks as u32;
        let patience = LATE + 2 * task;
        for (comes_back, seat) in self.comes_back.iter_mut().zip(workers) {
            let mut n = 0;
            while seat.is_inside.load(Ordering::SeqCst) {
                n += 1;
                // A worker that holds the last task may need this core.
                if n % PAUSES == 0 { yield_now() } else { spin_loop() }
            }
            // That this thread did not run after it gave way counts, or two busy programs keep each of two cores
            // half: prompts at 430 to 550 tok/s instead of 1,090 to 1,140.
            if n > 0 && worked.elapsed() > patience {
                *comes_back = Some(Instant::now() + AWAY);
                seat.is_away.store(true, Ordering::Relaxed);
            }
        }
    }
}
