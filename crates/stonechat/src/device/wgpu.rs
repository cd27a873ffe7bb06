//! GPUs through wgpu: Vulkan, Metal, DirectX 12, WebGPU.

#[cfg(not(target_arch = "wasm32"))]
mod kernel_cache;

use std::sync::Arc;

use bytesize::ByteSize;
use serde_json::json;
use stonechat_compute::wgpu::{Adapter, adapters, pick};
use stonechat_nn::{BoxFuture, Wgpu};

use super::gpu::{FoundGpu, GpuApi, GpuInfo, KernelFile, OpenGpu};
use super::name::Device;
use crate::Error;

/// This backend.
pub(super) const API: Option<&dyn GpuApi> = Some(&Adapters);

struct Adapters;

impl GpuApi for Adapters {
    fn discrete(&self, needed: u64) -> BoxFuture<'_, Result<Arc<dyn FoundGpu>, String>> {
        Box::pin(async move {
            let mut all = adapters().await;
            all.retain(Adapter::is_discrete);
            if all.is_empty() {
                return Err("no discrete GPU".to_owned());
            }
            let fits = |gpu: &Adapter| gpu.total_memory_bytes.is_none_or(|total| needed <= total);
            match all.into_iter().find(fits) {
                Some(adapter) => Ok(Arc::new(adapter) as _),
                None => Err("the weights do not fit the memory of a GPU".to_owned()),
            }
        })
    }

    fn best(&self) -> BoxFuture<'_, Result<Arc<dyn FoundGpu>, String>> {
        Box::pin(async { self.named(Device::Wgpu(None)).await.map_err(|error| error.to_string()) })
    }

    fn named(&self, device: Device) -> BoxFuture<'_, Result<Arc<dyn FoundGpu>, Error>> {
        Box::pin(async move {
            let all = adapters().await;
            let index = device.indexes().first().copied();
            let adapter = pick(&all, index).map_err(stonechat_nn::Error::from)?;
            Ok(Arc::new(adapter.clone()) as _)
        })
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<GpuInfo>, String>> {
        Box::pin(async {
            let all = adapters().await;
            if all.is_empty() {
                return Err("no Vulkan, Metal, DirectX 12 or WebGPU adapter".to_owned());
            }
            Ok(all.iter().map(info).collect())
        })
    }
}

fn info(adapter: &Adapter) -> GpuInfo {
    let Adapter { index, name, api, kind, driver, .. } = adapter;
    let subgroups = match adapter.subgroup_sizes {
        Some((least, most)) if least == most => format!("subgroups of {least}"),
        Some((least, most)) => format!("subgroups of {least} to {most}"),
        None => "no subgroups".to_owned(),
    };
    let f16 = if adapter.has_f16 { "f16" } else { "no f16" };
    let side = adapter.matrices.map(|matrices| matrices.side);
    let matrices = match side {
        Some(side) => format!("cooperative matrices of {side}x{side}"),
        None => "no cooperative matrices".to_owned(),
    };
    let memory = match adapter.total_memory_bytes {
        Some(bytes) => format!("{} of memory", ByteSize(bytes).display().si()),
        None => "memory of unknown size".to_owned(),
    };
    let binding = ByteSize(adapter.max_binding_bytes).display().si();
    GpuInfo {
        index: *index,
        name: name.clone(),
        identity: format!("{api}, {kind}, {driver}"),
        features: format!("{subgroups}, {f16}, {matrices}, {memory}, buffers of at most {binding}"),
        json: json!({
            "index": index,
            "name": name,
            "api": api,
            "kind": kind,
            "driver": driver,
            "subgroup_sizes": adapter.subgroup_sizes,
            "f16": adapter.has_f16,
            "matrices": side,
            "max_binding_bytes": adapter.max_binding_bytes,
            "max_buffer_bytes": adapter.max_buffer_bytes,
            "workgroup_bytes": adapter.workgroup_bytes,
            "total_memory_bytes": adapter.total_memory_bytes,
        }),
    }
}

impl FoundGpu for Adapter {
    fn device(&self) -> Device {
        Device::Wgpu(Some(self.index))
    }

    fn describe(&self) -> String {
        format!("{} ({}, {})", self.name, self.api, self.kind)
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn memory_bytes(&self) -> Option<u64> {
        self.total_memory_bytes
    }

    fn open(&self) -> BoxFuture<'_, Result<OpenGpu, Error>> {
        Box::pin(async {
            let device = Wgpu::open(self, None).await?;
            let kernels = kernel_file(&device);
            Ok(OpenGpu { device: device.into(), kernels })
        })
    }
}

/// Cache of the kernels of an open GPU.
#[cfg(not(target_arch = "wasm32"))]
fn kernel_file(device: &Wgpu) -> Option<Arc<dyn KernelFile>> {
    let kernels = kernel_cache::KernelCache::open(device.gpu())?;
    Some(Arc::new(kernels))
}

/// Browsers keep compiled kernels themselves.
#[cfg(target_arch = "wasm32")]
fn kernel_file(_: &Wgpu) -> Option<Arc<dyn KernelFile>> {
    None
}
