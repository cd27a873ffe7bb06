//! Thread that owns a model and its device, with a queue of requests.

use std::sync::mpsc;
use std::thread::JoinHandle;

use futures_channel::oneshot;

use crate::Error;

/// Handle of an engine thread; the last one to be dropped waits for its end.
#[derive(Debug)]
pub(crate) struct Engine<R> {
    /// `None` once the handle is dropped.
    requests: Option<mpsc::Sender<R>>,
    thread: Option<JoinHandle<()>>,
}

/// The thread's end of its queue.
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
        let engine = Self { requests: Some(requests), thread: Some(thread) };
        let description = opened.await.map_err(|_| Error::EngineStopped)??;
        Ok((engine, description))
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
        if let Some(thread) = self.thread.take() {
            // A panic was reported by the thread.
            let _ = thread.join();
        }
    }
}
