//! The recording: what ops have asked for since the last submission.
//!
//! Every dispatch has parameters (at most [`PARAM_BYTES`]) and may have data of any length, such as
//! token ids or the page table. Both go one behind the other into one list, which is uploaded by one write
//! a submission; kernels see the parameters through a dynamic offset and the data as an array of words
//! with an offset among the parameters. A recording whose list is full is submitted and goes on.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard};

use bytemuck::Pod;

use super::buffer::{GpuBuffer, raw_buffer};
use super::counters::count;
use super::gpu::Gpu;
use super::shader::{Access, Kernel, PARAM_BYTES};
use crate::Result;

/// Bytes of parameters and data of one submission.
const UPLOAD_BYTES: usize = 4 << 20;
/// Buffers of a kernel.
const MAX_BINDINGS: usize = 13;
/// Pieces of data among which the same words are looked for, so that every layer of a pass shares them.
const MAX_RECENT: usize = 8;

/// What a kernel is given for one of its buffers.
#[derive(Debug, Clone, Copy)]
pub enum Bind<'a> {
    /// A whole buffer.
    Buffer(&'a GpuBuffer),
    /// The data of the recording, as `array<u32>`.
    Data,
    /// Nothing that is looked at.
    Nothing,
}

impl<'a> From<&'a GpuBuffer> for Bind<'a> {
    fn from(buffer: &'a GpuBuffer) -> Self {
        Self::Buffer(buffer)
    }
}

impl<'a> From<Option<&'a GpuBuffer>> for Bind<'a> {
    fn from(buffer: Option<&'a GpuBuffer>) -> Self {
        buffer.map_or(Self::Nothing, Self::Buffer)
    }
}

#[derive(Debug, PartialEq)]
pub(super) enum Command {
    Dispatch { kernel: Arc<Kernel>, bound: Bound, offset: u32, groups: [u32; 3] },
    Copy { src: ::wgpu::Buffer, src_offset: u64, dst: ::wgpu::Buffer, dst_offset: u64, bytes: u64 },
}

impl Command {
    /// Appends a copy to `encoder`; other commands are left out.
    pub(super) fn encode_copy(&self, encoder: &mut ::wgpu::CommandEncoder) {
        if let Self::Copy { src, src_offset, dst, dst_offset, bytes } = self {
            encoder.copy_buffer_to_buffer(src, *src_offset, dst, *dst_offset, *bytes);
        }
    }

    /// Appends a dispatch to `pass`; other commands are left out.
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
    /// Kernels with the same uses of buffers share layouts and so bind groups.
    access: &'static [Access],
    ids: [u64; MAX_BINDINGS],
}

/// What a kernel is given for its buffers.
#[derive(Debug, PartialEq)]
pub(super) struct Bound {
    key: BindKey,
    group: ::wgpu::BindGroup,
}

#[derive(Debug)]
pub(super) struct Recorder {
    /// The list as it will be uploaded.
    words: Vec<u32>,
    commands: Vec<Command>,
    /// Data of this recording: first word and length.
    recent: Vec<(usize, usize)>,
    bind_groups: HashMap<BindKey, ::wgpu::BindGroup>,
    /// Commands of the last submission, and whether they were those of the one before.
    last: Vec<Command>,
    is_steady: bool,
    /// The commands of the last submission, encoded once more.
    ahead: Option<::wgpu::CommandBuffer>,
    /// The buffers of what was recorded for no more than what it needs, while that is going on.
    warmed_up: Option<Vec<GpuBuffer>>,
    /// Where the list goes, and what is bound for nothing to read and to write; made with the first dispatch.
    upload: Option<(::wgpu::Buffer, [GpuBuffer; 2])>,
}

impl Recorder {
    pub(super) fn new() -> Self {
        Self {
            words: Vec::with_capacity(UPLOAD_BYTES / 4),
            commands: Vec::new(),
            recent: Vec::with_capacity(MAX_RECENT),
            bind_groups: HashMap::new(),
            last: Vec::new(),
            is_steady: false,
            ahead: None,
            warmed_up: None,
            upload: None,
        }
    }

    pub(super) fn push(&mut self, command: Command) {
        self.commands.push(command);
    }

    fn upload(&mut self, gpu: &Gpu) -> Result<&(::wgpu::Buffer, [GpuBuffer; 2])> {
        if self.upload.is_none() {
            let usage = ::wgpu::BufferUsages::UNIFORM
                | ::wgpu::BufferUsages::STORAGE
                | ::wgpu::BufferUsages::COPY_SRC
                | ::wgpu::BufferUsages::COPY_DST;
            let buffer = raw_buffer(gpu, UPLOAD_BYTES as u64, usage)?;
            self.upload = Some((buffer, [GpuBuffer::new(gpu, 16)?, GpuBuffer::new(gpu, 16)?]));
        }
        Ok(self.upload.as_ref().expect("made above"))
    }

