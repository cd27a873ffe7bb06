//! Thread that owns a model and its device, with a queue of requests.

use std::fmt;
use std::path::Path;
use std::sync::mpsc;
use std::thread::JoinHandle;

use futures_channel::oneshot;
use stonechat_formats::ModelFile;

use crate::{Device, Error, Models};

/// Options that the builders of all models have.
#[derive(Default)]
pub(crate) struct EngineOptions {
    pub(crate) device: Device,
    /// CPU threads; 0 is one per physical core.
    pub(crate) n_threads: usize,
    /// Gets the fraction loaded, 0 to 1.
    pub(crate) on_progress: Option<Box<dyn FnMut(f32) + Send>>,
}

impl fmt::Debug for EngineOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineOptions")
            .field("device", &self.device)
            .field("n_threads", &self.n_threads)
            .field("has_progress", &self.on_progress.is_some())
            .finish()
    }
}

/// Finds a model by path or name, opens its file and runs `load`.
pub(crate) fn with_file(
    model: &Path,
    load: impl FnOnce(ModelFile) -> Result<(), Error>,
) -> Result<(), Error> {
    let path = Models::from_env().find_path(model)?;
    load(ModelFile::open(&path)?).map_err(|error| error.of_model(&path))
}

/// Handle of an engine thread. Dropping it waits for the end of the thread.
#[derive(Debug)]
pub(crate) struct Engine<R> {
    /// `None` once the handle is dropped.
    requests: Option<mpsc::Sender<R>>,
    thread: Option<JoinHandle<()>>,
}

/// Receiver of requests on the engine thread.
#[derive(Debug)]
pub(crate) struct Requests<T, R> {
    /// `None` once the model is open.
    opened: Option<oneshot::Sender<Result<T, Error>>>,
    queue: mpsc::Receiver<R>,
}

impl<T, R> Requests<T, R> {
    /// Reports that the model is open.
    pub(crate) fn opened(&mut self, description: T) {
        if let Some(opened) = self.opened.take() {
            // The caller may have given up.
            let _ = opened.send(Ok(description));
        }
    }

    /// Waits for the next request; `None` once every handle is dropped.
    pub(crate) fn next(&mut self) -> Option<R> {
        self.queue.recv().ok()
    }
}

impl<R: Send + 'static> Engine<R> {
    /// Starts a thread that opens a model and serves requests; returns once the model is open, with the description
    /// that `run` gave to [`Requests::opened`].
    ///
    /// # Errors
    /// Those of `run` before the model is open.
    pub(crate) async fn start<T: Send + 'static>(
        name: &str,
        run: impl FnOnce(&mut Requests<T, R>) -> Result<(), Error> + Send + 'static,
    ) -> Result<(Self, T), Error> {
        let (requests, queue) = mpsc::channel();
        let (sender, opened) = oneshot::channel();
        let body = move || {
            let mut requests = Requests { opened: Some(sender), queue };
            if let Err(error) = run(&mut requests)
                && let Some(opened) = requests.opened.take()
            {
                let _ = opened.send(Err(error));
            }
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(body);
        let thread = thread.map_err(|source| Error::Thread { source })?;
        // A caller that gives up before the end does not wait for the thread.
        let description = opened.await.map_err(|_| Error::EngineStopped)??;
        Ok((Self { requests: Some(requests), thread: Some(thread) }, description))
    }

    /// Appends a request to the queue; an engine that has stopped drops it.
    pub(crate) fn send(&self, request: R) {
        if let Some(requests) = &self.requests {
            let _ = requests.send(request);
        }
    }
}

impl<R> Drop for Engine<R> {
    fn drop(&mut self) {
        self.requests = None;
        // The last handle may be dropped on the thread itself, by code that a result wakes.
        let is_other =
            |thread: &JoinHandle<()>| thread.thread().id() != std::thread::current().id();
        if let Some(thread) = self.thread.take().filter(is_other) {
            // A panic was reported by the thread.
            let _ = thread.join();
        }
    }
}
