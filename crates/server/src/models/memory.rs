//! Memory of open models: of the host and of the GPU, each with a budget of its own.

/// Factor of the memory of a model beyond its weights and KV cache: activations, buffers, the tokenizer.
const MEMORY_FACTOR: f64 = 1.1;
/// Part of the machine's memory for models, unless an option says more.
const DEFAULT_MEMORY: f64 = 0.8;

/// Memory of models, by the device that has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Memory {
    /// Bytes of host memory.
    pub(crate) host: u64,
    /// Bytes of GPU memory.
    pub(crate) gpu: u64,
}

impl Memory {
    /// Memory of the host alone.
    pub(crate) fn host(host: u64) -> Self {
        Self { host, gpu: 0 }
    }

    /// Memory of a model with `bytes` of weights and caches, `gpu_share` of them on a GPU.
    pub(super) fn of_model(bytes: u64, gpu_share: f64) -> Self {
        let all = bytes as f64 * MEMORY_FACTOR;
        let gpu = all * gpu_share;
        // The tokenizer and the buffers of uploads are on the host.
        let host = all - gpu + bytes as f64 * gpu_share * (MEMORY_FACTOR - 1.0);
        Self { host: host as u64, gpu: gpu as u64 }
    }

    /// A model whose layers are on the host where the GPU has no memory for them.
    pub(super) fn split_at(self, gpu_budget: u64) -> Self {
        let gpu = self.gpu.min(gpu_budget);
        Self { host: self.host + (self.gpu - gpu), gpu }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        let (host, gpu) =
            (self.host.saturating_add(other.host), self.gpu.saturating_add(other.gpu));
        Self { host, gpu }
    }

    pub(super) fn minus(self, other: Self) -> Self {
        let (host, gpu) =
            (self.host.saturating_sub(other.host), self.gpu.saturating_sub(other.gpu));
        Self { host, gpu }
    }

    /// Shortfall of each budget if `self` is added to `used`. Zero on a device without other models: an estimate must not
    /// refuse a model that may fit.
    pub(super) fn lacking(self, used: Self, budget: Self) -> Self {
        let lacking = |needed: u64, used: u64, budget: u64| match (needed, used) {
            (0, _) | (_, 0) => 0,
            _ => used.saturating_add(needed).saturating_sub(budget),
        };
        Self {
            host: lacking(self.host, used.host, budget.host),
            gpu: lacking(self.gpu, used.gpu, budget.gpu),
        }
    }

    /// Whether it has bytes on a device on which `other` has some.
    pub(super) fn shares(self, other: Self) -> bool {
        self.host.min(other.host) > 0 || self.gpu.min(other.gpu) > 0
    }

    pub(super) fn is_zero(self) -> bool {
        self == Self::default()
    }
}

/// 80 % of the memory of the machine, or of the container, less that of dropped prompts; no limit on a platform that
/// does not tell.
pub(super) fn default_memory(cache_ram: u64) -> u64 {
    ((machine_memory() as f64 * DEFAULT_MEMORY) as u64).saturating_sub(cache_ram)
}

/// Bytes of memory of the machine, or of the container that this process is in.
#[must_use]
pub fn machine_memory() -> u64 {
    let Ok(mut system) = sysinfo::System::new() else { return u64::MAX };
    system.refresh_memory();
    let limit = system.cgroup_limits().map_or(u64::MAX, |limits| limits.total_memory);
    system.total_memory().min(limit)
}

#[cfg(test)]
mod tests {
    use super::Memory;

    #[test]
    fn a_model_on_a_gpu_is_charged_to_it() {
        assert_eq!(Memory::of_model(1000, 0.0), Memory { host: 1100, gpu: 0 });
        let whole = Memory::of_model(1000, 1.0);
        assert_eq!(whole.gpu, 1100);
        assert!((99..=101).contains(&whole.host), "{whole:?}");
        let half = Memory::of_model(1000, 0.5);
        assert_eq!(half.gpu, 550);
        assert!((599..=601).contains(&half.host), "{half:?}");
        // Layers that do not fit the GPU are on the host.
        assert_eq!(whole.split_at(600), Memory { host: whole.host + 500, gpu: 600 });
        assert_eq!(whole.split_at(u64::MAX), whole);
    }

    #[test]
    fn each_device_has_a_budget() {
        let budget = Memory { host: 100, gpu: 50 };
        let used = Memory { host: 60, gpu: 40 };
        let lacking = |host, gpu| Memory { host, gpu }.lacking(used, budget);
        assert!(lacking(40, 10).is_zero());
        assert_eq!(lacking(45, 10), Memory { host: 5, gpu: 0 });
        assert_eq!(lacking(0, 50), Memory { host: 0, gpu: 40 });
        // Alone on a device.
        let used = Memory { host: 60, gpu: 0 };
        assert!(Memory { host: 0, gpu: 1000 }.lacking(used, budget).is_zero());
        assert!(Memory::host(10).shares(used) && !Memory { host: 0, gpu: 5 }.shares(used));
    }
}
