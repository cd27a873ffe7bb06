//! Lists of dispatches: recorded once, submitted as often as a step repeats.
//!
//! ```text
//! step   = array<u32>: the inputs of a step, written once per step                       Bind::Step
//! params = params 0 | params 1 | ...     each at a multiple of `param_align`, written when a list is recorded
//! list   = (pipeline, bind group, offset of the params, workgroups), ...
//! ```
//!
//! Parameters are uniform binding 0 at a dynamic offset, so that lists share the bind groups. When
//! the parameter buffer is full, it restarts at 0 and all earlier lists become invalid.

use std::collections::HashMap;
use std::sync::Arc;

use super::buffer::GpuBuffer;
use super::counters::count;
use super::gpu::{FIRST_BUFFER_ID, Gpu};
use super::params::KernelParams;
use super::shader::{Access, Kernel, PARAM_BYTES};
use crate::{Error, Result};
use crate::{check_at_most, check_eq};

/// Maximum storage buffers of a kernel.
const MAX_BINDINGS: usize = 15;
/// Initial bytes of the parameter buffer, and the number of lists of maximum length that it holds.
const PARAMS_BYTES: usize = 64 << 10;
const LISTS: usize = 16;

/// Buffer ids in a [`BindKey`] that stand for no buffer; none of a buffer is below [`FIRST_BUFFER_ID`].
const UNUSED_ID: u64 = 0;
const STEP_ID: u64 = 1;
const _: () = assert!(UNUSED_ID < FIRST_BUFFER_ID && STEP_ID < FIRST_BUFFER_ID);

/// Resource for a storage binding.
#[derive(Debug, Clone, Copy)]
pub enum Bind<'a> {
    /// A whole buffer.
    Buffer(&'a GpuBuffer),
    /// The inputs of the step, as `array<u32>`.
    Step,
    /// A dummy buffer, which the kernel does not access.
    Unused,
}

impl<'a> From<&'a GpuBuffer> for Bind<'a> {
    fn from(buffer: &'a GpuBuffer) -> Self {
        Self::Buffer(buffer)
    }
}

impl<'a> From<Option<&'a GpuBuffer>> for Bind<'a> {
    fn from(buffer: Option<&'a GpuBuffer>) -> Self {
        buffer.map_or(Self::Unused, Self::Buffer)
    }
}

/// A bind group and its buffers, which are destroyed when nothing binds them.
#[derive(Debug)]
struct BindGroup {
    raw: ::wgpu::BindGroup,
    _buffers: Vec<GpuBuffer>,
}

/// A kernel with its bind group, parameters and grid.
#[derive(Debug)]
pub(super) struct Dispatch {
    pub(super) kernel: Arc<Kernel>,
    group: Arc<BindGroup>,
    /// Offset of the parameters, at first from the start of those of the list.
    offset: u32,
    groups: [u32; 3],
}

impl Dispatch {
    pub(super) fn encode(&self, pass: &mut ::wgpu::ComputePass<'_>) {
        let Self { kernel, group, offset, groups: [x, y, z] } = self;
        pass.set_pipeline(&kernel.pipeline);
        pass.set_bind_group(0, &group.raw, &[*offset]);
        pass.dispatch_workgroups(*x, *y, *z);
    }
}

/// Recorded dispatches.
#[derive(Debug)]
pub struct CommandList {
    pub(super) dispatches: Vec<Dispatch>,
    /// The dispatches encoded for the next submission.
    pub(super) encoded: Option<::wgpu::CommandBuffer>,
    /// Whether the list was submitted before.
    pub(super) has_run: bool,
    epoch: u64,
}

