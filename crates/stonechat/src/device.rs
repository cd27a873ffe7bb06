//! Device of a model: by name, or chosen. Programs that load models themselves open it here.

#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;
#[cfg(feature = "wgpu")]
use std::sync::Arc;

#[cfg(feature = "cuda")]
use stonechat_compute::cuda::CudaDevice;
#[cfg(feature = "wgpu")]
use stonechat_compute::wgpu::Adapter;
use stonechat_formats::ModelFile;
use stonechat_llm::{Config, Devices, Model, StateOptions};
use stonechat_nn::Cpu;
#[cfg(feature = "wgpu")]
use stonechat_nn::Wgpu;
#[cfg(feature = "cuda")]
use stonechat_nn::{Cuda, CudaGroup};

pub use crate::gpu_ranks::GpuRanks;
#[cfg(feature = "wgpu")]
pub use crate::kernel_cache::KernelCache;
use crate::{Error, GpuLayers};

/// Device of a model, by the names of `stonechat --device`: `auto`, `cpu`, `cuda`, `cuda:N`, `cuda:N,N,...`, `wgpu` and
/// `wgpu:N`.
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
    /// its memory, of a language model as many layers as fit. NVIDIA GPUs run CUDA kernels, the others those of wgpu. The
    /// CPU without such a GPU, or if it cannot be opened; a load that runs out of GPU memory is an error.
    ///
    /// Integrated GPUs share the CPU's memory bandwidth, which limits decoding; they are used by name only.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The NVIDIA GPU of this index in `stonechat devices`, through CUDA; `None`: the first with compiled kernels.
    Cuda(Option<usize>),
    /// NVIDIA GPUs that compute each layer together (tensor parallelism), through CUDA.
    CudaGroup(GpuRanks),
    /// The GPU of this index in `stonechat devices`, through Vulkan, Metal or DirectX 12; `None`: the best hardware GPU.
    Wgpu(Option<usize>),
}

/// Text that is no value of a [`Device`] or of [`GpuLayers`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected}, got `{got}`")]
pub struct ParseError {
    pub(crate) expected: &'static str,
    pub(crate) got: String,
}

impl FromStr for Device {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let expected = "auto, cpu, cuda, cuda:N, cuda:N,N,..., wgpu or wgpu:N";
        let wrong = || ParseError { expected, got: text.to_owned() };
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(None)),
            "wgpu" => Ok(Self::Wgpu(None)),
            _ => {
                let (api, index) = text.split_once(':').ok_or_else(wrong)?;
                if let ("cuda", Ok(ranks)) = (api, index.parse()) {
                    return Ok(Self::CudaGroup(ranks));
                }
                let index = Some(index.parse().map_err(|_| wrong())?);
                match api {
                    "cuda" => Ok(Self::Cuda(index)),
                    "wgpu" => Ok(Self::Wgpu(index)),
                    _ => Err(wrong()),
                }
            }
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(None) => f.write_str("cuda"),
            Self::Cuda(Some(index)) => write!(f, "cuda:{index}"),
            Self::CudaGroup(ranks) => write!(f, "cuda:{ranks}"),
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

impl DeviceNeeds {
    /// Bytes of weights that a GPU must hold.
    fn gpu_bytes(self) -> u64 {
        if self.can_split { 0 } else { self.weight_bytes }
    }
}

/// Result of [`Device::choose`]. `Display`: the device, or the reason for the CPU.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ChosenDevice {
    /// The CPU; with the reason, if [`Device::Auto`] chose it.
    Cpu(Option<&'static str>),
    /// An NVIDIA GPU, through CUDA.
    #[cfg(feature = "cuda")]
    Cuda {
        /// The GPU.
        device: CudaDevice,
        /// Memory for a GPU that replaces it, if it cannot be opened.
        needs: DeviceNeeds,
    },
    /// NVIDIA GPUs that compute each layer together.
    #[cfg(feature = "cuda")]
    CudaGroup {
        /// Their indexes.
        ranks: GpuRanks,
        /// The GPU of each rank.
        devices: Vec<CudaDevice>,
    },
    /// A GPU, through wgpu.
    #[cfg(feature = "wgpu")]
    Gpu(Adapter),
}

impl fmt::Display for ChosenDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu(None) => f.write_str("device cpu"),
            Self::Cpu(Some(reason)) => write!(f, "device cpu: {reason}"),
            #[cfg(feature = "cuda")]
            Self::Cuda { device: CudaDevice { index, name, .. }, .. } => {
                write!(f, "device cuda:{index}: {name}")
            }
            #[cfg(feature = "cuda")]
            Self::CudaGroup { ranks, devices } => {
                let names = devices.iter().map(|device| device.name.as_str());
                write!(f, "device cuda:{ranks}: {}", names.collect::<Vec<_>>().join(", "))
            }
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

    /// A GPU of any kind, integrated ones included: of NVIDIA where there is one with compiled kernels, else the best through
    /// wgpu.
    #[must_use]
    pub fn any_gpu() -> Self {
        if cuda::is_present() { Self::Cuda(None) } else { Self::Wgpu(None) }
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
            Self::Auto => {
                cuda::discrete(needs).unwrap_or_else(|| wgpu::discrete(needs.gpu_bytes()))
            }
            Self::Cuda(index) => cuda::named(index, needs)?,
            Self::CudaGroup(ranks) => cuda::group(ranks)?,
            Self::Wgpu(index) => wgpu::named(index)?,
        })
    }
}

