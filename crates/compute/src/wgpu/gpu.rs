//! An open device: compiled kernels, scratch memory, faults.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use web_time::Instant;

use super::adapter::{Adapter, CoopMatrices, MIN_SUBGROUP};
use super::buffer::GpuBuffer;
use super::counters::{AtomicCounters, Counters, count};
use super::memory::Memory;
use super::shader::{Access, Kernel, PARAM_BYTES, Source};
use crate::kernel_times::Profile;
use crate::{Error, Result};

/// Id of the first buffer of a device; smaller ones stand for no buffer.
pub(super) const FIRST_BUFFER_ID: u64 = 2;

/// Longest time that a read polls the device instead of blocking, and only if the last read took less: a core that
/// slept wakes late and at a low clock.
const SPIN_TIME: Duration = Duration::from_millis(5);

/// Implementation of workgroup reductions and shuffles in the kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// Workgroup memory and barriers, on every adapter.
    Portable,
    /// Subgroup operations.
    Subgroups,
}

impl Variant {
    /// Every variant, the fastest last.
    pub const ALL: &[Self] = &[Self::Portable, Self::Subgroups];

    /// Name in kernel names and logs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Subgroups => "subgroups",
        }
    }
}

/// Cache key of a compiled kernel: op and up to four numbers.
pub type KernelKey = (&'static str, [u32; 4]);

/// An open device. Clones share it.
#[derive(Debug, Clone)]
pub struct Gpu {
    pub(super) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) device: ::wgpu::Device,
    pub(super) queue: ::wgpu::Queue,
    pub(super) limits: ::wgpu::Limits,
    adapter: Adapter,
    variant: Variant,
    matrices: Option<CoopMatrices>,
    /// Alignment of the parameters of a dispatch.
    pub(super) param_align: usize,
    pub(super) counters: AtomicCounters,
    pub(super) profile: Profile,
    kernels: Mutex<HashMap<KernelKey, Arc<Kernel>>>,
    /// The driver's pipeline cache, see `kernel_cache`.
    pub(super) kernel_cache: OnceLock<::wgpu::PipelineCache>,
    layouts: Mutex<HashMap<&'static [Access], ::wgpu::BindGroupLayout>>,
    /// Free buffers that the host maps.
    pub(super) readbacks: Mutex<Vec<GpuBuffer>>,
    pub(super) memory: Arc<Memory>,
    next_id: AtomicU64,
    /// Largest buffer of weights.
    max_binding_bytes: AtomicUsize,
    /// Bytes of weights uploaded since the last wait.
    pub(super) in_flight_bytes: AtomicUsize,
    /// Whether the last read took less than [`SPIN_TIME`].
    last_read_was_short: AtomicBool,
    /// Whether reads may poll: hardware device, more than one core, no browser.
    can_spin: bool,
    faults: Arc<Faults>,
}

/// Errors reported by the device's callbacks.
#[derive(Debug, Default)]
struct Faults {
    /// First error since the last check.
    message: Mutex<Option<String>>,
    /// Reason of the device loss.
    lost: Mutex<Option<String>>,
}