impl CommandList {
    /// Drops the encoded commands.
    pub fn forget_encoded(&mut self) {
        self.encoded = None;
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct BindKey {
    /// Kernels with equal accesses share bind group layouts, and so bind groups.
    access: &'static [Access],
    ids: [u64; MAX_BINDINGS],
}

/// Records lists of dispatches that share parameter memory, bind groups, scratch memory and the inputs of the step.
#[derive(Debug)]
pub struct Recorder {
    gpu: Gpu,
    step: GpuBuffer,
    params: GpuBuffer,
    /// First free byte of `params`.
    next_param: usize,
    /// Number of times that all lists became invalid.
    epoch: u64,
    bind_groups: HashMap<BindKey, Arc<BindGroup>>,
    scratch: HashMap<&'static str, GpuBuffer>,
    unused_read: GpuBuffer,
    unused_write: GpuBuffer,
    /// Parameters and dispatches of the list that is being recorded, and the first error.
    words: Vec<u32>,
    dispatches: Vec<Dispatch>,
    error: Option<Error>,
}

impl Recorder {
    /// A recorder with memory for `step_words` words of inputs; longer steps make it grow.
    ///
    /// # Errors
    /// If the device is out of memory or lost.
    pub fn new(gpu: &Gpu, step_words: usize) -> Result<Self> {
        Ok(Self {
            gpu: gpu.clone(),
            step: GpuBuffer::new(gpu, 4 * step_words)?,
            params: param_buffer(gpu, PARAMS_BYTES)?,
            next_param: 0,
            epoch: 0,
            bind_groups: HashMap::new(),
            scratch: HashMap::new(),
            unused_read: GpuBuffer::new(gpu, 16)?,
            unused_write: GpuBuffer::new(gpu, 16)?,
            words: Vec::new(),
            dispatches: Vec::new(),
            error: None,
        })
    }

    /// The device.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Writes the inputs of the next step. Lists that are not submitted yet read them, too.
    ///
    /// # Errors
    /// If the device is out of memory or lost.
    pub fn write_step(&mut self, words: &[u32]) -> Result<()> {
        if 4 * words.len() > self.step.bytes() {
            self.step = GpuBuffer::new(&self.gpu, 4 * words.len().next_power_of_two())?;
            self.bind_groups.clear();
            self.invalidate();
        }
        self.gpu.write(&self.step, 0, words);
        Ok(())
    }

    /// Scratch buffer of the op `name`, of at least `bytes`; it only grows. Without memory, recording fails at
    /// [`finish`](Self::finish).
    pub fn scratch(&mut self, name: &'static str, bytes: usize) -> GpuBuffer {
        if let Some(buffer) = self.scratch.get(name).filter(|buffer| buffer.bytes() >= bytes) {
            return buffer.clone();
        }
        // Rounding lets steps of rising sizes share a few buffers.
        let rounded = bytes.checked_next_power_of_two().unwrap_or(bytes);
        let new = GpuBuffer::new(&self.gpu, rounded);
        match new.or_else(|_| GpuBuffer::new(&self.gpu, bytes)) {
            Ok(buffer) => {
                if let Some(former) = self.scratch.insert(name, buffer.clone()) {
                    // No later dispatch binds the former buffer, and a bind group would keep its memory.
                    self.bind_groups.retain(|key, _| !key.ids.contains(&former.id()));
                }
                buffer
            }
            Err(error) => {
                self.error.get_or_insert(error);
                GpuBuffer::missing(&self.gpu, &self.unused_write, bytes)
            }
        }
    }

    /// Records a dispatch of `groups` workgroups. Does nothing if a dimension is 0.
    ///
    /// # Panics
    /// If the parameters or the number of buffers are not those of the kernel.
    pub fn dispatch<'a>(
        &mut self,
        kernel: &Arc<Kernel>,
        params: &impl KernelParams,
        binds: impl AsRef<[Bind<'a>]>,
        groups: [u32; 3],
    ) {
        if groups.contains(&0) || self.error.is_some() {
            return;
        }
        let params: &[u32] = bytemuck::cast_slice(bytemuck::bytes_of(params));
        let bytes = 4 * params.len();
        check_at_most!(bytes, PARAM_BYTES as usize, "{}: bytes of the parameters", kernel.name);
        check_eq!(bytes, kernel.param_bytes, "{}: bytes of the parameters", kernel.name);
        let first = self.words.len();
        self.words.extend_from_slice(params);
        self.words.resize(first + self.param_words(), 0);
        let group = self.bind_group(kernel, binds.as_ref());
        let (kernel, offset) = (Arc::clone(kernel), 4 * first as u32);
        self.dispatches.push(Dispatch { kernel, group, offset, groups });
    }

    /// Records a dispatch of a one-dimensional grid of `groups` workgroups, folded into two dimensions where one cannot
    /// hold them; kernels get the linear index from `group_index`.
    ///
    /// # Panics
    /// As [`dispatch`](Self::dispatch).
    pub fn dispatch_linear<'a>(
        &mut self,
        kernel: &Arc<Kernel>,
        params: &impl KernelParams,
        binds: impl AsRef<[Bind<'a>]>,
        groups: usize,
    ) {
        let max_x = self.gpu.inner.limits.max_compute_workgroups_per_dimension as usize;
        let y = groups.div_ceil(max_x).max(1);
        let x = groups.div_ceil(y);
        self.dispatch(kernel, params, binds, [x as u32, y as u32, 1]);
    }

    /// Ends a list and uploads its parameters. `None` if they found no place, which there is for the list recorded again.
    ///
    /// # Errors
    /// If the device was out of memory while the list was recorded.
    pub fn finish(&mut self) -> Result<Option<CommandList>> {
        let mut dispatches = std::mem::take(&mut self.dispatches);
        let bytes = 4 * self.words.len();
        if let Some(error) = self.error.take() {
            self.words.clear();
            return Err(error);
        }
        if bytes > self.params.bytes() {
            self.words.clear();
            self.params = param_buffer(&self.gpu, LISTS * bytes)?;
            self.invalidate();
            // The bind groups hold the old parameter buffer.
            self.bind_groups.clear();
            return Ok(None);
        }
        if self.next_param + bytes > self.params.bytes() {
            self.invalidate();
        }
        if bytes > 0 {
            let at = self.next_param as u64;
            let words = bytemuck::cast_slice(&self.words);
            self.gpu.inner.queue.write_buffer(self.params.raw(), at, words);
        }
        dispatches.iter_mut().for_each(|dispatch| dispatch.offset += self.next_param as u32);
        self.next_param += bytes;
        self.words.clear();
        let epoch = self.epoch;
        Ok(Some(CommandList { dispatches, encoded: None, has_run: false, epoch }))
    }

    fn invalidate(&mut self) {
        self.next_param = 0;
        self.epoch += 1;
    }

    /// Whether `list` can still be submitted.
    #[must_use]
    pub fn is_valid(&self, list: &CommandList) -> bool {
        list.epoch == self.epoch
    }

    /// Words between the parameters of two dispatches.
    fn param_words(&self) -> usize {
        (PARAM_BYTES as usize).next_multiple_of(self.gpu.inner.param_align) / 4
    }

    fn bind_group(&mut self, kernel: &Kernel, binds: &[Bind<'_>]) -> Arc<BindGroup> {
        check_eq!(binds.len(), kernel.access.len(), "{}: buffers", kernel.name);
        let mut key = BindKey { access: kernel.access, ids: [UNUSED_ID; MAX_BINDINGS] };
        for (id, bind) in key.ids.iter_mut().zip(binds) {
            *id = match bind {
                Bind::Buffer(buffer) => buffer.id(),
                Bind::Step => STEP_ID,
                Bind::Unused => UNUSED_ID,
            };
        }
        if let Some(group) = self.bind_groups.get(&key) {
            return Arc::clone(group);
        }
        let parameters = ::wgpu::BindingResource::Buffer(::wgpu::BufferBinding {
            buffer: self.params.raw(),
            offset: 0,
            size: std::num::NonZeroU64::new(PARAM_BYTES),
        });
        let mut entries = vec![::wgpu::BindGroupEntry { binding: 0, resource: parameters }];
        let mut buffers = vec![self.params.clone()];
        for (i, (bind, access)) in binds.iter().zip(kernel.access).enumerate() {
            let buffer = match (bind, access) {
                (Bind::Buffer(buffer), _) => buffer,
                (Bind::Step, _) => &self.step,
                (Bind::Unused, Access::Read) => &self.unused_read,
                (Bind::Unused, Access::Write) => &self.unused_write,
            };
            buffers.push(buffer.clone());
            let resource = buffer.raw().as_entire_binding();
            entries.push(::wgpu::BindGroupEntry { binding: i as u32 + 1, resource });
        }
        let raw = self.gpu.inner.device.create_bind_group(&::wgpu::BindGroupDescriptor {
            label: Some(&kernel.name),
            layout: &kernel.layout,
            entries: &entries,
        });
        count(&self.gpu.inner.counters.bind_groups);
        let group = Arc::new(BindGroup { raw, _buffers: buffers });
        self.bind_groups.insert(key, Arc::clone(&group));
        group
    }
}

fn param_buffer(gpu: &Gpu, bytes: usize) -> Result<GpuBuffer> {
    GpuBuffer::with_usage(gpu, bytes, ::wgpu::BufferUsages::UNIFORM)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::{GpuBuffer, Recorder};
    use crate::wgpu::ops::elementwise::soft_cap;
    use crate::wgpu::{Gpu, adapters, pick};

    /// Polls until a future is ready: those of native backends do not sleep.
    fn ready<T>(future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        loop {
            if let Poll::Ready(value) =
                future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
            {
                return value;
            }
        }
    }

    #[test]
    fn scratch_memory_that_grows_leaves_no_bind_group() {
        let all = ready(adapters());
        let Ok(adapter) = pick(&all, None).or_else(|_| pick(&all, Some(0))) else {
            println!("SKIPPED scratch_memory_that_grows_leaves_no_bind_group: no adapter");
            return;
        };
        let gpu = ready(Gpu::open(adapter, None)).expect("an open adapter");
        let mut recorder = Recorder::new(&gpu, 16).expect("memory");
        let other = GpuBuffer::new(&gpu, 256).expect("memory");
        for n in [64, 100, 1000, 5000] {
            let scratch = recorder.scratch("x", 4 * n);
            soft_cap(&mut recorder, &scratch, [1, n], 30.0);
            soft_cap(&mut recorder, &other, [1, 64], 30.0);
            recorder.finish().expect("a recorded list");
            // One of the current scratch buffer and one of the other buffer: former scratch buffers are free.
            assert_eq!(recorder.bind_groups.len(), 2, "{n} values");
        }
    }
}
