//! Workers of the thread team: threads of a pool that join the loops of a leader.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::hint::spin_loop;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::{Thread, current, park, yield_now};
use std::time::Duration;

use web_time::Instant;

use super::pool::Pool;
use crate::check_at_most;
use crate::error::Result;

/// Time a worker spins for the next loop before it sleeps: longer than the serial work between two loops of a forward
/// pass, shorter than a scheduler time slice.
const SPIN_TIME: Duration = Duration::from_micros(200);
/// Time a thread spins before it yields its core. Another program that takes the core keeps it until the next tick of the
/// scheduler, 1 to 4 ms, whatever its priority; most waits are shorter than this.
const YIELD_AFTER: Duration = Duration::from_micros(100);
/// Spin-loop hints between two checks of the clock.
const SPINS_PER_CHECK: usize = 32;

/// Lateness limit: a worker that leaves a loop later than this was descheduled and is benched.
const LATENESS_LIMIT: Duration = Duration::from_millis(1);
/// Time a late worker is benched: several scheduler time slices, so that waiting for it once is cheap in comparison.
const BENCH_TIME: Duration = Duration::from_millis(40);

/// Maximum tasks of a loop: the low half of [`WorkerSlot::next`] must also count the failed claims of all threads.
const MAX_TASKS: usize = u32::MAX as usize / 2;

/// Epoch of a team that is dropped. Other epochs are odd while a loop runs and even between loops.
const CLOSED: usize = usize::MAX - 1;

/// Epoch after the loop of `epoch`. On a 32-bit machine the epochs wrap after 2³¹ loops.
const fn next_epoch(epoch: usize) -> usize {
    if epoch + 1 == CLOSED { 0 } else { epoch + 1 }
}

/// All threads of a team but the leader.
#[derive(Debug)]
pub(super) struct Workers {
    shared: Arc<Shared>,
    /// Dropped without waiting for its threads.
    _pool: Pool,
}

struct Shared {
    current: CurrentLoop,
    /// One per thread of the team; slot 0 is the leader's.
    slots: Box<[WorkerSlot]>,
    /// Held by the leader during a loop. Holds the time until which each worker is benched, if it is.
    leader_lock: Mutex<Vec<Option<Instant>>>,
    /// Payload of a task that panicked on a worker.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    n_sleeping: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
}

/// Loop that all threads poll, on a cache line that is written only when a loop starts or ends.
#[repr(align(128))]
struct CurrentLoop {
    epoch: AtomicUsize,
    running: UnsafeCell<Option<Loop>>,
}

/// Loop body; `'static` is a promise of [`Workers::run`], which returns after the last use.
#[derive(Clone, Copy)]
struct Loop {
    n_tasks: usize,
    task: &'static (dyn Fn(usize) + Sync),
}

/// Slot of one thread, on a cache line of its own: the thread writes it in every loop.
#[repr(align(128))]
#[derive(Default)]
struct WorkerSlot {
    /// Claim counter of the thread's share: the epoch in the high 32 bits, the next task index in the low 32.
    next: AtomicU64,
    /// Whether the worker is inside a loop, or about to find that the loop is over.
    is_inside: AtomicBool,
    /// Whether the worker is benched: parked, while loops run without it.
    is_benched: AtomicBool,
    thread: OnceLock<Thread>,
}

// SAFETY: tasks are `Sync`, so that references to them may cross threads.
unsafe impl Send for CurrentLoop {}
// SAFETY: `running` is written by the leader while the epoch is even and no worker is inside, and read by threads
// inside while the epoch is odd.
unsafe impl Sync for CurrentLoop {}

thread_local! {
    /// Whether this thread is inside a loop, so that nested loops run inline.
    static IN_LOOP: Cell<bool> = const { Cell::new(false) };
}

