//! Device memory, and pinned host memory.

use std::ffi::c_void;

use cudarc::driver::sys::{self, CUdeviceptr};

use super::call::check;
use super::gpu::Gpu;
use crate::{Error, Result};

/// Memory of a GPU.
#[derive(Debug)]
pub struct Buffer {
    gpu: Gpu,
    address: CUdeviceptr,
    bytes: usize,
}

impl Buffer {
    /// Allocates `bytes` bytes of zeros.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] with the size, or [`Error::Device`].
    pub fn new(gpu: &Gpu, bytes: usize) -> Result<Self> {
        gpu.enter()?;
        let mut address = 0;
        // Kernels read whole vectors.
        let padded =
            bytes.max(1).checked_next_multiple_of(256).ok_or(Error::OutOfMemory { bytes })?;
        if let Some(address) = gpu.planned_address(padded) {
            return Ok(Self { gpu: gpu.clone(), address, bytes });
        }
        // SAFETY: the context is current; the function writes the address.
        check(unsafe { sys::cuMemAlloc_v2(&raw mut address, padded) }).map_err(
            |error| match error {
                Error::OutOfMemory { .. } => Error::OutOfMemory { bytes },
                error => error,
            },
        )?;
        let buffer = Self { gpu: gpu.clone(), address, bytes };
        gpu.count(|counters| &counters.buffers);
        // SAFETY: the memory was just allocated.
        check(unsafe { sys::cuMemsetD8Async(address, 0, padded, gpu.stream()) })?;
        Ok(buffer)
    }

    /// Address on the device.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if !self.gpu.is_planned() && self.gpu.enter().is_ok() {
            // SAFETY: the memory is freed once. The driver waits for kernels that use it. A context that failed keeps it.
            let _ = unsafe { sys::cuMemFree_v2(self.address) };
        }
    }
}

/// Pinned host memory, for asynchronous copies.
#[derive(Debug)]
pub(super) struct Pinned {
    gpu: Gpu,
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the memory belongs to the value alone.
unsafe impl Send for Pinned {}
// SAFETY: as above; it is written through `&mut` only.
unsafe impl Sync for Pinned {}

impl Pinned {
    pub(super) fn new(gpu: &Gpu, bytes: usize) -> Result<Self> {
        if gpu.is_planned() {
            let start = Box::into_raw(vec![0; bytes].into_boxed_slice()).cast();
            return Ok(Self { gpu: gpu.clone(), start, bytes });
        }
        gpu.enter()?;
        let mut start: *mut c_void = std::ptr::null_mut();
        // SAFETY: the context is current; the function writes the address.
        check(unsafe { sys::cuMemHostAlloc(&raw mut start, bytes.max(1), 0) })?;
        // SAFETY: `bytes` bytes were allocated.
        unsafe { start.cast::<u8>().write_bytes(0, bytes) };
        gpu.count(|counters| &counters.buffers);
        Ok(Self { gpu: gpu.clone(), start: start.cast(), bytes })
    }

    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        // SAFETY: allocated and initialized in `new`.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: allocated and initialized in `new`; `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.gpu.is_planned() {
            // SAFETY: made from a box of `bytes` bytes in `new`, and freed once.
            drop(unsafe {
                Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.start, self.bytes))
            });
        } else if self.gpu.enter().is_ok() {
            // SAFETY: the memory is freed once, after the copies that use it.
            let _ = unsafe { sys::cuMemFreeHost(self.start.cast()) };
        }
    }
}
