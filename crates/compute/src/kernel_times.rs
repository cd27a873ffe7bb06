//! Run time of each kernel of a GPU.
//!
//! While profiling, every kernel runs between two timestamps and every step is waited for. Times are those of kernels that
//! run alone; a whole forward pass takes longer than without profiling.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Total time of a kernel.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelTime {
    /// Name of the kernel.
    pub name: String,
    /// Number of dispatches.
    pub runs: u64,
    /// Time of all dispatches.
    pub total_ms: f64,
}

#[derive(Debug, Default)]
pub(crate) struct Profile {
    is_on: AtomicBool,
    /// Dispatches and nanoseconds by kernel name.
    totals: Mutex<BTreeMap<String, (u64, f64)>>,
}

impl Profile {
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, is_on: bool) {
        self.is_on.store(is_on, Ordering::Relaxed);
    }

    /// Takes the times since the last call, longest first.
    pub(crate) fn take(&self) -> Vec<KernelTime> {
        let totals =
            std::mem::take(&mut *self.totals.lock().unwrap_or_else(PoisonError::into_inner));
        let time = |(name, (runs, ns))| KernelTime { name, runs, total_ms: ns / 1e6 };
        let mut times: Vec<_> = totals.into_iter().map(time).collect();
        times.sort_by(|a, b| b.total_ms.total_cmp(&a.total_ms));
        times
    }

    /// Adds the time of a dispatch.
    pub(crate) fn add(&self, name: &str, ns: f64) {
        let mut totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        let total = totals.entry(name.to_owned()).or_default();
        total.0 += 1;
        total.1 += ns;
    }
}
