//! The GPU of a browser.

use stonechat::Device;
use wasm_bindgen::prelude::*;

/// Device of a caller that asks for the GPU. A browser has one adapter, which is taken in software, too.
pub(crate) const DEVICE: Option<Device> = Some(Device::Wgpu(Some(0)));

/// Says whether devices of this browser have subgroups, see `js/src/webgpu.ts`. Call it before a model is opened on the GPU.
#[wasm_bindgen]
pub fn set_subgroups(are_on: bool) {
    stonechat::compute::wgpu::set_browser_subgroups(are_on);
}
