//! One budget of memory for all uploads, and a bound on those that are decoded at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{ApiError, ApiResult};

/// Bytes of a permit, about a second of 16 kHz samples.
const UNIT: u64 = 64 << 10;

/// Memory for files and samples of uploads, shared by all requests.
#[derive(Debug, Clone)]
pub(crate) struct AudioMemory {
    units: Arc<Semaphore>,
    n_units: usize,
    decoders: Arc<Semaphore>,
}

/// A part of the budget, given back on drop.
#[derive(Debug)]
pub(crate) struct Charge {
    memory: AudioMemory,
    permits: Mutex<OwnedSemaphorePermit>,
    /// Whether the budget was used up.
    is_full: AtomicBool,
}

impl AudioMemory {
    pub(crate) fn new(max_bytes: u64) -> Self {
        let n_units = usize::try_from(max_bytes / UNIT).unwrap_or(usize::MAX);
        let n_units = n_units.clamp(1, Semaphore::MAX_PERMITS);
        let n_decoders = std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 32));
        Self {
            units: Arc::new(Semaphore::new(n_units)),
            n_units,
            decoders: Arc::new(Semaphore::new(n_decoders)),
        }
    }

    /// Bytes of the budget.
    pub(crate) fn n_bytes(&self) -> u64 {
        self.n_units as u64 * UNIT
    }

    /// A charge of nothing.
    pub(crate) fn charge(&self) -> Charge {
        let none = Arc::clone(&self.units).try_acquire_many_owned(0);
        let permits = Mutex::new(none.expect("none are always free"));
        Charge { memory: self.clone(), permits, is_full: AtomicBool::new(false) }
    }

    /// Waits for a turn to decode.
    pub(crate) async fn decoder(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed.
        Arc::clone(&self.decoders).acquire_owned().await.ok()
    }
}

impl Charge {
    /// Raises the charge to `n_bytes`; tells if the budget has them.
    pub(crate) fn raise(&self, n_bytes: u64) -> bool {
        let Self { memory, permits, is_full } = self;
        let mut permits = permits.lock().unwrap_or_else(PoisonError::into_inner);
        let more = n_bytes.div_ceil(UNIT).saturating_sub(permits.num_permits() as u64);
        let more = u32::try_from(more).ok();
        match more.and_then(|n| Arc::clone(&memory.units).try_acquire_many_owned(n).ok()) {
            Some(more) => permits.merge(more),
            None => is_full.store(true, Ordering::Release),
        }
        !self.is_full()
    }

    /// Tells if the budget was used up.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Acquire)
    }

    /// Bytes that are charged.
    pub(crate) fn n_bytes(&self) -> u64 {
        let permits = self.permits.lock().unwrap_or_else(PoisonError::into_inner);
        permits.num_permits() as u64 * UNIT
    }

    /// 413 if `n_bytes` exceed the whole budget, 503 if others use it.
    pub(crate) fn error(&self, n_bytes: u64) -> ApiError {
        let budget = self.memory.n_bytes();
        if n_bytes > budget {
            let message = format!(
                "the recording is too large: expected at most {budget} bytes of file and samples"
            );
            ApiError::of_status(413, message)
        } else {
            ApiError::timed_out("the memory for recordings is in use: try again later")
        }
    }

    /// Raises the reservation as [`raise`](Self::raise) does, or returns the error to answer.
    pub(crate) fn try_raise(&self, n_bytes: u64) -> ApiResult<()> {
        if self.raise(n_bytes) { Ok(()) } else { Err(self.error(n_bytes)) }
    }
}

#[cfg(test)]
mod tests {
    use super::{AudioMemory, UNIT};

    #[test]
    fn uploads_share_one_budget() {
        let memory = AudioMemory::new(10 * UNIT);
        let (first, second) = (memory.charge(), memory.charge());
        assert!(first.raise(6 * UNIT) && first.raise(3 * UNIT));
        assert!(second.raise(4 * UNIT));
        assert_eq!(second.try_raise(4 * UNIT + 1).unwrap_err().status(), 503);
        assert_eq!(second.error(11 * UNIT).status(), 413);
        assert_eq!((first.n_bytes(), memory.charge().n_bytes()), (6 * UNIT, 0));
        drop(first);
        assert!(memory.charge().raise(6 * UNIT));
    }
}
