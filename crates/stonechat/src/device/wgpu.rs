//! GPUs through wgpu: Vulkan, Metal, DirectX 12.

mod kernel_cache;

use std::sync::Arc;

use bytesize::ByteSize;
use pollster::block_on;
use serde_json::json;
use stonechat_compute::wgpu::{Adapter, adapters, pick};
use stonechat_nn::Wgpu;

use self::kernel_cache::KernelCache;
use super::gpu::{FoundGpu, GpuApi, GpuInfo, KernelFile, OpenGpu};
use super::name::Device;
use crate::Error;

/// This backend.
pub(super) const API: Option<&dyn GpuApi> = Some(&Adapters);

struct Adapters;

impl GpuApi for Adapters {
    fn discrete(&self, needed: u64) -> Result<Arc<dyn FoundGpu>, String> {
        let mut all = block_on(adapters());
        all.retain(Adapter::is_discrete);
        if all.is_empty() {
            return Err("no discrete GPU".to_owned());
        }
        let fits = |gpu: &Adapter| gpu.total_memory_bytes.is_none_or(|total| needed <= total);
        match all.into_iter().find(fits) {
            Some(adapter) => Ok(Arc::new(adapter)),
            None => Err("the weights do not fit the memory of a GPU".to_owned()),
        }
    }

    fn best(&self) -> Result<Arc<dyn FoundGpu>, String> {
        self.named(Device::Wgpu(None)).map_err(|error| error.to_string())
    }

    fn named(&self, device: Device) -> Result<Arc<dyn FoundGpu>, Error> {
        let all = block_on(adapters());
        let index = device.indexes().first().copied();
        let adapter = pick(&all, index).map_err(stonechat_nn::Error::from)?;
        Ok(Arc::new(adapter.clone()))
    }

    fn list(&self) -> Result<Vec<GpuInfo>, String> {
        let all = block_on(adapters());
        if all.is_empty() {
            return Err("no Vulkan, Metal or DirectX 12 adapter".to_owned());
        }
        Ok(all.iter().map(info).collect())
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

    fn open(&self) -> Result<OpenGpu, Error> {
        let device = block_on(Wgpu::open(self, None))?;
        let kernels = KernelCache::open(device.gpu());
        let kernels = kernels.map(|kernels| Arc::new(kernels) as Arc<dyn KernelFile>);
        Ok(OpenGpu { device: device.into(), kernels })
    }
}
