//! The GPUs of this machine: what they can do and which one to use.

use ::wgpu::{Backends, DeviceType, Features, Instance, InstanceDescriptor, InstanceFlags};

use crate::{Error, Result};

/// Cooperative matrices of f16 whose products the invocations of a subgroup add up in f32 together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Matrices {
    /// Rows, which are as many as columns: 8 or 16.
    pub side: u32,
    /// Invocations of every subgroup.
    pub subgroup: u32,
}

/// A GPU that can be opened, see [`Gpu::open`](super::Gpu::open).
#[derive(Debug, Clone)]
pub struct Adapter {
    pub(super) raw: ::wgpu::Adapter,
    /// Position in the list, the `N` of `wgpu:N`.
    pub index: usize,
    /// The adapter's own name.
    pub name: String,
    /// What drives it: `vulkan`, `metal`, `dx12` or `webgpu`.
    pub api: &'static str,
    /// `discrete`, `integrated`, `virtual`, `software` or `other`.
    pub kind: &'static str,
    /// Driver and version.
    pub driver: String,
    /// Smallest and largest subgroup, if kernels can use them.
    pub subgroup_sizes: Option<(u32, u32)>,
    /// Whether shaders can compute in f16.
    pub has_f16: bool,
    /// Cooperative matrices, if kernels can use them.
    pub matrices: Option<Matrices>,
    /// Largest buffer that a kernel can see; larger matrices are split.
    pub max_binding_bytes: u64,
    /// Largest buffer.
    pub max_buffer_bytes: u64,
    /// Memory that the invocations of a workgroup share.
    pub workgroup_bytes: u32,
    /// The device's own memory, which other programs may use, too; none where the API does not say.
    pub total_memory_bytes: Option<u64>,
}

impl Adapter {
    /// Whether it is a processor that plays a GPU, never picked unasked.
    #[must_use]
    pub fn is_software(&self) -> bool {
        self.kind == "software"
    }

    fn new(index: usize, raw: ::wgpu::Adapter) -> Self {
        let (info, limits, features) = (raw.get_info(), raw.limits(), raw.features());
        let has_subgroups = features.contains(Features::SUBGROUP);
        Self {
            index,
            api: match info.backend {
                ::wgpu::Backend::Vulkan => "vulkan",
                ::wgpu::Backend::Metal => "metal",
                ::wgpu::Backend::Dx12 => "dx12",
                ::wgpu::Backend::BrowserWebGpu => "webgpu",
                ::wgpu::Backend::Gl => "gl",
                ::wgpu::Backend::Noop => "none",
            },
            kind: match info.device_type {
                DeviceType::DiscreteGpu => "discrete",
                DeviceType::IntegratedGpu => "integrated",
                DeviceType::VirtualGpu => "virtual",
                DeviceType::Cpu => "software",
                DeviceType::Other => "other",
            },
            driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
            subgroup_sizes: has_subgroups
                .then_some((info.subgroup_min_size, info.subgroup_max_size)),
            has_f16: features.contains(Features::SHADER_F16),
            matrices: matrices(&raw),
            max_binding_bytes: limits.max_storage_buffer_binding_size,
            max_buffer_bytes: limits.max_buffer_size,
            workgroup_bytes: limits.max_compute_workgroup_storage_size,
            total_memory_bytes: total_memory_bytes(&raw),
            name: info.name,
            raw,
        }
    }

    /// How much it is worth to have; the first of equals is taken.
    fn rank(&self) -> u32 {
        match self.kind {
            "discrete" => 4,
            "integrated" => 3,
            "virtual" => 2,
            "software" => 0,
            _ => 1,
        }
    }
}

/// The largest cooperative matrices that kernels are written for.
fn matrices(adapter: &::wgpu::Adapter) -> Option<Matrices> {
    use ::wgpu::CooperativeScalarType::{F16, F32};
    let needed = Features::EXPERIMENTAL_COOPERATIVE_MATRIX | Features::SHADER_F16;
    let info = adapter.get_info();
    // Kernels are made for one size of subgroups.
    if !adapter.features().contains(needed | Features::SUBGROUP)
        || info.subgroup_min_size != info.subgroup_max_size
    {
        return None;
    }
    let subgroup = info.subgroup_max_size;
    let all = adapter.cooperative_matrix_properties();
    [16, 8].into_iter().find_map(|side| {
        let fits = all.iter().any(|m| {
            [m.m_size, m.n_size, m.k_size] == [side; 3] && (m.ab_type, m.cr_type) == (F16, F32)
        });
        // A row of a matrix has an invocation, and all of them fit the tiles.
        let is_whole = subgroup.is_power_of_two() && (side..=64).contains(&subgroup);
        let is_roomy = adapter.limits().max_compute_workgroup_storage_size >= side * 3072;
        (fits && is_whole && is_roomy).then_some(Matrices { side, subgroup })
    })
}

/// Size of the largest heap that is the device's own, under Vulkan.
#[cfg(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd"))]
fn total_memory_bytes(adapter: &::wgpu::Adapter) -> Option<u64> {
    const DEVICE_LOCAL: u32 = 1;
    // SAFETY: nothing is destroyed: the guard is dropped at the end of this function, and the adapter outlives it.
    let raw = unsafe { adapter.as_hal::<::wgpu::hal::api::Vulkan>() }?;
    let instance = raw.shared_instance().raw_instance();
    // SAFETY: the device is one of this instance, which `raw` keeps.
    let memory =
        unsafe { instance.get_physical_device_memory_properties(raw.raw_physical_device()) };
    let heaps = memory.memory_heaps_as_slice().iter();
    heaps.filter(|heap| heap.flags.as_raw() & DEVICE_LOCAL != 0).map(|heap| heap.size).max()
}

/// Unknown: only Vulkan is asked.
#[cfg(not(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd")))]
fn total_memory_bytes(_: &::wgpu::Adapter) -> Option<u64> {
    None
}

/// Every adapter, in the order in which the drivers list them.
pub async fn adapters() -> Vec<Adapter> {
    let backends = Backends::VULKAN | Backends::METAL | Backends::DX12 | Backends::BROWSER_WEBGPU;
    let instance = Instance::new(InstanceDescriptor {
        backends,
        // Validation layers of Vulkan are for those who write drivers; wgpu validates by itself.
        flags: InstanceFlags::empty(),
        ..InstanceDescriptor::new_without_display_handle()
    });
    let found = instance.enumerate_adapters(backends).await;
    found.into_iter().enumerate().map(|(i, raw)| Adapter::new(i, raw)).collect()
}

/// Adapter `index`, or the best one that is real hardware.
///
/// # Errors
/// [`Error::NoAdapter`].
pub fn pick(adapters: &[Adapter], index: Option<usize>) -> Result<&Adapter> {
    let listed = || {
        let names =
            adapters.iter().map(|a| format!("{} {} ({}, {})", a.index, a.name, a.api, a.kind));
        names.collect::<Vec<_>>().join(", ")
    };
    match index {
        Some(index) => adapters.iter().find(|adapter| adapter.index == index),
        None => {
            let hardware = adapters.iter().filter(|adapter| !adapter.is_software());
            hardware.rev().max_by_key(|adapter| adapter.rank())
        }
    }
    .ok_or_else(|| Error::NoAdapter { index, found: listed() })
}
