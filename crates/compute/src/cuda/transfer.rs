//! Copies between host and device: inputs of steps, results, weights.

use std::collections::VecDeque;

use cudarc::driver::sys;

use super::buffer::{Buffer, Pinned};
use super::call::check;
use super::event::Event;
use super::gpu::Gpu;
use crate::Result;

/// Copies of [`HostWrites`] in flight.
const N_STAGES: usize = 4;

#[derive(Debug)]
struct Stage {
    memory: Pinned,
    /// The copy from it.
    copied: Event,
}

impl Stage {
    fn new(gpu: &Gpu, bytes: usize) -> Result<Self> {
        Ok(Self { memory: Pinned::new(gpu, bytes)?, copied: Event::new(gpu)? })
    }

    /// Copies `bytes` to the device through the pinned memory, after its last copy.
    fn send(&mut self, gpu: &Gpu, to: u64, bytes: &[u8]) -> Result<()> {
        self.copied.wait()?;
        if self.memory.len() < bytes.len() {
            self.memory = Pinned::new(gpu, bytes.len().next_power_of_two())?;
        }
        self.memory.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
        if gpu.is_planned() {
            return Ok(());
        }
        let from = self.memory.as_slice().as_ptr().cast();
        // SAFETY: the caller's range of a buffer; the pinned memory stays unchanged until the event.
        check(unsafe { sys::cuMemcpyHtoDAsync_v2(to, from, bytes.len(), gpu.stream()) })?;
        self.copied.record()
    }
}

/// Writes to buffers through pinned memory, in stream order. The host waits only for the write four before this one.
#[derive(Debug)]
pub struct HostWrites {
    gpu: Gpu,
    stages: VecDeque<Stage>,
}

impl HostWrites {
    /// Memory for writes of `bytes` bytes; it grows.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(gpu: &Gpu, bytes: usize) -> Result<Self> {
        let stages = (0..N_STAGES).map(|_| Stage::new(gpu, bytes)).collect::<Result<_>>()?;
        Ok(Self { gpu: gpu.clone(), stages })
    }

    /// Enqueues a write of the first bytes of a buffer, after earlier work.
    ///
    /// # Errors
    /// If the device failed.
    ///
    /// # Panics
    /// If the buffer is smaller.
    pub fn write(&mut self, to: &Buffer, bytes: &[u8]) -> Result<()> {
        assert!(bytes.len() <= to.bytes(), "room for {} bytes", bytes.len());
        self.gpu.enter()?;
        let mut stage = self.stages.pop_front().expect("a stage");
        let sent = stage.send(&self.gpu, to.address(), bytes);
        self.stages.push_back(stage);
        sent
    }
}

/// Memory for inputs on the device, written through pinned memory.
#[derive(Debug)]
pub struct StepBuffer {
    gpu: Gpu,
    device: Buffer,
    writes: HostWrites,
}

impl StepBuffer {
    /// Memory for `bytes` bytes; it grows.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(gpu: &Gpu, bytes: usize) -> Result<Self> {
        let (device, writes) = (Buffer::new(gpu, bytes)?, HostWrites::new(gpu, bytes)?);
        Ok(Self { gpu: gpu.clone(), device, writes })
    }

    /// Address on the device.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.device.address()
    }

    /// Makes room for `bytes` bytes. Returns whether the address changed.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn reserve(&mut self, bytes: usize) -> Result<bool> {
        let is_larger = bytes > self.device.bytes();
        if is_larger {
            self.device = Buffer::new(&self.gpu, bytes.next_power_of_two())?;
        }
        Ok(is_larger)
    }

    /// Enqueues a copy of `words` to the device, after earlier work.
    ///
    /// # Errors
    /// If the device failed.
    ///
    /// # Panics
    /// If there is no room.
    pub fn write(&mut self, words: &[u32]) -> Result<()> {
        if !words.is_empty() {
            self.writes.write(&self.device, bytemuck::cast_slice(words))?;
            self.gpu.count(|counters| &counters.uploads);
        }
        Ok(())
    }
}

/// Weights on their way to the device, through pinned memory.
#[derive(Debug)]
pub struct Uploads {
    gpu: Gpu,
    device: Buffer,
    stages: [Stage; 2],
    /// Number of uploads.
    n: usize,
}

