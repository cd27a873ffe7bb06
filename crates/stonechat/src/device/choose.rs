//! Choice of a device, and fallbacks while it is opened.

use std::fmt;
use std::sync::Arc;

use stonechat_nn::Cpu;

use super::gpu::{FoundGpu, RESERVED_BYTES};
use super::gpu_layers::GpuLayers;
use super::name::Device;
use super::open::OpenDevice;
use super::registry::{self, BACKENDS, Backend};
use crate::Error;

/// Memory that a model needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceNeeds {
    /// Bytes of its weights.
    pub weight_bytes: u64,
    /// Whether its layers can be on a GPU and on the CPU; otherwise the weights must fit the GPU.
    pub can_split: bool,
}

impl DeviceNeeds {
    /// Needs of a large model that can be split: any GPU can hold some of its layers.
    pub const GPU_OF_ANY_SIZE: Self =
        Self { weight_bytes: Device::AUTO_MIN_BYTES, can_split: true };

    /// Bytes that a GPU must have.
    fn gpu_bytes(self) -> u64 {
        if self.can_split {
            RESERVED_BYTES
        } else {
            self.weight_bytes.saturating_add(RESERVED_BYTES)
        }
    }
}

/// Result of [`Device::choose`]. `Display`: the device, or the reason for the CPU.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ChosenDevice {
    /// The CPU; with the reason, if [`Device::Auto`] chose it.
    Cpu(Option<&'static str>),
    /// A GPU, or GPUs that compute each layer together.
    Gpu(ChosenGpu),
}

/// GPU that is not open.
#[derive(Debug, Clone)]
pub struct ChosenGpu {
    gpu: Arc<dyn FoundGpu>,
    /// Memory for a GPU that replaces it, if it cannot be opened.
    needs: DeviceNeeds,
}

impl fmt::Display for ChosenDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu(None) => f.write_str("device cpu"),
            Self::Cpu(Some(reason)) => write!(f, "device cpu: {reason}"),
            Self::Gpu(ChosenGpu { gpu, .. }) => {
                write!(f, "device {}: {}", gpu.device(), gpu.describe())
            }
        }
    }
}

impl Device {
    /// Minimum bytes of weights for [`Self::Auto`] to take a GPU: opening one takes about half a second, longer than short
    /// runs of smaller models.
    pub const AUTO_MIN_BYTES: u64 = 200_000_000;

    /// A GPU of any kind, integrated ones included: of NVIDIA where there is one with compiled kernels, else the best through
    /// wgpu.
    #[must_use]
    pub fn any_gpu() -> Self {
        let is_present = |backend: &&Backend| backend.api.is_some_and(|api| api.is_present());
        let backend = BACKENDS.iter().find(is_present).or(BACKENDS.last());
        backend.map_or(Self::Auto, |backend| (backend.device)(None))
    }

    /// Device of a language model with a number of layers on a GPU.
    ///
    /// # Errors
    /// If layers on a GPU are asked for beside [`Device::Cpu`].
    pub fn with_layers(self, layers: Option<GpuLayers>) -> Result<Self, Error> {
        match (self, layers) {
            (device, None) => Ok(device),
            (_, Some(GpuLayers::Last(0))) => Ok(Self::Cpu),
            (Self::Auto, Some(_)) => Ok(Self::any_gpu()),
            (Self::Cpu, Some(_)) => {
                let (expected, got) = ("a GPU".to_owned(), "cpu".to_owned());
                Err(stonechat_llm::Error::Option { option: "gpu_layers", expected, got }.into())
            }
            (device, Some(_)) => Ok(device),
        }
    }

    /// Chooses the device of a model.
    ///
    /// # Errors
    /// If the GPU that is named does not exist, or the build has no GPUs.
    pub fn choose(self, needs: DeviceNeeds) -> Result<ChosenDevice, Error> {
        let chosen = self.placement(needs)?;
        tracing::info!("{chosen}");
        Ok(chosen)
    }

    /// Device that [`choose`](Self::choose) would choose now, without a line in the log.
    ///
    /// # Errors
    /// As [`choose`](Self::choose).
    pub fn placement(self, needs: DeviceNeeds) -> Result<ChosenDevice, Error> {
        Ok(match self {
            Self::Cpu => ChosenDevice::Cpu(None),
            Self::Auto if needs.weight_bytes < Self::AUTO_MIN_BYTES => ChosenDevice::Cpu(Some(
                "a GPU takes longer to start than it saves with a small model",
            )),
            Self::Auto if !has_device_file() => ChosenDevice::Cpu(Some("no GPU")),
            Self::Auto => first_discrete(&BACKENDS, needs),
            device => {
                ChosenDevice::Gpu(ChosenGpu { gpu: registry::api(device)?.named(device)?, needs })
            }
        })
    }
}

