//! Recording of dispatches and copies, and its submission.
//!
//! Every dispatch has parameters (at most [`PARAM_BYTES`]) and may have data of any length, such as token ids or
//! the page table. Both are appended to one upload list, written to the device once a submission:
//!
//! ```text
//! upload   = params 0 | data | params 1 | params 2 | data | ...     at most UPLOAD_BYTES, then submit and go on
//! params   : uniform binding 0 at a dynamic offset, a multiple of `param_align`
//! data     : `array<u32>`, the whole list; its first word is among the parameters
//! commands = (pipeline, bind group, params offset, workgroups) | copy | ...
//!
//! submit:      write the upload list; submit the encoded commands
//! encode_next: if the last two submissions had equal commands, encode them again while the device runs,
//!              since the next decode step probably differs only in the upload list
//! ```

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard};

use super::buffer::{GpuBuffer, raw_buffer};
use super::counters::count;
use super::gpu::Gpu;
use super::params::KernelParams;
use super::shader::{Access, Kernel, PARAM_BYTES};
use crate::Result;

/// Bytes of parameters and data of one submission.
const UPLOAD_BYTES: usize = 4 << 20;
/// Most storage buffers of a kernel.
const MAX_BINDINGS: usize = 13;
/// Latest data entries to search for equal data, so that the layers of a pass share one upload.
const MAX_RECENT: usize = 8;

/// Buffer ids in a [`BindKey`] that stand for no buffer.
const UNUSED_ID: u64 = 0;
const DATA_ID: u64 = 1;
/// Id of the first buffer of a device.
pub(super) const FIRST_BUFFER_ID: u64 = 2;

