//! Devices by name.

use std::fmt;

use super::gpu_ranks::GpuRanks;

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
    /// The CPU for a model of less than [`Device::AUTO_MIN_BYTES`], else the first discrete GPU. A Whisper model must fit
    /// its memory; a language model stores as many layers on it as fit. NVIDIA GPUs run CUDA kernels, others wgpu kernels.
    /// Falls back to the CPU without such a GPU, or if it cannot be opened; a load that runs out of GPU memory is an error.
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

/// Text that is no value of a [`Device`] or of [`GpuLayers`](crate::GpuLayers).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected}, got `{got}`")]
pub struct ParseError {
    pub(super) expected: &'static str,
    pub(super) got: String,
}

impl Device {
    /// Name of the backend.
    pub(super) fn backend(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Cpu => "cpu",
            Self::Cuda(_) | Self::CudaGroup(_) => "cuda",
            Self::Wgpu(_) => "wgpu",
        }
    }

    /// Indexes of the named GPUs.
    pub(super) fn indexes(self) -> Vec<usize> {
        match self {
            Self::Auto | Self::Cpu => Vec::new(),
            Self::Cuda(index) | Self::Wgpu(index) => index.into_iter().collect(),
            Self::CudaGroup(ranks) => ranks.indexes().collect(),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.backend())?;
        for (i, index) in self.indexes().into_iter().enumerate() {
            write!(f, "{}{index}", if i == 0 { ':' } else { ',' })?;
        }
        Ok(())
    }
}
