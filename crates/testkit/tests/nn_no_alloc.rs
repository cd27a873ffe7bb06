//! Matmul and `MoE` of a decode step do not allocate on the CPU backend after a few steps.

use stonechat_compute::{DType, SharedBytes};
use stonechat_nn::{
    Activation, Backend, Cpu, Epilogue, Experts, GatedActivation, MatmulOp, MatrixSource, Routing,
    View,
};
use stonechat_testkit::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// `rows × cols` weights of 0.25.
fn quantized(cpu: &Cpu, rows: usize, cols: usize) -> <Cpu as Backend>::Matrix {
    // A block of Q8_0 is an f16 scale and 32 integers.
    let block: Vec<u8> = [0x00, 0x34].into_iter().chain([1; 32]).collect();
    let bytes = block.repeat(rows * cols / 32);
    cpu.matrix(MatrixSource {
        name: "test",
        rows,
        cols,
        dtype: DType::Q8_0,
        bytes: &SharedBytes::from(bytes),
    })
    .expect("a supported type")
}

#[test]
fn matmuls_and_experts_of_one_token_do_not_allocate() {
    let cpu = Cpu::new(2).unwrap();
    let (d, f, n_experts) = (64, 96, 8);
    let [gate, up, down] = [(f, d), (f, d), (d, f)].map(|(n, k)| quantized(&cpu, n_experts * n, k));
    let experts: Experts<'_, Cpu> = Experts {
        gate: &gate,
        up: &up,
        down: &down,
        gate_bias: None,
        up_bias: None,
        down_bias: None,
        n_experts,
        n_used: 3,
        routing: Routing::NormalizedTopK,
        activation: GatedActivation::Silu,
    };
    let head = quantized(&cpu, 512, d);
    let mut x = cpu.alloc(d).unwrap();
    cpu.write(&mut x, 0, &[0.5; 64]);
    let mut logits = cpu.alloc(n_experts).unwrap();
    cpu.write(&mut logits, 0, &[1.0, 5.0, 2.0, 8.0, 7.0, 3.0, 6.0, 4.0]);
    let (mut y, mut out) = (cpu.alloc(d).unwrap(), cpu.alloc(512).unwrap());
    let mut step = || {
        let epilogue = Epilogue { bias: None, activation: Activation::None, accumulate: false };
        cpu.moe(&mut y, View::packed(&x, 1, d), View::packed(&logits, 1, n_experts), &experts);
        let product = MatmulOp { out: &mut out, w: &head, epilogue, consumer: None };
        cpu.matmul(View::packed(&y, 1, d), [product]);
    };
    // Scratch is allocated in the first rounds; one of the later ones must be free of allocations.
    let rounds = {
        let mut rounds = [0; 20];
        for allocations in &mut rounds {
            let before = ALLOCATOR.count();
            (0..50).for_each(|_| step());
            *allocations = ALLOCATOR.count() - before;
        }
        rounds
    };
    assert!(rounds.contains(&0), "allocations in rounds of 50 steps: {rounds:?}");
    assert!(ALLOCATOR.count() > 0, "the counter does not count");
    assert!(y[0] > 0.0, "the experts did nothing");
}
