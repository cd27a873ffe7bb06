//! The GPU that tests run on.

use pollster::block_on;
use stonechat_compute::wgpu::{Variant, adapters, pick};
use stonechat_nn::Wgpu;

/// The GPU of this machine, or a processor that plays one, once with every variant of the kernels that it can
/// run. None where there is no adapter: then the caller's test, which is called `test`, is skipped.
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
    let has_subgroups = adapter.subgroup_sizes.is_some();
    Variant::ALL
        .into_iter()
        .filter(|variant| *variant == Variant::Portable || has_subgroups)
        .map(|variant| block_on(Wgpu::open(adapter, Some(variant))).expect("an open adapter"))
        .collect()
}

/// The same GPU with cooperative matrices. None where it has none: then the caller's test, which is called `test`,
/// is skipped.
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
