//! A decode step allocates nothing but the text: plan, forward pass, outputs and draws under a counting allocator.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use stonechat_llm::{
    Accepted, Devices, GenerateOptions, Generation, GenerationScratch, Model, Slot, StateOptions,
};
use stonechat_nn::{Cpu, KvDType};
use stonechat_testkit::{CountingAllocator, GoldenModel};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

#[test]
fn a_decode_step_allocates_nothing() {
    for golden in &GoldenModel::all() {
        let name = &golden.name;
        for (kv_dtype, n_threads) in [(KvDType::F16, 1), (KvDType::F16, 2), (KvDType::Q8_0, 2)] {
            let cpu = Cpu::new(n_threads).unwrap();
            let split = Devices::from(cpu.clone()).split(1, cpu.clone());
            assert_eq!(fewest(golden, kv_dtype, cpu), 0, "{name} {kv_dtype:?} {n_threads}");
            assert_eq!(
                fewest(golden, kv_dtype, split),
                0,
                "split: {name} {kv_dtype:?} {n_threads}"
            );
        }
    }
}

/// Polls a future that is ready at once, without the waker that executors allocate.
fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the CPU has nothing to wait for"),
    }
}

/// Minimum allocations of a round of steps: a thread allocates its scratch when it first takes
/// part, which may be late on a busy machine.
fn fewest(golden: &GoldenModel, kv_dtype: KvDType, devices: impl Into<Devices>) -> usize {
    let model = Model::load(devices, &golden.file(), |_| ()).unwrap();
    let options = StateOptions { kv_dtype, n_sequences: 2, n_outputs: 2, ..StateOptions::new(128) };
    let mut state = model.state(options).unwrap();
    // Two texts in one step: one reads logits, one the top-k where the device finds it.
    let greedy = GenerateOptions { ignore_eos: true, ..GenerateOptions::default() };
    let mut texts: Vec<(Slot, Generation)> = [greedy.clone(), greedy]
        .into_iter()
        .enumerate()
        .map(|(index, mut options)| {
            (options.sampling.top_k, options.sampling.seed) = (40 * index, Some(1));
            let prompt = (0..40).collect();
            (Slot::new(index), Generation::new(model.info(), prompt, options).unwrap())
        })
        .collect();
    let (mut scratch, mut out) = (GenerationScratch::new(&model), Accepted::default());
    let mut step = || {
        let before = ALLOCATOR.count();
        let mut plan = state.plan();
        for (slot, text) in &mut texts {
            let n = text.pending().len();
            let (request, n_rows) = text.output(n);
            plan.add(*slot, text.pending(), request, n_rows).unwrap();
            text.ran(n);
        }
        let ticket = plan.run().unwrap();
        let outputs = ready(state.outputs(ticket)).unwrap();
        let allocations = ALLOCATOR.count() - before;
        for (index, (_, text)) in texts.iter_mut().enumerate() {
            text.accept(outputs.rows(index..index + 1), &mut scratch, &mut out).unwrap();
        }
        allocations
    };
    (0..60).map(|_| step()).min().unwrap()
}
