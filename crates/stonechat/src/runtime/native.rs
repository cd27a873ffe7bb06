//! Loops on threads of their own.

use std::thread::{Builder, JoinHandle, current};

use crate::Error;

/// Thread of a loop.
#[derive(Debug)]
pub(crate) struct Task(JoinHandle<()>);

impl Task {
    /// Starts a thread that runs the future of `body`, with a low priority if `is_background`.
    ///
    /// # Errors
    /// [`Error::Thread`].
    pub(crate) fn spawn<F: Future<Output = ()>>(
        name: &str,
        is_background: bool,
        body: impl FnOnce() -> F + Send + 'static,
    ) -> Result<Self, Error> {
        let body = move || {
            if is_background {
                lower_priority();
            }
            pollster::block_on(body());
        };
        let thread = Builder::new().name(name.to_owned()).spawn(body);
        thread.map(Self).map_err(|source| Error::Thread { source })
    }

    /// Whether the loop has ended.
    pub(crate) fn is_finished(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits for the end of the loop, unless it is called by the loop.
    pub(crate) fn join(self) {
        if self.0.thread().id() != current().id() {
            // A panic was reported by the thread.
            let _ = self.0.join();
        }
    }
}

/// Threads have no messages.
pub(super) async fn turn() {}

/// Dropping an engine has waited for its thread.
pub(super) async fn ended() {}

/// Lowers the priority of this thread, and so of those that it starts.
#[cfg(target_os = "linux")]
fn lower_priority() {
    /// A tenth of the time of a busy core: the share of a thread of another engine is 9.3 times as large.
    const NICENESS: i32 = 10;
    // Linux applies the priority of "this process" to the calling thread alone.
    if let Err(error) = rustix::process::setpriority_process(None, NICENESS) {
        tracing::warn!("the priority of the thread is unchanged: {error}");
    }
}

/// Priorities of single threads exist on Linux alone.
#[cfg(not(target_os = "linux"))]
fn lower_priority() {}
