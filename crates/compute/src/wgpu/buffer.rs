//! Device buffers, their cached f16 and q8 copies, and readback.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::counters::count;
use super::gpu::Gpu;
use super::recorder::Command;
use crate::{Error, Result};

/// Alignment of sizes, so that any buffer can be bound as an array of `vec4`.
const ALIGN: u64 = 16;

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
    /// Ids of dropped buffers, whose bind groups the recorder evicts.
    dropped: Arc<Mutex<Vec<u64>>>,
    memory: Arc<Memory>,
    /// Cached copies of the values, indexed by [`CopyFormat`]; each is allocated by the first matmul that reads it.
    copies: Mutex<[ActivationCopy; 2]>,
}

/// Format of a cached copy of activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyFormat {
    /// int8 in groups of 32, see [`ops::q8_copy`](super::ops::q8_copy).
    Q8,
    /// f16, see [`ops::f16_copy`](super::ops::f16_copy).
    F16,
}

/// Cached copy of a buffer's values in a [`CopyFormat`].
#[derive(Debug)]
struct ActivationCopy {
    buffer: Option<GpuBuffer>,
    /// `[rows, cols]` of the copy; `None` once the buffer was written.
    shape: Option<[usize; 2]>,
    /// Fewest rows for which a matmul requested a copy.
    min_rows: usize,
}

impl Default for ActivationCopy {
    fn default() -> Self {
        Self { buffer: None, shape: None, min_rows: usize::MAX }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        self.dropped.lock().unwrap_or_else(PoisonError::into_inner).push(self.id);
        self.memory.release(self.raw.size());
    }
}

impl GpuBuffer {
    /// Allocates `bytes` zeros.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] or [`Error::BufferTooLarge`].
    pub fn new(gpu: &Gpu, bytes: usize) -> Result<Self> {
        let usage = ::wgpu::BufferUsages::STORAGE
            | ::wgpu::BufferUsages::COPY_SRC
            | ::wgpu::BufferUsages::COPY_DST;
        let allocation = Allocation {
            raw: raw_buffer(gpu, bytes as u64, usage)?,
            id: gpu.next_id(),
            bytes: bytes as u64,
            dropped: Arc::clone(&gpu.inner.dropped),
            memory: Arc::clone(&gpu.inner.memory),
            copies: Mutex::default(),
        };
        Ok(Self { inner: Arc::new(allocation) })
    }

