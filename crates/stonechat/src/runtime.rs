//! Where the loop of a model runs: on a thread of its own, in a browser between the events of the worker's thread.
//!
//! Loops are futures. Natively a thread blocks on each. In a browser a loop lets messages in after each step, such as the
//! cancellation of a request.

#[cfg(target_arch = "wasm32")]
mod browser;
#[cfg(not(target_arch = "wasm32"))]
mod native;

#[cfg(target_arch = "wasm32")]
pub(crate) use browser::Task;
#[cfg(target_arch = "wasm32")]
use browser::{ended, turn};
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use native::Task;
#[cfg(not(target_arch = "wasm32"))]
use native::{ended, turn};

/// Lets the messages that have arrived in a browser's worker in; ready at once elsewhere. The engines call it after each
/// step, and a loop of your own should: a step of a model on the CPU awaits nothing.
pub async fn yield_now() {
    turn().await;
}

/// Waits until the models whose last handle was dropped are freed, at most a second; natively they are freed when it is dropped.
/// Opening a model does this first, so that two do not take memory at once.
pub async fn wait_for_closed() {
    ended().await;
}
