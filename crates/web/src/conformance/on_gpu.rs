//! The conformance suite on the GPU, whose results arrive while nothing runs.

use stonechat::compute::wgpu::{Variant, adapters};
use stonechat::nn::{Device, Wgpu};
use stonechat_testkit::suite::{Part, Tolerances};
use wasm_bindgen::prelude::*;

/// Runs every op of a part of the suite on the GPU, the part `part` of all, against its reference: `variant` is `portable` or
/// `subgroups`, `is_limited` gives the device the limits that every browser has. Panics, and so traps, on the first
/// difference. Returns the device and the number of steps.
///
/// # Errors
/// If there is no such part or variant, or the GPU cannot be opened.
#[wasm_bindgen]
pub async fn conformance_gpu(
    part: usize,
    variant: String,
    is_limited: bool,
) -> Result<String, JsError> {
    let missing = |what: String| JsError::new(&what);
    let variant = Variant::ALL.iter().find(|one| one.name() == variant);
    let variant = variant.ok_or_else(|| missing("expected a variant of the kernels".to_owned()))?;
    let part = Part::ALL
        .get(part)
        .ok_or_else(|| missing(format!("expected a part below {}", Part::ALL.len())))?;
    let all = adapters().await;
    let adapter = all.first().ok_or_else(|| missing("no WebGPU adapter".to_owned()))?;
    let adapter = if is_limited { adapter.as_any_browser() } else { adapter.clone() };
    let device =
        Wgpu::open(&adapter, Some(*variant)).await.map_err(|error| missing(error.to_string()))?;
    let devices = [Device::from(device)];
    let n = part.start(&devices, Tolerances::F32).compare().await;
    Ok(format!("{part:?}: {n} steps on {}", devices[0].describe()))
}