/// Resource for a storage binding.
#[derive(Debug, Clone, Copy)]
pub enum Bind<'a> {
    /// A whole buffer.
    Buffer(&'a GpuBuffer),
    /// The upload list, as `array<u32>`.
    Data,
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

#[derive(Debug, PartialEq)]
pub(super) enum Command {
    Dispatch { kernel: Arc<Kernel>, bound: BoundGroup, offset: u32, groups: [u32; 3] },
    Copy { src: ::wgpu::Buffer, src_offset: u64, dst: ::wgpu::Buffer, dst_offset: u64, bytes: u64 },
}

impl Command {
    /// Encodes a copy; ignores dispatches.
    pub(super) fn encode_copy(&self, encoder: &mut ::wgpu::CommandEncoder) {
        if let Self::Copy { src, src_offset, dst, dst_offset, bytes } = self {
            encoder.copy_buffer_to_buffer(src, *src_offset, dst, *dst_offset, *bytes);
        }
    }

    /// Encodes a dispatch; ignores copies.
    pub(super) fn encode_dispatch(&self, pass: &mut ::wgpu::ComputePass<'_>) {
        if let Self::Dispatch { kernel, bound, offset, groups } = self {
            pass.set_pipeline(&kernel.pipeline);
            pass.set_bind_group(0, &bound.group, &[*offset]);
            pass.dispatch_workgroups(groups[0], groups[1], groups[2]);
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct BindKey {
    /// Kernels with equal accesses share bind group layouts, and so bind groups.
    access: &'static [Access],
    ids: [u64; MAX_BINDINGS],
}

/// Bind group of a dispatch and its key.
#[derive(Debug, PartialEq)]
pub(super) struct BoundGroup {
    key: BindKey,
    group: ::wgpu::BindGroup,
}

#[derive(Debug)]
pub(super) struct Recorder {
    /// The upload list.
    words: Vec<u32>,
    commands: Vec<Command>,
    /// Latest data entries of the upload list: first word and length.
    recent_data: Vec<(usize, usize)>,
    bind_groups: HashMap<BindKey, ::wgpu::BindGroup>,
    /// Commands of the last submission.
    last_commands: Vec<Command>,
    /// Whether the last submission had the commands of the one before.
    repeats: bool,
    /// `last_commands` encoded again, for the next submission.
    encoded_next: Option<::wgpu::CommandBuffer>,
    /// Buffers of the dispatches of a warm-up; `None` outside of one.
    warm_up_buffers: Option<Vec<GpuBuffer>>,
    /// Created with the first dispatch.
    device_buffers: Option<DeviceBuffers>,
}

/// Upload buffer, and dummies for [`Bind::Unused`].
#[derive(Debug)]
struct DeviceBuffers {
    upload: ::wgpu::Buffer,
    unused_read: GpuBuffer,
    unused_write: GpuBuffer,
}

impl Recorder {
    pub(super) fn new() -> Self {
        Self {
            words: Vec::with_capacity(UPLOAD_BYTES / 4),
            commands: Vec::new(),
            recent_data: Vec::with_capacity(MAX_RECENT),
            bind_groups: HashMap::new(),
            last_commands: Vec::new(),
            repeats: false,
            encoded_next: None,
            warm_up_buffers: None,
            device_buffers: None,
        }
    }

    pub(super) fn push(&mut self, command: Command) {
        self.commands.push(command);
    }

    fn device_buffers(&mut self, gpu: &Gpu) -> Result<&DeviceBuffers> {
        if self.device_buffers.is_none() {
            let usage = ::wgpu::BufferUsages::UNIFORM
                | ::wgpu::BufferUsages::STORAGE
                | ::wgpu::BufferUsages::COPY_SRC
                | ::wgpu::BufferUsages::COPY_DST;
            self.device_buffers = Some(DeviceBuffers {
                upload: raw_buffer(gpu, UPLOAD_BYTES as u64, usage)?,
                unused_read: GpuBuffer::new(gpu, 16)?,
                unused_write: GpuBuffer::new(gpu, 16)?,
            });
        }
        Ok(self.device_buffers.as_ref().expect("made above"))
    }

    /// Submits the recording; drops it in a warm-up.
    pub(super) fn submit(&mut self, gpu: &Gpu) -> Option<::wgpu::SubmissionIndex> {
        let inner = &gpu.inner;
        if self.commands.is_empty() {
            return None;
        }
        if self.warm_up_buffers.is_some() {
            self.clear();
            return None;
        }
        if let (Some(buffers), false) = (&self.device_buffers, self.words.is_empty()) {
            inner.queue.write_buffer(&buffers.upload, 0, bytemuck::cast_slice(&self.words));
        }
        self.repeats = self.commands == self.last_commands;
        let encoded = self.encoded_next.take().filter(|_| self.repeats);
        let index = if inner.profile.is_on() {
            gpu.submit_timed(&self.commands)
        } else if let Some(buffer) = encoded {
            count(&inner.counters.repeats);
            Some(inner.queue.submit([buffer]))
        } else {
            Some(inner.queue.submit([self.encode(gpu, &self.commands)]))
        };
        count(&inner.counters.submissions);
        std::mem::swap(&mut self.commands, &mut self.last_commands);
        self.clear();
        self.evict_dropped(gpu);
        index
    }

    /// Clears the recording.
    fn clear(&mut self) {
        self.commands.clear();
        self.words.clear();
        self.recent_data.clear();
    }

    fn encode(&self, gpu: &Gpu, commands: &[Command]) -> ::wgpu::CommandBuffer {
        let mut encoder = gpu.inner.device.create_command_encoder(&Default::default());
        let is_copy = |command: &Command| matches!(command, Command::Copy { .. });
        for run in commands.chunk_by(|a, b| is_copy(a) == is_copy(b)) {
            if is_copy(&run[0]) {
                run.iter().for_each(|command| command.encode_copy(&mut encoder));
            } else {
                let mut pass = encoder.begin_compute_pass(&Default::default());
                run.iter().for_each(|command| command.encode_dispatch(&mut pass));
            }
        }
        encoder.finish()
    }

    /// Encodes the commands of the last submission for the next one, if they repeated those before.
    pub(super) fn encode_next(&mut self, gpu: &Gpu) {
        if self.repeats && !gpu.inner.profile.is_on() {
            self.encoded_next = Some(self.encode(gpu, &self.last_commands));
        }
    }

    /// Evicts bind groups and commands of dropped buffers, which would keep their memory.
    fn evict_dropped(&mut self, gpu: &Gpu) {
        let mut dropped =
            gpu.inner.dropped.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if !dropped.is_empty() {
            self.bind_groups.retain(|key, _| !key.ids.iter().any(|id| dropped.contains(id)));
            self.last_commands.clear();
            self.encoded_next = None;
            dropped.clear();
        }
    }

    fn bind_group(&mut self, gpu: &Gpu, kernel: &Kernel, binds: &[Bind<'_>]) -> Result<BoundGroup> {
        assert_eq!(binds.len(), kernel.access.len(), "{}: buffers", kernel.name);
        let mut key = BindKey { access: kernel.access, ids: [UNUSED_ID; MAX_BINDINGS] };
        for (id, bind) in key.ids.iter_mut().zip(binds) {
            *id = match bind {
                Bind::Buffer(buffer) => buffer.id(),
                Bind::Data => DATA_ID,
                Bind::Unused => UNUSED_ID,
            };
        }
        // The command at the same index of the last submission most likely has the same bind group.
        let same_index = match self.last_commands.get(self.commands.len()) {
            Some(Command::Dispatch { bound, .. }) if bound.key == key => Some(&bound.group),
            _ => None,
        };
        if let Some(group) = same_index.or_else(|| self.bind_groups.get(&key)) {
            return Ok(BoundGroup { key, group: group.clone() });
        }
        let DeviceBuffers { upload, unused_read, unused_write } = self.device_buffers(gpu)?;
        let parameters = ::wgpu::BindingResource::Buffer(::wgpu::BufferBinding {
            buffer: upload,
            offset: 0,
            size: std::num::NonZeroU64::new(PARAM_BYTES),
        });
        let mut entries = vec![::wgpu::BindGroupEntry { binding: 0, resource: parameters }];
        for (i, (bind, access)) in binds.iter().zip(kernel.access).enumerate() {
            let buffer = match (bind, access) {
                (Bind::Buffer(buffer), _) => buffer.raw(),
                (Bind::Data, _) => upload,
                (Bind::Unused, Access::Read) => unused_read.raw(),
                (Bind::Unused, Access::Write) => unused_write.raw(),
            };
            let resource = buffer.as_entire_binding();
            entries.push(::wgpu::BindGroupEntry { binding: i as u32 + 1, resource });
        }
        let bind_group = gpu.inner.device.create_bind_group(&::wgpu::BindGroupDescriptor {
            label: Some(&kernel.name),
            layout: &kernel.layout,
            entries: &entries,
        });
        count(&gpu.inner.counters.bind_groups);
        self.bind_groups.insert(key, bind_group.clone());
        Ok(BoundGroup { key, group: bind_group })
    }
}

/// Recording locked for one dispatch.
#[derive(Debug)]
pub struct Record<'a> {
    gpu: &'a Gpu,
    recorder: MutexGuard<'a, Recorder>,
}

impl Gpu {
    /// Locks the recording for one dispatch with at most `n_words` of data; submits it first if they do not fit.
    ///
    /// # Panics
    /// If the data exceeds the upload list of a submission.
    #[must_use]
    pub fn record(&self, n_words: usize) -> Record<'_> {
        let slot = self.inner.param_align + PARAM_BYTES as usize;
        let bytes = 4 * n_words + 2 * slot;
        assert!(bytes <= UPLOAD_BYTES, "{n_words} words of data for one dispatch");
        let mut recorder = self.lock();
        if 4 * recorder.words.len() + bytes > UPLOAD_BYTES {
            recorder.submit(self);
        }
        Record { gpu: self, recorder }
    }

    /// Warms up: records `ops` without running them, which compiles kernels and creates bind groups and scratch
    /// buffers. The recording is submitted first; no other thread may record meanwhile.
    pub fn warm_up<T>(&self, ops: impl FnOnce() -> T) -> T {
        {
            let mut recorder = self.lock();
            recorder.submit(self);
            recorder.warm_up_buffers = Some(Vec::new());
        }
        let result = ops();
        let mut recorder = self.lock();
        recorder.clear();
        // Copies were marked as current, but no kernel wrote them.
        let buffers = recorder.warm_up_buffers.take();
        buffers.into_iter().flatten().for_each(|buffer| buffer.forget_copies());
        result
    }

    /// Words in one copy of [`write`](Self::write).
    const WRITE_WORDS: usize = UPLOAD_BYTES / 8;

    /// Records a copy of `values` to the words `dst[offset..]`.
    ///
    /// # Panics
    /// If the range is outside `dst`.
    pub fn write(&self, dst: &GpuBuffer, offset: usize, values: &[u32]) {
        assert!(4 * (offset + values.len()) <= dst.bytes(), "write: {}+{}", offset, values.len());
        dst.forget_copies();
        for (i, chunk) in values.chunks(Self::WRITE_WORDS).enumerate() {
            let mut record = self.record(chunk.len());
            let Ok(buffers) = record.recorder.device_buffers(self) else {
                self.fault("no memory for the upload buffer".to_owned());
                return;
            };
            let upload = buffers.upload.clone();
            let first = record.push_data(chunk);
            record.recorder.push(Command::Copy {
                src: upload,
                src_offset: 4 * u64::from(first),
                dst: dst.raw().clone(),
                dst_offset: 4 * (offset + i * Self::WRITE_WORDS) as u64,
                bytes: 4 * chunk.len() as u64,
            });
        }
    }

    /// Records a copy of `bytes` between two different buffers, each given as `(buffer, byte offset)`. Offsets and
    /// length are multiples of 4.
    ///
    /// # Panics
    /// If a range is outside its buffer.
    pub fn copy(&self, dst: (&GpuBuffer, usize), src: (&GpuBuffer, usize), bytes: usize) {
        assert!(dst.1 + bytes <= dst.0.bytes() && src.1 + bytes <= src.0.bytes(), "copy: {bytes}");
        if bytes > 0 {
            dst.0.forget_copies();
            self.lock().push(Command::Copy {
                src: src.0.raw().clone(),
                src_offset: src.1 as u64,
                dst: dst.0.raw().clone(),
                dst_offset: dst.1 as u64,
                bytes: bytes as u64,
            });
        }
    }
}

impl Record<'_> {
    /// Appends data to the upload list and returns the index of its first word. Shares equal recent data.
    pub fn push_data(&mut self, data: &[u32]) -> u32 {
        let recorder = &mut *self.recorder;
        let same = recorder.recent_data.iter().find(|(first, len)| {
            *len == data.len() && recorder.words[*first..*first + *len] == *data
        });
        if let Some((first, _)) = same {
            return *first as u32;
        }
        let first = recorder.words.len();
        recorder.words.extend_from_slice(data);
        if recorder.recent_data.len() == MAX_RECENT {
            recorder.recent_data.remove(0);
        }
        recorder.recent_data.push((first, data.len()));
        first as u32
    }

    /// Records a dispatch of `groups` workgroups and marks the cached copies of written buffers as stale. Does nothing
    /// if a dimension is 0.
    ///
    /// # Panics
    /// If the parameters or the number of buffers are not those of the kernel.
    pub fn dispatch<const N: usize>(
        mut self,
        kernel: &Arc<Kernel>,
        params: &impl KernelParams,
        binds: [Bind<'_>; N],
        groups: [u32; 3],
    ) {
        if groups.contains(&0) {
            return;
        }
        let params: &[u32] = bytemuck::cast_slice(bytemuck::bytes_of(params));
        assert!(4 * params.len() <= PARAM_BYTES as usize, "{}: parameters", kernel.name);
        assert_eq!(4 * params.len(), kernel.param_bytes, "{}: parameters", kernel.name);
        let align = self.gpu.inner.param_align / 4;
        let words = &mut self.recorder.words;
        let first = words.len().next_multiple_of(align);
        words.resize(first, 0);
        words.extend_from_slice(params);
        words.resize(first + PARAM_BYTES as usize / 4, 0);
        for (bind, access) in binds.iter().zip(kernel.access) {
            if let (Bind::Buffer(buffer), Access::Write) = (bind, access) {
                buffer.forget_copies();
            }
        }
        match self.recorder.bind_group(self.gpu, kernel, &binds) {
            Ok(bound) => {
                match &mut self.recorder.warm_up_buffers {
                    Some(buffers) => buffers.extend(binds.iter().filter_map(|bind| match bind {
                        Bind::Buffer(buffer) => Some(GpuBuffer::clone(buffer)),
                        Bind::Data | Bind::Unused => None,
                    })),
                    None => count(&self.gpu.inner.counters.dispatches),
                }
                self.recorder.push(Command::Dispatch {
                    kernel: Arc::clone(kernel),
                    bound,
                    offset: 4 * first as u32,
                    groups,
                });
            }
            Err(error) => self.gpu.fault(error.to_string()),
        }
    }

    /// Records a dispatch of a one-dimensional grid of `groups` workgroups, folded into two dimensions where one cannot
    /// hold them; kernels get the linear index from `group_index`.
    ///
    /// # Panics
    /// As [`dispatch`](Self::dispatch).
    pub fn dispatch_linear<const N: usize>(
        self,
        kernel: &Arc<Kernel>,
        params: &impl KernelParams,
        binds: [Bind<'_>; N],
        groups: usize,
    ) {
        let max_x = self.gpu.inner.limits.max_compute_workgroups_per_dimension as usize;
        let y = groups.div_ceil(max_x).max(1);
        let x = groups.div_ceil(y);
        self.dispatch(kernel, params, binds, [x as u32, y as u32, 1]);
    }
}
