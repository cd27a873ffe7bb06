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
    allocation: Arc<Allocation>,
    /// Unique for the life of the device.
    id: u64,
    bytes: u64,
}

#[derive(Debug)]
struct Allocation {
    raw: ::wgpu::Buffer,
    memory: Arc<Memory>,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // Submitted work still uses the memory. In browsers, a buffer that is only dropped lives until the garbage collector runs.
        self.raw.destroy();
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
        let raw = raw_buffer(gpu, bytes as u64, usage)?;
        let allocation = Arc::new(Allocation { raw, memory: Arc::clone(&gpu.inner.memory) });
        Ok(Self { allocation, id: gpu.next_id(), bytes: bytes as u64 })
    }

    /// Stands in for a buffer of `bytes` that could not be allocated: its size can be checked, but no kernel may use it.
    pub(super) fn missing(gpu: &Gpu, placeholder: &Self, bytes: usize) -> Self {
        let allocation = Arc::clone(&placeholder.allocation);
        Self { allocation, id: gpu.next_id(), bytes: bytes as u64 }
    }

    /// Requested size; the allocation is rounded up to 16 bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes as usize
    }

    pub(super) fn raw(&self) -> &::wgpu::Buffer {
        &self.allocation.raw
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }
}

/// Creates a wgpu buffer of at least `bytes`.
fn raw_buffer(gpu: &Gpu, bytes: u64, usage: ::wgpu::BufferUsages) -> Result<::wgpu::Buffer> {
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
    let descriptor =
        ::wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false };
    if cfg!(target_arch = "wasm32") {
        // A browser tells later: without an error scope, the device reports the error, which the next read returns.
        return Ok(device.create_buffer(&descriptor));
    }
    let scope = device.push_error_scope(::wgpu::ErrorFilter::OutOfMemory);
    let buffer = device.create_buffer(&descriptor);
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