    /// Requested size; the allocation is rounded up to 16 bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.inner.bytes as usize
    }

    /// Whether both share the same allocation.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        self.id() == other.id()
    }

    pub(super) fn raw(&self) -> &::wgpu::Buffer {
        &self.inner.raw
    }

    pub(super) fn id(&self) -> u64 {
        self.inner.id
    }

    fn copies(&self) -> MutexGuard<'_, [ActivationCopy; 2]> {
        self.inner.copies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests a copy of at least `bytes`; returns it and whether it is current for `[rows, cols] = shape`.
    pub(super) fn copy_for(
        &self,
        gpu: &Gpu,
        format: CopyFormat,
        bytes: usize,
        shape: [usize; 2],
    ) -> Result<(Self, bool)> {
        let copy = &mut self.copies()[format as usize];
        copy.min_rows = copy.min_rows.min(shape[0]);
        if let Some(buffer) = copy.buffer.as_ref().filter(|buffer| buffer.bytes() >= bytes) {
            return Ok((buffer.clone(), copy.shape == Some(shape)));
        }
        let buffer = Self::new(gpu, bytes)?;
        (copy.buffer, copy.shape) = (Some(buffer.clone()), None);
        Ok((buffer, false))
    }

    /// Copy for a kernel to write with `rows` rows: `None` unless a matmul requested one of so few rows before and the
    /// buffer has `bytes`.
    pub(super) fn requested_copy(
        &self,
        format: CopyFormat,
        bytes: usize,
        rows: usize,
    ) -> Option<Self> {
        let copy = &self.copies()[format as usize];
        let fits = |buffer: &&Self| buffer.bytes() >= bytes && rows >= copy.min_rows;
        copy.buffer.as_ref().filter(fits).cloned()
    }

    /// Marks a copy as current, with `[rows, cols] = shape`. Call it after the dispatch that writes both.
    pub fn mark_copy(&self, format: CopyFormat, shape: [usize; 2]) {
        self.copies()[format as usize].shape = Some(shape);
    }

    /// Marks the copies as stale. The recorder calls it for every buffer that a dispatch writes.
    pub(super) fn forget_copies(&self) {
        self.copies().iter_mut().for_each(|copy| copy.shape = None);
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

/// Bytes of a buffer to read.
#[derive(Debug)]
pub struct ReadRange<'a> {
    /// The buffer.
    pub src: &'a GpuBuffer,
    /// First byte.
    pub offset: usize,
    /// Destination; its length is the number of bytes.
    pub out: &'a mut [u8],
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
    /// Submits the recording, then reads `src[offset..]` into `out`; see [`read_all`](Self::read_all).
    ///
    /// # Errors
    /// If the device failed since the last read.
    ///
    /// # Panics
    /// If the range is outside the buffer or not aligned.
    pub async fn read(&self, src: &GpuBuffer, offset: usize, out: &mut [u8]) -> Result<()> {
        self.read_all(&mut [ReadRange { src, offset, out }]).await
    }

    /// Submits the recording, then reads all ranges in one mapping. Offsets and lengths are multiples of 4.
    ///
    /// # Errors
    /// If the device failed since the last read.
    ///
    /// # Panics
    /// If a range is outside its buffer or not aligned.
    pub async fn read_all(&self, reads: &mut [ReadRange<'_>]) -> Result<()> {
        for ReadRange { src, offset, out } in &*reads {
            assert!(offset + out.len() <= src.bytes(), "read: {offset}+{} bytes", out.len());
            assert!(offset.is_multiple_of(4) && out.len().is_multiple_of(4), "read: unaligned");
        }
        let bytes: u64 = reads.iter().map(|read| read.out.len() as u64).sum();
        if bytes == 0 {
            return self.check();
        }
        let readback = self.take_readback(bytes)?;
        let submitted = {
            let mut recorder = self.lock();
            let mut dst_offset = 0;
            for ReadRange { src, offset, out } in &*reads {
                let bytes = out.len() as u64;
                if bytes == 0 {
                    continue;
                }
                recorder.push(Command::Copy {
                    src: src.raw().clone(),
                    src_offset: *offset as u64,
                    dst: readback.raw.clone(),
                    dst_offset,
                    bytes,
                });
                dst_offset += bytes;
            }
            recorder.submit(self)
        };
        count(&self.inner.counters.readbacks);
        let mapped = Arc::new(MapState::default());
        let shared = Arc::clone(&mapped);
        readback.raw.map_async(::wgpu::MapMode::Read, 0..bytes, move |result| {
            let mut state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.0 = Some(result);
            if let Some(waker) = state.1.take() {
                waker.wake();
            }
        });
        self.lock().encode_next(self);
        self.wait_for_read(submitted, || mapped.is_ready())?;
        let result = MapFuture(mapped).await;
        self.check()?;
        let failed = |message: String| Error::Device { message };
        result.map_err(|error| failed(error.to_string()))?;
        let view = readback.raw.get_mapped_range(0..bytes).map_err(|e| failed(e.to_string()))?;
        let mut rest = &view[..];
        for ReadRange { out, .. } in reads {
            let (head, tail) = rest.split_at(out.len());
            out.copy_from_slice(head);
            rest = tail;
        }
        drop(view);
        readback.raw.unmap();
        self.inner.readbacks.lock().unwrap_or_else(PoisonError::into_inner).push(readback);
        Ok(())
    }

    /// Takes the smallest pooled readback buffer of at least `bytes`, or creates one.
    fn take_readback(&self, bytes: u64) -> Result<Readback> {
        let mut pool = self.inner.readbacks.lock().unwrap_or_else(PoisonError::into_inner);
        let fitting = pool.iter().enumerate().filter(|(_, readback)| readback.bytes >= bytes);
        if let Some((i, _)) = fitting.min_by_key(|(_, readback)| readback.bytes) {
            return Ok(pool.swap_remove(i));
        }
        let bytes = bytes.next_power_of_two();
        let usage = ::wgpu::BufferUsages::MAP_READ | ::wgpu::BufferUsages::COPY_DST;
        Ok(Readback { raw: raw_buffer(self, bytes, usage)?, bytes })
    }
}
