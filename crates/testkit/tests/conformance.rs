//! Conformance of the CPU, repacked and not, on the best instruction set and AVX2; on every one of this machine
//! with `cargo xtask test --all`.

use stonechat_compute::{Isa, ThreadTeam};
use stonechat_nn::{Cpu, Device, Repack};
use stonechat_testkit::{runs_all, suite};

#[test]
fn cpu_conforms_on_every_isa() {
    let mut devices = Vec::new();
    let mut tiers = Isa::available();
    if !runs_all() {
        let best = tiers.len() - 1;
        let keep = |(i, isa): (usize, Isa)| (i == best || isa.name() == "avx2").then_some(isa);
        tiers = tiers.into_iter().enumerate().filter_map(keep).collect();
    }
    for isa in tiers {
        for n_threads in if runs_all() { vec![1, 2] } else { vec![2] } {
            let threads = ThreadTeam::new(n_threads).expect("a thread team");
            let device = stonechat_compute::Cpu { isa, threads };
            for repack in [Repack::On, Repack::Off] {
                devices.push(Device::from(Cpu::with_device(device.clone()).with_repack(repack)));
                println!("{}", devices[devices.len() - 1].describe());
            }
        }
    }
    assert!(!devices.is_empty());
    suite::run(&devices);
}
