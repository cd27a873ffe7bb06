//! NVIDIA GPUs of tests.

use std::sync::{Mutex, PoisonError};

use stonechat_compute::cuda::{CudaDevice, devices};
use stonechat_nn::{Cuda, CudaGroup};

/// One test at a time uses GPUs: with many streams, the driver puts those of ranks that share a GPU into one queue, where a rank waits
/// for another one behind it.
static TURN: Mutex<()> = Mutex::new(());

/// Opens the first NVIDIA GPU of this machine with and without dependent launches. Empty without one, after printing that the
/// test `test` is skipped. No other test uses GPUs until the iterator is dropped.
///
/// # Panics
/// If the GPU cannot be opened.
pub fn backends(test: &str) -> impl Iterator<Item = Cuda> {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let device = all(test).into_iter().next();
    let both = device.into_iter().flat_map(|device| [(device.clone(), true), (device, false)]);
    both.map(move |(device, dependent)| {
        let _turn = &turn;
        Cuda::open_with(&device, dependent).expect("an open GPU")
    })
}

/// Opens groups for tensor parallelism, one after the other: two ranks on the first NVIDIA GPU, with and without dependent launches,
/// and all GPUs if there are several. Empty without a GPU, after printing that the test `test` is skipped. No other test uses GPUs until
/// the iterator is dropped.
///
/// # Panics
/// If one cannot be opened.
pub fn groups(test: &str) -> impl Iterator<Item = CudaGroup> {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut all = all(test);
    all.truncate(CudaGroup::MAX_RANKS);
    let mut groups = Vec::new();
    if let Some(first) = all.first() {
        let same = vec![first.clone(), first.clone()];
        groups.extend([(same.clone(), true), (same, false)]);
    }
    if all.len() > 1 {
        groups.push((all, true));
    }
    groups.into_iter().map(move |(devices, dependent)| {
        let _turn = &turn;
        CudaGroup::open_with(&devices, dependent).expect("an open group")
    })
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
