//! Device of a model: by name, or chosen.

use std::fmt;
use std::str::FromStr;
#[cfg(feature = "wgpu")]
use std::sync::Arc;

#[cfg(feature = "wgpu")]
use stonechat_compute::wgpu::Adapter;
use stonechat_formats::ModelFile;
use stonechat_llm::{Config, Devices, Model, StateOptions};
#[cfg(feature = "wgpu")]
use stonechat_nn::Wgpu;
use stonechat_nn::{Cpu, DeviceApi};

use crate::{Error, GpuLayers};

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
}

impl ChosenDevice {
    /// Opens the device. The CPU of `open_cpu` replaces a GPU that cannot be opened and was not `asked` for by name;
    /// `on_fallback` gets the reason.
    ///
    /// # Errors
    /// If the device cannot be opened.
    #[cfg_attr(not(feature = "wgpu"), expect(unused_variables, reason = "the CPU always opens"))]
    pub fn open(
        self,
        asked: Device,
        open_cpu: impl FnOnce() -> Result<Cpu, stonechat_nn::Error>,
        on_fallback: impl FnOnce(&str),
    ) -> Result<OpenDevice, Error> {
        match self {
            Self::Cpu(_) => Ok(OpenDevice::on_cpu(open_cpu()?)),
            #[cfg(feature = "wgpu")]
            Self::Gpu(adapter) => match pollster::block_on(Wgpu::open(&adapter, None)) {
                Ok(backend) => {
                    let kernels = crate::KernelCache::open(backend.gpu()).map(Arc::new);
                    Ok(OpenDevice { cpu: None, gpu: Some(backend), kernels })
                }
                Err(error) if asked == Device::Auto => {
                    on_fallback(&format!(
                        "`{}` cannot be opened, so the CPU is used: {error}",
                        adapter.name
                    ));
                    Ok(OpenDevice::on_cpu(open_cpu()?))
                }
                Err(error) => Err(error.into()),
            },
        }
    }
}

/// Backend of GPUs.
#[cfg(feature = "wgpu")]
pub type Gpu = Wgpu;

/// Backend of GPUs, which this build has not.
#[cfg(not(feature = "wgpu"))]
pub type Gpu = Cpu;

/// An open device, or a GPU and the CPU. Dropping the last clone saves the compiled kernels of a GPU.
#[derive(Debug, Clone)]
pub struct OpenDevice {
    /// The CPU; beside a GPU, if it has layers of its own.
    pub cpu: Option<Cpu>,
    /// The GPU.
    pub gpu: Option<Gpu>,
    #[cfg(feature = "wgpu")]
    kernels: Option<Arc<crate::KernelCache>>,
}

impl OpenDevice {
    /// The CPU alone.
    #[must_use]
    pub fn on_cpu(cpu: Cpu) -> Self {
        Self {
            cpu: Some(cpu),
            gpu: None,
            #[cfg(feature = "wgpu")]
            kernels: None,
        }
    }

    /// Saves the kernels compiled so far: a program may end without dropping the device.
    pub fn save_kernels(&self) {
        #[cfg(feature = "wgpu")]
        if let Some(kernels) = &self.kernels {
            kernels.save();
        }
    }

    /// Name and bytes of memory of the GPU; [`None`] without a GPU, or of an unknown size.
    #[must_use]
    pub fn gpu_memory(&self) -> Option<(String, Option<u64>)> {
        self.gpu.as_ref().map(|gpu| (gpu.describe(), gpu.total_memory_bytes()))
    }

    /// Loads a speech model on the GPU, if there is one, else on the CPU.
    ///
    /// # Errors
    /// If the model cannot be loaded or the device is out of memory.
    ///
    /// # Panics
    /// If neither is open.
    pub fn load_speech_model(
        &self,
        file: &ModelFile,
        on_progress: impl FnMut(f32),
    ) -> Result<stonechat_whisper::Model, Error> {
        if let Some(gpu) = &self.gpu {
            return Ok(stonechat_whisper::Model::load(gpu.clone(), file, on_progress)?);
        }
        let cpu = self.cpu.clone().expect("the CPU without a GPU");
        Ok(stonechat_whisper::Model::load(cpu, file, on_progress)?)
    }

    /// Number of layers of the model in `file` that are on the GPU, the output as one; 0 without a GPU. `beside`: bytes of
    /// other models there.
    ///
    /// # Errors
    /// If the file has no configuration of a supported model.
    pub fn n_gpu_layers(
        &self,
        layers: GpuLayers,
        file: &ModelFile,
        config: &Config,
        options: &StateOptions,
        beside: u64,
    ) -> Result<usize, Error> {
        match &self.gpu {
            Some(gpu) => {
                let gpu = stonechat_nn::Device::from(gpu.clone());
                layers.count(&gpu, file, config, options, beside)
            }
            None => Ok(0),
        }
    }

    /// Loads a language model, its last `n_gpu` layers on the GPU, the others on the CPU of `open_cpu`. A GPU without
    /// layers is closed.
    ///
    /// # Errors
    /// If the model cannot be loaded or a device is out of memory.
    pub fn load_language_model(
        &mut self,
        file: &ModelFile,
        n_gpu: usize,
        open_cpu: impl FnOnce() -> Result<Cpu, stonechat_nn::Error>,
        on_progress: impl FnMut(f32),
    ) -> Result<Model, Error> {
        if let Some(gpu) = self.gpu.take() {
            let n_cpu = GpuLayers::total(&Config::from_file(file)?).saturating_sub(n_gpu);
            if n_cpu == 0 {
                self.gpu = Some(gpu.clone());
                return Ok(Model::load(gpu, file, on_progress)?);
            }
            let cpu = open_cpu()?;
            self.cpu = Some(cpu.clone());
            if n_gpu == 0 {
                #[cfg(feature = "wgpu")]
                drop(self.kernels.take());
                return Ok(Model::load(cpu, file, on_progress)?);
            }
            self.gpu = Some(gpu.clone());
            return Ok(Model::load(Devices::from(cpu).split(n_cpu, gpu), file, on_progress)?);
        }
        let cpu = match &self.cpu {
            Some(cpu) => cpu.clone(),
            None => self.cpu.insert(open_cpu()?).clone(),
        };
        Ok(Model::load(cpu, file, on_progress)?)
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
