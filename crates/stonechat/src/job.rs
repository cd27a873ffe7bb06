//! A request that runs in the loop of an engine, and its results.

#[cfg(not(target_arch = "wasm32"))]
mod blocking;

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use futures_channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures_core::Stream;
use stonechat_whisper::CancelToken;
use web_time::Instant;

use crate::Error;

#[cfg(not(target_arch = "wasm32"))]
pub use blocking::{IntoItems, Items};

/// Message from an engine to the caller of a request.
#[derive(Debug)]
enum Message<I, O> {
    /// An item, and its bytes in the queue.
    Item(I, usize),
    End(Result<O, Error>),
}

/// A request in the queue of an engine, or running: a stream of items `I` with an output `O` at its end.
///
/// `wait` blocks until the output, iterating over the job (or `&mut` of it) blocks for each item; a browser has neither. As a
/// `Stream` of items and a `Future` of the output it blocks nothing. Dropping it cancels the request, and waits for the
/// running step if it was the last user of the engine.
#[must_use = "dropping a job cancels it"]
pub struct Job<I, O> {
    messages: UnboundedReceiver<Message<I, O>>,
    /// Result after the last item.
    result: Option<Result<O, Error>>,
    has_ended: bool,
    progress: Arc<Progress>,
    /// Keeps the engine running.
    _engine: Arc<dyn Send + Sync>,
}

impl<I, O> std::fmt::Debug for Job<I, O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job").field("has_ended", &self.has_ended).finish_non_exhaustive()
    }
}

/// Sender of a job's items and result, held by the engine.
#[derive(Debug)]
pub(crate) struct JobSender<I, O> {
    messages: UnboundedSender<Message<I, O>>,
    progress: Arc<Progress>,
}

/// Progress of a job, which both sides see.
#[derive(Debug, Default)]
struct Progress {
    cancel: CancelToken,
    started: OnceLock<Instant>,
    /// Bytes of the items that were sent and not taken.
    pending_bytes: AtomicUsize,
}

impl<I, O> JobSender<I, O> {
    /// Token that the caller cancels.
    pub(crate) fn cancel_token(&self) -> &CancelToken {
        &self.progress.cancel
    }

    /// Whether nobody waits for the result.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.messages.is_closed()
    }

    /// Whether the request was cancelled or nobody waits for it.
    pub(crate) fn is_ended(&self) -> bool {
        self.progress.cancel.is_cancelled() || self.is_abandoned()
    }

    /// Records that the request has left the queue.
    pub(crate) fn start(&self) {
        self.progress.started.get_or_init(Instant::now);
    }

    /// Bytes of the items that were sent and not taken.
    pub(crate) fn pending_bytes(&self) -> usize {
        self.progress.pending_bytes.load(Ordering::Relaxed)
    }

    /// Sends an item of a job whose items are few and small.
    pub(crate) fn send(&self, item: I) {
        self.send_bytes(item, size_of::<I>());
    }

    /// Sends an item of `n_bytes` bytes.
    pub(crate) fn send_bytes(&self, item: I, n_bytes: usize) {
        self.progress.pending_bytes.fetch_add(n_bytes, Ordering::Relaxed);
        // The caller may have dropped the job.
        let _ = self.messages.unbounded_send(Message::Item(item, n_bytes));
    }

    pub(crate) fn end(self, result: Result<O, Error>) {
        let _ = self.messages.unbounded_send(Message::End(result));
    }
}

impl<I, O> Job<I, O> {
    pub(crate) fn new(engine: Arc<dyn Send + Sync>) -> (Self, JobSender<I, O>) {
        let (sender, messages) = unbounded();
        let progress = Arc::<Progress>::default();
        let sender = JobSender { messages: sender, progress: Arc::clone(&progress) };
        (Self { messages, result: None, has_ended: false, progress, _engine: engine }, sender)
    }

    /// A job that has failed before it reached the engine.
    pub(crate) fn failed(engine: Arc<dyn Send + Sync>, error: Error) -> Self {
        let (job, sender) = Self::new(engine);
        sender.end(Err(error));
        job
    }

