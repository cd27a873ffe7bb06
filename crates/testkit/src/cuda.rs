//! NVIDIA GPU of tests.

use stonechat_compute::cuda::devices;
use stonechat_nn::Cuda;

/// Opens the first NVIDIA GPU of this machine with and without dependent launches. Empty without one, after printing that the
/// test `test` is skipped.
///
/// # Panics
/// If it cannot be opened.
#[must_use]
#[expect(clippy::print_stdout, reason = "skipped tests are counted by what they print")]
pub fn backends(test: &str) -> Vec<Cuda> {
    match devices().map(|all| all.into_iter().next()) {
        Ok(Some(device)) => [true, false]
            .map(|dependent| Cuda::open_with(&device, dependent).expect("an open GPU"))
            .into(),
        Ok(None) => {
            println!("SKIPPED {test}: no NVIDIA GPU");
            Vec::new()
        }
        Err(error) => {
            println!("SKIPPED {test}: {error}");
            Vec::new()
        }
    }
}
