//! The CPU backend against the f64 oracle, on every instruction set of this machine.

use stonechat_compute::{Isa, ThreadTeam};
use stonechat_nn::Cpu;
use stonechat_testkit::suite;

#[test]
fn cpu_conforms_on_every_isa() {
    let isas = Isa::available();
    assert!(!isas.is_empty());
    for isa in isas {
        for n_threads in [1, 2] {
            println!("{} with {n_threads} threads", isa.name());
            let threads = ThreadTeam::new(n_threads).expect("a thread team");
            suite::run(&Cpu::with_device(stonechat_compute::Cpu { isa, threads }));
        }
    }
}
