//! int8 products of every block format against f64, on every instruction set of this machine.

use stonechat_compute::{Isa, ThreadTeam};
use stonechat_testkit::suite::quant;

fn team(n_threads: usize) -> ThreadTeam {
    ThreadTeam::new(n_threads).expect("a thread team")
}

#[test]
fn every_format_has_a_kernel_on_every_tier() {
    let names: Vec<_> = Isa::available().iter().map(|isa| isa.name()).collect();
    println!("tiers: {}", names.join(" "));
    assert_eq!(quant::formats().count(), 23);
}

#[test]
fn products_match_f64() {
    quant::products_match_f64(&Isa::available(), &team(2));
}

#[test]
fn rows_of_384_use_blocks_of_32() {
    quant::rows_of_384_use_blocks_of_32(&Isa::available(), &team(2));
}

#[test]
fn several_tasks_cover_all_outputs() {
    quant::several_tasks_cover_all_outputs(&Isa::available(), &team(3));
}

#[test]
fn a_buffer_serves_one_matmul_after_another() {
    quant::a_buffer_serves_one_matmul_after_another(&Isa::available(), &team(1));
}

#[test]
fn non_finite_activations_show() {
    quant::non_finite_activations_show(&Isa::available(), &team(1));
}
