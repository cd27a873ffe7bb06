//! Table of models: the open ones, their users, and the next load or close.
//!
//! ```text
//!              request                 next: it fits               loaded
//! Unloaded ─────────────▶ Queued ──────────────────▶ Loading ──────────────▶ Open
//!     ▲                     ▲                           │ failed                │ next: least recently used
//!     │                     │ has waiters               ▼                       │ and idle; or sleep, unload
//!     └─────────────────────┴─────── closed ◀─────── Unloaded     Closing ◀─────┘
//! ```
//!
//! Memory counts from `Loading` until `closed`. A model with users is never closed. The queue is first in, first out:
//! a model that does not fit yet holds back the later ones, until nobody waits for it any more. The table has no I/O, threads
//! or clock, so that tests can step it.

mod growth;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::memory::Memory;

/// Index of a model in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ModelId(pub(crate) usize);

/// State of a model as `/models` reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelStatus {
    /// Never loaded, evicted, or unloaded by request.
    Unloaded,
    /// Being loaded, or in the queue for memory.
    Loading,
    /// Open.
    Loaded,
    /// Unloaded after an idle time; the next request loads it.
    Sleeping,
    /// The last load failed; the next request tries again.
    Failed,
}

impl ModelStatus {
    /// Name in `/models`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Unloaded => "unloaded",
            Self::Loading => "loading",
            Self::Loaded => "loaded",
            Self::Sleeping => "sleeping",
            Self::Failed => "failed",
        }
    }
}

#[derive(Debug)]
enum State<M> {
    Unloaded,
    Queued,
    Loading,
    Open(Arc<M>),
    Closing,
}

/// A model with its users and waiters `W`.
#[derive(Debug)]
struct Entry<M, W> {
    memory: Memory,
    /// Memory of states beside its own, which may outlive its users.
    grown: Memory,
    state: State<M>,
    n_users: usize,
    last_used: Instant,
    waiters: Vec<W>,
    /// Whether it is loaded without a waiter.
    is_wanted: bool,
    is_asleep: bool,
    /// Whether it gets no more users, and is closed once it has none.
    is_retired: bool,
    failure: Option<String>,
}

/// A request that waits for a model.
pub(crate) trait Waiter {
    /// Whether nobody waits any more.
    fn is_gone(&self) -> bool;
}

/// Outcome of a request for a model.
#[derive(Debug)]
pub(crate) enum Requested<M, W> {
    /// Open; the user is counted. The waiter comes back.
    Open(Arc<M>, W),
    /// The waiter was kept; [`Table::loaded`] returns it.
    Waits,
    /// Too many users and waiters; the waiter comes back.
    Full(W),
}

/// Next action of the caller.
#[derive(Debug)]
pub(crate) enum Action<M> {
    /// Load the model, then call [`Table::loaded`].
    Load(ModelId),
    /// Drop the model, then call [`Table::closed`].
    Close(ModelId, Arc<M>),
}

/// Reason why a model cannot be unloaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// A closed model.
    NotLoaded,
    /// A model with users.
    Busy,
}

/// Models, the memory budget, and the queue of loads.
#[derive(Debug)]
pub(crate) struct Table<M, W> {
    entries: Vec<Entry<M, W>>,
    queue: VecDeque<ModelId>,
    budget: Memory,
    max_users: usize,
}

impl<M, W: Waiter> Table<M, W> {
    /// Table of a budget of memory, and a maximum of users and waiters of one model.
    pub(crate) fn new(budget: Memory, max_users: usize) -> Self {
        Self { entries: Vec::new(), queue: VecDeque::new(), budget, max_users }
    }

    /// Sets the budget of the GPU.
    pub(crate) fn set_gpu_budget(&mut self, bytes: u64) {
        self.budget.gpu = bytes;
    }

    /// Adds a model that needs `memory` while it is open.
    pub(crate) fn add(&mut self, memory: Memory, now: Instant) -> ModelId {
        self.entries.push(Entry {
            memory,
            grown: Memory::default(),
            state: State::Unloaded,
            n_users: 0,
            last_used: now,
            waiters: Vec::new(),
            is_wanted: false,
            is_asleep: false,
            is_retired: false,
            failure: None,
        });
        ModelId(self.entries.len() - 1)
    }

