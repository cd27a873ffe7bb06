//! Tests with a clock of seconds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::memory::Memory;
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
        let (mut table, start) = (Table::new(Memory::host(budget), 4), Instant::now());
        for &bytes in sizes {
            table.add(Memory::host(bytes), start);
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

    /// Models to close for a growth.
    fn grow(&mut self, id: usize, bytes: u64) -> Option<Vec<String>> {
        let actions = self.table.grow(ModelId(id), Memory::host(bytes))?;
        Some(actions.iter().map(text).collect())
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
fn models_of_a_gpu_make_room_for_each_other() {
    let mut f = Fixture::new(100, &[]);
    f.table.set_gpu_budget(50);
    let sizes = [(60, 0), (5, 40), (5, 30), (5, 20), (35, 0)];
    for (host, gpu) in sizes {
        f.table.add(Memory { host, gpu }, f.start);
    }
    // Two thirds of the host and most of the GPU are in use.
    (0..2).for_each(|id| f.open(id));
    assert_eq!(f.table.used(), Memory { host: 65, gpu: 40 });
    // The host's model is older, and stays.
    assert_eq!(f.request(2, "a"), "waits");
    assert_eq!(f.work(), ["close 1"]);
    f.table.closed(ModelId(1));
    assert_eq!(f.work(), ["load 2"]);
    assert_eq!(f.loaded(2), ["a"]);
    // Next to one in use.
    f.open(3);
    assert_eq!(f.table.used(), Memory { host: 70, gpu: 50 });
    assert_eq!((f.status(0), f.status(1)), ("loaded", "unloaded"));
    // A shortfall of host memory evicts the least recently used model with host memory.
    assert_eq!(f.request(4, "b"), "waits");
    assert_eq!(f.work(), ["close 0"]);
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
    assert_eq!((f.table.used().host, f.table.n_users(ModelId(0))), (0, 0));
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
    assert_eq!(f.table.used().host, 90);
    assert_eq!(f.request(3, "b"), "waits");
    // 60 bytes fit once 1 (30 bytes) and 2 (20 bytes) are closed.
    assert_eq!(f.work(), ["close 1", "close 2"]);
    assert_eq!(f.table.used().host, 90);
    f.table.closed(ModelId(1));
    assert!(f.work().is_empty());
    f.table.closed(ModelId(2));
    assert_eq!(f.work(), ["load 3"]);
    assert_eq!(f.loaded(3), ["b"]);
    assert_eq!((f.table.used().host, f.status(0), f.status(1)), (100, "loaded", "unloaded"));
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
fn a_model_that_nobody_waits_for_any_more_is_not_loaded() {
    let mut f = Fixture::new(100, &[90, 80, 5]);
    f.request(0, "a");
    assert_eq!(f.work(), ["load 0"]);
    f.loaded(0);
    f.request(1, "gone");
    f.request(2, "b");
    assert_eq!(f.work(), ["load 2"]);
    assert_eq!((f.status(1), f.table.n_waiters()), ("unloaded", 1));
    // One without a waiter is loaded if that was requested.
    f.table.load(ModelId(1));
    assert!(f.work().is_empty());
    assert_eq!(f.status(1), "loading");
    f.release(0);
    assert_eq!(f.work(), ["close 0"]);
    f.table.closed(ModelId(0));
    assert_eq!(f.work(), ["load 1"]);
    assert!(f.loaded(1).is_empty());
    assert_eq!((f.status(1), f.table.n_users(ModelId(1))), ("loaded", 0));
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
    // A look at a model is not counted as use.
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
    assert_eq!((f.status(0), f.table.used().host), ("unloaded", 0));
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

#[test]
fn a_retired_model_is_closed_after_its_users_and_loaded_for_those_that_wait() {
    let mut fixture = Fixture::new(100, &[10]);
    fixture.open(0);
    assert_eq!(fixture.request(0, "a"), "open");
    fixture.table.retire(ModelId(0));
    assert_eq!(fixture.request(0, "b"), "waits");
    assert_eq!(fixture.table.status(ModelId(0)), ModelStatus::Loading);
    assert_eq!(fixture.work(), [""; 0]);
    let now = fixture.now();
    fixture.table.release(ModelId(0), now);
    assert_eq!(fixture.work(), ["close 0"]);
    fixture.table.closed(ModelId(0));
    assert_eq!(fixture.work(), ["load 0"]);
    assert_eq!(fixture.loaded(0), ["b"]);
    assert_eq!(fixture.request(0, "c"), "open");
    // One that is being loaded serves those that wait already.
    let mut loading = Fixture::new(100, &[10]);
    assert_eq!(loading.request(0, "a"), "waits");
    assert_eq!(loading.work(), ["load 0"]);
    loading.table.retire(ModelId(0));
    assert_eq!(loading.loaded(0), ["a"]);
    let now = loading.now();
    loading.table.release(ModelId(0), now);
    assert_eq!(loading.work(), ["close 0"]);
    // A closed model has nothing to retire.
    let mut closed = Fixture::new(100, &[10]);
    closed.table.retire(ModelId(0));
    closed.open(0);
    assert_eq!(closed.request(0, "a"), "open");
}

#[test]
fn a_growth_closes_idle_models_and_counts_for_loads() {
    let mut fixture = Fixture::new(100, &[40, 30, 20]);
    (0..3).for_each(|id| fixture.open(id));
    assert_eq!(fixture.request(0, "user"), "open");
    assert!(fixture.grow(0, 10).unwrap().is_empty());
    assert_eq!(fixture.grow(0, 5).unwrap(), ["close 1"]);
    assert_eq!(fixture.table.used(), Memory::host(105));
    fixture.table.closed(ModelId(1));
    assert_eq!(fixture.table.used(), Memory::host(75));
    assert_eq!(fixture.request(1, "other"), "waits");
    assert_eq!(fixture.work(), ["close 2"]);
    fixture.table.closed(ModelId(2));
    assert_eq!(fixture.work(), ["load 1"]);
    assert_eq!(fixture.loaded(1), ["other"]);
    // A model with users is not closed for it.
    assert_eq!(fixture.grow(0, 20), None);
    assert_eq!(fixture.table.used(), Memory::host(85));
    fixture.table.shrink(ModelId(0), Memory::host(15));
    assert!(fixture.grow(0, 20).unwrap().is_empty());
    // The state may end after the last use of its model.
    fixture.release(0);
    fixture.release(1);
    assert!(fixture.table.unload(ModelId(0)).is_ok());
    fixture.table.closed(ModelId(0));
    assert_eq!(fixture.table.used(), Memory::host(50));
}

#[test]
fn a_model_alone_grows_beyond_an_estimate() {
    let mut fixture = Fixture::new(100, &[90, 30]);
    fixture.open(0);
    assert_eq!(fixture.request(0, "user"), "open");
    assert!(fixture.grow(0, 50).unwrap().is_empty());
}
