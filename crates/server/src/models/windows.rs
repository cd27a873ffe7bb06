//! Memory of a second engine of a speech model.

use super::loader::EngineLoader;
use super::memory::Memory;
use super::registry::Growth;
use super::{ModelSpec, SpeechGuard};
use crate::{ApiError, ApiResult};

/// Memory of windows, charged to the budget of the models until it is dropped.
#[derive(Debug)]
pub(crate) struct WindowMemory(#[expect(dead_code, reason = "held")] Growth<EngineLoader>);

impl SpeechGuard {
    /// Charges the state of `n` windows to the budget of the models; idle ones are closed for it.
    ///
    /// # Errors
    /// 503 if the models in use leave too little.
    pub(crate) fn charge_windows(&self, n: usize) -> ApiResult<WindowMemory> {
        let ModelSpec { window_bytes, gpu_memory_bytes, .. } = *self.lease.spec();
        let gpu_share = if gpu_memory_bytes > 0 { 1.0 } else { 0.0 };
        let memory = Memory::of_model(window_bytes.saturating_mul(n as u64), gpu_share);
        let full = || {
            ApiError::timed_out(
                "the models in use leave no memory for live speech: try again later",
            )
        };
        self.lease.grow(memory).map(WindowMemory).ok_or_else(full)
    }
}
