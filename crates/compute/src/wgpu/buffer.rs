//! Device buffers, submission of lists, and readback.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::counters::count;
use super::gpu::Gpu;
use super::list::CommandList;
use crate::{Error, Result};

/// Alignment of sizes, so that any buffer can be bound as an array of `vec4`.
const ALIGN: u64 = 16;
/// Smallest buffer for copies to the host: tokens of many steps.
const MIN_READBACK_BYTES: u64 = 4096;

/// Zero-initialized device memory. Clones share it.
#[derive(Debug, Clone)]
pub struct GpuBuffer {
    inner: Arc<Allocation>,
}

#[derive(Debug)]
struct Allocation {
    raw: ::wgpu::Buffer,
    /// Unique for the life of the device.
    id: u64,
    bytes: u64,
    memory: Arc<Memory>,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        self.memory.release(self.raw.size());
    }
}

impl GpuBuffer {
    /// Allocates `bytes` zeros.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] or [`Error::BufferTooLarge`].
    pub fn new(gpu: &Gpu, bytes: usize) -> Result<Self> {
        Self::with_usage(gpu, bytes, ::wgpu::BufferUsages::STORAGE | ::wgpu::BufferUsages::COPY_SRC)
    }

    /// Allocates `bytes` zeros for `usage`, and to be written.
    pub(super) fn with_usage(gpu: &Gpu, bytes: usize, usage: ::wgpu::BufferUsages) -> Result<Self> {
        let usage = usage | ::wgpu::BufferUsages::COPY_DST;
        let allocation = Allocation {
            raw: raw_buffer(gpu, bytes as u64, usage)?,
            id: gpu.next_id(),
            bytes: bytes as u64,
            memory: Arc::clone(&gpu.inner.memory),
        };
        Ok(Self { inner: Arc::new(allocation) })
    }

    /// In place of a buffer of `bytes` that could not be allocated: for checks of sizes, no kernel may use it.
    pub(super) fn missing(gpu: &Gpu, placeholder: &Self, bytes: usize) -> Self {
        let allocation = Allocation {
            raw: placeholder.raw().clone(),
            id: gpu.next_id(),
            bytes: bytes as u64,
            // Not counted as memory of the device.
            memory: Arc::new(Memory::new()),
        };
        Self { inner: Arc::new(allocation) }
    }

    /// Requested size; the allocation is rounded up to 16 bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.inner.bytes as usize
    }

    pub(super) fn raw(&self) -> &::wgpu::Buffer {
        &self.inner.raw
    }

    pub(super) fn id(&self) -> u64 {
        self.inner.id
    }
}

/// Bytes in use by a device's buffers, with an optional limit.
#[derive(Debug)]
pub(super) struct Memory {
    used: AtomicU64,
    limit: AtomicU64,
}

impl Memory {
    pub(super) fn new() -> Self {
        Self { used: AtomicU64::new(0), limit: AtomicU64::new(u64::MAX) }
    }

    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub(super) fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// Reserves `bytes`; returns false where that exceeds the limit.
    fn reserve(&self, bytes: u64) -> bool {
        let used = self.used.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let fits = used <= self.limit.load(Ordering::Relaxed);
        if !fits {
            self.release(bytes);
        }
        fits
    }

    fn release(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Creates a wgpu buffer of at least `bytes`.
pub(super) fn raw_buffer(
    gpu: &Gpu,
    bytes: u64,
    usage: ::wgpu::BufferUsages,
) -> Result<::wgpu::Buffer> {
    let limits = &gpu.inner.limits;
    let largest = limits.max_buffer_size.min(if usage.contains(::wgpu::BufferUsages::STORAGE) {
        limits.max_storage_buffer_binding_size
    } else {
        u64::MAX
    });
    let size = bytes.max(1).checked_next_multiple_of(ALIGN).filter(|size| *size <= largest);
    let (bytes, limit) = (bytes as usize, largest as usize);
    let size = size.ok_or(Error::BufferTooLarge { bytes, limit })?;
    gpu.check_lost()?;
    if !gpu.inner.memory.reserve(size) {
        return Err(Error::OutOfMemory { bytes });
    }
    count(&gpu.inner.counters.buffers);
    let device = &gpu.inner.device;
    let scope = device.push_error_scope(::wgpu::ErrorFilter::OutOfMemory);
    let descriptor =
        ::wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false };
    let buffer = device.create_buffer(&descriptor);
    // Browsers resolve the error scope later; the next read then reports the error.
    match poll_once(scope.pop()) {
        Some(Some(_)) => {
            gpu.inner.memory.release(size);
            Err(Error::OutOfMemory { bytes })
        }
        _ => Ok(buffer),
    }
}

/// Polls a future once; `None` if it is pending.
fn poll_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// Host-mappable buffer and its size.
#[derive(Debug)]
pub(super) struct Readback {
    raw: ::wgpu::Buffer,
    bytes: u64,
}

/// Bytes of a buffer to copy to the host.
#[derive(Debug, Clone, Copy)]
pub struct CopyRange<'a> {
    /// The buffer.
    pub src: &'a GpuBuffer,
    /// First byte, a multiple of 4.
    pub offset: usize,
    /// Number of bytes, a multiple of 4.
    pub len: usize,
}

