//! Device buffers.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::counters::count;
use super::gpu::Gpu;
use super::memory::Memory;
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

    /// Stands in for a buffer of `bytes` that could not be allocated: its size can be checked, but no kernel may use it.
    pub(super) fn missing(gpu: &Gpu, placeholder: &Self, bytes: usize) -> Self {
        let allocation = Allocation {
            raw: placeholder.raw().clone(),
            id: gpu.next_id(),
            bytes: bytes as u64,
            // The placeholder is not counted as memory of the device.
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