impl Faults {
    fn report(&self, message: String) {
        lock(&self.message).get_or_insert(message);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// In browsers, a device that is only dropped lives until the garbage collector runs.
#[cfg(target_arch = "wasm32")]
impl Drop for Inner {
    fn drop(&mut self) {
        self.device.destroy();
    }
}

impl Gpu {
    /// Opens an adapter; `variant` forces a kernel variant and turns cooperative matrices off.
    ///
    /// # Errors
    /// If the driver refuses, or the adapter lacks what `variant` needs.
    pub async fn open(adapter: &Adapter, variant: Option<Variant>) -> Result<Self> {
        let matrices = adapter.matrices.filter(|_| variant.is_none());
        let best = Variant::ALL.iter().rev().find(|variant| adapter.supports(**variant));
        let variant = variant.or(best.copied()).unwrap_or(Variant::Portable);
        let failed = |message: String| Error::Device { message };
        if !adapter.supports(variant) {
            let found = adapter.subgroup_sizes.map_or(0, |(min, _)| min);
            let name = &adapter.name;
            return Err(failed(format!(
                "`{name}`: expected subgroups of at least {MIN_SUBGROUP}, got {found}"
            )));
        }
        let limits = adapter.limits.clone();
        let optional = ::wgpu::Features::SUBGROUP
            | ::wgpu::Features::TIMESTAMP_QUERY
            | ::wgpu::Features::PIPELINE_CACHE;
        let mut features = adapter.raw.features() & optional;
        let mut experimental_features = ::wgpu::ExperimentalFeatures::disabled();
        if matrices.is_some() {
            features |= ::wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX;
            features |= ::wgpu::Features::SHADER_F16;
            // SAFETY: only kernels of this workspace use experimental features, and the conformance suite compares
            // each of these kernels with the oracle.
            experimental_features = unsafe { ::wgpu::ExperimentalFeatures::enabled() };
        }
        let descriptor = ::wgpu::DeviceDescriptor {
            label: Some("stonechat"),
            required_features: features,
            required_limits: limits.clone(),
            experimental_features,
            ..Default::default()
        };
        let opened = adapter.raw.request_device(&descriptor).await;
        let (device, queue) = opened.map_err(|error| failed(error.to_string()))?;
        let faults = Arc::new(Faults::default());
        let reported = Arc::clone(&faults);
        device.on_uncaptured_error(Arc::new(move |error: ::wgpu::Error| {
            reported.report(error.to_string());
        }));
        let reported = Arc::clone(&faults);
        device.set_device_lost_callback(move |reason, message| {
            let text = format!("the device was lost ({reason:?}): {message}");
            lock(&reported.lost).get_or_insert(text);
        });
        let max_binding = limits.max_storage_buffer_binding_size.min(limits.max_buffer_size);
        let max_binding = usize::try_from(max_binding).unwrap_or(usize::MAX);
        let n_cores = std::thread::available_parallelism().map_or(1, usize::from);
        let can_spin = !cfg!(target_arch = "wasm32") && !adapter.is_software() && n_cores > 1;
        let align = limits.min_uniform_buffer_offset_alignment;
        let param_align = align.max(limits.min_storage_buffer_offset_alignment) as usize;
        Ok(Self {
            inner: Arc::new(Inner {
                device,
                queue,
                limits,
                adapter: adapter.clone(),
                variant,
                matrices,
                param_align,
                counters: AtomicCounters::default(),
                profile: Profile::default(),
                kernels: Mutex::default(),
                kernel_cache: OnceLock::new(),
                layouts: Mutex::default(),
                readbacks: Mutex::default(),
                memory: Arc::new(Memory::new()),
                next_id: AtomicU64::new(FIRST_BUFFER_ID),
                max_binding_bytes: AtomicUsize::new(max_binding),
                in_flight_bytes: AtomicUsize::new(0),
                last_read_was_short: AtomicBool::new(false),
                can_spin,
                faults,
            }),
        })
    }

    /// The open adapter.
    #[must_use]
    pub fn adapter(&self) -> &Adapter {
        &self.inner.adapter
    }

    /// Kernel variant in use.
    #[must_use]
    pub fn variant(&self) -> Variant {
        self.inner.variant
    }

    /// Cooperative matrix shape in use.
    #[must_use]
    pub fn matrices(&self) -> Option<CoopMatrices> {
        self.inner.matrices
    }

    /// Largest storage buffer binding; larger weight matrices are split by rows.
    #[must_use]
    pub fn max_binding_bytes(&self) -> usize {
        self.inner.max_binding_bytes.load(Ordering::Relaxed)
    }

    /// Maximum storage buffers of a kernel.
    #[must_use]
    pub fn max_buffers(&self) -> usize {
        self.inner.limits.max_storage_buffers_per_shader_stage as usize
    }

    /// Lowers [`max_binding_bytes`](Self::max_binding_bytes), for tests of split matrices.
    #[doc(hidden)]
    pub fn limit_binding_bytes(&self, bytes: usize) {
        self.inner.max_binding_bytes.fetch_min(bytes, Ordering::Relaxed);
    }

    /// Bytes in use by buffers.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.inner.memory.used()
    }

    /// Limits the bytes of all buffers, for tests of out-of-memory errors.
    #[doc(hidden)]
    pub fn limit_memory_bytes(&self, bytes: u64) {
        self.inner.memory.set_limit(bytes);
    }

    /// Destroys the device, for tests of device loss.
    #[doc(hidden)]
    pub fn lose(&self) {
        self.inner.device.destroy();
    }

    /// Counters since the device was opened.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.inner.counters.snapshot()
    }

    /// Returns the kernel of `key`, compiling `source()` on first use.
    pub fn kernel(&self, key: KernelKey, source: impl FnOnce() -> Source) -> Arc<Kernel> {
        if let Some(kernel) = lock(&self.inner.kernels).get(&key) {
            return Arc::clone(kernel);
        }
        let start = Instant::now();
        let kernel = Arc::new(self.compile(&source()));
        let took = start.elapsed().as_micros() as u64;
        self.inner.counters.compiling_us.fetch_add(took, Ordering::Relaxed);
        lock(&self.inner.kernels).insert(key, Arc::clone(&kernel));
        kernel
    }

