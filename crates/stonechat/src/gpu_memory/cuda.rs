//! Memory of NVIDIA GPUs.

use std::collections::BTreeMap;

use stonechat_compute::cuda::{CudaDevice, Gpu};

/// Free bytes of as many GPUs as there are, each with those of the one with the least; total ones of a GPU that cannot be
/// opened.
pub(crate) fn free_bytes<'a>(devices: impl IntoIterator<Item = &'a CudaDevice>) -> Option<u64> {
    let free = |device: &CudaDevice| Gpu::open(device)?.free_memory_bytes();
    let bytes = devices
        .into_iter()
        .map(|device| (device.index, free(device).unwrap_or(device.total_memory_bytes)));
    let bytes: BTreeMap<usize, u64> = bytes.collect();
    Some(bytes.values().min()? * bytes.len() as u64)
}
