//! Submission of lists, uploads and readback.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::buffer::GpuBuffer;
use super::counters::count;
use super::gpu::Gpu;
use super::list::{CommandList, Dispatch};
use crate::kernel_times::KernelTime;
use crate::{Error, Result};
use crate::{check_at_most, check_multiple};

/// Bytes of weights in one upload.
const STAGING_BYTES: usize = 16 << 20;
/// Bytes of weights in flight before an upload waits.
const MAX_IN_FLIGHT_BYTES: usize = 64 << 20;
/// Smallest buffer for copies to the host: tokens of many steps.
const MIN_READBACK_BYTES: usize = 4096;
/// Timestamps in a query set: the limit of WebGPU.
const MAX_QUERIES: usize = 4096;

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
    buffers: Vec<(GpuBuffer, u64)>,
    last: Option<::wgpu::SubmissionIndex>,
    mapped: Vec<Arc<MapState>>,
}

type MapResult = std::result::Result<(), ::wgpu::BufferAsyncError>;

/// Result of a mapping, or the end of submitted work, set by the device's callback, and the waker of its [`MapFuture`].
#[derive(Debug, Default)]
struct MapState {
    state: Mutex<(Option<MapResult>, Option<Waker>)>,
}

impl MapState {
    fn set(&self, result: MapResult) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 = Some(result);
        if let Some(waker) = state.1.take() {
            waker.wake();
        }
    }

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
        check_at_most!(4 * (offset + words.len()), dst.bytes(), "write: end in bytes");
        count(&self.inner.counters.uploads);
        let bytes = bytemuck::cast_slice(words);
        self.inner.queue.write_buffer(dst.raw(), 4 * offset as u64, bytes);
    }

    /// Uploads bytes. Waits after `MAX_IN_FLIGHT_BYTES` (not in browsers), to bound the host memory of staging buffers.
    ///
    /// # Errors
    /// If the device failed.
    ///
    /// # Panics
    /// If the range is outside `dst`.
    pub fn upload(&self, dst: &GpuBuffer, offset: usize, bytes: &[u8]) -> Result<()> {
        check_at_most!(offset + bytes.len(), dst.bytes(), "upload: end in bytes");
        for (i, chunk) in bytes.chunks(STAGING_BYTES).enumerate() {
            let at = (offset + i * STAGING_BYTES) as u64;
            self.inner.queue.write_buffer(dst.raw(), at, chunk);
            let index = self.inner.queue.submit([]);
            count(&self.inner.counters.submissions);
            let before = self.inner.in_flight_bytes.fetch_add(chunk.len(), Ordering::Relaxed);
            if before + chunk.len() > MAX_IN_FLIGHT_BYTES {
                self.wait_for(Some(index))?;
                self.inner.in_flight_bytes.store(0, Ordering::Relaxed);
            }
        }
        self.check()
    }

    /// Submits a list, which must still be [valid](super::Recorder::is_valid).
    pub fn submit(&self, list: &mut CommandList) {
        self.submit_all(Some(list), None);
    }

    /// Submits a list, if there is one, then copies of `ranges`, in one submission.
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
            check_at_most!(offset + len, src.bytes(), "read: end in bytes");
            check_multiple!(offset, 4, "read: offset");
            check_multiple!(len, 4, "read: bytes");
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
        let has_room =
            |(readback, used): &(GpuBuffer, u64)| used + bytes <= readback.bytes() as u64;
        if !copies.buffers.last().is_some_and(has_room) {
            copies.buffers.push((self.take_readback(bytes)?, 0));
        }
        let (readback, used) = copies.buffers.last_mut().expect("one was added");
        *used += bytes;
        Ok((readback.raw(), *used - bytes))
    }

    /// Submits a list, if there is one, then other commands, in one submission.
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
            let set = move |result| mapped.set(result);
            readback.raw().map_async(::wgpu::MapMode::Read, 0..*used, set);
        }
    }

    /// Returns the errors of what was allocated and uploaded so far. In browsers these are known when the device is done, for
    /// which this waits.
    ///
    /// # Errors
    /// If the device is out of memory, was lost or refused a command.
    pub async fn check_allocations(&self) -> Result<()> {
        if cfg!(target_arch = "wasm32") {
            let done = Arc::new(MapState::default());
            let state = Arc::clone(&done);
            self.inner.queue.on_submitted_work_done(move || state.set(Ok(())));
            // The work of a lost device is done, too.
            let _ = MapFuture(done).await;
        }
        self.check()
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
        if results.is_err() {
            // A browser rejects mappings, then reports a lost device, then the end of its work.
            self.check_allocations().await?;
        }
        self.check()?;
        let failed = |message: String| Error::Device { message };
        results.map_err(|error| failed(error.to_string()))?;
        for (readback, used) in buffers {
            let view = readback.raw().get_mapped_range(0..used);
            take(&view.map_err(|error| failed(error.to_string()))?);
            readback.raw().unmap();
            self.inner.readbacks.lock().unwrap_or_else(PoisonError::into_inner).push(readback);
        }
        Ok(())
    }

    /// Takes the smallest pooled readback buffer of at least `bytes`, or creates one.
    fn take_readback(&self, bytes: u64) -> Result<GpuBuffer> {
        let mut pool = self.inner.readbacks.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = bytes as usize;
        let fitting = pool.iter().enumerate().filter(|(_, readback)| readback.bytes() >= bytes);
        if let Some((i, _)) = fitting.min_by_key(|(_, readback)| readback.bytes()) {
            return Ok(pool.swap_remove(i));
        }
        let bytes = bytes.next_power_of_two().max(MIN_READBACK_BYTES);
        GpuBuffer::with_usage(self, bytes, ::wgpu::BufferUsages::MAP_READ)
    }

    /// Starts profiling; returns false without timestamp queries, and in browsers, where their results cannot be waited for.
    pub fn start_profile(&self) -> bool {
        let has_clock = !cfg!(target_arch = "wasm32")
            && self.inner.device.features().contains(::wgpu::Features::TIMESTAMP_QUERY);
        self.inner.profile.set(has_clock);
        has_clock
    }

    /// Takes the times since the last call, longest first.
    #[must_use]
    pub fn take_profile(&self) -> Vec<KernelTime> {
        self.inner.profile.take()
    }

    /// Submits dispatches with timestamps around each, waits for them and adds their times to the totals.
    pub(super) fn submit_timed(&self, dispatches: &[Dispatch]) {
        dispatches.chunks(MAX_QUERIES / 2).for_each(|chunk| self.submit_timed_chunk(chunk));
    }

    fn submit_timed_chunk(&self, dispatches: &[Dispatch]) {
        let device = &self.inner.device;
        let count = 2 * dispatches.len() as u32;
        let queries = device.create_query_set(&::wgpu::QuerySetDescriptor {
            label: None,
            ty: ::wgpu::QueryType::Timestamp,
            count,
        });
        let bytes = 8 * u64::from(count);
        let buffer = |usage| {
            device.create_buffer(&::wgpu::BufferDescriptor {
                label: None,
                size: bytes,
                usage,
                mapped_at_creation: false,
            })
        };
        let resolved = buffer(::wgpu::BufferUsages::QUERY_RESOLVE | ::wgpu::BufferUsages::COPY_SRC);
        let mapped = buffer(::wgpu::BufferUsages::MAP_READ | ::wgpu::BufferUsages::COPY_DST);
        let mut encoder = device.create_command_encoder(&Default::default());
        let mut names = Vec::with_capacity(dispatches.len());
        for dispatch in dispatches {
            let first = 2 * names.len() as u32;
            let writes = ::wgpu::ComputePassTimestampWrites {
                query_set: &queries,
                beginning_of_pass_write_index: Some(first),
                end_of_pass_write_index: Some(first + 1),
            };
            let mut pass = encoder.begin_compute_pass(&::wgpu::ComputePassDescriptor {
                label: None,
                timestamp_writes: Some(writes),
            });
            dispatch.encode(&mut pass);
            names.push(dispatch.kernel.name.clone());
        }
        encoder.resolve_query_set(&queries, 0..count, &resolved, 0);
        encoder.copy_buffer_to_buffer(&resolved, 0, &mapped, 0, bytes);
        let index = self.inner.queue.submit([encoder.finish()]);
        mapped.map_async(::wgpu::MapMode::Read, 0..bytes, |_| ());
        if self.wait_for(Some(index)).is_ok()
            && let Ok(view) = mapped.get_mapped_range(0..bytes)
        {
            let ticks: Vec<u64> = bytemuck::pod_collect_to_vec(&view);
            let period = f64::from(self.inner.queue.get_timestamp_period());
            for (name, pair) in names.iter().zip(ticks.chunks_exact(2)) {
                let time = pair[1].saturating_sub(pair[0]);
                self.inner.profile.add(name, period * time as f64);
            }
        }
    }
}
