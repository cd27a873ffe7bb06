//! Work of requests on the async runtime: limits of its time, and work that blocks.

use std::time::Instant;

use tokio::time::timeout_at;

use crate::{ApiError, ApiResult};

/// Waits for `work` until `deadline`, then drops it, which cancels a job.
///
/// # Errors
/// 503 if the deadline passes.
pub(crate) async fn within<T>(
    deadline: Option<Instant>,
    work: impl Future<Output = T>,
) -> ApiResult<T> {
    let Some(deadline) = deadline else { return Ok(work.await) };
    let passed = |_| ApiError::timed_out("the time of the request passed before its end");
    timeout_at(deadline.into(), work).await.map_err(passed)
}

/// Runs work that takes milliseconds so that other tasks of the runtime need not wait.
pub(crate) fn blocking<R>(work: impl FnOnce() -> R) -> R {
    use tokio::runtime::{Handle, RuntimeFlavor};
    let flavor = Handle::try_current().map(|handle| handle.runtime_flavor());
    match flavor {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}
