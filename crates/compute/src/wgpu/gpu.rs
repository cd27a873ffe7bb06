//! An open device: its kernels, its memory for intermediate results, its faults.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use web_time::Instant;

use super::adapter::{Adapter, Matrices};
use super::buffer::{GpuBuffer, Memory, Readback};
use super::counters::{Counters, Running, count};
use super::profile::Profile;
use super::recorder::Recorder;
use super::shader::{Access, Kernel, PARAM_BYTES, Source};
use crate::{Error, Result};

/// Bytes of weights that are given to the driver at a time.
const STAGING_BYTES: usize = 16 << 20;
/// Bytes of weights that may be on their way to the device.
const UNDERWAY_BYTES: usize = 64 << 20;
/// Where the last read took less, the host asks for the end of the next again and again: a core that slept is late and
/// slow. Beside an H200, models of 1.5 and 8 B then decode 1.16 and 1.09 times as fast.
const BRIEF: Duration = Duration::from_millis(5);

/// Which of the kernels that exist in several variants are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// Only what every adapter can do.
    Portable,
    /// Sums over subgroups.
    Subgroups,
}

impl Variant {
    /// Every one.
    pub const ALL: [Self; 2] = [Self::Portable, Self::Subgroups];

    /// Name for logs and benches.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Subgroups => "subgroups",
        }
    }
}

/// What tells compiled kernels apart: the op and up to four numbers.
pub type KernelKey = (&'static str, [u32; 4]);

/// A device to which ops are recorded. Clones share it.
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
    matrices: Option<Matrices>,
    /// Distance of the parameters of two dispatches.
    pub(super) param_align: usize,
    pub(super) counters: Running,
    pub(super) profile: Profile,
    recorder: Mutex<Recorder>,
    kernels: Mutex<HashMap<KernelKey, Arc<Kernel>>>,
    /// What the driver keeps of compiled kernels, see `kernel_cache`.
    pub(super) kernel_cache: OnceLock<::wgpu::PipelineCache>,
    layouts: Mutex<HashMap<&'static [Access], ::wgpu::BindGroupLayout>>,
    scratch: Mutex<HashMap<&'static str, GpuBuffer>>,
    pub(super) readbacks: Mutex<Vec<Readback>>,
    pub(super) dropped: Arc<Mutex<Vec<u64>>>,
    pub(super) memory: Arc<Memory>,
    next_id: AtomicU64,
    /// Largest buffer that a kernel is given for weights.
    max_binding: AtomicUsize,
    /// Bytes of weights whose arrival was not waited for.
    underway: AtomicUsize,
    /// Whether the last read was brief.
    was_brief: AtomicBool,
    /// Whether the host has a core to spare for the end of brief reads.
    may_spin: bool,
    faults: Arc<Faults>,
}

