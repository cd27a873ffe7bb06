//! Tests with a loader that opens nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::super::memory::Memory;
use super::super::table::{ModelId, ModelStatus};
use super::{Lease, Loader, OpenError, Registry};

/// Counts of a fake engine.
#[derive(Debug, Default)]
struct Counts {
    loads: AtomicUsize,
    open: AtomicUsize,
    most_open: AtomicUsize,
}

/// An open model, whose end takes a moment.
#[derive(Debug)]
struct Model {
    name: &'static str,
    counts: Arc<Counts>,
}

impl Drop for Model {
    fn drop(&mut self) {
        std::thread::sleep(Duration::from_millis(20));
        self.counts.open.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Opens a model for each permit; `bad` fails, `panics` panics.
struct Fake {
    counts: Arc<Counts>,
    permits: Arc<Semaphore>,
    /// Whether the engines of all open models have stopped.
    stopped: Arc<AtomicBool>,
}

impl Loader for Fake {
    type Spec = &'static str;
    type Model = Model;

    fn is_running(&self, _: &Model) -> bool {
        !self.stopped.load(Ordering::SeqCst)
    }

    async fn load(&self, name: &&'static str) -> Result<Model, String> {
        self.permits.acquire().await.map_err(|error| error.to_string())?.forget();
        self.counts.loads.fetch_add(1, Ordering::SeqCst);
        match *name {
            "bad" => Err("damaged".to_owned()),
            "panics" => panic!("a bug"),
            name => {
                let n_open = self.counts.open.fetch_add(1, Ordering::SeqCst) + 1;
                self.counts.most_open.fetch_max(n_open, Ordering::SeqCst);
                Ok(Model { name, counts: Arc::clone(&self.counts) })
            }
        }
    }
}

struct Fixture {
    registry: Registry<Fake>,
    counts: Arc<Counts>,
    permits: Arc<Semaphore>,
    stopped: Arc<AtomicBool>,
}

impl Fixture {
    /// Registry of models of 10 bytes.
    fn new(budget: u64, names: &[&'static str]) -> Self {
        let (counts, permits) = (Arc::<Counts>::default(), Arc::new(Semaphore::new(0)));
        let stopped = Arc::<AtomicBool>::default();
        let fake = Fake {
            counts: Arc::clone(&counts),
            permits: Arc::clone(&permits),
            stopped: Arc::clone(&stopped),
        };
        let registry = Registry::new(fake, Memory::host(budget), 100, Handle::current());
        names.iter().for_each(|name| _ = registry.add(*name, Memory::host(10)));
        Self { registry, counts, permits, stopped }
    }

    /// Requests a model in a task, which runs until it waits.
    async fn request(&self, id: usize) -> tokio::task::JoinHandle<Result<Lease<Fake>, OpenError>> {
        let registry = self.registry.clone();
        let task = tokio::spawn(async move { registry.open(ModelId(id), None).await });
        sleep(Duration::from_millis(5)).await;
        task
    }

    /// Opens a model at once.
    async fn open(&self, id: usize) -> Lease<Fake> {
        self.permits.add_permits(1);
        self.registry.open(ModelId(id), None).await.unwrap()
    }

    fn n_loads(&self) -> usize {
        self.counts.loads.load(Ordering::SeqCst)
    }

    async fn wait_for(&self, id: usize, status: ModelStatus) {
        let reached = async {
            while self.registry.status(ModelId(id)) != status {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(Duration::from_secs(20), reached).await.unwrap();
    }
}

#[tokio::test]
async fn concurrent_requests_share_a_load() {
    let fixture = Fixture::new(100, &["a"]);
    let mut tasks = Vec::new();
    for _ in 0..5 {
        tasks.push(fixture.request(0).await);
    }
    assert_eq!(fixture.registry.n_waiters(), 5);
    // More permits than loads: a second load would take one.
    fixture.permits.add_permits(5);
    let mut leases = Vec::new();
    for task in tasks {
        leases.push(task.await.unwrap().unwrap());
    }
    assert_eq!((fixture.n_loads(), fixture.registry.n_users(ModelId(0))), (1, 5));
    assert_eq!(leases[0].model().unwrap().name, "a");
    drop(leases);
    assert_eq!(fixture.registry.n_users(ModelId(0)), 0);
    assert_eq!(fixture.registry.status(ModelId(0)), ModelStatus::Loaded);
}

#[tokio::test]
async fn a_failure_reaches_all_who_wait() {
    let fixture = Fixture::new(100, &["bad", "panics"]);
    for (id, expected) in [(0, "damaged"), (1, "loading failed: ")] {
        let tasks = [fixture.request(id).await, fixture.request(id).await];
        fixture.permits.add_permits(1);
        for task in tasks {
            match task.await.unwrap() {
                Err(OpenError::Failed(reason)) => assert!(reason.contains(expected), "{reason}"),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(fixture.registry.status(ModelId(id)), ModelStatus::Failed);
        assert!(fixture.registry.failure(ModelId(id)).unwrap().contains(expected));
    }
    assert_eq!(fixture.registry.memory(), (Memory::default(), Memory::host(100)));
}

#[tokio::test]
async fn a_client_that_gives_up_does_not_end_the_load() {
    let fixture = Fixture::new(100, &["a"]);
    let task = fixture.request(0).await;
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    fixture.permits.add_permits(1);
    fixture.wait_for(0, ModelStatus::Loaded).await;
    assert_eq!((fixture.n_loads(), fixture.registry.n_users(ModelId(0))), (1, 0));
}

#[tokio::test]
async fn the_memory_of_a_model_is_free_before_the_next_is_loaded() {
    let fixture = Fixture::new(10, &["a", "b", "c"]);
    for id in [0, 1, 2, 0, 1] {
        drop(fixture.open(id).await);
    }
    assert_eq!(fixture.n_loads(), 5);
    assert_eq!(fixture.counts.most_open.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_request_waits_for_a_busy_model() {
    let fixture = Fixture::new(10, &["a", "b"]);
    let busy = fixture.open(0).await;
    fixture.permits.add_permits(1);
    let mut task = fixture.request(1).await;
    assert!(timeout(Duration::from_millis(50), &mut task).await.is_err());
    assert_eq!(fixture.registry.status(ModelId(0)), ModelStatus::Loaded);
    drop(busy);
    assert_eq!(task.await.unwrap().unwrap().model().unwrap().name, "b");
    assert_eq!(fixture.registry.status(ModelId(0)), ModelStatus::Unloaded);
}

#[tokio::test]
async fn a_request_that_waits_too_long_leaves_the_queue() {
    let fixture = Fixture::new(10, &["a", "b"]);
    let busy = fixture.open(0).await;
    let until = Some(Instant::now() + Duration::from_millis(20));
    let late = fixture.registry.open(ModelId(1), until).await;
    assert_eq!(late.unwrap_err(), OpenError::TimedOut);
    assert_eq!(fixture.registry.status(ModelId(1)), ModelStatus::Unloaded);
    drop(busy);
    // Nobody waits for it, so that the first one stays open.
    assert_eq!(fixture.registry.status(ModelId(0)), ModelStatus::Loaded);
    assert_eq!((fixture.n_loads(), fixture.registry.n_waiters()), (1, 0));
}

#[tokio::test]
async fn idle_models_sleep_until_they_are_used() {
    let fixture = Fixture::new(100, &["a"]);
    let lease = fixture.open(0).await;
    fixture.registry.sleep(Duration::ZERO);
    assert_eq!(fixture.registry.status(ModelId(0)), ModelStatus::Loaded);
    drop(lease);
    assert_eq!(fixture.registry.peek(ModelId(0), |model| model.name), Some("a"));
    fixture.registry.sleep(Duration::ZERO);
    fixture.wait_for(0, ModelStatus::Sleeping).await;
    assert_eq!(fixture.registry.peek(ModelId(0), |model| model.name), None);
    drop(fixture.open(0).await);
    assert_eq!((fixture.n_loads(), fixture.registry.status(ModelId(0))), (2, ModelStatus::Loaded));
}

#[tokio::test]
async fn a_model_whose_engine_has_stopped_is_opened_again() {
    let fixture = Fixture::new(100, &["a"]);
    let first = fixture.open(0).await;
    fixture.stopped.store(true, Ordering::SeqCst);
    assert_eq!(fixture.registry.stopped(|name| (*name).to_owned()), ["a"]);
    let task = fixture.request(0).await;
    assert_eq!(fixture.n_loads(), 1);
    fixture.stopped.store(false, Ordering::SeqCst);
    fixture.permits.add_permits(1);
    drop(first);
    let lease = timeout(Duration::from_secs(20), task).await.unwrap().unwrap().unwrap();
    assert_eq!((fixture.n_loads(), lease.model().unwrap().name), (2, "a"));
    assert_eq!(fixture.counts.most_open.load(Ordering::SeqCst), 1);
    assert!(fixture.registry.stopped(|name| (*name).to_owned()).is_empty());
}

#[tokio::test]
async fn a_removed_model_is_closed_once_it_has_no_users() {
    let fixture = Fixture::new(100, &["a", "b"]);
    let lease = fixture.open(0).await;
    fixture.registry.remove(ModelId(0));
    let listed: Vec<_> = fixture.registry.specs().into_iter().map(|(id, _)| id).collect();
    assert_eq!((listed, fixture.registry.memory().0.host), (vec![ModelId(1)], 10));
    drop(lease);
    let freed = async {
        while fixture.registry.memory().0.host > 0 {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_secs(20), freed).await.unwrap();
    assert_eq!(fixture.registry.status(ModelId(0)), ModelStatus::Unloaded);
}
