//! Table of models: which ones are open, their users, and what is loaded or closed next.
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
//! a model that does not fit yet holds back those behind it. Without I/O, threads and a clock, so that tests step it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

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
    bytes: u64,
    state: State<M>,
    n_users: usize,
    last_used: Instant,
    waiters: Vec<W>,
    is_asleep: bool,
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

/// Work for the caller.
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
    /// It has users.
    Busy,
}

/// Models, the memory budget, and the queue of loads.
#[derive(Debug)]
pub(crate) struct Table<M, W> {
    entries: Vec<Entry<M, W>>,
    queue: VecDeque<ModelId>,
    budget: u64,
    max_users: usize,
}

impl<M, W: Waiter> Table<M, W> {
    /// Table of a budget in bytes, and a maximum of users and waiters of one model.
    pub(crate) fn new(budget: u64, max_users: usize) -> Self {
        Self { entries: Vec::new(), queue: VecDeque::new(), budget, max_users }
    }

    /// Adds a model that needs `bytes` while it is open.
    pub(crate) fn add(&mut self, bytes: u64, now: Instant) -> ModelId {
        self.entries.push(Entry {
            bytes,
            state: State::Unloaded,
            n_users: 0,
            last_used: now,
            waiters: Vec::new(),
            is_asleep: false,
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
        if let State::Open(model) = &entry.state {
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

    fn enqueue(&mut self, id: ModelId) {
        self.entries[id.0].state = State::Queued;
        self.queue.push_back(id);
    }

    /// Next work: the first load of the queue if it fits, else the model to close for it. Call it until it returns
    /// `None` after every change.
    pub(crate) fn next(&mut self) -> Option<Action<M>> {
        let id = *self.queue.front()?;
        let needed = self.entries[id.0].bytes;
        let (used, closing) = (self.used_bytes(), self.closing_bytes());
        // A model alone is loaded whatever its size: the estimate must not forbid what the machine can do.
        if used == 0 || used.saturating_add(needed) <= self.budget {
            self.queue.pop_front();
            self.entries[id.0].state = State::Loading;
            return Some(Action::Load(id));
        }
        let after = |freed: u64| used - freed;
        let fits = |used: u64| used == 0 || used.saturating_add(needed) <= self.budget;
        let idle: u64 = self.idle().map(|id| self.entries[id.0].bytes).sum();
        if fits(after(closing)) || !fits(after(closing + idle)) {
            return None;
        }
        let victim = self.idle().min_by_key(|id| self.entries[id.0].last_used)?;
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
        entry.is_asleep = false;
        match result {
            Ok(model) => {
                entry.state = State::Open(model);
                entry.n_users += waiters.len();
                entry.failure = None;
            }
            Err(failure) => {
                entry.state = State::Unloaded;
                entry.failure = Some(failure);
            }
        }
        entry.last_used = now;
        waiters
    }

    /// Ends a close: its memory is free. Requests that came meanwhile queue for a load.
    pub(crate) fn closed(&mut self, id: ModelId) {
        self.entries[id.0].state = State::Unloaded;
        if !self.entries[id.0].waiters.is_empty() {
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
            State::Open(_) => ModelStatus::Loaded,
            State::Queued | State::Loading => ModelStatus::Loading,
            State::Closing if !entry.waiters.is_empty() => ModelStatus::Loading,
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

    /// Bytes of models that are open, being loaded or being closed.
    pub(crate) fn used_bytes(&self) -> u64 {
        let counts = |entry: &&Entry<M, W>| !matches!(entry.state, State::Unloaded | State::Queued);
        self.entries.iter().filter(counts).map(|entry| entry.bytes).sum()
    }

    /// Bytes that models being closed give back.
    fn closing_bytes(&self) -> u64 {
        let is_closing = |entry: &&Entry<M, W>| matches!(entry.state, State::Closing);
        self.entries.iter().filter(is_closing).map(|entry| entry.bytes).sum()
    }

    /// Memory budget in bytes.
    pub(crate) fn budget(&self) -> u64 {
        self.budget
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use super::{Action, ModelId, ModelStatus, Refusal, Requested, Table, Waiter};

    /// A request that ends in `gone` has no client any more.
    impl Waiter for &'static str {
        fn is_gone(&self) -> bool {
            self.ends_with("gone")
        }
    }

    /// Table with a clock of seconds, whose models are their own numbers and whose waiters are names.
    struct Fixture {
        table: Table<usize, &'static str>,
        start: Instant,
        seconds: u64,
    }

    impl Fixture {
        fn new(budget: u64, sizes: &[u64]) -> Self {
            let (mut table, start) = (Table::new(budget, 4), Instant::now());
            for &bytes in sizes {
                table.add(bytes, start);
            }
            Self { table, start, seconds: 0 }
        }

        fn now(&mut self) -> Instant {
            self.seconds += 1;
            self.start + Duration::from_secs(self.seconds)
        }

        /// `open`, `waits` or `full`.
        fn request(&mut self, id: usize, waiter: &'static str) -> &'static str {
            let now = self.now();
            match self.table.request(ModelId(id), waiter, now) {
                Requested::Open(..) => "open",
                Requested::Waits => "waits",
                Requested::Full(_) => "full",
            }
        }

        /// All work, as `load N` and `close N`.
        fn work(&mut self) -> Vec<String> {
            std::iter::from_fn(|| self.table.next()).map(|action| text(&action)).collect()
        }

        fn loaded(&mut self, id: usize) -> Vec<&'static str> {
            let now = self.now();
            self.table.loaded(ModelId(id), Ok(Arc::new(id)), now)
        }

        /// Loads a model that nobody uses afterwards.
        fn open(&mut self, id: usize) {
            assert_eq!(self.request(id, "-"), "waits");
            assert_eq!(self.work(), [format!("load {id}")]);
            assert_eq!(self.loaded(id), ["-"]);
            self.release(id);
        }

        fn release(&mut self, id: usize) {
            let now = self.now();
            self.table.release(ModelId(id), now);
        }

        fn status(&self, id: usize) -> &'static str {
            self.table.status(ModelId(id)).name()
        }
    }

    fn text(action: &Action<usize>) -> String {
        match action {
            Action::Load(id) => format!("load {}", id.0),
            Action::Close(id, _) => format!("close {}", id.0),
        }
    }

    #[test]
    fn requests_for_one_model_share_a_load() {
        let mut f = Fixture::new(100, &[10]);
        assert_eq!(f.status(0), "unloaded");
        assert_eq!(f.request(0, "a"), "waits");
        assert_eq!(f.work(), ["load 0"]);
        assert_eq!(f.request(0, "b"), "waits");
        assert!(f.work().is_empty());
        assert_eq!((f.status(0), f.table.n_waiters()), ("loading", 2));
        assert_eq!(f.loaded(0), ["a", "b"]);
        assert_eq!((f.status(0), f.table.n_users(ModelId(0))), ("loaded", 2));
        assert_eq!(f.request(0, "c"), "open");
    }

    #[test]
    fn a_failure_is_reported_to_all_and_tried_again() {
        let mut f = Fixture::new(100, &[10]);
        f.request(0, "a");
        f.request(0, "b");
        assert_eq!(f.work(), ["load 0"]);
        let now = f.now();
        let waiters = f.table.loaded(ModelId(0), Err("damaged".to_owned()), now);
        assert_eq!(waiters, ["a", "b"]);
        assert_eq!((f.status(0), f.table.failure(ModelId(0))), ("failed", Some("damaged")));
        assert_eq!((f.table.used_bytes(), f.table.n_users(ModelId(0))), (0, 0));
        f.open(0);
        assert_eq!((f.status(0), f.table.failure(ModelId(0))), ("loaded", None));
    }

    #[test]
    fn the_least_recently_used_are_closed_until_the_new_one_fits() {
        let mut f = Fixture::new(100, &[40, 30, 20, 60]);
        (0..3).for_each(|id| f.open(id));
        // Model 0 is used again, so that 1 and 2 are older.
        assert_eq!(f.request(0, "a"), "open");
        f.release(0);
        assert_eq!(f.table.used_bytes(), 90);
        assert_eq!(f.request(3, "b"), "waits");
        // 60 bytes fit once 1 (30 bytes) and 2 (20 bytes) are closed.
        assert_eq!(f.work(), ["close 1", "close 2"]);
        assert_eq!(f.table.used_bytes(), 90);
        f.table.closed(ModelId(1));
        assert!(f.work().is_empty());
        f.table.closed(ModelId(2));
        assert_eq!(f.work(), ["load 3"]);
        assert_eq!(f.loaded(3), ["b"]);
        assert_eq!((f.table.used_bytes(), f.status(0), f.status(1)), (100, "loaded", "unloaded"));
    }

    #[test]
    fn a_busy_model_is_never_closed() {
        let mut f = Fixture::new(100, &[60, 30, 70]);
        f.request(0, "a");
        assert_eq!(f.work(), ["load 0"]);
        f.loaded(0);
        f.open(1);
        assert_eq!(f.request(2, "b"), "waits");
        // Closing 1 alone would not make room, so that it stays open.
        assert!(f.work().is_empty());
        assert_eq!((f.status(0), f.status(1), f.status(2)), ("loaded", "loaded", "loading"));
        f.release(0);
        assert_eq!(f.work(), ["close 1", "close 0"]);
        f.table.closed(ModelId(1));
        f.table.closed(ModelId(0));
        assert_eq!(f.work(), ["load 2"]);
    }

    #[test]
    fn loads_start_in_the_order_of_requests() {
        let mut f = Fixture::new(100, &[90, 80, 5]);
        f.request(0, "a");
        assert_eq!(f.work(), ["load 0"]);
        f.loaded(0);
        f.request(1, "b");
        // 5 bytes would fit, but a stream of small models must not hold back a large one for ever.
        f.request(2, "c");
        assert!(f.work().is_empty());
        f.release(0);
        assert_eq!(f.work(), ["close 0"]);
        f.table.closed(ModelId(0));
        assert_eq!(f.work(), ["load 1", "load 2"]);
    }

    #[test]
    fn a_model_larger_than_the_budget_is_loaded_alone() {
        let mut f = Fixture::new(100, &[10, 500]);
        f.open(0);
        f.request(1, "a");
        assert_eq!(f.work(), ["close 0"]);
        f.table.closed(ModelId(0));
        assert_eq!(f.work(), ["load 1"]);
    }

    #[test]
    fn a_request_for_a_closing_model_loads_it_again() {
        let mut f = Fixture::new(100, &[60, 70]);
        f.open(0);
        f.request(1, "a");
        assert_eq!(f.work(), ["close 0"]);
        assert_eq!(f.request(0, "b"), "waits");
        f.table.closed(ModelId(0));
        assert_eq!(f.work(), ["load 1"]);
        assert_eq!(f.loaded(1), ["a"]);
        f.release(1);
        assert_eq!(f.work(), ["close 1"]);
        f.table.closed(ModelId(1));
        assert_eq!(f.work(), ["load 0"]);
    }

    #[test]
    fn idle_models_sleep_and_a_request_wakes_them() {
        let mut f = Fixture::new(100, &[10, 20, 30]);
        (0..2).for_each(|id| f.open(id));
        f.request(2, "user");
        assert_eq!(f.work(), ["load 2"]);
        f.loaded(2);
        f.seconds += 58;
        assert_eq!(f.request(1, "a"), "open");
        f.release(1);
        // A look at a model is no use.
        assert!(f.table.peek(ModelId(0)).is_some());
        f.seconds += 10;
        let now = f.now();
        let slept = f.table.sleep(Duration::from_secs(60), now);
        assert_eq!(slept.iter().map(text).collect::<Vec<_>>(), ["close 0"]);
        f.table.closed(ModelId(0));
        assert_eq!((f.status(0), f.status(1), f.status(2)), ("sleeping", "loaded", "loaded"));
        f.open(0);
        assert_eq!(f.status(0), "loaded");
        assert_eq!(f.table.status(ModelId(0)), ModelStatus::Loaded);
    }

    #[test]
    fn a_model_is_unloaded_by_request_unless_it_is_busy() {
        let mut f = Fixture::new(100, &[10]);
        assert_eq!(f.table.unload(ModelId(0)).unwrap_err(), Refusal::NotLoaded);
        f.request(0, "a");
        assert_eq!(f.work(), ["load 0"]);
        f.loaded(0);
        assert_eq!(f.table.unload(ModelId(0)).unwrap_err(), Refusal::Busy);
        f.release(0);
        assert_eq!(text(&f.table.unload(ModelId(0)).unwrap()), "close 0");
        f.table.closed(ModelId(0));
        assert_eq!((f.status(0), f.table.used_bytes()), ("unloaded", 0));
    }

    #[test]
    fn users_and_waiters_of_a_model_are_bounded() {
        let mut f = Fixture::new(100, &[10]);
        for waiter in ["a", "b", "gone", "c", "d"] {
            assert_eq!(f.request(0, waiter), "waits");
        }
        assert_eq!(f.request(0, "e"), "full");
        assert_eq!(f.work(), ["load 0"]);
        assert_eq!(f.loaded(0).len(), 4);
        assert_eq!(f.request(0, "f"), "full");
        f.release(0);
        assert_eq!(f.request(0, "g"), "open");
    }
}