    fn compile(&self, source: &Source) -> Kernel {
        count(&self.inner.counters.pipelines);
        let device = &self.inner.device;
        let layout = self.layout(source.access());
        let checks = ::wgpu::ShaderRuntimeChecks {
            bounds_checks: !source.has_matrices(),
            force_loop_bounding: false,
            ..::wgpu::ShaderRuntimeChecks::checked()
        };
        let descriptor = ::wgpu::ShaderModuleDescriptor {
            label: Some(source.name()),
            source: ::wgpu::ShaderSource::Wgsl(source.text(self.inner.adapter.dialect).into()),
        };
        // SAFETY: every loop of the shaders in this workspace counts to a bound that the loop does not change, so none
        // is infinite. Shaders with cooperative matrices, compiled without bounds checks, index workgroup memory and
        // local arrays by constants and invocation indices, never by data, within lengths made of the same constants;
        // the platform checks storage buffers. All other checks stay on.
        let module = unsafe { device.create_shader_module_trusted(descriptor, checks) };
        let layouts = [Some(&layout)];
        let pipeline_layout = device.create_pipeline_layout(&::wgpu::PipelineLayoutDescriptor {
            label: None,
            bind_group_layouts: &layouts,
            immediate_size: 0,
        });
        let pipeline = device.create_compute_pipeline(&::wgpu::ComputePipelineDescriptor {
            label: Some(source.name()),
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options: ::wgpu::PipelineCompilationOptions {
                // No kernel reads workgroup memory before writing it.
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            },
            cache: self.inner.kernel_cache.get(),
        });
        Kernel {
            name: source.name().to_owned(),
            pipeline,
            layout,
            access: source.access(),
            param_bytes: source.params().bytes,
        }
    }

    fn layout(&self, access: &'static [Access]) -> ::wgpu::BindGroupLayout {
        let mut layouts = lock(&self.inner.layouts);
        let make = || {
            let entry = |binding, ty, has_dynamic_offset, min| ::wgpu::BindGroupLayoutEntry {
                binding,
                visibility: ::wgpu::ShaderStages::COMPUTE,
                ty: ::wgpu::BindingType::Buffer {
                    ty,
                    has_dynamic_offset,
                    min_binding_size: std::num::NonZeroU64::new(min),
                },
                count: None,
            };
            let uniform = ::wgpu::BufferBindingType::Uniform;
            let mut entries = vec![entry(0, uniform, true, PARAM_BYTES)];
            for (i, access) in access.iter().enumerate() {
                let read_only = *access == Access::Read;
                let ty = ::wgpu::BufferBindingType::Storage { read_only };
                entries.push(entry(i as u32 + 1, ty, false, 16));
            }
            self.inner.device.create_bind_group_layout(&::wgpu::BindGroupLayoutDescriptor {
                label: None,
                entries: &entries,
            })
        };
        layouts.entry(access).or_insert_with(make).clone()
    }

    pub(super) fn next_id(&self) -> u64 {
        self.inner.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Blocks until a submission is done; in browsers returns at once.
    pub(super) fn wait_for(&self, index: Option<::wgpu::SubmissionIndex>) -> Result<()> {
        let wait = ::wgpu::PollType::Wait { submission_index: index, timeout: None };
        let wait = if cfg!(target_arch = "wasm32") { ::wgpu::PollType::Poll } else { wait };
        match self.inner.device.poll(wait) {
            Ok(_) => Ok(()),
            Err(error) => {
                // Runs the device-lost callback, whose message `check` returns.
                let _ = self.inner.device.poll(::wgpu::PollType::Poll);
                self.check()?;
                Err(Error::Device { message: error.to_string() })
            }
        }
    }

    /// Waits for the submission of a read: polls up to [`SPIN_TIME`] until `is_ready`, then blocks.
    pub(super) fn wait_for_read(
        &self,
        index: Option<::wgpu::SubmissionIndex>,
        is_ready: impl Fn() -> bool,
    ) -> Result<()> {
        let start = Instant::now();
        let spins = self.inner.can_spin && self.inner.last_read_was_short.load(Ordering::Relaxed);
        while spins && !is_ready() && start.elapsed() < SPIN_TIME {
            if self.inner.device.poll(::wgpu::PollType::Poll).is_err() {
                break;
            }
            std::thread::yield_now();
        }
        let result = if is_ready() { Ok(()) } else { self.wait_for(index) };
        self.inner.last_read_was_short.store(start.elapsed() < SPIN_TIME, Ordering::Relaxed);
        result
    }

    /// Stores an error for the next read to return.
    pub fn fault(&self, message: String) {
        self.inner.faults.report(message);
    }

    /// Returns the first error since the last check.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn check(&self) -> Result<()> {
        let reported = lock(&self.inner.faults.message).take();
        self.check_lost()?;
        reported.map_or(Ok(()), |message| Err(Error::Device { message }))
    }

    /// Fails once the device is lost.
    ///
    /// # Errors
    /// [`Error::Device`], on every call after the loss.
    pub(super) fn check_lost(&self) -> Result<()> {
        let lost = lock(&self.inner.faults.lost).clone();
        lost.map_or(Ok(()), |message| Err(Error::Device { message }))
    }
}