impl Workers {
    /// Starts workers `1..=n`; index 0 is the leader.
    pub(super) fn start(n: usize) -> Result<Self> {
        let shared = Arc::new(Shared {
            current: CurrentLoop { epoch: AtomicUsize::new(0), running: UnsafeCell::new(None) },
            slots: (0..=n).map(|_| WorkerSlot::default()).collect(),
            leader_lock: Mutex::new(vec![None; n]),
            panic: Mutex::new(None),
            n_sleeping: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
        });
        let of_worker = shared.clone();
        let pool = Pool::start(n, move |index| of_worker.worker_main(index + 1))?;
        Ok(Self { shared, _pool: pool })
    }

    /// Runs a loop of `n_tasks` on this thread and all workers that join, or inline if this thread is inside a loop.
    /// Loops started by several threads run one after the other.
    ///
    /// On a busy machine a worker may be descheduled while it holds a task, and the loop then waits for a time slice of
    /// another program. Such a worker is benched: the loops of the next [`BENCH_TIME`] run without it.
    pub(super) fn run(&self, n_tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        if IN_LOOP.get() {
            (0..n_tasks).for_each(task);
            return;
        }
        check_at_most!(n_tasks, MAX_TASKS, "loop: tasks");
        let shared = &*self.shared;
        let mut benched_until = shared.leader_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let start = Instant::now();
        // SAFETY: only the lifetime changes. `JoinGuard` waits for every user of the task, also when a task panics.
        let task = unsafe {
            std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(task)
        };
        // SAFETY: this thread holds the leader lock and no loop runs, so that nothing reads `running`.
        unsafe { *shared.current.running.get() = Some(Loop { n_tasks, task }) };
        IN_LOOP.set(true);
        let epoch = shared.current.epoch.load(Ordering::Relaxed) + 1;
        shared.set_epoch(epoch);
        for (benched_until, slot) in benched_until.iter_mut().zip(&shared.slots[1..]) {
            if benched_until.take_if(|&mut at| at <= start).is_some() {
                slot.rejoin();
            }
        }
        let guard = JoinGuard { shared, benched_until: &mut benched_until, start, n_tasks };
        shared.work(0, epoch);
        drop(guard);
        let panic = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.set_epoch(CLOSED);
        self.shared.slots.iter().for_each(WorkerSlot::rejoin);
    }
}

impl WorkerSlot {
    fn rejoin(&self) {
        self.is_benched.store(false, Ordering::Release);
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Claims the next task of this slot's share, the tasks `part` of the loop of `epoch`.
    fn claim(&self, epoch: usize, part: Range<usize>) -> Option<usize> {
        // Epochs with equal low halves are 2³¹ loops apart, and every loop in between updated the counter.
        let first = (epoch as u64) << 32 | part.start as u64;
        let mut next = self.next.load(Ordering::Relaxed);
        while (next ^ first) >> 32 != 0 {
            let claimed =
                self.next.compare_exchange(next, first + 1, Ordering::Relaxed, Ordering::Relaxed);
            match claimed {
                Ok(_) => return (!part.is_empty()).then_some(part.start),
                Err(now) => next = now,
            }
        }
        // An exhausted counter is only read, so that its cache line stays shared.
        if next as u32 as usize >= part.end {
            return None;
        }
        let index = self.next.fetch_add(1, Ordering::Relaxed) as u32 as usize;
        (index < part.end).then_some(index)
    }
}

impl Shared {
    /// Main function of worker `index`.
    fn worker_main(&self, index: usize) {
        IN_LOOP.set(true);
        let slot = &self.slots[index];
        slot.thread.get_or_init(current);
        let mut done = 0;
        loop {
            done = match self.wait_for_epoch(done) {
                CLOSED => return,
                epoch => epoch,
            };
            while slot.is_benched.load(Ordering::Acquire) {
                park();
            }
            self.join(index, done);
        }
    }