    /// Requests a model: counts a user, or keeps the waiter. [`next`](Self::next) then has the work.
    pub(crate) fn request(&mut self, id: ModelId, waiter: W, now: Instant) -> Requested<M, W> {
        let entry = &mut self.entries[id.0];
        if entry.n_users + entry.waiters.len() >= self.max_users {
            entry.waiters.retain(|waiter| !waiter.is_gone());
        }
        if entry.n_users + entry.waiters.len() >= self.max_users {
            return Requested::Full(waiter);
        }
        if let State::Open(model) = &entry.state
            && !entry.is_retired
        {
            entry.n_users += 1;
            entry.last_used = now;
            return Requested::Open(Arc::clone(model), waiter);
        }
        entry.waiters.push(waiter);
        if matches!(entry.state, State::Unloaded) {
            self.enqueue(id);
        }
        Requested::Waits
    }

    /// Requests a model that nobody waits for.
    pub(crate) fn load(&mut self, id: ModelId) {
        let entry = &mut self.entries[id.0];
        match entry.state {
            State::Open(_) if entry.is_retired => entry.is_wanted = true,
            State::Open(_) | State::Loading => {}
            State::Queued | State::Closing => entry.is_wanted = true,
            State::Unloaded => {
                entry.is_wanted = true;
                self.enqueue(id);
            }
        }
    }

    /// Gives a model that is open or being loaded no more users: it is closed once it has none, and loaded again for those
    /// that wait.
    pub(crate) fn retire(&mut self, id: ModelId) {
        let entry = &mut self.entries[id.0];
        entry.is_retired = matches!(entry.state, State::Open(_) | State::Loading);
    }

    /// A retired model without users.
    fn retired(&self) -> Option<ModelId> {
        self.idle().find(|id| self.entries[id.0].is_retired)
    }

    /// Whether the end of a load has a use.
    fn is_requested(&mut self, id: ModelId) -> bool {
        let entry = &mut self.entries[id.0];
        entry.waiters.retain(|waiter| !waiter.is_gone());
        entry.is_wanted || !entry.waiters.is_empty()
    }

    fn enqueue(&mut self, id: ModelId) {
        self.entries[id.0].state = State::Queued;
        self.queue.push_back(id);
    }

    /// Next work: a retired model to close; or the first load of the queue if it fits, else the model to close for it. Call it
    /// until it returns `None` after every change.
    pub(crate) fn next(&mut self) -> Option<Action<M>> {
        if let Some(id) = self.retired() {
            return self.close(id);
        }
        let id = loop {
            let id = *self.queue.front()?;
            if self.is_requested(id) {
                break id;
            }
            self.queue.pop_front();
            self.entries[id.0].state = State::Unloaded;
        };
        let needed = self.entries[id.0].memory;
        let lacking = |used: Memory| needed.lacking(used, self.budget);
        let used = self.used();
        if lacking(used).is_zero() {
            self.queue.pop_front();
            self.entries[id.0].state = State::Loading;
            return Some(Action::Load(id));
        }
        let after = used.minus(self.closing());
        let idle = self.idle().map(|id| self.entries[id.0].memory);
        let idle = idle.fold(Memory::default(), Memory::plus);
        let missing = lacking(after);
        if missing.is_zero() || !lacking(after.minus(idle)).is_zero() {
            return None;
        }
        // Models of another device stay open.
        let helps = |id: &ModelId| self.entries[id.0].memory.shares(missing);
        let victim = self.idle().filter(helps).min_by_key(|id| self.entries[id.0].last_used)?;
        self.close(victim)
    }

    /// Open models without users.
    fn idle(&self) -> impl Iterator<Item = ModelId> {
        let is_idle =
            |entry: &Entry<M, W>| matches!(entry.state, State::Open(_)) && entry.n_users == 0;
        let ids = self.entries.iter().enumerate();
        ids.filter(move |(_, entry)| is_idle(entry)).map(|(i, _)| ModelId(i))
    }

    fn close(&mut self, id: ModelId) -> Option<Action<M>> {
        match std::mem::replace(&mut self.entries[id.0].state, State::Closing) {
            State::Open(model) => Some(Action::Close(id, model)),
            other => {
                self.entries[id.0].state = other;
                None
            }
        }
    }

