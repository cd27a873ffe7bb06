//! Registry of models: the table behind a lock, loads and closes as tasks, guards for users.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::timeout_at;

use super::memory::Memory;
use super::table::{self, Action, ModelId, ModelStatus, Refusal, Requested, Table};

/// Opens models for a [`Registry`].
pub(crate) trait Loader: Send + Sync + 'static {
    /// Properties by which a model is opened.
    type Spec: Send + Sync + 'static;
    /// An open model. Dropping it may block; the registry drops it on a thread for that.
    type Model: Send + Sync + 'static;

    /// Opens a model; an error is one line.
    fn load(&self, spec: &Self::Spec) -> impl Future<Output = Result<Self::Model, String>> + Send;

    /// Whether a model serves requests; one that does not is closed, and loaded again.
    fn is_running(&self, model: &Self::Model) -> bool;
}

/// Reason why a model cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OpenError {
    /// The load failed.
    Failed(String),
    /// Too many requests use the model or wait for it.
    Full,
    /// The time of the request has passed.
    TimedOut,
}

type Waiter<L> = oneshot::Sender<Result<Lease<L>, OpenError>>;

impl<T> table::Waiter for oneshot::Sender<T> {
    fn is_gone(&self) -> bool {
        self.is_closed()
    }
}

struct Inner<L: Loader> {
    table: Table<L::Model, Waiter<L>>,
    specs: Vec<Arc<L::Spec>>,
    /// Models that are not listed any more.
    removed: HashSet<ModelId>,
}

struct Shared<L: Loader> {
    inner: Mutex<Inner<L>>,
    loader: L,
    runtime: Handle,
}

/// Models that are opened when they are needed and closed when memory is. Clones share it.
pub(crate) struct Registry<L: Loader>(Arc<Shared<L>>);

impl<L: Loader> Clone for Registry<L> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<L: Loader> fmt::Debug for Registry<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry")
            .field("n_models", &self.lock().specs.len())
            .finish_non_exhaustive()
    }
}

/// Use of an open model; dropping it ends the use.
pub(crate) struct Lease<L: Loader> {
    registry: Registry<L>,
    id: ModelId,
    /// `None` once the lease is dropped.
    model: Option<Arc<L::Model>>,
}

/// Memory that an open model has grown by; dropping it gives it back.
pub(crate) struct Growth<L: Loader> {
    registry: Registry<L>,
    id: ModelId,
    memory: Memory,
}

impl<L: Loader> fmt::Debug for Growth<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Growth").field("memory", &self.memory).finish_non_exhaustive()
    }
}

impl<L: Loader> Drop for Growth<L> {
    fn drop(&mut self) {
        self.registry.lock().table.shrink(self.id, self.memory);
        self.registry.run();
    }
}

impl<L: Loader> Lease<L> {
    /// Counts further memory of the model, for which idle models are closed; `None` if they are too small.
    pub(crate) fn grow(&self, memory: Memory) -> Option<Growth<L>> {
        let (registry, id) = (self.registry.clone(), self.id);
        let actions = registry.lock().table.grow(id, memory)?;
        actions.into_iter().for_each(|action| registry.start(action));
        Some(Growth { registry, id, memory })
    }

    /// The model.
    pub(crate) fn model(&self) -> Option<&L::Model> {
        self.model.as_deref()
    }

    /// Properties of the model.
    pub(crate) fn spec(&self) -> Arc<L::Spec> {
        self.registry.spec(self.id)
    }
}

impl<L: Loader> fmt::Debug for Lease<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("id", &self.id).finish_non_exhaustive()
    }
}

impl<L: Loader> Drop for Lease<L> {
    fn drop(&mut self) {
        // The table must hold the last reference when the model has no users.
        self.model = None;
        self.registry.lock().table.release(self.id, Instant::now());
        self.registry.run();
    }
}

impl<L: Loader> Registry<L> {
    /// Registry of a budget of memory and a maximum of users of one model; tasks run on `runtime`.
    pub(crate) fn new(loader: L, budget: Memory, max_users: usize, runtime: Handle) -> Self {
        let inner = Inner {
            table: Table::new(budget, max_users),
            specs: Vec::new(),
            removed: HashSet::new(),
        };
        Self(Arc::new(Shared { inner: Mutex::new(inner), loader, runtime }))
    }

    fn lock(&self) -> MutexGuard<'_, Inner<L>> {
        self.0.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the memory budget of the GPU in bytes.
    pub(crate) fn set_gpu_budget(&self, bytes: u64) {
        self.lock().table.set_gpu_budget(bytes);
    }

    /// Adds a model that needs `memory` while it is open.
    pub(crate) fn add(&self, spec: L::Spec, memory: Memory) -> ModelId {
        let mut inner = self.lock();
        inner.specs.push(Arc::new(spec));
        inner.table.add(memory, Instant::now())
    }

    /// Models with their properties, in the order in which they were added.
    pub(crate) fn specs(&self) -> Vec<(ModelId, Arc<L::Spec>)> {
        let inner = self.lock();
        let specs = inner.specs.iter().enumerate().map(|(i, spec)| (ModelId(i), Arc::clone(spec)));
        specs.filter(|(id, _)| !inner.removed.contains(id)).collect()
    }

    /// Takes a model from the list; its memory is free once it has no users.
    pub(crate) fn remove(&self, id: ModelId) {
        let mut inner = self.lock();
        inner.removed.insert(id);
        inner.table.retire(id);
        drop(inner);
        self.run();
    }