    /// Submits what was recorded.
    pub(super) fn submit(&mut self, gpu: &Gpu) -> Option<::wgpu::SubmissionIndex> {
        let inner = &gpu.inner;
        if self.commands.is_empty() {
            return None;
        }
        if self.warmed_up.is_some() {
            self.forget();
            return None;
        }
        if let (Some((upload, _)), false) = (&self.upload, self.words.is_empty()) {
            inner.queue.write_buffer(upload, 0, bytemuck::cast_slice(&self.words));
        }
        self.is_steady = self.commands == self.last;
        let ahead = self.ahead.take().filter(|_| self.is_steady);
        let index = if inner.profile.is_on() {
            gpu.submit_timed(&self.commands)
        } else if let Some(buffer) = ahead {
            count(&inner.counters.repeats);
            Some(inner.queue.submit([buffer]))
        } else {
            Some(inner.queue.submit([self.encode(gpu, &self.commands)]))
        };
        count(&inner.counters.submissions);
        std::mem::swap(&mut self.commands, &mut self.last);
        self.forget();
        self.forget_dropped(gpu);
        index
    }

    /// Drops what was recorded.
    fn forget(&mut self) {
        self.commands.clear();
        self.words.clear();
        self.recent.clear();
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

    /// Encodes the last submission's commands once more, while the device is busy with them, if they were
    /// those of the one before too: a step of decoding most likely differs from the last only in its
    /// parameters and data, which are uploaded apart.
    pub(super) fn encode_ahead(&mut self, gpu: &Gpu) {
        if self.is_steady && !gpu.inner.profile.is_on() {
            self.ahead = Some(self.encode(gpu, &self.last));
        }
    }

    /// Drops the bind groups of buffers that are gone, which would keep their memory.
    fn forget_dropped(&mut self, gpu: &Gpu) {
        let mut dropped =
            gpu.inner.dropped.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if !dropped.is_empty() {
            self.bind_groups.retain(|key, _| !key.ids.iter().any(|id| dropped.contains(id)));
            self.last.clear();
            self.ahead = None;
            dropped.clear();
        }
    }

    fn bind_group(&mut self, gpu: &Gpu, kernel: &Kernel, binds: &[Bind<'_>]) -> Result<Bound> {
        assert_eq!(binds.len(), kernel.access.len(), "{}: buffers", kernel.name);
        // 0 is no buffer, 1 the data.
        let mut key = BindKey { access: kernel.access, ids: [0; MAX_BINDINGS] };
        for (id, bind) in key.ids.iter_mut().zip(binds) {
            *id = match bind {
                Bind::Buffer(buffer) => buffer.id(),
                Bind::Data => 1,
                Bind::Nothing => 0,
            };
        }
        // Most likely what stood in the same place of the last recording.
        let again = match self.last.get(self.commands.len()) {
            Some(Command::Dispatch { bound, .. }) if bound.key == key => Some(&bound.group),
            _ => None,
        };
        if let Some(group) = again.or_else(|| self.bind_groups.get(&key)) {
            return Ok(Bound { key, group: group.clone() });
        }
        let (upload, [to_read, to_write]) = self.upload(gpu)?;
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
                (Bind::Nothing, Access::Read) => to_read.raw(),
                (Bind::Nothing, Access::Write) => to_write.raw(),
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
        Ok(Bound { key, group: bind_group })
    }
}

/// The recording, locked for one dispatch.
#[derive(Debug)]
pub struct Record<'a> {
    gpu: &'a Gpu,
    recorder: MutexGuard<'a, Recorder>,
}

impl Gpu {
    /// Opens the recording for one dispatch with at most `n_words` of data.
    ///
    /// # Panics
    /// If no submission could hold so much data.
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

    /// Calls `ops`, which records, and then forgets what was recorded: kernels are compiled, bind groups and memory
    /// for intermediate results made, as if it were to be run. What was recorded before is submitted first; nobody
    /// else records meanwhile.
    pub fn warm_up<T>(&self, ops: impl FnOnce() -> T) -> T {
        {
            let mut recorder = self.lock();
            recorder.submit(self);
            recorder.warmed_up = Some(Vec::new());
        }
        let result = ops();
        let mut recorder = self.lock();
        recorder.forget();
        // None of them holds what it was noted to hold.
        recorder.warmed_up.take().into_iter().flatten().for_each(|buffer| buffer.forget_twins());
        result
    }