    /// Ends a load; returns the waiters. Each is counted as a user if the load succeeded.
    pub(crate) fn loaded(
        &mut self,
        id: ModelId,
        result: Result<Arc<M>, String>,
        now: Instant,
    ) -> Vec<W> {
        let entry = &mut self.entries[id.0];
        let waiters = std::mem::take(&mut entry.waiters);
        (entry.is_asleep, entry.is_wanted) = (false, false);
        match result {
            Ok(model) => {
                entry.state = State::Open(model);
                entry.n_users += waiters.len();
                entry.failure = None;
            }
            Err(failure) => {
                (entry.state, entry.is_retired) = (State::Unloaded, false);
                entry.failure = Some(failure);
            }
        }
        entry.last_used = now;
        waiters
    }

    /// Ends a close: its memory is free. Requests that arrived during the close queue for a load.
    pub(crate) fn closed(&mut self, id: ModelId) {
        let entry = &mut self.entries[id.0];
        (entry.state, entry.is_retired) = (State::Unloaded, false);
        if self.is_requested(id) {
            self.enqueue(id);
        }
    }

    /// Ends the use of a model.
    pub(crate) fn release(&mut self, id: ModelId, now: Instant) {
        let entry = &mut self.entries[id.0];
        entry.n_users -= 1;
        entry.last_used = now;
    }

    /// Closes a model by request.
    pub(crate) fn unload(&mut self, id: ModelId) -> Result<Action<M>, Refusal> {
        if self.entries[id.0].n_users > 0 {
            return Err(Refusal::Busy);
        }
        self.close(id).ok_or(Refusal::NotLoaded)
    }

    /// Closes the models that were idle for `timeout`.
    pub(crate) fn sleep(&mut self, timeout: Duration, now: Instant) -> Vec<Action<M>> {
        let is_due = |id: &ModelId| now.duration_since(self.entries[id.0].last_used) >= timeout;
        let due: Vec<ModelId> = self.idle().filter(is_due).collect();
        let sleep = |id: ModelId| {
            self.entries[id.0].is_asleep = true;
            self.close(id)
        };
        due.into_iter().filter_map(sleep).collect()
    }

    /// Status of a model.
    pub(crate) fn status(&self, id: ModelId) -> ModelStatus {
        let entry = &self.entries[id.0];
        match entry.state {
            State::Open(_) if !entry.is_retired => ModelStatus::Loaded,
            State::Open(_) => ModelStatus::Loading,
            State::Queued | State::Loading => ModelStatus::Loading,
            State::Closing if entry.is_wanted || !entry.waiters.is_empty() => ModelStatus::Loading,
            State::Unloaded | State::Closing if entry.is_asleep => ModelStatus::Sleeping,
            State::Unloaded if entry.failure.is_some() => ModelStatus::Failed,
            State::Unloaded | State::Closing => ModelStatus::Unloaded,
        }
    }

    /// The model if it is open, without counting a user or touching its idle time.
    pub(crate) fn peek(&self, id: ModelId) -> Option<&M> {
        match &self.entries[id.0].state {
            State::Open(model) => Some(model),
            _ => None,
        }
    }

    /// Reason why the last load of a model failed.
    pub(crate) fn failure(&self, id: ModelId) -> Option<&str> {
        self.entries[id.0].failure.as_deref()
    }

    /// Users of a model.
    pub(crate) fn n_users(&self, id: ModelId) -> usize {
        self.entries[id.0].n_users
    }

    /// Requests that wait for a model to be loaded.
    pub(crate) fn n_waiters(&self) -> usize {
        self.entries.iter().map(|entry| entry.waiters.len()).sum()
    }

    /// Memory of models that are open, being loaded or being closed.
    pub(crate) fn used(&self) -> Memory {
        let models = self.sum(|state| !matches!(state, State::Unloaded | State::Queued));
        self.entries.iter().map(|entry| entry.grown).fold(models, Memory::plus)
    }

    /// Memory that models being closed give back.
    fn closing(&self) -> Memory {
        self.sum(|state| matches!(state, State::Closing))
    }

    fn sum(&self, counts: impl Fn(&State<M>) -> bool) -> Memory {
        let counted = self.entries.iter().filter(|entry| counts(&entry.state));
        counted.map(|entry| entry.memory).fold(Memory::default(), Memory::plus)
    }

    /// Budget of memory.
    pub(crate) fn budget(&self) -> Memory {
        self.budget
    }
}

#[cfg(test)]
mod tests;
