//! Device of a model: by name, or chosen.

use std::fmt;
use std::str::FromStr;

#[cfg(feature = "wgpu")]
use stonechat_compute::wgpu::Adapter;
#[cfg(feature = "wgpu")]
use stonechat_nn::Wgpu;
use stonechat_nn::{Backend, Cpu};

use crate::Error;

/// Device of a model, by the names of `stonechat --device`: `auto`, `cpu`, `wgpu` and `wgpu:N`.
///
/// ```
/// use stonechat::Device;
///
/// assert_eq!("wgpu:1".parse(), Ok(Device::Wgpu(Some(1))));
/// assert_eq!(Device::default().to_string(), "auto");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Device {
    /// The CPU for a model of less than [`Device::AUTO_MIN_BYTES`], else the first discrete GPU: a Whisper model must fit
    /// its memory, of a language model as many layers as fit. The CPU without such a GPU, or if it cannot be opened; a
    /// load that runs out of GPU memory is an error.
    ///
    /// Integrated GPUs share the CPU's memory bandwidth, which limits decoding; they are used by name only.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The GPU of this index in `stonechat devices`; `None`: the best hardware GPU.
    Wgpu(Option<usize>),
}

/// Text that is no value of a [`Device`] or of [`GpuLayers`](crate::GpuLayers).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected}, got `{got}`")]
pub struct ParseError {
    pub(crate) expected: &'static str,
    pub(crate) got: String,
}

impl FromStr for Device {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let expected = "auto, cpu, wgpu or wgpu:N";
        let wrong = || ParseError { expected, got: text.to_owned() };
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "wgpu" => Ok(Self::Wgpu(None)),
            _ => {
                let index = text.strip_prefix("wgpu:").ok_or_else(wrong)?;
                index.parse().map(|index| Self::Wgpu(Some(index))).map_err(|_| wrong())
            }
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Wgpu(None) => f.write_str("wgpu"),
            Self::Wgpu(Some(index)) => write!(f, "wgpu:{index}"),
        }
    }
}

/// Memory that a model needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceNeeds {
    /// Bytes of its weights.
    pub weight_bytes: u64,
    /// Whether its layers can be on a GPU and on the CPU; otherwise the weights must fit the GPU.
    pub can_split: bool,
}

/// Result of [`Device::choose`]. `Display`: the device, or the reason for the CPU.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ChosenDevice {
    /// The CPU; with the reason, if [`Device::Auto`] chose it.
    Cpu(Option<&'static str>),
    /// A GPU.
    #[cfg(feature = "wgpu")]
    Gpu(Adapter),
}

impl fmt::Display for ChosenDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu(None) => f.write_str("device cpu"),
            Self::Cpu(Some(reason)) => write!(f, "device cpu: {reason}"),
            #[cfg(feature = "wgpu")]
            Self::Gpu(Adapter { index, name, api, kind, .. }) => {
                write!(f, "device wgpu:{index}: {name} ({api}, {kind})")
            }
        }
    }
}

/// GPU memory that stays free of weights: for kernels, uploads and other programs.
pub(crate) const RESERVED_BYTES: u64 = 512 << 20;

impl Device {
    /// Bytes of weights from which [`Self::Auto`] takes a GPU: to open one takes about half a second, which is longer than
    /// short runs of smaller models.
    pub const AUTO_MIN_BYTES: u64 = 200_000_000;

    /// Chooses the device of a model.
    ///
    /// # Errors
    /// If the GPU that is named does not exist, or the build has no GPUs.
    pub fn choose(self, needs: DeviceNeeds) -> Result<ChosenDevice, Error> {
        let DeviceNeeds { weight_bytes, can_split } = needs;
        let chosen = match self {
            Self::Cpu => ChosenDevice::Cpu(None),
            Self::Auto if weight_bytes < Self::AUTO_MIN_BYTES => ChosenDevice::Cpu(Some(
                "a GPU takes longer to start than it saves with a small model",
            )),
            Self::Auto => gpu::discrete(if can_split { 0 } else { weight_bytes }),
            Self::Wgpu(index) => gpu::named(index)?,
        };
        tracing::info!("{chosen}");
        Ok(chosen)
    }

    /// Chooses the device, opens it, the CPU with `n_threads` threads, and runs `work` on it. A GPU that
    /// [`Self::Auto`] cannot open is replaced by the CPU.
    pub(crate) fn open<W: Work>(
        self,
        n_threads: usize,
        needs: DeviceNeeds,
        work: W,
    ) -> Result<W::Output, Error> {
        match self.choose(needs)? {
            ChosenDevice::Cpu(_) => work.run(Cpu::new(n_threads)?, OpenDevice::cpu()),
            #[cfg(feature = "wgpu")]
            ChosenDevice::Gpu(adapter) => match pollster::block_on(Wgpu::open(&adapter, None)) {
                Ok(backend) => {
                    let kernels = crate::KernelCache::open(backend.gpu());
                    work.run(backend, OpenDevice { is_gpu: true, kernels })
                }
                Err(error) if self == Self::Auto => {
                    tracing::warn!("the CPU is used, since `{}` fails: {error}", adapter.name);
                    work.run(Cpu::new(n_threads)?, OpenDevice::cpu())
                }
                Err(error) => Err(error.into()),
            },
        }
    }
}