impl Uploads {
    /// Memory for uploads of at most `bytes` bytes; it grows.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(gpu: &Gpu, bytes: usize) -> Result<Self> {
        let stages = [Stage::new(gpu, bytes)?, Stage::new(gpu, bytes)?];
        Ok(Self { gpu: gpu.clone(), device: Buffer::new(gpu, bytes)?, stages, n: 0 })
    }

    /// Enqueues a copy of `bytes`; returns their address on the device, for work that is enqueued before the next upload.
    ///
    /// # Errors
    /// If the device failed or is out of memory.
    pub fn send(&mut self, bytes: &[u8]) -> Result<u64> {
        if self.device.bytes() < bytes.len() {
            self.device = Buffer::new(&self.gpu, bytes.len())?;
        }
        self.n += 1;
        self.stages[self.n % 2].send(&self.gpu, self.device.address(), bytes)?;
        Ok(self.device.address())
    }
}

/// Range of a buffer.
#[derive(Debug, Clone, Copy)]
pub struct CopyRange<'a> {
    /// The buffer.
    pub src: &'a Buffer,
    /// First byte.
    pub offset: usize,
    /// Number of bytes.
    pub len: usize,
}

/// Results on their way to the host.
#[derive(Debug)]
pub struct HostCopies {
    memory: Pinned,
    copied: Event,
    len: usize,
}

impl HostCopies {
    /// Memory for results; it grows.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(gpu: &Gpu, bytes: usize) -> Result<Self> {
        Ok(Self { memory: Pinned::new(gpu, bytes)?, copied: Event::new(gpu)?, len: 0 })
    }

    /// Drops the results.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Enqueues copies after the results so far.
    ///
    /// # Errors
    /// If the device failed.
    ///
    /// # Panics
    /// If a range is outside of its buffer.
    pub fn enqueue(&mut self, gpu: &Gpu, ranges: &[CopyRange<'_>]) -> Result<()> {
        let bytes: usize = ranges.iter().map(|range| range.len).sum();
        if self.memory.len() < self.len + bytes {
            let mut larger = Pinned::new(gpu, (self.len + bytes).next_power_of_two())?;
            if self.len > 0 {
                gpu.synchronize()?;
                larger.as_mut_slice()[..self.len]
                    .copy_from_slice(&self.memory.as_slice()[..self.len]);
            }
            self.memory = larger;
        }
        gpu.enter()?;
        for &CopyRange { src, offset, len } in ranges {
            assert!(offset + len <= src.bytes(), "{len} bytes from {offset} of {}", src.bytes());
            let to = self.memory.as_mut_slice()[self.len..].as_mut_ptr().cast();
            let from = src.address() + offset as u64;
            // SAFETY: both ranges were checked; the memory lives and is not read until the event.
            check(unsafe { sys::cuMemcpyDtoHAsync_v2(to, from, len, gpu.stream()) })?;
            self.len += len;
        }
        gpu.count(|counters| &counters.readbacks);
        self.copied.record()
    }

    /// Waits for the copies.
    ///
    /// # Errors
    /// If the device failed since the last check.
    pub fn wait(&self, gpu: &Gpu) -> Result<&[u8]> {
        if let Err(error) = self.copied.wait() {
            gpu.fault(error.to_string());
        }
        gpu.check()?;
        Ok(&self.memory.as_slice()[..self.len])
    }
}

impl Gpu {
    /// Copies `bytes` to a buffer, in order with other work, and waits until the host's memory can change.
    ///
    /// # Errors
    /// If the device failed.
    ///
    /// # Panics
    /// If the range is outside of the buffer.
    pub fn upload(&self, buffer: &Buffer, offset: usize, bytes: &[u8]) -> Result<()> {
        assert!(offset + bytes.len() <= buffer.bytes(), "upload: range of the buffer");
        self.enter()?;
        if self.is_planned() {
            return Ok(());
        }
        let to = buffer.address() + offset as u64;
        let from = bytes.as_ptr().cast();
        // SAFETY: the range was checked. Memory that is not pinned is copied before the call returns.
        check(unsafe { sys::cuMemcpyHtoDAsync_v2(to, from, bytes.len(), self.stream()) })?;
        Ok(())
    }
}
