//! Tiny models of every architecture on a GPU: logits of PyTorch, the same text as on the CPU, and counters of a
//! decode step.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod faults;
#[path = "../gpu/cases.rs"]
mod gpu;

use pollster::block_on;
use stonechat_compute::wgpu::Counters;
use stonechat_llm::{Devices, Model, OutputRequest, OutputRow, Slot, State, StateOptions};
use stonechat_nn::{Cpu, Device, KvDType, Wgpu};
use stonechat_testkit::{GoldenModel, wgpu};

use self::gpu::{TEXT, best, logits, model, output, state};

#[test]
fn kernels_are_compiled_before_the_first_step() {
    for backend in wgpu::backends("kernels_are_compiled_before_the_first_step") {
        for golden in &GoldenModel::all() {
            let name = &golden.name;
            let model = model(golden, backend.clone());
            let options = StateOptions {
                n_batch: 32,
                n_outputs: 2,
                n_sequences: 2,
                kv_dtype: KvDType::F32,
                ..StateOptions::new(golden.n_ctx)
            };
            let mut state = model.state(options).unwrap();
            let before = backend.counters();
            let output = output(&model, 1);
            let step = |state: &mut State, tokens: &[u32]| match block_on(
                state.run(TEXT, tokens, output, 1),
            )
            .unwrap()
            .row(0)
            {
                OutputRow::TopK(top_k) => top_k[0].index,
                row => best(&logits(row)),
            };
            let last = golden.tokens.chunks(19).map(|tokens| step(&mut state, tokens)).last();
            assert_eq!(last, golden.greedy.first().copied(), "{name}");
            for pair in golden.greedy.windows(2) {
                assert_eq!(step(&mut state, &pair[..1]), pair[1], "{name}");
            }
            state.fork(TEXT, Slot::new(1));
            let mut plan = state.plan();
            plan.add(TEXT, &[1], output, 1).unwrap();
            plan.add(Slot::new(1), &[2], output, 1).unwrap();
            let ticket = plan.run().unwrap();
            block_on(state.outputs(ticket)).unwrap();
            assert_eq!((backend.counters() - before).pipelines, 0, "{name}");
        }
    }
}

#[test]
fn a_decode_step_is_one_upload_one_submission_and_one_readback() {
    for backend in wgpu::backends("a_decode_step_is_one_upload_one_submission_and_one_readback") {
        for golden in &GoldenModel::all() {
            for kv_dtype in [KvDType::F16, KvDType::Q8_0] {
                count_steps(&backend, golden, &model(golden, backend.clone()), kv_dtype, false);
                // The same counters if the first layer is on the CPU.
                let split =
                    model(golden, Devices::from(Cpu::new(1).unwrap()).split(1, backend.clone()));
                count_steps(&backend, golden, &split, kv_dtype, true);
            }
        }
    }
}

fn count_steps(gpu: &Wgpu, golden: &GoldenModel, model: &Model, kv_dtype: KvDType, is_split: bool) {
    let what = format!("{} {kv_dtype:?}, split: {is_split}", golden.model);
    let mut state = state(model, golden, kv_dtype);
    let mut step = |token: u32, with_all: bool| {
        let output = if with_all { OutputRequest::Logits } else { output(model, 40) };
        block_on(state.run(TEXT, &[token], output, 1)).unwrap();
    };
    // The first step of a kind encodes for itself, the second one ahead for the third.
    [true, true, false, false].into_iter().for_each(|with_all| step(1, with_all));
    for token in 3..8 {
        let before = gpu.counters();
        step(token, token == 5);
        let made = gpu.counters() - before;
        let Counters { dispatches, encodings, host_us, .. } = made;
        // A step with other outputs drops the encoded list.
        assert!((1..=2).contains(&encodings), "{what}, token {token}: {encodings} encodings");
        // A second stage imports the residual stream.
        let uploads = if is_split { 2 } else { 1 };
        let expected = Counters {
            uploads,
            lists: 1,
            encodings,
            submissions: 1,
            readbacks: 1,
            dispatches,
            host_us,
            ..Counters::default()
        };
        assert_eq!(made, expected, "{what}, token {token}");
    }
    if !is_split && model.info().max_top_k() > 0 {
        count_greedy_steps(gpu, &mut state, &what);
    }
}

/// Greedy steps that take the tokens of the steps before on the device, and are read at once.
fn count_greedy_steps(gpu: &Wgpu, state: &mut State, what: &str) {
    const N: u64 = 6;
    let output = OutputRequest::TopK(1);
    let run = |state: &mut State| {
        let mut plan = state.plan();
        plan.add(TEXT, &[3], output, 1).unwrap();
        let mut tickets = Vec::new();
        for _ in 1..N {
            tickets.push(plan.run_with_next().unwrap());
            plan = state.plan();
            plan.add_next(TEXT, 0, output).unwrap();
        }
        tickets.push(plan.run().unwrap());
        let token = |ticket| match block_on(state.outputs(ticket)).unwrap().row(0) {
            OutputRow::TopK(top_k) => top_k[0].index,
            row => panic!("{row:?}"),
        };
        tickets.into_iter().map(token).collect::<Vec<_>>()
    };
    let n = state.len(TEXT);
    let first = run(state);
    state.truncate(TEXT, n);
    let before = gpu.counters();
    assert_eq!(run(state), first, "{what}");
    let made = gpu.counters() - before;
    let Counters { dispatches, encodings, host_us, .. } = made;
    let expected = Counters {
        uploads: N,
        lists: N,
        encodings,
        submissions: N,
        readbacks: 1,
        dispatches,
        host_us,
        ..Counters::default()
    };
    assert_eq!(made, expected, "{what}: {N} greedy steps");
    // The same tokens one by one.
    state.truncate(TEXT, n);
    let mut token = 3;
    for expected in first {
        let outputs = block_on(state.run(TEXT, &[token], OutputRequest::Logits, 1)).unwrap();
        token = best(&logits(outputs.row(0)));
        assert_eq!(token, expected, "{what}");
    }
}

#[test]
fn every_architecture_agrees_with_its_reference() {
    for backend in wgpu::backends("every_architecture_agrees_with_its_reference") {
        gpu::every_architecture_agrees_with_its_reference(&Device::from(backend));
    }
}

#[test]
fn top_k_logits_are_those_of_all() {
    for backend in wgpu::backends("top_k_logits_are_those_of_all") {
        gpu::top_k_logits_are_those_of_all(&Device::from(backend));
    }
}

#[test]
fn texts_are_those_drawn_from_all_logits() {
    for backend in wgpu::backends("texts_are_those_drawn_from_all_logits") {
        gpu::texts_are_those_drawn_from_all_logits(&Device::from(backend));
    }
}

#[test]
fn a_model_split_between_cpu_and_gpu_agrees_with_its_reference() {
    for backend in wgpu::backends("a_model_split_between_cpu_and_gpu_agrees_with_its_reference") {
        gpu::a_model_split_between_cpu_and_gpu_agrees_with_its_reference(&Device::from(backend));
    }
}
