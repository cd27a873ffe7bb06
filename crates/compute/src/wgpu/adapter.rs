//! The GPUs of this machine, their capabilities, and the choice of one.

use std::sync::atomic::{AtomicBool, Ordering};

use ::wgpu::{
    Backends, DeviceType, Features, Instance, InstanceDescriptor, InstanceFlags, Limits,
    WgslLanguageFeatures,
};

use super::gpu::Variant;
use super::shader::Dialect;
use crate::{Error, Result};

/// Whether the browser's adapter has subgroups, which wgpu does not see.
static BROWSER_SUBGROUPS: AtomicBool = AtomicBool::new(false);
/// Smallest subgroup that the kernels work with: eight invocations hold a group of q8.
pub(super) const MIN_SUBGROUP: u32 = 8;
/// Smallest subgroup of WebGPU, for browsers that do not tell it.
const MIN_WEB_SUBGROUP: u32 = 4;

/// Shape of cooperative matrices: f16 operands, f32 accumulators, one subgroup each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoopMatrices {
    /// Rows and columns: 8 or 16.
    pub side: u32,
    /// Invocations in a subgroup.
    pub subgroup: u32,
}

/// A GPU that can be opened, see [`Gpu::open`](super::Gpu::open).
#[derive(Debug, Clone)]
pub struct Adapter {
    pub(super) raw: ::wgpu::Adapter,
    /// Position in the list, the `N` of `wgpu:N`.
    pub index: usize,
    /// Name as the driver reports it.
    pub name: String,
    /// API: `vulkan`, `metal`, `dx12` or `webgpu`.
    pub api: &'static str,
    /// `discrete`, `integrated`, `virtual`, `software` or `other`.
    pub kind: &'static str,
    /// Driver and version.
    pub driver: String,
    /// Smallest and largest subgroup, if subgroup operations are supported.
    pub subgroup_sizes: Option<(u32, u32)>,
    /// Whether shaders can use f16 arithmetic.
    pub has_f16: bool,
    /// Shape of cooperative matrices, if the kernels support one of the device's.
    pub matrices: Option<CoopMatrices>,
    /// Largest storage buffer binding; larger weight matrices are split by rows.
    pub max_binding_bytes: u64,
    /// Largest buffer.
    pub max_buffer_bytes: u64,
    /// Workgroup (shared) memory.
    pub workgroup_bytes: u32,
    /// Total device-local memory, shared with other programs; `None` where the API does not report it.
    pub total_memory_bytes: Option<u64>,
    /// Limits to open the device with.
    pub(super) limits: Limits,
    pub(super) dialect: Dialect,
}

impl Adapter {
    /// Whether it is a software rasterizer on the CPU, which [`pick`] takes only by index.
    #[must_use]
    pub fn is_software(&self) -> bool {
        self.kind == "software"
    }

    /// Whether it can run the kernels of a variant.
    #[must_use]
    pub fn supports(&self, variant: Variant) -> bool {
        match variant {
            Variant::Portable => true,
            Variant::Subgroups => self.subgroup_sizes.is_some_and(|(min, _)| min >= MIN_SUBGROUP),
        }
    }

    /// Whether the GPU has its own memory.
    #[must_use]
    pub fn is_discrete(&self) -> bool {
        self.kind == "discrete"
    }

    /// The same adapter with the limits and the WGSL that every browser has, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn as_any_browser(&self) -> Self {
        let limits = Limits::default();
        let dialect = Dialect { has_int8_dot: false, ..self.dialect };
        Self { dialect, matrices: None, ..self.clone() }.with_limits(limits)
    }

    fn with_limits(self, limits: Limits) -> Self {
        Self {
            max_binding_bytes: limits.max_storage_buffer_binding_size,
            max_buffer_bytes: limits.max_buffer_size,
            workgroup_bytes: limits.max_compute_workgroup_storage_size,
            limits,
            ..self
        }
    }

    fn new(index: usize, raw: ::wgpu::Adapter, has_int8_dot: bool) -> Self {
        let (info, limits, features) = (raw.get_info(), raw.limits(), raw.features());
        let is_web = info.backend == ::wgpu::Backend::BrowserWebGpu;
        let has_subgroups = features.contains(Features::SUBGROUP)
            || (is_web && BROWSER_SUBGROUPS.load(Ordering::Relaxed));
        let min_subgroup = if is_web { MIN_WEB_SUBGROUP } else { 1 };
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
                .then_some((info.subgroup_min_size.max(min_subgroup), info.subgroup_max_size)),
            has_f16: features.contains(Features::SHADER_F16),
            matrices: matrices(&raw),
            max_binding_bytes: limits.max_storage_buffer_binding_size,
            max_buffer_bytes: limits.max_buffer_size,
            workgroup_bytes: limits.max_compute_workgroup_storage_size,
            total_memory_bytes: total_memory_bytes(&raw),
            // Browsers may hide the name.
            name: if info.name.is_empty() { "GPU".to_owned() } else { info.name },
            dialect: Dialect { enables_subgroups: is_web, has_int8_dot },
            limits,
            raw,
        }
    }

    /// Preference of [`pick`]; the first of equals wins.
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

/// Largest cooperative matrix shape that the kernels support, if any.
fn matrices(adapter: &::wgpu::Adapter) -> Option<CoopMatrices> {
    use ::wgpu::CooperativeScalarType::{F16, F32};
    let needed = Features::EXPERIMENTAL_COOPERATIVE_MATRIX | Features::SHADER_F16;
    let info = adapter.get_info();
    // Kernels are compiled for a fixed subgroup size.
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
        // A subgroup has at least one invocation per matrix row; tiles of `gemm_coop.wgsl` fit the workgroup memory.
        let is_supported = subgroup.is_power_of_two() && (side..=64).contains(&subgroup);
        let has_memory = adapter.limits().max_compute_workgroup_storage_size >= side * 3072;
        (fits && is_supported && has_memory).then_some(CoopMatrices { side, subgroup })
    })
}

/// Size of the largest device-local heap; Vulkan only.
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

/// `None`: only Vulkan reports the memory of an adapter.
#[cfg(not(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd")))]
fn total_memory_bytes(_: &::wgpu::Adapter) -> Option<u64> {
    None
}

/// Lists every adapter in driver order.
pub async fn adapters() -> Vec<Adapter> {
    let backends = Backends::VULKAN | Backends::METAL | Backends::DX12 | Backends::BROWSER_WEBGPU;
    let instance = Instance::new(InstanceDescriptor {
        backends,
        // No Vulkan validation layers: wgpu validates.
        flags: InstanceFlags::empty(),
        ..InstanceDescriptor::new_without_display_handle()
    });
    let found = instance.enumerate_adapters(backends).await;
    let features = instance.wgsl_language_features();
    let has_int8_dot = features.contains(WgslLanguageFeatures::Packed4x8IntegerDotProduct);
    found.into_iter().enumerate().map(|(i, raw)| Adapter::new(i, raw, has_int8_dot)).collect()
}

/// Picks adapter `index`, or the best hardware adapter.
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

/// Says whether devices of the browser's adapter have subgroups. wgpu neither sees nor requests this feature of WebGPU: the
/// caller has it added to `requestDevice`. Call it before [`adapters`].
#[cfg(target_arch = "wasm32")]
pub fn set_browser_subgroups(are_on: bool) {
    BROWSER_SUBGROUPS.store(are_on, Ordering::Relaxed);
}
