//! The conformance suite of this binary.

use stonechat::compute::{Cpu as ComputeCpu, Isa, ThreadTeam};
use stonechat::nn::{Cpu, Device, Repack};
use stonechat_testkit::suite;
use wasm_bindgen::prelude::*;

/// Runs every op and every block format on the CPU against its reference. Panics at the first difference, which ends the
/// module. Returns the devices.
#[wasm_bindgen]
pub fn conformance(n_threads: usize) -> String {
    let threads = ThreadTeam::new(n_threads).expect("threads that wait");
    let tiers = Isa::available();
    suite::quant::run(&tiers, &threads);
    let mut devices = Vec::new();
    for &isa in &tiers {
        let device = ComputeCpu { isa, threads: threads.clone() };
        for repack in [Repack::On, Repack::Off] {
            devices.push(Device::from(Cpu::with_device(device.clone()).with_repack(repack)));
        }
    }
    suite::run(&devices);
    devices.iter().map(|device| device.describe()).collect::<Vec<_>>().join("\n")
}

/// GPUs: their results arrive while nothing runs.
#[cfg(feature = "gpu")]
mod gpu {
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
        let variant =
            variant.ok_or_else(|| missing("expected a variant of the kernels".to_owned()))?;
        let part = Part::ALL
            .get(part)
            .ok_or_else(|| missing(format!("expected a part below {}", Part::ALL.len())))?;
        let all = adapters().await;
        let adapter = all.first().ok_or_else(|| missing("no WebGPU adapter".to_owned()))?;
        let adapter = if is_limited { adapter.as_any_browser() } else { adapter.clone() };
        let device = Wgpu::open(&adapter, Some(*variant))
            .await
            .map_err(|error| missing(error.to_string()))?;
        let devices = [Device::from(device)];
        let n = part.start(&devices, Tolerances::F32).compare().await;
        Ok(format!("{part:?}: {n} steps on {}", devices[0].describe()))
    }
}
