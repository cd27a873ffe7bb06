//! Allocations under a counting allocator: a decode step allocates nothing but the text, a request leaves nothing behind.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pollster::block_on;
use stonechat_llm::{
    Accepted, Devices, GenerateOptions, Generation, GenerationScratch, Model, Request, Scheduler,
    SchedulerOptions, Slot, StateOptions,
};
use stonechat_nn::{Cpu, KvDType};
use stonechat_sampling::SamplingOptions;
use stonechat_testkit::{CountingAllocator, GoldenModel};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// Lock of the allocator, which counts for one test at a time.
fn counting() -> MutexGuard<'static, ()> {
    static COUNTING: Mutex<()> = Mutex::new(());
    COUNTING.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn a_decode_step_allocates_nothing() {
    let _counting = counting();
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

/// Requests of a round, more than the pool has pages for.
const ROUND: u32 = 6;

/// Runs requests whose prompts differ, three at a time; the last one is cancelled. Returns the steps.
fn run_round(scheduler: &mut Scheduler) -> usize {
    let mut n_steps = 0usize;
    for first in (0..ROUND).step_by(3) {
        let mut last = None;
        for family in first..first + 3 {
            let prompt = (0..90).map(|i| (i * (2 * family + 3) + i / 5) % 60 + 2).collect();
            let options = GenerateOptions {
                n_predict: Some(8),
                sampling: SamplingOptions::greedy(),
                ignore_eos: true,
                ..GenerateOptions::default()
            };
            last = Some(scheduler.add(Request::new(prompt, options)).unwrap());
        }
        while !scheduler.is_idle() {
            block_on(scheduler.step(&mut |_, _| ())).unwrap();
            n_steps += 1;
            if n_steps.is_multiple_of(5)
                && let Some(id) = last.take()
            {
                scheduler.cancel(id, &mut |_, _| ());
            }
        }
    }
    n_steps
}

/// Memory: ollama 18106, llama.cpp 27725 and 25953. Work: llama.cpp 22360.
#[test]
fn many_requests_leave_no_memory_and_cost_what_the_first_ones_did() {
    let _counting = counting();
    let file = GoldenModel::read("llama").file();
    let model = Model::load(Cpu::new(1).unwrap(), &file, |_| ()).unwrap();
    let state = StateOptions {
        n_sequences: 3,
        n_outputs: 3,
        n_pages: Some(8),
        kv_dtype: KvDType::F32,
        ..StateOptions::new(200)
    };
    let options =
        SchedulerOptions { state, max_gap: Duration::ZERO, drafter: None, stores: Vec::new() };
    let mut scheduler = Scheduler::new(&model, options).unwrap();
    // Steps and allocations of ten rounds, and the bytes after them.
    let mut ten_rounds = || {
        let before = ALLOCATOR.thread_count();
        let n_steps: usize = (0..10).map(|_| run_round(&mut scheduler)).sum();
        (n_steps, ALLOCATOR.thread_count() - before, ALLOCATOR.bytes())
    };
    ten_rounds();
    let (n_steps, allocations, bytes) = ten_rounds();
    let n_requests = 30 * ROUND as usize;
    let (_, _, (late_steps, late_allocations, late_bytes)) =
        (ten_rounds(), ten_rounds(), ten_rounds());
    for (early, late) in [(n_steps, late_steps), (allocations, late_allocations)] {
        assert!(late <= early + early / 10, "{early}, later {late}");
    }
    // Tables of the prefix cache grow once more or not.
    let grown = late_bytes.saturating_sub(bytes);
    assert!(grown < 50 * n_requests, "{grown} bytes of {n_requests} requests");
}
