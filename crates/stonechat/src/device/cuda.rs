//! NVIDIA GPUs through their driver.

use std::collections::BTreeMap;
use std::future::ready;
use std::sync::Arc;

use bytesize::ByteSize;
use serde_json::json;
use stonechat_compute::cuda::{CudaDevice, Gpu, devices};
use stonechat_nn::{BoxFuture, Cuda, CudaGroup};

use super::gpu::{FoundGpu, GpuApi, GpuInfo, OpenGpu};
use super::gpu_ranks::GpuRanks;
use super::name::Device;
use crate::Error;

const _: () = assert!(GpuRanks::MAX == CudaGroup::MAX_RANKS);

/// This backend.
pub(super) const API: Option<&dyn GpuApi> = Some(&NvidiaGpus);

struct NvidiaGpus;

impl GpuApi for NvidiaGpus {
    fn discrete(&self, needed: u64) -> BoxFuture<'_, Result<Arc<dyn FoundGpu>, String>> {
        Box::pin(ready(discrete(needed)))
    }

    fn best(&self) -> BoxFuture<'_, Result<Arc<dyn FoundGpu>, String>> {
        Box::pin(ready(discrete(0)))
    }

    fn named(&self, device: Device) -> BoxFuture<'_, Result<Arc<dyn FoundGpu>, Error>> {
        Box::pin(ready(named(device)))
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<GpuInfo>, String>> {
        Box::pin(ready(list()))
    }
}

fn discrete(needed: u64) -> Result<Arc<dyn FoundGpu>, String> {
    let all = devices().unwrap_or_default();
    let fits = |gpu: &CudaDevice| has_kernels(gpu) && needed <= gpu.total_memory_bytes;
    match all.into_iter().find(fits) {
        Some(gpu) => Ok(Arc::new(NvidiaGpu::single(gpu))),
        None => Err("no GPU that this build can use".to_owned()),
    }
}

fn named(device: Device) -> Result<Arc<dyn FoundGpu>, Error> {
    let all = devices().map_err(stonechat_nn::Error::from)?;
    let indexes = device.indexes();
    if indexes.is_empty() {
        // A GPU without kernels is refused with the reason when it is opened.
        let best = all.iter().find(|gpu| has_kernels(gpu)).or(all.first());
        let best = best.cloned().ok_or_else(|| no_device(None, &all))?;
        return Ok(Arc::new(NvidiaGpu::single(best)));
    }
    let gpu = |index: usize| all.get(index).cloned().ok_or_else(|| no_device(Some(index), &all));
    let gpus = indexes.into_iter().map(gpu).collect::<Result<_, _>>()?;
    Ok(Arc::new(NvidiaGpu { device, gpus }))
}

fn list() -> Result<Vec<GpuInfo>, String> {
    let all = devices().map_err(|error| match error {
        stonechat_compute::Error::NoCuda { reason } => reason,
        error => error.to_string(),
    })?;
    let info = |gpu| info(gpu, &all).map_err(|error| error.to_string());
    all.iter().map(info).collect()
}

fn has_kernels(gpu: &CudaDevice) -> bool {
    Cuda::kernels(gpu).is_some()
}

fn no_device(index: Option<usize>, all: &[CudaDevice]) -> Error {
    let found = all.iter().map(|gpu| format!("{} (cuda:{})", gpu.name, gpu.index));
    let found = found.collect::<Vec<_>>().join(", ");
    stonechat_nn::Error::from(stonechat_compute::Error::NoAdapter { index, found }).into()
}

fn info(gpu: &CudaDevice, all: &[CudaDevice]) -> stonechat_compute::Result<GpuInfo> {
    let mut peers = Vec::new();
    for other in all.iter().filter(|other| other.index != gpu.index) {
        if gpu.can_access(other)? {
            peers.push(other.index);
        }
    }
    let capability = format!("{}.{}", gpu.capability.0, gpu.capability.1);
    let version = gpu.driver.cuda_version;
    let driver = format!("{}.{}", version / 1000, version % 1000 / 10);
    let target = Cuda::kernels(gpu);
    let launch = gpu.uses_dependent_launch()?;
    let kernels = match target {
        Some(target) => format!("kernels {target}"),
        None => "no kernels: compute capability 7.5 or newer is needed".to_owned(),
    };
    let names = peers.iter().map(|peer| format!("cuda:{peer}")).collect::<Vec<_>>().join(", ");
    let access = if peers.is_empty() { names } else { format!(", peer access to {names}") };
    Ok(GpuInfo {
        index: gpu.index,
        name: gpu.name.clone(),
        identity: format!(
            "compute capability {capability}, {} multiprocessors, driver of CUDA {driver}",
            gpu.n_multiprocessors
        ),
        features: format!(
            "{} of memory, {kernels}, dependent launch {}{access}",
            ByteSize(gpu.total_memory_bytes).display().si(),
            if launch { "on" } else { "off" }
        ),
        json: json!({
            "index": gpu.index,
            "name": gpu.name,
            "compute_capability": capability,
            "multiprocessors": gpu.n_multiprocessors,
            "driver_cuda": driver,
            "total_memory_bytes": gpu.total_memory_bytes,
            "kernels": target,
            "dependent_launch": launch,
            "peers": peers,
        }),
    })
}

/// One GPU, or the GPU of each rank of a group.
#[derive(Debug)]
struct NvidiaGpu {
    device: Device,
    gpus: Vec<CudaDevice>,
}

impl NvidiaGpu {
    fn single(gpu: CudaDevice) -> Self {
        Self { device: Device::Cuda(Some(gpu.index)), gpus: vec![gpu] }
    }

    fn open_now(&self) -> Result<OpenGpu, Error> {
        let device = match self.gpus.as_slice() {
            [gpu] => Cuda::open(gpu)?.into(),
            gpus => CudaGroup::open(gpus)?.into(),
        };
        Ok(OpenGpu { device, kernels: None })
    }
}

impl FoundGpu for NvidiaGpu {
    fn device(&self) -> Device {
        self.device
    }

    fn describe(&self) -> String {
        let names: Vec<&str> = self.gpus.iter().map(|gpu| gpu.name.as_str()).collect();
        names.join(", ")
    }

    fn name(&self) -> &str {
        self.gpus.first().map_or("", |gpu| &gpu.name)
    }

    /// Free bytes of as many GPUs as there are, each with those of the one with the least; total ones of a GPU that cannot be
    /// opened.
    fn memory_bytes(&self) -> Option<u64> {
        let free = |gpu: &CudaDevice| Gpu::open(gpu)?.free_memory_bytes();
        let gpus = self.gpus.iter();
        let bytes: BTreeMap<usize, u64> =
            gpus.map(|gpu| (gpu.index, free(gpu).unwrap_or(gpu.total_memory_bytes))).collect();
        Some(bytes.values().min()? * bytes.len() as u64)
    }

    fn open(&self) -> BoxFuture<'_, Result<OpenGpu, Error>> {
        Box::pin(ready(self.open_now()))
    }
}
