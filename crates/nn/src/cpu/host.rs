//! Threads, profile and time slices of programs on the CPU.

use std::sync::Arc;

use super::profile::Profile;
use super::time_slices::TimeSlices;

/// Threads that programs run on.
#[derive(Debug, Clone)]
pub(super) struct Host {
    pub(super) device: stonechat_compute::Cpu,
    /// Time per op, if enabled.
    pub(super) profile: Option<Arc<Profile>>,
    /// Shared by clones.
    pub(super) time_slices: Arc<TimeSlices>,
    /// Whether programs let others go first.
    pub(super) is_background: bool,
}

impl Host {
    pub(super) fn new(device: stonechat_compute::Cpu) -> Self {
        Self { device, profile: None, time_slices: Arc::default(), is_background: false }
    }
}
