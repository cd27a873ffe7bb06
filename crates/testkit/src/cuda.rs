//! NVIDIA GPUs of tests.

use stonechat_compute::cuda::{CudaDevice, devices};
use stonechat_nn::{Cuda, CudaGroup};

/// Opens the first NVIDIA GPU of this machine with and without dependent launches. Empty without one, after printing that the
/// test `test` is skipped.
///
/// # Panics
/// If it cannot be opened.
#[must_use]
pub fn backends(test: &str) -> Vec<Cuda> {
    let Some(device) = all(test).into_iter().next() else { return Vec::new() };
    [true, false].map(|dependent| Cuda::open_with(&device, dependent).expect("an open GPU")).into()
}

/// Opens groups for tensor parallelism: two ranks on the first NVIDIA GPU, with and without dependent launches, and all GPUs if
/// there are several. Empty without a GPU, after printing that the test `test` is skipped.
///
/// # Panics
/// If one cannot be opened.
#[must_use]
pub fn groups(test: &str) -> Vec<CudaGroup> {
    let mut all = all(test);
    let Some(first) = all.first().cloned() else { return Vec::new() };
    all.truncate(CudaGroup::MAX_RANKS);
    let same = [first.clone(), first];
    let mut groups = vec![(same.to_vec(), true), (same.to_vec(), false)];
    if all.len() > 1 {
        groups.push((all, true));
    }
    let open = |(devices, dependent): (Vec<CudaDevice>, bool)| {
        CudaGroup::open_with(&devices, dependent).expect("an open group")
    };
    groups.into_iter().map(open).collect()
}

/// The GPUs; none after printing that the test is skipped.
#[expect(clippy::print_stdout, reason = "skipped tests are counted by what they print")]
fn all(test: &str) -> Vec<CudaDevice> {
    let (all, reason) = match devices() {
        Ok(all) => (all, "no NVIDIA GPU".to_owned()),
        Err(error) => (Vec::new(), error.to_string()),
    };
    if all.is_empty() {
        println!("SKIPPED {test}: {reason}");
    }
    all
}
