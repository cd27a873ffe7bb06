//! Where the loop of a model runs: on a thread of its own, in a browser between the events of the worker's thread.
//!
//! Loops are futures. Natively a thread blocks on each; there [`yield_now`] costs nothing. In a browser a loop must let
//! messages in after each step, such as the cancellation of a request.

#[cfg(target_arch = "wasm32")]
mod browser;
#[cfg(not(target_arch = "wasm32"))]
mod native;

#[cfg(target_arch = "wasm32")]
pub(crate) use browser::{Task, yield_now};
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use native::{Task, yield_now};
