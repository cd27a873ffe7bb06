//! The conformance suite of this binary, and a model for tests of speech on slow devices.

#[cfg(feature = "gpu")]
mod on_gpu;

use stonechat::compute::{Cpu as ComputeCpu, Isa, ThreadTeam};
use stonechat::nn::{Cpu, Device, Repack};
use stonechat_testkit::{TinyWhisper, suite};
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

/// A tiny Whisper model with random weights, as a GGUF file.
#[wasm_bindgen]
pub fn tiny_whisper() -> Vec<u8> {
    TinyWhisper { n_layers: 1, ..TinyWhisper::default() }.gguf()
}
