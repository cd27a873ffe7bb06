//! The wgpu backend against the f64 oracle, with every variant of its kernels.

use stonechat_nn::Backend;
use stonechat_testkit::{suite, wgpu};

#[test]
fn wgpu_conforms_with_every_variant() {
    let backends = wgpu::backends("wgpu_conforms_with_every_variant");
    for backend in &backends {
        println!("{}", backend.describe());
    }
    if !backends.is_empty() {
        suite::run(&backends);
    }
}
