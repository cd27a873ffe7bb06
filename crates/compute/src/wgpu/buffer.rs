//! Device memory, and the way back from it.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::counters::count;
use super::gpu::Gpu;
use super::recorder::Command;
use crate::{Error, Result};

/// Sizes are rounded up to this, so that a shader may see any buffer as `vec4` values.
const ALIGN: u64 = 16;

/// Bytes on the device, zero at first. Clones share them.
#[derive(Debug, Clone)]
pub struct GpuBuffer {
    inner: Arc<Allocation>,
}

#[derive(Debug)]
struct Allocation {
    raw: ::wgpu::Buffer,
    /// Never used twice by a device.
    id: u64,
    bytes: u64,
    /// Where the device looks for bind groups to forget.
    dropped: Arc<Mutex<Vec<u64>>>,
    memory: Arc<Memory>,
    /// The same values as other types, each from the first product that asked for it on.
    twins: Mutex<[Twin; 2]>,
}

/// What a copy beside a buffer is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TwinKind {
    /// 8 bits, see [`ops::quantize`](super::ops::quantize).
    Codes,
    /// f16, see [`ops::halves`](super::ops::halves).
    Halves,
}

/// A copy of a buffer's values as another type.
#[derive(Debug)]
struct Twin {
    buffer: Option<GpuBuffer>,
    /// Rows and columns that it holds; none after the buffer was written.
    shape: Option<[usize; 2]>,
    /// Rows that a product asked for, at least.
    fewest_rows: usize,
}

impl Default for Twin {
    fn default() -> Self {
        Self { buffer: None, shape: None, fewest_rows: usize::MAX }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        self.dropped.lock().unwrap_or_else(PoisonError::into_inner).push(self.id);
        self.memory.give_back(self.raw.size());
    }
}

impl GpuBuffer {
    /// `bytes` zeros.
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
            twins: Mutex::default(),
        };
        Ok(Self { inner: Arc::new(allocation) })
    }

    /// Its size as it was asked for.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.inner.bytes as usize
    }

    /// Whether both are the same bytes.
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

    fn twins(&self) -> MutexGuard<'_, [Twin; 2]> {
        self.inner.twins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy of at least `bytes`, and whether it holds `shape` already.
    pub(super) fn twin_for(
        &self,
        gpu: &Gpu,
        kind: TwinKind,
        bytes: usize,
        shape: [usize; 2],
    ) -> Result<(Self, bool)> {
        let twin = &mut self.twins()[kind as usize];
        twin.fewest_rows = twin.fewest_rows.min(shape[0]);
        if let Some(buffer) = twin.buffer.as_ref().filter(|buffer| buffer.bytes() >= bytes) {
            return Ok((buffer.clone(), twin.shape == Some(shape)));
        }
        let buffer = Self::new(gpu, bytes)?;
        (twin.buffer, twin.shape) = (Some(buffer.clone()), None);
        Ok((buffer, false))
    }

    /// A copy of `rows`, if a product asked for as few before and it has room for `bytes`.
    pub(super) fn wanted_twin(&self, kind: TwinKind, bytes: usize, rows: usize) -> Option<Self> {
        let twin = &self.twins()[kind as usize];
        let fits = |buffer: &&Self| buffer.bytes() >= bytes && rows >= twin.fewest_rows;
        twin.buffer.as_ref().filter(fits).cloned()
    }

    /// Notes that a copy holds rows and columns.
    pub fn set_twin(&self, kind: TwinKind, shape: [usize; 2]) {
        self.twins()[kind as usize].shape = Some(shape);
    }

    /// Notes that the copies hold nothing that is true any more. A dispatch that writes the buffer does so by
    /// itself.
    pub(super) fn forget_twins(&self) {
        self.twins().iter_mut().for_each(|twin| twin.shape = None);
    }
}

