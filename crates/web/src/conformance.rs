//! The conformance suite of this binary.

use stonechat::compute::{Cpu as ComputeCpu, Isa, ThreadTeam};
use stonechat::nn::{Cpu, Device, Repack};
use stonechat_testkit::suite;
use wasm_bindgen::prelude::*;

/// Runs every op on the CPU against its reference; panics, and so traps, on the first difference. Returns the devices.
#[wasm_bindgen]
pub fn conformance(n_threads: usize) -> String {
    let mut devices = Vec::new();
    for isa in Isa::available() {
        let threads = ThreadTeam::new(n_threads).expect("idle workers");
        let device = ComputeCpu { isa, threads };
        for repack in [Repack::On, Repack::Off] {
            devices.push(Device::from(Cpu::with_device(device.clone()).with_repack(repack)));
        }
    }
    suite::run(&devices);
    devices.iter().map(|device| device.describe()).collect::<Vec<_>>().join("\n")
}
