//! Conformance of the CPU backend, on every instruction set of this machine, repacked and not.

use stonechat_compute::{Isa, ThreadTeam};
use stonechat_nn::{Backend, Cpu, Repack};
use stonechat_testkit::suite;

#[test]
fn cpu_conforms_on_every_isa() {
    let mut backends = Vec::new();
    for isa in Isa::available() {
        for n_threads in [1, 2] {
            let threads = ThreadTeam::new(n_threads).expect("a thread team");
            let device = stonechat_compute::Cpu { isa, threads };
            for repack in [Repack::On, Repack::Off] {
                backends.push(Cpu::with_device(device.clone()).with_repack(repack));
                println!("{}", backends[backends.len() - 1].describe());
            }
        }
    }
    assert!(!backends.is_empty());
    suite::run(&backends);
}