    /// Waits for the epoch of a loop other than `done`, or for [`CLOSED`].
    fn wait_for_epoch(&self, done: usize) -> usize {
        let is_new = |epoch| epoch == CLOSED || epoch % 2 == 1 && epoch != done;
        let start = Instant::now();
        loop {
            for _ in 0..SPINS_PER_CHECK {
                let epoch = self.current.epoch.load(Ordering::Acquire);
                if is_new(epoch) {
                    return epoch;
                }
                spin_loop();
            }
            let waited = start.elapsed();
            if waited > SPIN_TIME {
                break;
            }
            if waited > YIELD_AFTER {
                yield_now();
            }
        }
        let mut guard = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        // Sequentially consistent: either this thread sees the new epoch or its writer sees `n_sleeping`.
        self.n_sleeping.fetch_add(1, Ordering::SeqCst);
        let epoch = loop {
            let epoch = self.current.epoch.load(Ordering::SeqCst);
            if is_new(epoch) {
                break epoch;
            }
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        };
        self.n_sleeping.fetch_sub(1, Ordering::SeqCst);
        epoch
    }

    /// Works on the loop of `epoch`, unless it is over.
    fn join(&self, index: usize, epoch: usize) {
        let slot = &self.slots[index];
        // Sequentially consistent: either this thread sees that the loop is over or the leader sees `is_inside`.
        slot.is_inside.store(true, Ordering::SeqCst);
        if self.current.epoch.load(Ordering::SeqCst) == epoch {
            let result = catch_unwind(AssertUnwindSafe(|| self.work(index, epoch)));
            if let Err(payload) = result {
                *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(payload);
            }
        }
        slot.is_inside.store(false, Ordering::Release);
    }

    /// Runs tasks of the loop of `epoch`: this thread's share in order, then the rest of the other shares.
    fn work(&self, index: usize, epoch: usize) {
        // SAFETY: the leader wrote the loop before the epoch, and neither returns nor writes another loop before all
        // threads inside have left.
        let Some(Loop { n_tasks, task }) = (unsafe { *self.current.running.get() }) else { return };
        let n = self.slots.len();
        for i in (index..n).chain(0..index) {
            let part = n_tasks * i / n..n_tasks * (i + 1) / n;
            while let Some(index) = self.slots[i].claim(epoch, part.clone()) {
                task(index);
            }
        }
    }

    fn set_epoch(&self, epoch: usize) {
        self.current.epoch.store(epoch, Ordering::SeqCst);
        if self.n_sleeping.load(Ordering::SeqCst) > 0 {
            let _guard = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
            self.wake.notify_all();
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("epoch", &self.current.epoch).finish_non_exhaustive()
    }
}

/// Join guard of a loop: its drop ends the loop, waits for the workers inside and benches the late ones.
struct JoinGuard<'a> {
    shared: &'a Shared,
    benched_until: &'a mut [Option<Instant>],
    start: Instant,
    n_tasks: usize,
}

impl Drop for JoinGuard<'_> {
    fn drop(&mut self) {
        IN_LOOP.set(false);
        let CurrentLoop { epoch, .. } = &self.shared.current;
        epoch.store(next_epoch(epoch.load(Ordering::Relaxed)), Ordering::SeqCst);
        let finished = Instant::now();
        let workers = &self.shared.slots[1..];
        let mean_task = (finished - self.start) * (workers.len() + 1) as u32 / self.n_tasks as u32;
        let limit = LATENESS_LIMIT + 2 * mean_task;
        for (benched_until, slot) in self.benched_until.iter_mut().zip(workers) {
            let mut n = 0;
            while slot.is_inside.load(Ordering::SeqCst) {
                n += 1;
                if n % SPINS_PER_CHECK == 0 && finished.elapsed() > YIELD_AFTER {
                    // The worker that holds the last task may need this core.
                    yield_now();
                } else {
                    spin_loop();
                }
            }
            // Time that this thread spent descheduled after `yield_now` counts as lateness, too: otherwise two busy
            // programs on two cores each keep half of every core.
            if n > 0 && finished.elapsed() > limit {
                *benched_until = Some(Instant::now() + BENCH_TIME);
                slot.is_benched.store(true, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CLOSED, next_epoch};

    #[test]
    fn no_loop_closes_the_team() {
        assert_eq!([next_epoch(1), next_epoch(CLOSED - 1)], [2, 0]);
    }
}
