//! How long ops take.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use web_time::Instant;

use super::Cpu;

/// What all runs of an op took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpTime {
    /// The op, with the types and shapes of its weights.
    pub name: String,
    /// How often it ran.
    pub runs: u64,
    /// All runs together.
    pub total: Duration,
}

#[derive(Debug, Default)]
pub(super) struct Profile {
    totals: Mutex<BTreeMap<String, (u64, Duration)>>,
}

/// Adds the time until it is dropped.
#[derive(Debug)]
pub(super) struct Timer<'a> {
    profile: &'a Profile,
    name: String,
    start: Instant,
}

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        let elapsed = self.start.elapsed();
        let mut totals = self.profile.totals.lock().unwrap_or_else(PoisonError::into_inner);
        let (runs, total) = totals.entry(std::mem::take(&mut self.name)).or_default();
        *runs += 1;
        *total += elapsed;
    }
}

impl Cpu {
    /// Whether ops are timed, by this and what is cloned from it. That costs each op about a microsecond.
    #[must_use]
    pub fn with_profile(self, is_on: bool) -> Self {
        Self { profile: is_on.then(Arc::default), ..self }
    }

    /// What ops have taken since the last call, the longest first; nothing if they are not timed.
    #[must_use]
    pub fn take_profile(&self) -> Vec<OpTime> {
        let Some(profile) = &self.profile else { return Vec::new() };
        let mut totals = profile.totals.lock().unwrap_or_else(PoisonError::into_inner);
        let totals = std::mem::take(&mut *totals);
        let mut times: Vec<OpTime> =
            totals.into_iter().map(|(name, (runs, total))| OpTime { name, runs, total }).collect();
        times.sort_by_key(|time| std::cmp::Reverse(time.total));
        times
    }

    /// A timer of the op in flight, if ops are timed.
    pub(super) fn timer(&self, name: impl FnOnce() -> String) -> Option<Timer<'_>> {
        let profile = self.profile.as_deref()?;
        Some(Timer { profile, name: name(), start: Instant::now() })
    }
}
