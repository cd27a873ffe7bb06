//! A tiny random Whisper model on an NVIDIA GPU.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "gpu/cases.rs"]
mod gpu;

use stonechat_testkit::cuda;

#[test]
fn cuda_agrees_with_the_f64_oracle() {
    for backend in cuda::backends("cuda_agrees_with_the_f64_oracle") {
        gpu::agrees_with_the_f64_oracle(backend, 1e-3);
    }
}