impl ChosenDevice {
    /// Bytes of the GPU for models: those that no program uses, less a reserve. wgpu does not tell how many are in use: all of
    /// them, less the reserve. `None` for the CPU, and for a GPU of an unknown size.
    #[must_use]
    pub fn memory_for_models(&self) -> Option<u64> {
        let bytes: u64 = match self {
            Self::Cpu(_) => return None,
            #[cfg(feature = "cuda")]
            Self::Cuda { device, .. } => crate::gpu_memory::free_bytes([device])?,
            #[cfg(feature = "cuda")]
            Self::CudaGroup { devices, .. } => crate::gpu_memory::free_bytes(devices)?,
            #[cfg(feature = "wgpu")]
            Self::Gpu(adapter) => adapter.total_memory_bytes?,
        };
        Some(bytes.saturating_sub(RESERVED_BYTES))
    }

    /// The device by its name.
    #[must_use]
    pub fn device(&self) -> Device {
        match self {
            Self::Cpu(_) => Device::Cpu,
            #[cfg(feature = "cuda")]
            Self::Cuda { device, .. } => Device::Cuda(Some(device.index)),
            #[cfg(feature = "cuda")]
            Self::CudaGroup { ranks, .. } => Device::CudaGroup(*ranks),
            #[cfg(feature = "wgpu")]
            Self::Gpu(adapter) => Device::Wgpu(Some(adapter.index)),
        }
    }

