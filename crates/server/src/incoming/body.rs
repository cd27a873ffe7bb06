//! Body of a request: limits of its time, and the rest of one that nobody reads.
//!
//! A connection that is closed with unread bytes is reset, and the client loses the answer, such as the 401 of an upload.
//! Most clients send the whole body before they read. Therefore a task reads the rest while the answer is sent; hyper closes
//! the connection if the rest exceeds the limits, as nginx does (`lingering_close`).

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::header::EXPECT;
use hyper::body::Frame;
use tokio::runtime::Handle;
use tokio::time::{Sleep, sleep, timeout_at};

use crate::ServerOptions;

/// Maximum bytes of the rest of a body.
const MAX_REST: usize = 64 << 20;
/// Maximum time for the rest of a body.
const REST_TIME: Duration = Duration::from_secs(30);
/// Maximum time between two parts of the rest.
const REST_IDLE: Duration = Duration::from_secs(2);

/// Limits the time of a request's body. The flag tells if the body did not arrive in time.
pub(super) fn timed(request: Request, options: &ServerOptions) -> (Request, Arc<AtomicBool>) {
    let is_late = Arc::new(AtomicBool::new(false));
    let awaits_continue = request.headers().contains_key(EXPECT);
    let whole = options.request_timeout.unwrap_or(Duration::MAX).min(options.body_timeout);
    let request = request.map(|body| {
        if body.is_end_stream() {
            return body;
        }
        Body::new(TimedBody {
            body,
            start: Instant::now(),
            whole,
            idle: options.body_idle_timeout,
            timer: None,
            is_late: Arc::clone(&is_late),
            awaits_continue,
            has_ended: false,
        })
    });
    (request, is_late)
}

/// Body of a request that ends with an error if it does not arrive in time. Dropping it reads the rest.
struct TimedBody {
    body: Body,
    start: Instant,
    /// Time of the whole body.
    whole: Duration,
    /// Time between two parts.
    idle: Duration,
    /// Runs while a part is waited for.
    timer: Option<Pin<Box<Sleep>>>,
    is_late: Arc<AtomicBool>,
    /// Whether the client sends the body only if a handler reads it.
    awaits_continue: bool,
    has_ended: bool,
}

/// The body of a request did not arrive in time.
#[derive(Debug, thiserror::Error)]
#[error("the body did not arrive in time")]
struct BodyTimeout;

impl HttpBody for TimedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.awaits_continue = false;
        let left = self.whole.saturating_sub(self.start.elapsed());
        if !left.is_zero()
            && let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context)
        {
            self.timer = None;
            self.has_ended = !matches!(frame, Some(Ok(_)));
            return Poll::Ready(frame);
        }
        let wait = left.min(self.idle);
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(wait)));
        ready!(timer.as_mut().poll(context));
        self.is_late.store(true, Ordering::Release);
        self.has_ended = true;
        Poll::Ready(Some(Err(axum::Error::new(BodyTimeout))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}

impl Drop for TimedBody {
    fn drop(&mut self) {
        if self.has_ended || self.awaits_continue || self.body.is_end_stream() {
            return;
        }
        // Without a runtime there is no connection either.
        let Ok(runtime) = Handle::try_current() else { return };
        let left = self.whole.saturating_sub(self.start.elapsed());
        runtime.spawn(read_rest(
            std::mem::take(&mut self.body),
            left.min(REST_TIME),
            self.idle.min(REST_IDLE),
        ));
    }
}

/// Reads the rest of a body within the limits.
async fn read_rest(mut body: Body, time: Duration, idle: Duration) {
    let end = tokio::time::Instant::now() + time;
    let mut n_left = MAX_REST;
    loop {
        let frame = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context));
        let until = end.min(tokio::time::Instant::now() + idle);
        let Ok(Some(Ok(frame))) = timeout_at(until, frame).await else { return };
        let n = frame.data_ref().map_or(0, Bytes::len);
        match n_left.checked_sub(n) {
            Some(left) => n_left = left,
            None => return tracing::debug!("a refused body has more than {MAX_REST} bytes"),
        }
    }
}