/// First discrete GPU of `backends` with the memory, else the CPU with the reason of the last backend.
fn first_discrete(backends: &[Backend], needs: DeviceNeeds) -> ChosenDevice {
    let mut reason = "no GPU that this build can use";
    for api in backends.iter().filter_map(|backend| backend.api) {
        match api.discrete(needs.gpu_bytes()) {
            Ok(gpu) => return ChosenDevice::Gpu(ChosenGpu { gpu, needs }),
            Err(none) => reason = none,
        }
    }
    ChosenDevice::Cpu(Some(reason))
}

impl ChosenDevice {
    /// Whether the device is a GPU.
    #[must_use]
    pub fn is_gpu(&self) -> bool {
        matches!(self, Self::Gpu(_))
    }

    /// Bytes of the GPU for models: those that no program uses, less a reserve. wgpu does not tell how many are in use: all of
    /// them, less the reserve. `None` for the CPU, and for a GPU of an unknown size.
    #[must_use]
    pub fn memory_for_models(&self) -> Option<u64> {
        match self {
            Self::Cpu(_) => None,
            Self::Gpu(ChosenGpu { gpu, .. }) => {
                Some(gpu.memory_bytes()?.saturating_sub(RESERVED_BYTES))
            }
        }
    }

    /// The device by its name.
    #[must_use]
    pub fn device(&self) -> Device {
        match self {
            Self::Cpu(_) => Device::Cpu,
            Self::Gpu(ChosenGpu { gpu, .. }) => gpu.device(),
        }
    }

    /// Opens the device. A GPU that cannot be opened and was not `asked` for by name is replaced: an NVIDIA GPU by one through
    /// wgpu, that by the CPU of `open_cpu`; `on_fallback` gets the reason.
    ///
    /// # Errors
    /// If the device cannot be opened.
    pub fn open(
        self,
        asked: Device,
        open_cpu: impl FnOnce() -> Result<Cpu, stonechat_nn::Error>,
        mut on_fallback: impl FnMut(&str),
    ) -> Result<OpenDevice, Error> {
        let Self::Gpu(ChosenGpu { gpu, needs }) = self else {
            return Ok(OpenDevice::on_cpu(open_cpu()?));
        };
        let next = match gpu.open() {
            Err(error) if asked == Device::Auto => {
                let next = first_discrete(registry::after(gpu.device()), needs);
                let name = match &next {
                    Self::Cpu(_) => "the CPU".to_owned(),
                    Self::Gpu(_) => next.device().to_string(),
                };
                on_fallback(&format!("{}, so {name} is used: {error}", gpu.open_failure()));
                next
            }
            Ok(open) if asked == Device::Auto && !has_room(&open.device, needs) => {
                on_fallback(&format!(
                    "the weights do not fit the free memory of `{}`, so the CPU is used",
                    gpu.name()
                ));
                Self::Cpu(None)
            }
            open => return Ok(OpenDevice::on_gpu(open?)),
        };
        next.open(asked, open_cpu, on_fallback)
    }
}

/// Whether a GPU has free memory for the weights that it must hold; true if it does not tell.
fn has_room(gpu: &stonechat_nn::Device, needs: DeviceNeeds) -> bool {
    needs.can_split || gpu.free_memory_bytes().is_none_or(|free| needs.gpu_bytes() <= free)
}

/// Whether a GPU driver has a device file. Without one, loading the drivers is useless.
#[cfg(target_os = "linux")]
fn has_device_file() -> bool {
    let has = |folder: &str, prefix: &str| {
        let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
        names.map(|file| file.file_name()).any(|name| name.to_string_lossy().starts_with(prefix))
    };
    // Render nodes of the kernel, NVIDIA's own driver, the driver of WSL.
    has("/dev/dri", "renderD") || has("/dev", "nvidia") || has("/dev", "dxg")
}

/// Other systems have no such files.
#[cfg(not(target_os = "linux"))]
fn has_device_file() -> bool {
    true
}
