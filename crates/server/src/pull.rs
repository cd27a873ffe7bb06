//! Downloads of models on behalf of a client, one at a time. They end when the client leaves; what arrived is kept.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use stonechat::Models;
use stonechat::pull::pull_while;
use tokio::sync::{Semaphore, mpsc};

use crate::{ApiError, ApiResult};

/// Interval of the progress of a file.
const INTERVAL: Duration = Duration::from_millis(200);
/// Steps that a slow client may fall behind.
const STEPS: usize = 8;
/// Downloads at a time.
static DOWNLOADS: Semaphore = Semaphore::const_new(1);

/// Step of a download.
#[derive(Debug)]
pub(crate) enum PullStep {
    /// Bytes of a file.
    Progress {
        /// Name in the repository.
        file: String,
        /// Bytes received.
        done: u64,
        /// Bytes of the file.
        total: u64,
    },
    /// The end.
    End(ApiResult<()>),
}

/// Starts a download; the last step is its end. Dropping the receiver ends it.
///
/// # Errors
/// 429 while another one runs.
pub(crate) fn start(models: Models, name: String) -> ApiResult<mpsc::Receiver<PullStep>> {
    let permit = DOWNLOADS
        .try_acquire()
        .map_err(|_| ApiError::overloaded("another model is being downloaded: try again later"))?;
    let (sender, receiver) = mpsc::channel(STEPS);
    tokio::task::spawn_blocking(move || {
        let mut last: Option<(String, Instant)> = None;
        let result = pull_while(&models, &name, &mut |progress| {
            let is_due = last.as_ref().is_none_or(|(file, time)| {
                file != progress.file
                    || time.elapsed() >= INTERVAL
                    || progress.done == progress.total
            });
            if !is_due {
                return if sender.is_closed() {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                };
            }
            let file = progress.file.to_owned();
            last = Some((file.clone(), Instant::now()));
            let step = PullStep::Progress { file, done: progress.done, total: progress.total };
            match sender.blocking_send(step) {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        });
        let end = result.map(drop).map_err(|error| match error {
            stonechat::Error::UnknownName { .. } => ApiError::not_found(error.to_string()),
            error => error.into(),
        });
        // A client that has gone needs no end.
        drop(sender.blocking_send(PullStep::End(end)));
        drop(permit);
    });
    Ok(receiver)
}