/// Copies to the host of one or more submissions, which are read together.
#[derive(Debug, Default)]
pub struct HostCopies {
    /// Each with its used bytes. One, unless copies did not fit.
    buffers: Vec<(Readback, u64)>,
    last: Option<::wgpu::SubmissionIndex>,
    mapped: Vec<Arc<MapState>>,
}

type MapResult = std::result::Result<(), ::wgpu::BufferAsyncError>;

/// Result of a mapping, set by the device's callback, and the waker of its [`MapFuture`].
#[derive(Debug, Default)]
struct MapState {
    state: Mutex<(Option<MapResult>, Option<Waker>)>,
}

impl MapState {
    /// Whether the mapping succeeded. Stays false on failure, which polling the device reports.
    fn is_ready(&self) -> bool {
        matches!(self.state.lock().unwrap_or_else(PoisonError::into_inner).0, Some(Ok(())))
    }
}

struct MapFuture(Arc<MapState>);

impl Future for MapFuture {
    type Output = MapResult;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state.0.take() {
            Some(result) => Poll::Ready(result),
            None => {
                state.1 = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Gpu {
    /// Writes words, ahead of all lists that are submitted later.
    ///
    /// # Panics
    /// If the range is outside `dst`.
    pub fn write(&self, dst: &GpuBuffer, offset: usize, words: &[u32]) {
        assert!(4 * (offset + words.len()) <= dst.bytes(), "write: {offset}+{}", words.len());
        count(&self.inner.counters.uploads);
        let bytes = bytemuck::cast_slice(words);
        self.inner.queue.write_buffer(dst.raw(), 4 * offset as u64, bytes);
    }

    /// Submits a list, which must still be [valid](super::Recorder::is_valid).
    pub fn submit(&self, list: &mut CommandList) {
        self.submit_all(Some(list), None);
    }

    /// Submits a list, if there is one, and copies of `ranges` behind it, in one submission.
    ///
    /// # Errors
    /// If there is no memory for the copies. The list is submitted.
    ///
    /// # Panics
    /// If a range is outside its buffer or not aligned.
    pub fn submit_with_copies(
        &self,
        list: Option<&mut CommandList>,
        ranges: &[CopyRange<'_>],
        copies: &mut HostCopies,
    ) -> Result<()> {
        for CopyRange { src, offset, len } in ranges {
            assert!(offset + len <= src.bytes(), "read: {offset}+{len} bytes");
            assert!(offset.is_multiple_of(4) && len.is_multiple_of(4), "read: unaligned");
        }
        let bytes: u64 = ranges.iter().map(|range| range.len as u64).sum();
        let mut result = Ok(());
        let mut encoded = None;
        if bytes > 0 {
            match self.place(copies, bytes) {
                Ok((to, mut at)) => {
                    let mut encoder = self.inner.device.create_command_encoder(&Default::default());
                    for CopyRange { src, offset, len } in ranges.iter().filter(|r| r.len > 0) {
                        let (from, len) = (*offset as u64, *len as u64);
                        encoder.copy_buffer_to_buffer(src.raw(), from, to, at, len);
                        at += len;
                    }
                    encoded = Some(encoder.finish());
                }
                Err(error) => result = Err(error),
            }
        }
        if let Some(index) = self.submit_all(list, encoded) {
            copies.last = Some(index);
        }
        result
    }

    /// Memory for `bytes` more: a buffer and the place in it.
    fn place<'a>(
        &self,
        copies: &'a mut HostCopies,
        bytes: u64,
    ) -> Result<(&'a ::wgpu::Buffer, u64)> {
        let has_room = |(readback, used): &(Readback, u64)| used + bytes <= readback.bytes;
        if !copies.buffers.last().is_some_and(has_room) {
            copies.buffers.push((self.take_readback(bytes)?, 0));
        }
        let (readback, used) = copies.buffers.last_mut().expect("one was added");
        *used += bytes;
        Ok((&readback.raw, *used - bytes))
    }

    /// Submits a list, if there is one, and other commands behind it, in one submission.
    fn submit_all(
        &self,
        mut list: Option<&mut CommandList>,
        others: Option<::wgpu::CommandBuffer>,
    ) -> Option<::wgpu::SubmissionIndex> {
        let mut all = [None, others];
        if let Some(list) = &mut list {
            count(&self.inner.counters.lists);
            let n = list.dispatches.len() as u64;
            self.inner.counters.dispatches.fetch_add(n, Ordering::Relaxed);
            if self.inner.profile.is_on() {
                self.submit_timed(&list.dispatches);
            } else {
                all[0] = Some(list.encoded.take().unwrap_or_else(|| self.encode(list)));
            }
        }
        if all.iter().all(Option::is_none) {
            return None;
        }
        let index = self.inner.queue.submit(all.into_iter().flatten());
        count(&self.inner.counters.submissions);
        Some(index)
    }

    /// Encodes a list that was submitted for its next submission, if it ran before: it then probably runs again.
    pub fn encode_ahead(&self, list: &mut CommandList) {
        if std::mem::replace(&mut list.has_run, true) && !self.inner.profile.is_on() {
            list.encoded = Some(self.encode(list));
        }
    }

    /// Adds to the counter of the host's time.
    pub fn count_host_time(&self, time: Duration) {
        self.inner.counters.host_us.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }

    fn encode(&self, list: &CommandList) -> ::wgpu::CommandBuffer {
        count(&self.inner.counters.encodings);
        let mut encoder = self.inner.device.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        list.dispatches.iter().for_each(|dispatch| dispatch.encode(&mut pass));
        drop(pass);
        encoder.finish()
    }

    /// Ends copies: they are mapped as soon as the device has made them.
    pub fn map(&self, copies: &mut HostCopies) {
        for (readback, used) in &copies.buffers {
            count(&self.inner.counters.readbacks);
            let mapped = Arc::new(MapState::default());
            copies.mapped.push(Arc::clone(&mapped));
            readback.raw.map_async(::wgpu::MapMode::Read, 0..*used, move |result| {
                let mut state = mapped.state.lock().unwrap_or_else(PoisonError::into_inner);
                state.0 = Some(result);
                if let Some(waker) = state.1.take() {
                    waker.wake();
                }
            });
        }
    }

    /// Waits for copies that [`map`](Self::map) ended, and passes their bytes to `take` in order.
    ///
    /// # Errors
    /// If the device failed since the last read.
    pub async fn read(&self, copies: HostCopies, mut take: impl FnMut(&[u8])) -> Result<()> {
        let HostCopies { buffers, last, mapped } = copies;
        if !mapped.is_empty() {
            self.wait_for_read(last, || mapped.iter().all(|mapped| mapped.is_ready()))?;
        }
        let mut results = Ok(());
        for mapped in mapped {
            results = results.and(MapFuture(mapped).await);
        }
        self.check()?;
        let failed = |message: String| Error::Device { message };
        results.map_err(|error| failed(error.to_string()))?;
        for (readback, used) in buffers {
            let view = readback.raw.get_mapped_range(0..used);
            take(&view.map_err(|error| failed(error.to_string()))?);
            readback.raw.unmap();
            self.inner.readbacks.lock().unwrap_or_else(PoisonError::into_inner).push(readback);
        }
        Ok(())
    }

    /// Takes the smallest pooled readback buffer of at least `bytes`, or creates one.
    fn take_readback(&self, bytes: u64) -> Result<Readback> {
        let mut pool = self.inner.readbacks.lock().unwrap_or_else(PoisonError::into_inner);
        let fitting = pool.iter().enumerate().filter(|(_, readback)| readback.bytes >= bytes);
        if let Some((i, _)) = fitting.min_by_key(|(_, readback)| readback.bytes) {
            return Ok(pool.swap_remove(i));
        }
        let bytes = bytes.next_power_of_two().max(MIN_READBACK_BYTES);
        let usage = ::wgpu::BufferUsages::MAP_READ | ::wgpu::BufferUsages::COPY_DST;
        Ok(Readback { raw: raw_buffer(self, bytes, usage)?, bytes })
    }
}