    /// Words of data that [`write`](Self::write) uploads at a time.
    const WRITE_WORDS: usize = UPLOAD_BYTES / 8;

    /// Copies `values` to the words of `dst` from `offset` on, after everything recorded before.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn write(&self, dst: &GpuBuffer, offset: usize, values: &[u32]) {
        assert!(4 * (offset + values.len()) <= dst.bytes(), "write: {}+{}", offset, values.len());
        dst.forget_twins();
        for (i, piece) in values.chunks(Self::WRITE_WORDS).enumerate() {
            let mut record = self.record(piece.len());
            let Ok((upload, _)) = record.recorder.upload(self) else {
                self.fault("no memory to upload through".to_owned());
                return;
            };
            let upload = upload.clone();
            let first = record.words(piece);
            record.recorder.push(Command::Copy {
                src: upload,
                src_offset: 4 * u64::from(first),
                dst: dst.raw().clone(),
                dst_offset: 4 * (offset + i * Self::WRITE_WORDS) as u64,
                bytes: 4 * piece.len() as u64,
            });
        }
    }

    /// Copies bytes of `src` to `dst`, another buffer; offsets and length are multiples of 4.
    ///
    /// # Panics
    /// If they are outside either buffer.
    pub fn copy(&self, dst: (&GpuBuffer, usize), src: (&GpuBuffer, usize), bytes: usize) {
        assert!(dst.1 + bytes <= dst.0.bytes() && src.1 + bytes <= src.0.bytes(), "copy: {bytes}");
        if bytes > 0 {
            dst.0.forget_twins();
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
    /// Appends data and returns its first word, for the parameters. Data that is already there is shared.
    pub fn words(&mut self, data: &[u32]) -> u32 {
        let recorder = &mut *self.recorder;
        let same = recorder.recent.iter().find(|(first, len)| {
            *len == data.len() && recorder.words[*first..*first + *len] == *data
        });
        if let Some((first, _)) = same {
            return *first as u32;
        }
        let first = recorder.words.len();
        recorder.words.extend_from_slice(data);
        if recorder.recent.len() == MAX_RECENT {
            recorder.recent.remove(0);
        }
        recorder.recent.push((first, data.len()));
        first as u32
    }

    /// Runs a kernel over `groups` workgroups. Does nothing where a dimension is 0.
    ///
    /// # Panics
    /// If the parameters are too large or the buffers are not those of the kernel.
    pub fn dispatch<const N: usize>(
        mut self,
        kernel: &Arc<Kernel>,
        params: &impl Pod,
        binds: [Bind<'_>; N],
        groups: [u32; 3],
    ) {
        if groups.contains(&0) {
            return;
        }
        let params: &[u32] = bytemuck::cast_slice(bytemuck::bytes_of(params));
        assert!(4 * params.len() <= PARAM_BYTES as usize, "{}: parameters", kernel.name);
        let align = self.gpu.inner.param_align / 4;
        let words = &mut self.recorder.words;
        let first = words.len().next_multiple_of(align);
        words.resize(first, 0);
        words.extend_from_slice(params);
        words.resize(first + PARAM_BYTES as usize / 4, 0);
        for (bind, access) in binds.iter().zip(kernel.access) {
            if let (Bind::Buffer(buffer), Access::Write) = (bind, access) {
                buffer.forget_twins();
            }
        }
        match self.recorder.bind_group(self.gpu, kernel, &binds) {
            Ok(bound) => {
                match &mut self.recorder.warmed_up {
                    Some(buffers) => buffers.extend(binds.iter().filter_map(|bind| match bind {
                        Bind::Buffer(buffer) => Some(GpuBuffer::clone(buffer)),
                        Bind::Data | Bind::Nothing => None,
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

    /// As [`dispatch`](Self::dispatch), over `groups` workgroups in one line, which a kernel folds back with
    /// `group_index` where a dimension cannot hold them.
    ///
    /// # Panics
    /// As [`dispatch`](Self::dispatch).
    pub fn dispatch_line<const N: usize>(
        self,
        kernel: &Arc<Kernel>,
        params: &impl Pod,
        binds: [Bind<'_>; N],
        groups: usize,
    ) {
        let most = self.gpu.inner.limits.max_compute_workgroups_per_dimension as usize;
        let lines = groups.div_ceil(most).max(1);
        let width = groups.div_ceil(lines);
        self.dispatch(kernel, params, binds, [width as u32, lines as u32, 1]);
    }
}
