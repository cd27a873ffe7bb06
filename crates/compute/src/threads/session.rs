//! Loops of one thread that the other threads of its pool join.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::yield_now;
use std::time::{Duration, Instant};

/// How long a thread looks for the next loop before it sleeps: longer than the work between two loops of
/// a forward pass, short beside the time slices of a machine that has other work.
const AWAKE: Duration = Duration::from_micros(200);
/// How long a thread sleeps before it looks for work that is not of the session.
const NAP: Duration = Duration::from_millis(5);
/// Pauses between two looks at the clock, after which other programs may run.
const PAUSES: usize = 32;

/// States of a session are even while no loop runs, odd while one does, and this at the end.
const CLOSED: usize = usize::MAX - 1;

/// What each thread of a loop calls.
type Claim<'a> = &'a (dyn Fn() + Sync);

/// The threads of a pool, waiting for the loops of the thread that opened it.
pub(super) struct Session {
    state: AtomicUsize,
    /// Threads inside the loop, or about to find that it is over.
    n_inside: AtomicUsize,
    /// Of the running loop, whose lifetime the session guards.
    claim: UnsafeCell<Option<Claim<'static>>>,
    /// Of a task that panicked.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    n_asleep: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
}

// SAFETY: a claim is shared with threads as `Sync` as it is; it is gone before its session.
unsafe impl Send for Session {}
// SAFETY: `claim` is written by the opening thread alone, while `n_inside` is 0 and the state is even, and
// read only by threads that are inside while the state is odd.
unsafe impl Sync for Session {}

thread_local! {
    /// The session whose loops this thread starts: that which it opened, unless it is inside a loop.
    static OPENED: Cell<*const Session> = const { Cell::new(ptr::null()) };
}

impl Session {
    /// Calls `f` on this thread of a pool, whose other threads take part in the loops that it runs.
    pub(super) fn open<R>(f: impl FnOnce() -> R) -> R {
        let session = Arc::new(Self {
            state: AtomicUsize::new(0),
            n_inside: AtomicUsize::new(0),
            claim: UnsafeCell::new(None),
            panic: Mutex::new(None),
            n_asleep: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
        });
        let of_others = session.clone();
        // This thread takes its share when `f` is over, and finds the session closed.
        rayon::spawn_broadcast(move |_| of_others.join_loops());
        let outer = OPENED.replace(&raw const *session);
        let _closes = Closes { session: &session, outer };
        f()
    }

    /// Takes part in loops until the session is closed.
    fn join_loops(&self) {
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
            yield_to_others();
        }
        let mut guard = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        // Either this thread sees a new state or who sets it sees that this thread sleeps.
        self.n_asleep.fetch_add(1, Ordering::SeqCst);
        let state = loop {
            let state = self.state.load(Ordering::SeqCst);
            if is_new(state) {
                break state;
            }
            let waited = self.wake.wait_timeout(guard, NAP);
            let (woken, result) = waited.unwrap_or_else(PoisonError::into_inner);
            guard = woken;
            if result.timed_out() {
                drop(guard);
                yield_to_others();
                guard = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
            }
        };
        self.n_asleep.fetch_sub(1, Ordering::SeqCst);
        state
    }

    /// Takes part in the loop of `state`, unless it is over.
    fn join(&self, state: usize) {
        // Either this thread sees that the loop is over or its owner waits for this thread.
        self.n_inside.fetch_add(1, Ordering::SeqCst);
        if self.state.load(Ordering::SeqCst) == state {
            // SAFETY: the loop's owner set the claim before the state, and does not return, nor set another,
            // before this thread has left.
            if let Some(claim) = unsafe { *self.claim.get() } {
                let result = catch_unwind(AssertUnwindSafe(claim));
                if let Err(payload) = result {
                    *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(payload);
                }
            }
        }
        self.n_inside.fetch_sub(1, Ordering::SeqCst);
    }

    /// Runs a loop on this thread, which opened the session, and on all that join.
    fn run(&self, claim: Claim<'_>) {
        // SAFETY: only the lifetime changes. `Ends` waits for all who use the claim, also when it panics.
        let claim_of_all = unsafe { std::mem::transmute::<Claim<'_>, Claim<'static>>(claim) };
        // SAFETY: no loop runs, so nobody reads the claim.
        unsafe { *self.claim.get() = Some(claim_of_all) };
        self.set_state(self.state.load(Ordering::Relaxed) + 1);
        {
            let _ends = Ends(self);
            claim();
        }
        let panic = self.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }

    fn set_state(&self, state: usize) {
        self.state.store(state, Ordering::SeqCst);
        if self.n_asleep.load(Ordering::SeqCst) > 0 {
            let _guard = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
            self.wake.notify_all();
        }
    }
}

/// Ends the loop of the session and waits for who is inside.
struct Ends<'a>(&'a Session);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        let state = self.0.state.load(Ordering::Relaxed);
        self.0.state.store(state + 1, Ordering::SeqCst);
        let mut n = 0;
        while self.0.n_inside.load(Ordering::SeqCst) > 0 {
            n += 1;
            // A thread that holds the last task may need this core.
            if n % PAUSES == 0 { yield_now() } else { spin_loop() }
        }
    }
}

/// Lets other programs run, and work of the pool that is not of this session.
fn yield_to_others() {
    if rayon::yield_now() != Some(rayon::Yield::Executed) {
        yield_now();
    }
}

/// Closes the session.
struct Closes<'a> {
    session: &'a Session,
    outer: *const Session,
}

impl Drop for Closes<'_> {
    fn drop(&mut self) {
        OPENED.set(self.outer);
        self.session.set_state(CLOSED);
    }
}

/// Runs a loop: on all threads of the session that this thread opened, or on this thread alone if it is
/// inside a loop.
pub(super) fn run(claim: Claim<'_>) {
    let session = OPENED.replace(ptr::null());
    // SAFETY: a session outlives the pointer to it, which `Closes` takes away on the same thread.
    match unsafe { session.as_ref() } {
        None => claim(),
        Some(of_this_thread) => {
            let _restores = Restores(session);
            of_this_thread.run(claim);
        }
    }
}

/// Lets this thread start loops again.
struct Restores(*const Session);

impl Drop for Restores {
    fn drop(&mut self) {
        OPENED.set(self.0);
    }
}