/// What the device reported since the last read.
#[derive(Debug, Default)]
struct Faults {
    /// The first of them.
    message: Mutex<Option<String>>,
    /// Why there is no device any more.
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

impl Gpu {
    /// Opens an adapter; `variant` forces one of the kernels where there are several, and those without
    /// cooperative matrices.
    ///
    /// # Errors
    /// If the driver refuses, or the adapter lacks what `variant` needs.
    pub async fn open(adapter: &Adapter, variant: Option<Variant>) -> Result<Self> {
        let has_subgroups = adapter.subgroup_sizes.is_some();
        let matrices = adapter.matrices.filter(|_| variant.is_none());
        let variant =
            variant.unwrap_or(if has_subgroups { Variant::Subgroups } else { Variant::Portable });
        let failed = |message: String| Error::Device { message };
        if variant == Variant::Subgroups && !has_subgroups {
            return Err(failed(format!("`{}` has no subgroups", adapter.name)));
        }
        let limits = adapter.raw.limits();
        let mut features = ::wgpu::Features::empty();
        if has_subgroups {
            features |= ::wgpu::Features::SUBGROUP;
        }
        let optional = ::wgpu::Features::TIMESTAMP_QUERY | ::wgpu::Features::PIPELINE_CACHE;
        features |= adapter.raw.features() & optional;
        let mut experimental_features = ::wgpu::ExperimentalFeatures::disabled();
        if matrices.is_some() {
            features |= ::wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX;
            features |= ::wgpu::Features::SHADER_F16;
            // SAFETY: only kernels of this workspace use them, and the conformance suite compares each of
            // these with the oracle.
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
        let may_spin = !cfg!(target_arch = "wasm32") && !adapter.is_software() && n_cores > 1;
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
                counters: Running::default(),
                profile: Profile::default(),
                recorder: Mutex::new(Recorder::new()),
                kernels: Mutex::default(),
                kernel_cache: OnceLock::new(),
                layouts: Mutex::default(),
                scratch: Mutex::default(),
                readbacks: Mutex::default(),
                dropped: Arc::default(),
                memory: Arc::new(Memory::new()),
                // 0 and 1 are no buffers, see `Bind`.
                next_id: AtomicU64::new(2),
                max_binding: AtomicUsize::new(max_binding),
                underway: AtomicUsize::new(0),
                was_brief: AtomicBool::new(false),
                may_spin,
                faults,
            }),
        })
    }

    /// The adapter that was opened.
    #[must_use]
    pub fn adapter(&self) -> &Adapter {
        &self.inner.adapter
    }

    /// Which kernels are used.
    #[must_use]
    pub fn variant(&self) -> Variant {
        self.inner.variant
    }

    /// The cooperative matrices that kernels use.
    #[must_use]
    pub fn matrices(&self) -> Option<Matrices> {
        self.inner.matrices
    }

    /// Largest buffer that a kernel can see; larger matrices are split.
    #[must_use]
    pub fn max_binding_bytes(&self) -> usize {
        self.inner.max_binding.load(Ordering::Relaxed)
    }

    /// Buffers that a kernel can be given.
    #[must_use]
    pub fn max_buffers(&self) -> usize {
        self.inner.limits.max_storage_buffers_per_shader_stage as usize
    }

    /// Splits matrices that are loaded from now on into parts of at most `bytes`, as on a device that cannot
    /// see more at once: for tests.
    pub fn limit_binding_bytes(&self, bytes: usize) {
        self.inner.max_binding.fetch_min(bytes, Ordering::Relaxed);
    }

    /// Bytes of the buffers that there are.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.inner.memory.used()
    }

    /// Refuses buffers that would make more than `bytes` of all, as a device without more memory does: for tests.
    pub fn limit_memory_bytes(&self, bytes: u64) {
        self.inner.memory.set_limit(bytes);
    }

    /// Loses the device, as a driver that was reset or removed does: for tests.
    pub fn lose(&self) {
        self.inner.device.destroy();
    }

    /// What was made and done so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.inner.counters.snapshot()
    }

    /// The kernel of `key`, compiled from what `source` gives when it is first asked for.
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
            source: ::wgpu::ShaderSource::Wgsl(source.text().into()),
        };
        // SAFETY: every loop of the shaders in this workspace counts up or down to a bound that does
        // not change in the loop, so none is infinite. Those with matrices index workgroup memory and
        // arrays of their own by constants and the number of an invocation, never by data, inside
        // lengths that are made of the same constants; buffers are checked by the platform. All other
        // checks stay on.
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
                // No kernel reads what it has not written.
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            },
            cache: self.inner.kernel_cache.get(),
        });
        Kernel { name: source.name().to_owned(), pipeline, layout, access: source.access() }
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

    /// Memory for intermediate results of the op `name`, of at least `bytes`; it only grows.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn scratch(&self, name: &'static str, bytes: usize) -> Result<GpuBuffer> {
        let mut scratch = lock(&self.inner.scratch);
        if let Some(buffer) = scratch.get(name)
            && buffer.bytes() >= bytes
        {
            return Ok(buffer.clone());
        }
        let largest = self.max_binding_bytes().max(bytes);
        let bytes = bytes.next_power_of_two().min(largest);
        let buffer = GpuBuffer::new(self, bytes)?;
        scratch.insert(name, buffer.clone());
        Ok(buffer)
    }

    /// Copies bytes to the device at once, ahead of what was recorded; after some tens of MB it
    /// waits where that is possible, so that little host memory is held for weights on their way.
    ///
    /// # Errors
    /// If the device failed.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn upload(&self, dst: &GpuBuffer, offset: usize, bytes: &[u8]) -> Result<()> {
        assert!(offset + bytes.len() <= dst.bytes(), "upload: {offset}+{}", bytes.len());
        for (i, piece) in bytes.chunks(STAGING_BYTES).enumerate() {
            let at = (offset + i * STAGING_BYTES) as u64;
            self.inner.queue.write_buffer(dst.raw(), at, piece);
            let index = self.inner.queue.submit([]);
            count(&self.inner.counters.submissions);
            let before = self.inner.underway.fetch_add(piece.len(), Ordering::Relaxed);
            if before + piece.len() > UNDERWAY_BYTES {
                self.wait_for(Some(index))?;
                self.inner.underway.store(0, Ordering::Relaxed);
            }
        }
        self.check()
    }

    /// Submits what was recorded without waiting for it.
    pub fn flush(&self) {
        self.lock().submit(self);
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Recorder> {
        lock(&self.inner.recorder)
    }

    pub(super) fn next_id(&self) -> u64 {
        self.inner.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Blocks until a submission is done; in a browser, where nothing may block, it returns at once.
    pub(super) fn wait_for(&self, index: Option<::wgpu::SubmissionIndex>) -> Result<()> {
        let wait = ::wgpu::PollType::Wait { submission_index: index, timeout: None };
        let wait = if cfg!(target_arch = "wasm32") { ::wgpu::PollType::Poll } else { wait };
        match self.inner.device.poll(wait) {
            Ok(_) => Ok(()),
            Err(error) => {
                // A device that is gone has no such submission; this has it say so.
                let _ = self.inner.device.poll(::wgpu::PollType::Poll);
                self.check()?;
                Err(Error::Device { message: error.to_string() })
            }
        }
    }

    /// Blocks until a submission is done that ends a read, whose success `is_ready` tells.
    pub(super) fn wait_for_read(
        &self,
        index: Option<::wgpu::SubmissionIndex>,
        is_ready: impl Fn() -> bool,
    ) -> Result<()> {
        let start = Instant::now();
        let spins = self.inner.may_spin && self.inner.was_brief.load(Ordering::Relaxed);
        while spins && !is_ready() && start.elapsed() < BRIEF {
            if self.inner.device.poll(::wgpu::PollType::Poll).is_err() {
                break;
            }
            std::thread::yield_now();
        }
        let result = if is_ready() { Ok(()) } else { self.wait_for(index) };
        self.inner.was_brief.store(start.elapsed() < BRIEF, Ordering::Relaxed);
        result
    }

    /// Reports a failure with the next read.
    pub fn fault(&self, message: String) {
        self.inner.faults.report(message);
    }

    /// What failed since the last time, if anything did.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn check(&self) -> Result<()> {
        let reported = lock(&self.inner.faults.message).take();
        self.check_lost()?;
        reported.map_or(Ok(()), |message| Err(Error::Device { message }))
    }

    /// Whether there still is a device.
    ///
    /// # Errors
    /// [`Error::Device`], each time.
    pub(super) fn check_lost(&self) -> Result<()> {
        let lost = lock(&self.inner.faults.lost).clone();
        lost.map_or(Ok(()), |message| Err(Error::Device { message }))
    }
}
