//! Run time of each kernel, by timestamp queries.
//!
//! While profiling, every dispatch is a compute pass between two timestamps and every submission is waited for.
//! Times are those of kernels that run alone; a whole forward pass takes longer than without profiling.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use super::gpu::Gpu;
use super::list::Dispatch;

/// Timestamps in a query set: the limit of WebGPU.
const MAX_QUERIES: usize = 4096;

/// Total time of a kernel.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelTime {
    /// Name of the kernel.
    pub name: String,
    /// Number of dispatches.
    pub runs: u64,
    /// Time of all dispatches.
    pub total_ms: f64,
}

#[derive(Debug, Default)]
pub(super) struct Profile {
    is_on: AtomicBool,
    /// Dispatches and nanoseconds by kernel name.
    totals: Mutex<BTreeMap<String, (u64, f64)>>,
}

impl Profile {
    pub(super) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }
}

impl Gpu {
    /// Starts profiling; returns false without timestamp queries.
    pub fn start_profile(&self) -> bool {
        let has_clock = self.inner.device.features().contains(::wgpu::Features::TIMESTAMP_QUERY);
        self.inner.profile.is_on.store(has_clock, Ordering::Relaxed);
        has_clock
    }

    /// Takes the times since the last call, longest first.
    #[must_use]
    pub fn take_profile(&self) -> Vec<KernelTime> {
        let totals = &self.inner.profile.totals;
        let totals = std::mem::take(&mut *totals.lock().unwrap_or_else(PoisonError::into_inner));
        let time = |(name, (runs, ns))| KernelTime { name, runs, total_ms: ns / 1e6 };
        let mut times: Vec<_> = totals.into_iter().map(time).collect();
        times.sort_by(|a, b| b.total_ms.total_cmp(&a.total_ms));
        times
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
            self.add_times(&names, &ticks);
        }
    }

    fn add_times(&self, names: &[String], ticks: &[u64]) {
        let period = f64::from(self.inner.queue.get_timestamp_period());
        let mut totals = self.inner.profile.totals.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, pair) in names.iter().zip(ticks.chunks_exact(2)) {
            let total = totals.entry(name.clone()).or_default();
            total.0 += 1;
            total.1 += period * pair[1].saturating_sub(pair[0]) as f64;
        }
    }
}
