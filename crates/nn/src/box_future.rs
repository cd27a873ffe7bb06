//! Futures that are `Send` where threads exist: those of a browser's GPU stay on its thread.

use std::pin::Pin;

/// A future on the heap; `Send`, but on wasm32.
#[cfg(not(target_arch = "wasm32"))]
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A future on the heap; `Send`, but on wasm32.
#[cfg(target_arch = "wasm32")]
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;
