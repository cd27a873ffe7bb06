//! GPU of tests.

use pollster::block_on;
use stonechat_compute::wgpu::{Variant, adapters, pick};
use stonechat_nn::Wgpu;

use crate::runs_all;

/// Opens the GPU of this machine, or a software adapter: with portable kernels and no more than the limits and the WGSL that
/// every browser has, and with subgroups, if it has any. With `cargo xtask test --all`, also with portable kernels and the
/// adapter's limits, and with subgroups in a browser. Empty without an adapter, after printing that the test `test` is skipped.
///
/// # Panics
/// If an adapter cannot be opened.
#[must_use]
#[expect(clippy::print_stdout, reason = "skipped tests are counted by what they print")]
pub fn backends(test: &str) -> Vec<Wgpu> {
    let all = block_on(adapters());
    let Ok(adapter) = pick(&all, None).or_else(|_| pick(&all, Some(0))) else {
        println!("SKIPPED {test}: no Vulkan, Metal or DirectX 12 adapter");
        return Vec::new();
    };
    let any_browser = &adapter.as_any_browser();
    let mut ways = vec![(any_browser, Variant::Portable)];
    if runs_all() {
        ways.extend([(adapter, Variant::Portable), (any_browser, Variant::Subgroups)]);
    }
    ways.push((adapter, Variant::Subgroups));
    ways.retain(|(adapter, variant)| adapter.supports(*variant));
    let open = |(adapter, variant)| block_on(Wgpu::open(adapter, Some(variant)));
    ways.into_iter().map(|way| open(way).expect("an open adapter")).collect()
}

/// Opens the same GPU with cooperative matrices. `None` without them, after printing that the test `test` is skipped.
///
/// # Panics
/// If the adapter cannot be opened.
#[must_use]
#[expect(clippy::print_stdout, reason = "skipped tests are counted by what they print")]
pub fn with_matrices(test: &str) -> Option<Wgpu> {
    let all = block_on(adapters());
    let adapter = pick(&all, None).or_else(|_| pick(&all, Some(0))).ok();
    let Some(adapter) = adapter.filter(|adapter| adapter.matrices.is_some()) else {
        println!("SKIPPED {test}: no adapter with cooperative matrices");
        return None;
    };
    Some(block_on(Wgpu::open(adapter, None)).expect("an open adapter"))
}