    /// Opens the device. A GPU that cannot be opened and was not `asked` for by name is replaced: an NVIDIA GPU by one through
    /// wgpu, that by the CPU of `open_cpu`; `on_fallback` gets the reason.
    ///
    /// # Errors
    /// If the device cannot be opened.
    #[cfg_attr(
        not(any(feature = "cuda", feature = "wgpu")),
        expect(unused_variables, unused_mut, reason = "the CPU always opens")
    )]
    pub fn open(
        self,
        asked: Device,
        open_cpu: impl FnOnce() -> Result<Cpu, stonechat_nn::Error>,
        mut on_fallback: impl FnMut(&str),
    ) -> Result<OpenDevice, Error> {
        match self {
            Self::Cpu(_) => Ok(OpenDevice::on_cpu(open_cpu()?)),
            #[cfg(feature = "cuda")]
            Self::Cuda { device, needs } => match Cuda::open(&device) {
                Ok(backend) if asked == Device::Auto && !has_room(&backend, needs) => {
                    on_fallback(&format!(
                        "the weights do not fit the free memory of `{}`, so the CPU is used",
                        device.name
                    ));
                    Ok(OpenDevice::on_cpu(open_cpu()?))
                }
                Ok(backend) => Ok(OpenDevice::on_gpu(backend)),
                Err(error) if asked == Device::Auto => {
                    let next = wgpu::discrete(needs.gpu_bytes());
                    on_fallback(&format!(
                        "`{}` cannot be opened through CUDA, so {} is used: {error}",
                        device.name,
                        next.device()
                    ));
                    next.open(asked, open_cpu, on_fallback)
                }
                Err(error) => Err(error.into()),
            },
            #[cfg(feature = "cuda")]
            Self::CudaGroup { devices, .. } => Ok(OpenDevice::on_gpu(CudaGroup::open(&devices)?)),
            #[cfg(feature = "wgpu")]
            Self::Gpu(adapter) => match pollster::block_on(Wgpu::open(&adapter, None)) {
                Ok(backend) => {
                    let kernels = KernelCache::open(backend.gpu()).map(Arc::new);
                    Ok(OpenDevice { kernels, ..OpenDevice::on_gpu(backend) })
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

/// Whether a GPU has free memory for the weights that it must hold.
#[cfg(feature = "cuda")]
fn has_room(gpu: &Cuda, needs: DeviceNeeds) -> bool {
    let needed = needs.gpu_bytes().saturating_add(RESERVED_BYTES);
    needs.can_split || gpu.gpu().free_memory_bytes().is_ok_and(|free| needed <= free)
}

/// An open device, or a GPU and the CPU. Dropping the last clone saves the kernels that wgpu compiled.
#[derive(Debug, Clone)]
pub struct OpenDevice {
    /// The CPU; beside a GPU, if it has layers of its own.
    pub cpu: Option<Cpu>,
    /// The GPU.
    pub gpu: Option<stonechat_nn::Device>,
    /// Of a GPU through wgpu.
    #[cfg(feature = "wgpu")]
    kernels: Option<Arc<KernelCache>>,
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

    /// A GPU alone.
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    fn on_gpu(gpu: impl Into<stonechat_nn::Device>) -> Self {
        Self {
            cpu: None,
            gpu: Some(gpu.into()),
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

    /// Name of the GPU, and bytes of its free memory, or of all of one that tells no more; [`None`] without a GPU, or of an
    /// unknown size.
    #[must_use]
    pub fn gpu_memory(&self) -> Option<(String, Option<u64>)> {
        let bytes = |gpu: &stonechat_nn::Device| {
            gpu.free_memory_bytes().or_else(|| gpu.total_memory_bytes())
        };
        self.gpu.as_ref().map(|gpu| (gpu.describe(), bytes(gpu)))
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
            Some(gpu) => layers.count(gpu, file, config, options, beside),
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

/// Whether a GPU driver has a device file: the drivers are loaded for nothing otherwise.
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

/// NVIDIA GPUs through their driver.
#[cfg(feature = "cuda")]
mod cuda {
    use stonechat_compute::cuda::{CudaDevice, devices};
    use stonechat_nn::{Cuda, CudaGroup};

    use super::{ChosenDevice, DeviceNeeds, RESERVED_BYTES};
    use crate::Error;
    use crate::device::GpuRanks;

    const _: () = assert!(GpuRanks::MAX == CudaGroup::MAX_RANKS);

    fn has_kernels(device: &CudaDevice) -> bool {
        Cuda::kernels(device).is_some()
    }

    /// Whether there is a GPU with compiled kernels.
    pub(super) fn is_present() -> bool {
        devices().is_ok_and(|all| all.iter().any(has_kernels))
    }

    /// The first GPU with compiled kernels and enough memory.
    pub(super) fn discrete(needs: DeviceNeeds) -> Option<ChosenDevice> {
        let needed = needs.gpu_bytes().saturating_add(RESERVED_BYTES);
        let mut all = devices().ok()?.into_iter();
        let device = all.find(|gpu| has_kernels(gpu) && needed <= gpu.total_memory_bytes)?;
        Some(ChosenDevice::Cuda { device, needs })
    }

    pub(super) fn named(index: Option<usize>, needs: DeviceNeeds) -> Result<ChosenDevice, Error> {
        let all = devices().map_err(stonechat_nn::Error::from)?;
        let device = match index {
            Some(index) => all.get(index),
            // One without kernels is refused with the reason when it is opened.
            None => all.iter().find(|device| has_kernels(device)).or(all.first()),
        };
        let device = device.cloned().ok_or_else(|| no_device(index, &all))?;
        Ok(ChosenDevice::Cuda { device, needs })
    }

    pub(super) fn group(ranks: GpuRanks) -> Result<ChosenDevice, Error> {
        let all = devices().map_err(stonechat_nn::Error::from)?;
        let device = |index| all.get(index).cloned().ok_or_else(|| no_device(Some(index), &all));
        let devices = ranks.indexes().map(device).collect::<Result<_, _>>()?;
        Ok(ChosenDevice::CudaGroup { ranks, devices })
    }

    fn no_device(index: Option<usize>, all: &[CudaDevice]) -> Error {
        let found = all.iter().map(|device| format!("{} (cuda:{})", device.name, device.index));
        let found = found.collect::<Vec<_>>().join(", ");
        stonechat_nn::Error::from(stonechat_compute::Error::NoAdapter { index, found }).into()
    }
}

/// A build without the feature `cuda`.
#[cfg(not(feature = "cuda"))]
mod cuda {
    use super::{ChosenDevice, DeviceNeeds};
    use crate::Error;
    use crate::device::GpuRanks;

    pub(super) fn is_present() -> bool {
        false
    }

    pub(super) fn discrete(_: DeviceNeeds) -> Option<ChosenDevice> {
        None
    }

    pub(super) fn named(_: Option<usize>, _: DeviceNeeds) -> Result<ChosenDevice, Error> {
        Err(Error::NoGpuSupport { feature: "cuda" })
    }

    pub(super) fn group(_: GpuRanks) -> Result<ChosenDevice, Error> {
        Err(Error::NoGpuSupport { feature: "cuda" })
    }
}

/// GPUs through wgpu.
#[cfg(feature = "wgpu")]
mod wgpu {
    use stonechat_compute::wgpu::{Adapter, adapters, pick};

    use super::{ChosenDevice, RESERVED_BYTES};
    use crate::Error;

    /// The first discrete GPU whose memory has room for this many bytes, else the CPU with the reason.
    pub(super) fn discrete(bytes: u64) -> ChosenDevice {
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
}

/// A build without the feature `wgpu`.
#[cfg(not(feature = "wgpu"))]
mod wgpu {
    use super::ChosenDevice;
    use crate::Error;

    pub(super) fn discrete(_: u64) -> ChosenDevice {
        ChosenDevice::Cpu(Some("no GPU that this build can use"))
    }

    pub(super) fn named(_: Option<usize>) -> Result<ChosenDevice, Error> {
        Err(Error::NoGpuSupport { feature: "wgpu" })
    }
}