/// Bytes of a device's buffers.
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

    /// Whether there may be a buffer of `bytes` more.
    fn take(&self, bytes: u64) -> bool {
        let used = self.used.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let fits = used <= self.limit.load(Ordering::Relaxed);
        if !fits {
            self.give_back(bytes);
        }
        fits
    }

    fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// A buffer of at least `bytes`.
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
    if !gpu.inner.memory.take(size) {
        return Err(Error::OutOfMemory { bytes });
    }
    count(&gpu.inner.counters.buffers);
    let device = &gpu.inner.device;
    let scope = device.push_error_scope(::wgpu::ErrorFilter::OutOfMemory);
    let descriptor =
        ::wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false };
    let buffer = device.create_buffer(&descriptor);
    // A browser answers later; an error is then reported by the next read.
    match now(scope.pop()) {
        Some(Some(_)) => {
            gpu.inner.memory.give_back(size);
            Err(Error::OutOfMemory { bytes })
        }
        _ => Ok(buffer),
    }
}

/// What a future is worth without waiting.
fn now<T>(future: impl Future<Output = T>) -> Option<T> {
    match std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// Memory that the host can map, with its size.
#[derive(Debug)]
pub(super) struct Readback {
    raw: ::wgpu::Buffer,
    bytes: u64,
}

type MapResult = std::result::Result<(), ::wgpu::BufferAsyncError>;

/// The end of a mapping, which a callback of the device reports, and who waits for it.
#[derive(Debug, Default)]
struct Mapped {
    state: Mutex<(Option<MapResult>, Option<Waker>)>,
}

impl Mapped {
    /// Whether the memory can be read; where it never will be, waiting for the device tells why.
    fn is_ready(&self) -> bool {
        matches!(self.state.lock().unwrap_or_else(PoisonError::into_inner).0, Some(Ok(())))
    }
}

struct Wait(Arc<Mapped>);

impl Future for Wait {
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
    /// Copies the bytes of `src` from `offset` on to `out`, once everything recorded so far is done.
    /// Offset and length are multiples of 4.
    ///
    /// # Errors
    /// If the device failed since the last read.
    ///
    /// # Panics
    /// If the bytes are not in the buffer or not aligned.
    pub async fn read(&self, src: &GpuBuffer, offset: usize, out: &mut [u8]) -> Result<()> {
        assert!(offset + out.len() <= src.bytes(), "read: {offset}+{} bytes", out.len());
        assert!(offset.is_multiple_of(4) && out.len().is_multiple_of(4), "read: unaligned");
        if out.is_empty() {
            return self.check();
        }
        let bytes = out.len() as u64;
        let readback = self.take_readback(bytes)?;
        let submitted = {
            let mut recorder = self.lock();
            recorder.push(Command::Copy {
                src: src.raw().clone(),
                src_offset: offset as u64,
                dst: readback.raw.clone(),
                dst_offset: 0,
                bytes,
            });
            recorder.submit(self)
        };
        count(&self.inner.counters.readbacks);
        let mapped = Arc::new(Mapped::default());
        let shared = Arc::clone(&mapped);
        readback.raw.map_async(::wgpu::MapMode::Read, 0..bytes, move |result| {
            let mut state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.0 = Some(result);
            if let Some(waker) = state.1.take() {
                waker.wake();
            }
        });
        self.lock().encode_ahead(self);
        self.wait_for_read(submitted, || mapped.is_ready())?;
        let result = Wait(mapped).await;
        self.check()?;
        let failed = |message: String| Error::Device { message };
        result.map_err(|error| failed(error.to_string()))?;
        let view = readback.raw.get_mapped_range(0..bytes).map_err(|e| failed(e.to_string()))?;
        out.copy_from_slice(&view);
        drop(view);
        readback.raw.unmap();
        self.inner.readbacks.lock().unwrap_or_else(PoisonError::into_inner).push(readback);
        Ok(())
    }

    /// A readback buffer of at least `bytes`: the smallest of those that wait, or a new one.
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