    /// Token that cancels the request, also from another thread. A cancelled request ends with the output so far.
    #[must_use]
    pub fn cancel_token(&self) -> CancelToken {
        self.progress.cancel.clone()
    }

    /// Time at which the request left the queue; `None` while it waits.
    #[must_use]
    pub fn started(&self) -> Option<Instant> {
        self.progress.started.get().copied()
    }

    /// Waits for the next item without blocking; `None` after the last.
    ///
    /// # Errors
    /// If the request failed.
    pub async fn next_async(&mut self) -> Option<Result<I, Error>> {
        std::future::poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }

    /// Polls the next item; the result is kept at the end.
    fn poll_item(&mut self, context: &mut Context<'_>) -> Poll<Option<I>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        let message = ready!(Pin::new(&mut self.messages).poll_next(context));
        let result = match message {
            Some(Message::Item(item, n_bytes)) => {
                self.progress.pending_bytes.fetch_sub(n_bytes, Ordering::Relaxed);
                return Poll::Ready(Some(item));
            }
            Some(Message::End(result)) => result,
            None => Err(Error::EngineStopped),
        };
        (self.result, self.has_ended) = (Some(result), true);
        Poll::Ready(None)
    }
}

// No field of a job is pinned.
impl<I, O> Unpin for Job<I, O> {}

impl<I, O> Stream for Job<I, O> {
    type Item = Result<I, Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let job = self.get_mut();
        if let Some(item) = ready!(job.poll_item(context)) {
            return Poll::Ready(Some(Ok(item)));
        }
        // An error is the last item; an output stays for the future.
        Poll::Ready(job.result.take_if(|result| result.is_err()).and_then(Result::err).map(Err))
    }
}

/// The output. A result is returned once: an error by the stream, or else by the future.
impl<I, O> Future for Job<I, O> {
    type Output = Result<O, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let job = self.get_mut();
        while ready!(job.poll_item(context)).is_some() {}
        Poll::Ready(job.result.take().unwrap_or(Err(Error::ResultTaken)))
    }
}

impl<I, O> Drop for Job<I, O> {
    fn drop(&mut self) {
        self.progress.cancel.cancel();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::Job;
    use crate::Error;

    #[test]
    fn items_come_before_the_output() {
        let (mut job, sender) = Job::new(Arc::new(()));
        sender.send(1);
        sender.send(2);
        sender.end(Ok("end"));
        assert_eq!(job.items().map(Result::unwrap).collect::<Vec<_>>(), [1, 2]);
        assert!(job.items().next().is_none());
        assert_eq!(job.wait().unwrap(), "end");
    }

    #[test]
    fn an_error_is_the_last_item_or_the_output() {
        {
            let (mut job, sender) = Job::<u8, ()>::new(Arc::new(()));
            sender.send(1);
            sender.end(Err(Error::NoModelsFolder));
            assert_eq!(job.items().next().unwrap().unwrap(), 1);
            assert!(matches!(job.items().next(), Some(Err(Error::NoModelsFolder))));
            assert!(job.items().next().is_none());
            assert!(matches!(job.wait(), Err(Error::ResultTaken)));
        }
        let (job, sender) = Job::<u8, ()>::new(Arc::new(()));
        sender.send(1);
        sender.end(Err(Error::NoModelsFolder));
        assert!(matches!(job.wait(), Err(Error::NoModelsFolder)));
    }

    #[test]
    fn an_engine_that_stopped_is_an_error_and_a_dropped_job_is_cancelled() {
        let (job, sender) = Job::<u8, ()>::new(Arc::new(()));
        drop(sender);
        assert!(matches!(job.wait(), Err(Error::EngineStopped)));
        let (job, sender) = Job::<u8, ()>::new(Arc::new(()));
        assert!(!sender.cancel_token().is_cancelled() && !sender.is_abandoned());
        drop(job);
        assert!(sender.cancel_token().is_cancelled() && sender.is_abandoned());
    }
}
