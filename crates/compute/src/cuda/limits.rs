//! Limits of devices by compute capability, and the variable that lowers them.

use crate::{Error, Result, config};

/// Compute capability whose limits and kernels a newer card uses.
const ARCH_VARIABLE: &str = "STONECHAT_CUDA_ARCH";

/// Limits of launches on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Compute capability: major, minor.
    pub capability: (u32, u32),
    /// Maximum dynamic shared memory of a block in bytes (opt-in).
    pub block_shared_bytes: usize,
    /// Shared memory of a multiprocessor in bytes, including the driver's reservation per block.
    pub shared_bytes: usize,
    /// 32-bit registers of a block, and of a multiprocessor.
    pub registers: usize,
    /// Threads of a block.
    pub block_threads: usize,
    /// Threads of a multiprocessor.
    pub threads: usize,
    /// Whether it has wgmma.
    pub has_warpgroups: bool,
    /// Whether it copies boxes of tensors into shared memory.
    pub has_tensor_maps: bool,
    /// Whether blocks form clusters.
    pub has_clusters: bool,
}

/// One row of [`Limits::ALL`]: capability, KiB of shared memory of a block and of a multiprocessor, threads of a multiprocessor.
const fn of(capability: (u32, u32), block_kib: usize, kib: usize, threads: usize) -> Limits {
    Limits {
        capability,
        block_shared_bytes: block_kib << 10,
        shared_bytes: kib << 10,
        registers: 65536,
        block_threads: 1024,
        threads,
        has_warpgroups: capability.0 == 9,
        has_tensor_maps: capability.0 >= 9,
        has_clusters: capability.0 >= 9,
    }
}

impl Limits {
    /// Capabilities with kernels, oldest first: Turing, A100, other Ampere, Ada, Hopper, Blackwell of servers and of desktops.
    pub const ALL: [Self; 7] = [
        of((7, 5), 64, 64, 1024),
        of((8, 0), 163, 164, 2048),
        of((8, 6), 99, 100, 1536),
        of((8, 9), 99, 100, 1536),
        of((9, 0), 227, 228, 2048),
        of((10, 0), 227, 228, 2048),
        of((12, 0), 99, 100, 1536),
    ];

    /// Limits of a device: the newest row of the table that is not newer than the device. Devices older than all rows get the first
    /// row.
    #[must_use]
    pub fn of(capability: (u32, u32)) -> Self {
        let known = Self::ALL.iter().rev().find(|limits| limits.capability <= capability);
        let has_warpgroups = capability == (9, 0);
        Self { capability, has_warpgroups, ..*known.unwrap_or(&Self::ALL[0]) }
    }

    /// Minimum of both in each limit, with the capability of `other`.
    #[must_use]
    pub fn lowered(self, other: Self) -> Self {
        Self {
            capability: other.capability,
            block_shared_bytes: self.block_shared_bytes.min(other.block_shared_bytes),
            shared_bytes: self.shared_bytes.min(other.shared_bytes),
            registers: self.registers.min(other.registers),
            block_threads: self.block_threads.min(other.block_threads),
            threads: self.threads.min(other.threads),
            has_warpgroups: self.has_warpgroups && other.has_warpgroups,
            has_tensor_maps: self.has_tensor_maps && other.has_tensor_maps,
            has_clusters: self.has_clusters && other.has_clusters,
        }
    }

    /// Limits that `STONECHAT_CUDA_ARCH` names.
    ///
    /// # Errors
    /// [`Error::Config`] for another value than a capability of the table.
    pub(super) fn of_variable() -> Result<Option<Self>> {
        config::variable(ARCH_VARIABLE).map(|value| Self::named(&value)).transpose()
    }

    fn named(value: &str) -> Result<Self> {
        let name = |limits: &Self| format!("{}.{}", limits.capability.0, limits.capability.1);
        let found = Self::ALL.into_iter().find(|limits| name(limits) == value);
        found.ok_or_else(|| Error::Config {
            name: ARCH_VARIABLE,
            expected: format!("one of {}", Self::ALL.each_ref().map(name).join(", ")),
            got: value.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_the_limits_of_the_newest_known_one() {
        assert_eq!(Limits::of((8, 7)).block_shared_bytes, 99 << 10);
        assert_eq!(Limits::of((12, 1)).block_shared_bytes, 99 << 10);
        assert_eq!(Limits::of((7, 0)).block_shared_bytes, 64 << 10);
        assert!(Limits::of((9, 0)).has_warpgroups && !Limits::of((10, 3)).has_warpgroups);
        for limits in Limits::ALL {
            assert_eq!(Limits::of(limits.capability), limits);
            assert!(limits.block_shared_bytes <= limits.shared_bytes);
        }
    }

    #[test]
    fn a_named_capability_lowers_limits_only() {
        let hopper = Limits::of((9, 0));
        for other in Limits::ALL {
            let lowered = hopper.lowered(other);
            assert_eq!(lowered.capability, other.capability);
            assert!(lowered.block_shared_bytes <= hopper.block_shared_bytes);
            assert!(lowered.block_shared_bytes <= other.block_shared_bytes);
            assert_eq!(lowered.has_warpgroups, other.capability == (9, 0));
        }
        let turing = Limits::of((7, 5));
        assert_eq!(turing.lowered(hopper).block_shared_bytes, turing.block_shared_bytes);
        assert!(!turing.lowered(hopper).has_warpgroups);
    }

    #[test]
    fn other_names_are_errors() {
        assert_eq!(Limits::named("8.6").map(|limits| limits.capability), Ok((8, 6)));
        for value in ["8", "8.7", "sm_80", " 8.0", "80", "9.0a"] {
            let error = Limits::named(value).expect_err(value).to_string();
            assert!(error.contains("STONECHAT_CUDA_ARCH") && error.contains(value), "{error}");
            assert!(error.contains("7.5, 8.0, 8.6, 8.9, 9.0, 10.0, 12.0"), "{error}");
        }
    }
}
