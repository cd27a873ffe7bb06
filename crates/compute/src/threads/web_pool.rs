//! Threads of WebAssembly: web workers that share the memory of the module and wait for a team in [`thread_main`].
//!
//! A module cannot start a worker while it runs, since the host's event loop starts them. The host therefore starts
//! workers first, and teams take those that have arrived. A worker whose team is dropped waits for the next one.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};

static IDLE: IdleWorkers = IdleWorkers {
    state: Mutex::new(State { n_idle: 0, bodies: VecDeque::new() }),
    wake: Condvar::new(),
};

struct IdleWorkers {
    state: Mutex<State>,
    wake: Condvar,
}

struct State {
    /// Workers without a body, less the bodies that wait for one.
    n_idle: usize,
    bodies: VecDeque<Box<dyn FnOnce() + Send>>,
}

impl IdleWorkers {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Main function of a worker, which runs the loops of one team after the other.
pub fn thread_main() -> ! {
    loop {
        let mut state = IDLE.lock();
        state.n_idle += 1;
        let body = loop {
            match state.bodies.pop_front() {
                Some(body) => break body,
                None => state = IDLE.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        };
        drop(state);
        body();
    }
}

/// Threads of [`ThreadTeam::new`](super::ThreadTeam::new) with 0: the caller and the workers that wait for a team.
#[must_use]
pub fn usable_cores() -> usize {
    1 + IDLE.lock().n_idle
}

/// Workers of one team.
#[derive(Debug)]
pub(super) struct Pool;

impl Pool {
    /// Gives `n` waiting workers `body` of their index.
    pub(super) fn start(n: usize, body: impl Fn(usize) + Send + Sync + 'static) -> Result<Self> {
        let mut state = IDLE.lock();
        let Some(n_idle) = state.n_idle.checked_sub(n) else {
            let reason = format!("expected {n} waiting workers, got {}", state.n_idle);
            return Err(Error::Threads { n_threads: n + 1, reason });
        };
        state.n_idle = n_idle;
        let body = Arc::new(body);
        for index in 0..n {
            let body = Arc::clone(&body);
            state.bodies.push_back(Box::new(move || body(index)));
        }
        drop(state);
        IDLE.wake.notify_all();
        Ok(Self)
    }
}
