//! Matmul and `MoE` of a decode step do not allocate on the CPU after a few steps.

use stonechat_compute::{DType, SharedBytes};
use stonechat_nn::op::{Count, MatmulArgs, MoeArgs, Op, Port, Routing, Rows, Weight};
use stonechat_nn::{
    Activation, Counts, Cpu, Device, GatedActivation, MatrixSource, PortRange, Recorder,
    SegmentName, Step,
};
use stonechat_testkit::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// `rows × cols` weights of 0.25.
fn quantized(device: &Device, rows: usize, cols: usize) -> Weight {
    // A block of Q8_0 is an f16 scale and 32 integers.
    let block: Vec<u8> = [0x00, 0x34].into_iter().chain([1; 32]).collect();
    let bytes = &SharedBytes::from(block.repeat(rows * cols / 32));
    let source = MatrixSource { name: "test", rows, cols, dtype: DType::Q8_0, bytes };
    device.load_matrix(source).expect("a supported type")
}

#[test]
fn matmuls_and_experts_of_one_token_do_not_allocate() {
    let device = Device::from(Cpu::new(2).unwrap());
    let (d, f, n_experts) = (64, 96, 8);
    let [gate, up, down] =
        [(f, d), (f, d), (d, f)].map(|(n, k)| quantized(&device, n_experts * n, k));
    let experts = MoeArgs {
        gate,
        up,
        down,
        gate_bias: None,
        up_bias: None,
        down_bias: None,
        n_experts,
        n_used: 3,
        routing: Routing::NormalizedTopK,
        activation: GatedActivation::Silu,
    };
    let weight = quantized(&device, 512, d);
    let head = MatmulArgs { weight, bias: None, activation: Activation::None };
    let mut ops = Recorder::new();
    let tokens = Rows::of(Count::Tokens);
    ops.segment(SegmentName::Body, tokens);
    let ports = [0, 1, 2].map(Port::value);
    let x = ops.import(ports[0], tokens, d);
    let logits = ops.import(ports[1], tokens, n_experts);
    let y = ops.moe(x, logits, experts);
    let y = ops.add(x, y);
    let out = ops.op(Op::Matmul(head), &[y]);
    ops.output(ports[2], out);
    let mut counts = Counts::default();
    counts[Count::Tokens] = 1;
    let mut executable = device.compile(&ops.finish(), &counts).unwrap();
    let mut out = Vec::new();
    let mut step = || {
        executable.import(ports[0], &[0.5; 64]);
        executable.import(ports[1], &[1.0, 5.0, 2.0, 8.0, 7.0, 3.0, 6.0, 4.0]);
        executable.run(&Step { segments: &[SegmentName::Body], counts, ..Step::default() });
        executable.fetch(&[PortRange::first(ports[2], 512)], true);
        executable.collect_now(&mut out).unwrap().unwrap();
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
    assert!(out[0] > 8.0, "the experts did nothing: {}", out[0]);
}
