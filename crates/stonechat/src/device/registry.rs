//! Table of the GPU backends.

#[cfg(not(feature = "cuda"))]
use std::option::Option::None as CUDA;
#[cfg(not(feature = "wgpu"))]
use std::option::Option::None as WGPU;
use std::str::FromStr;

#[cfg(feature = "cuda")]
use super::cuda::API as CUDA;
use super::gpu::{GpuApi, GpuInfo};
use super::name::{Device, ParseError};
#[cfg(feature = "wgpu")]
use super::wgpu::API as WGPU;
use crate::Error;

/// GPU backend.
pub(super) struct Backend {
    /// Name in [`Device`], also that of its feature.
    name: &'static str,
    /// Device of an index.
    pub(super) device: fn(Option<usize>) -> Device,
    /// `None` in a build without the feature.
    pub(super) api: Option<&'static dyn GpuApi>,
}

/// Backends in the order in which [`Device::Auto`] tries them.
pub(super) static BACKENDS: [Backend; 2] = [
    Backend { name: "cuda", device: Device::Cuda, api: CUDA },
    Backend { name: "wgpu", device: Device::Wgpu, api: WGPU },
];

/// Names of devices.
const NAMES: &str = "auto, cpu, cuda, cuda:N, cuda:N,N,..., wgpu or wgpu:N";

impl FromStr for Device {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let wrong = || ParseError { expected: NAMES, got: text.to_owned() };
        let (name, index) = match text.split_once(':') {
            Some((name, index)) => (name, Some(index)),
            None => (text, None),
        };
        if let ("cuda", Some(Ok(ranks))) = (name, index.map(str::parse)) {
            return Ok(Self::CudaGroup(ranks));
        }
        let index = index.map(str::parse).transpose().map_err(|_| wrong())?;
        match (name, index) {
            ("auto", None) => Ok(Self::Auto),
            ("cpu", None) => Ok(Self::Cpu),
            _ => {
                let backend = BACKENDS.iter().find(|backend| backend.name == name);
                backend.map(|backend| (backend.device)(index)).ok_or_else(wrong)
            }
        }
    }
}

/// API of a GPU.
pub(super) fn api(device: Device) -> Result<&'static dyn GpuApi, Error> {
    let feature = device.backend();
    let backend = BACKENDS.iter().find(|backend| backend.name == feature);
    backend.and_then(|backend| backend.api).ok_or(Error::NoGpuSupport { feature })
}

/// Backends that [`Device::Auto`] tries after the backend of `device`.
pub(super) fn after(device: Device) -> &'static [Backend] {
    let at = BACKENDS.iter().position(|backend| backend.name == device.backend());
    &BACKENDS[at.map_or(0, |at| at + 1)..]
}

/// GPUs of a backend, as `stonechat devices` lists them.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct GpuList {
    /// Name of the backend in [`Device`].
    pub backend: &'static str,
    /// GPUs of the backend; the reason if none can be listed.
    pub gpus: Result<Vec<GpuInfo>, String>,
}

/// Lists the GPUs of every backend, also of those that are not in this build.
#[cfg(not(target_arch = "wasm32"))]
#[must_use]
pub fn list_gpus() -> Vec<GpuList> {
    pollster::block_on(list_gpus_async())
}

/// As `list_gpus`, without blocking.
pub async fn list_gpus_async() -> Vec<GpuList> {
    let mut lists = Vec::new();
    for &Backend { name, api, .. } in &BACKENDS {
        let gpus = match api {
            Some(api) => api.list().await,
            None => Err(format!("not in this build (feature `{name}`)")),
        };
        lists.push(GpuList { backend: name, gpus });
    }
    lists
}
