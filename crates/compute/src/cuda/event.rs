//! Events of a stream.

use cudarc::driver::sys::{self, CUevent, CUevent_flags};

use super::call::check;
use super::gpu::Gpu;
use crate::Result;

/// A point of the stream.
#[derive(Debug)]
pub(super) struct Event {
    gpu: Gpu,
    raw: CUevent,
}

// SAFETY: an event is used by one thread at a time.
unsafe impl Send for Event {}
// SAFETY: shared references only record and wait, which the driver locks.
unsafe impl Sync for Event {}

impl Event {
    pub(super) fn new(gpu: &Gpu) -> Result<Self> {
        Self::with_flags(gpu, CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// Creates an event with a timestamp.
    pub(super) fn with_time(gpu: &Gpu) -> Result<Self> {
        Self::with_flags(gpu, CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn with_flags(gpu: &Gpu, flags: CUevent_flags) -> Result<Self> {
        gpu.enter()?;
        let mut raw = std::ptr::null_mut();
        if !gpu.is_planned() {
            // SAFETY: the context is current; writes the handle.
            check(unsafe { sys::cuEventCreate(&raw mut raw, flags as u32) })?;
        }
        Ok(Self { gpu: gpu.clone(), raw })
    }

    /// Happens after the work enqueued so far.
    pub(super) fn record(&self) -> Result<()> {
        if self.gpu.is_planned() {
            return Ok(());
        }
        // SAFETY: event and stream live.
        check(unsafe { sys::cuEventRecord(self.raw, self.gpu.stream()) })
    }

    pub(super) fn wait(&self) -> Result<()> {
        self.gpu.enter()?;
        if self.gpu.is_planned() {
            return Ok(());
        }
        // SAFETY: the event lives.
        check(unsafe { sys::cuEventSynchronize(self.raw) })
    }
}

impl Event {
    /// Milliseconds since `earlier`; both events have completed.
    pub(super) fn ms_since(&self, earlier: &Self) -> Result<f32> {
        let mut ms = 0.0;
        // SAFETY: the events live; writes the time.
        check(unsafe { sys::cuEventElapsedTime(&raw mut ms, earlier.raw, self.raw) })?;
        Ok(ms)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if !self.gpu.is_planned() && self.gpu.enter().is_ok() {
            // SAFETY: destroyed once.
            let _ = unsafe { sys::cuEventDestroy_v2(self.raw) };
        }
    }
}