/// Work that is generic over the backend.
pub(crate) trait Work {
    type Output;

    fn run<B: Backend>(self, backend: B, device: OpenDevice) -> Result<Self::Output, Error>;
}

/// Device of an open backend. Dropping it saves the compiled kernels of a GPU.
#[derive(Debug)]
pub(crate) struct OpenDevice {
    pub(crate) is_gpu: bool,
    #[cfg(feature = "wgpu")]
    kernels: Option<crate::KernelCache>,
}

impl OpenDevice {
    pub(crate) fn cpu() -> Self {
        Self {
            is_gpu: false,
            #[cfg(feature = "wgpu")]
            kernels: None,
        }
    }

    /// Saves the kernels compiled so far: a program may end without dropping the device.
    pub(crate) fn save_kernels(&self) {
        #[cfg(feature = "wgpu")]
        if let Some(kernels) = &self.kernels {
            kernels.save();
        }
    }
}

/// GPUs through wgpu.
#[cfg(feature = "wgpu")]
mod gpu {
    use stonechat_compute::wgpu::{Adapter, adapters, pick};

    use super::{ChosenDevice, RESERVED_BYTES};
    use crate::Error;

    /// The first discrete GPU whose memory has room for this many bytes, else the CPU with the reason.
    pub(super) fn discrete(bytes: u64) -> ChosenDevice {
        if !has_device_file() {
            return ChosenDevice::Cpu(Some("no GPU"));
        }
        let mut all = pollster::block_on(adapters());
        all.retain(Adapter::is_discrete);
        if all.is_empty() {
            return ChosenDevice::Cpu(Some("no discrete GPU"));
        }
        let needed = bytes.saturating_add(RESERVED_BYTES);
        let has_room = |gpu: &Adapter| gpu.total_memory_bytes.is_none_or(|total| needed <= total);
        match all.into_iter().find(has_room) {
            Some(adapter) => ChosenDevice::Gpu(adapter),
            None => ChosenDevice::Cpu(Some("the weights do not fit the memory of a GPU")),
        }
    }

    pub(super) fn named(index: Option<usize>) -> Result<ChosenDevice, Error> {
        let all = pollster::block_on(adapters());
        let adapter = pick(&all, index).map_err(stonechat_nn::Error::from)?;
        Ok(ChosenDevice::Gpu(adapter.clone()))
    }

    /// Whether a GPU driver has a device file: the Vulkan drivers are loaded for nothing otherwise.
    #[cfg(target_os = "linux")]
    fn has_device_file() -> bool {
        let has = |folder: &str, prefix: &str| {
            let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
            names
                .map(|file| file.file_name())
                .any(|name| name.to_string_lossy().starts_with(prefix))
        };
        // Render nodes of the kernel, NVIDIA's own driver, the driver of WSL.
        has("/dev/dri", "renderD") || has("/dev", "nvidia") || has("/dev", "dxg")
    }

    /// Other systems have no such files.
    #[cfg(not(target_os = "linux"))]
    fn has_device_file() -> bool {
        true
    }
}

/// A build without the feature `wgpu`.
#[cfg(not(feature = "wgpu"))]
mod gpu {
    use super::ChosenDevice;
    use crate::Error;

    pub(super) fn discrete(_: u64) -> ChosenDevice {
        ChosenDevice::Cpu(Some("this build has no GPUs"))
    }

    pub(super) fn named(_: Option<usize>) -> Result<ChosenDevice, Error> {
        Err(Error::NoGpuSupport)
    }
}

#[cfg(test)]
mod tests {
    use super::{ChosenDevice, Device, DeviceNeeds};

    #[test]
    fn devices_have_names() {
        for (name, device) in [
            ("auto", Device::Auto),
            ("cpu", Device::Cpu),
            ("wgpu", Device::Wgpu(None)),
            ("wgpu:12", Device::Wgpu(Some(12))),
        ] {
            assert_eq!(name.parse(), Ok(device));
            assert_eq!(device.to_string(), name);
        }
        for wrong in ["", "gpu", "wgpu:", "wgpu:x", "cpu:1"] {
            assert!(wrong.parse::<Device>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_cpu_is_always_there() {
        let needs = DeviceNeeds { weight_bytes: u64::MAX, can_split: false };
        let chosen = Device::Cpu.choose(needs).unwrap();
        assert!(matches!(chosen, ChosenDevice::Cpu(None)));
        assert_eq!(chosen.to_string(), "device cpu");
        let small = DeviceNeeds { weight_bytes: Device::AUTO_MIN_BYTES - 1, can_split: true };
        for needs in [needs, small] {
            let chosen = Device::Auto.choose(needs).unwrap();
            assert!(matches!(chosen, ChosenDevice::Cpu(Some(_))), "{chosen}");
        }
    }
}