    /// Names the open models whose engine has stopped, by `name`.
    pub(crate) fn stopped(&self, name: impl Fn(&L::Spec) -> String) -> Vec<String> {
        let specs = self.specs();
        let inner = self.lock();
        let is_stopped = |id: ModelId| {
            inner.table.peek(id).is_some_and(|model| !self.0.loader.is_running(model))
        };
        specs.iter().filter(|(id, _)| is_stopped(*id)).map(|(_, spec)| name(spec)).collect()
    }

    /// Retires a model whose engine has stopped.
    pub(crate) fn check_running(&self, id: ModelId) {
        let mut inner = self.lock();
        if inner.table.peek(id).is_some_and(|model| !self.0.loader.is_running(model)) {
            inner.table.retire(id);
        }
    }

    /// Properties of a model.
    pub(crate) fn spec(&self, id: ModelId) -> Arc<L::Spec> {
        Arc::clone(&self.lock().specs[id.0])
    }

    /// Waits until a model is open, at most until `until`; one whose engine has stopped is opened again. A caller that gives
    /// up does not end a load, but takes one that has not begun from the queue.
    ///
    /// # Errors
    /// If the load fails, the time has passed, or too many requests use the model.
    pub(crate) async fn open(
        &self,
        id: ModelId,
        until: Option<Instant>,
    ) -> Result<Lease<L>, OpenError> {
        let (sender, receiver) = oneshot::channel();
        self.check_running(id);
        let requested = self.lock().table.request(id, sender, Instant::now());
        match requested {
            Requested::Open(model, _) => Ok(self.lease(id, model)),
            Requested::Full(_) => Err(OpenError::Full),
            Requested::Waits => {
                self.run();
                let stopped = || OpenError::Failed("the server is stopping".to_owned());
                let Some(until) = until else {
                    return receiver.await.unwrap_or_else(|_| Err(stopped()));
                };
                let answer = timeout_at(until.into(), receiver).await;
                match answer {
                    Ok(answer) => answer.unwrap_or_else(|_| Err(stopped())),
                    Err(_) => {
                        // A load that nobody waits for must not hold back others.
                        self.run();
                        Err(OpenError::TimedOut)
                    }
                }
            }
        }
    }

    /// Starts to load a model, unless it is open; the result is in [`status`](Self::status).
    pub(crate) fn start_loading(&self, id: ModelId) {
        self.check_running(id);
        self.lock().table.load(id);
        self.run();
    }

    fn lease(&self, id: ModelId, model: Arc<L::Model>) -> Lease<L> {
        Lease { registry: self.clone(), id, model: Some(model) }
    }

    /// Starts the work that the table has.
    fn run(&self) {
        loop {
            let action = self.lock().table.next();
            match action {
                Some(action) => self.start(action),
                None => break,
            }
        }
    }

    fn start(&self, action: Action<L::Model>) {
        let registry = self.clone();
        match action {
            Action::Load(id) => {
                self.0.runtime.spawn(async move { registry.load(id).await });
            }
            Action::Close(id, model) => {
                self.0.runtime.spawn_blocking(move || {
                    drop(model);
                    registry.lock().table.closed(id);
                    registry.run();
                });
            }
        }
    }

    async fn load(self, id: ModelId) {
        let (registry, spec) = (self.clone(), self.spec(id));
        // A task of its own, so that a panic is a failed load.
        let task = self.0.runtime.spawn(async move { registry.0.loader.load(&spec).await });
        let result = task.await.unwrap_or_else(|error| Err(format!("loading failed: {error}")));
        let result = result.map(Arc::new);
        let waiters = self.lock().table.loaded(id, result.clone(), Instant::now());
        for waiter in waiters {
            let answer = match &result {
                Ok(model) => Ok(self.lease(id, Arc::clone(model))),
                Err(failure) => Err(OpenError::Failed(failure.clone())),
            };
            // The lease of a client that has gone ends here.
            drop(waiter.send(answer));
        }
        drop(result);
        self.run();
    }

    /// Unloads a model that has no users.
    pub(crate) fn unload(&self, id: ModelId) -> Result<(), Refusal> {
        let action = self.lock().table.unload(id)?;
        self.start(action);
        Ok(())
    }

    /// Unloads the models that were idle for `timeout`.
    pub(crate) fn sleep(&self, timeout: Duration) {
        let actions = self.lock().table.sleep(timeout, Instant::now());
        actions.into_iter().for_each(|action| self.start(action));
    }

    /// Status of a model.
    pub(crate) fn status(&self, id: ModelId) -> ModelStatus {
        self.lock().table.status(id)
    }

    /// Reason why the last load of a model failed.
    pub(crate) fn failure(&self, id: ModelId) -> Option<String> {
        self.lock().table.failure(id).map(str::to_owned)
    }

    /// Calls `read` with the model if it is open, under the lock of the registry. The model is neither woken nor kept
    /// awake.
    pub(crate) fn peek<R>(&self, id: ModelId, read: impl FnOnce(&L::Model) -> R) -> Option<R> {
        self.lock().table.peek(id).map(read)
    }

    /// Users of a model.
    pub(crate) fn n_users(&self, id: ModelId) -> usize {
        self.lock().table.n_users(id)
    }

    /// Requests that wait for a model.
    pub(crate) fn n_waiters(&self) -> usize {
        self.lock().table.n_waiters()
    }

    /// Memory in use, and the budget.
    pub(crate) fn memory(&self) -> (Memory, Memory) {
        let inner = self.lock();
        (inner.table.used(), inner.table.budget())
    }
}

#[cfg(test)]
mod tests;
