//! Tiny models of every architecture on a GPU: logits of PyTorch, the same text as on the CPU, and counters of a
//! decode step.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod faults;

use std::ops::ControlFlow;

use pollster::block_on;
use stonechat_compute::wgpu::Counters;
use stonechat_llm::{
    Config, Devices, Event, GenerateOptions, Model, OutputRequest, OutputRow, Session,
    SessionOptions, Slot, State, StateOptions,
};
use stonechat_nn::sample::SamplingOptions;
use stonechat_nn::{Cpu, KvDType, Wgpu};
use stonechat_testkit::{GoldenModel, wgpu};

/// Tolerance relative to the largest logit. The MXFP4 experts of gpt-oss are multiplied with q8 activations, as on the CPU (see
/// `architectures.rs`).
fn limit(name: &str) -> f32 {
    if name == "gpt-oss" { 8e-2 } else { 1e-4 }
}

fn model(golden: &GoldenModel, devices: impl Into<Devices>) -> Model {
    Model::load(devices, &golden.file(), |_| ()).unwrap()
}

fn state(model: &Model, golden: &GoldenModel, kv_dtype: KvDType) -> State {
    let n = golden.tokens.len();
    let options = StateOptions {
        n_batch: n,
        n_outputs: n,
        kv_dtype,
        n_sequences: 2,
        ..StateOptions::new(golden.n_ctx)
    };
    model.state(options).unwrap()
}

const TEXT: Slot = Slot::new(0);

fn logits(row: OutputRow<'_>) -> Vec<f32> {
    match row {
        OutputRow::Logits(logits) => logits.to_vec(),
        row => panic!("{row:?}"),
    }
}

fn run(state: &mut State, tokens: &[u32], outputs: &[usize]) -> Vec<Vec<f32>> {
    let first = outputs.first().copied().unwrap_or(tokens.len());
    let run = state.run(TEXT, tokens, OutputRequest::Logits, tokens.len() - first);
    let rows = block_on(run).unwrap();
    outputs.iter().map(|&row| logits(rows.row(row - first))).collect()
}

/// The top-k logits, or all of them for a model without.
fn output(model: &Model, k: usize) -> OutputRequest {
    match model.info().max_top_k() {
        0 => OutputRequest::Logits,
        max => OutputRequest::TopK(k.min(max)),
    }
}

fn best(logits: &[f32]) -> u32 {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as u32
}

/// Fails unless `got` is within [`limit`] of the references.
fn check(name: &str, golden: &GoldenModel, got: &[Vec<f32>]) {
    let scale = golden.logits.iter().flatten().fold(0.0f32, |m, v| m.max(v.abs()));
    for (row, (got, expected)) in got.iter().zip(&golden.logits).enumerate() {
        for (token, (g, e)) in got.iter().zip(expected).enumerate() {
            let difference = (g - e).abs() / scale;
            assert!(
                difference <= limit(name),
                "{name}: row {row}, token {token}: {g}, expected {e}"
            );
        }
    }
}

#[test]
fn every_architecture_agrees_with_its_reference() {
    for backend in wgpu::backends("every_architecture_agrees_with_its_reference") {
        for golden in &GoldenModel::all() {
            let name = &golden.name;
            let model = model(golden, backend.clone());
            // Prefill, and token by token.
            let mut at_once = state(&model, golden, KvDType::F32);
            check(name, golden, &run(&mut at_once, &golden.tokens, &golden.positions));
            let mut one_by_one = state(&model, golden, KvDType::F32);
            let mut rows = Vec::new();
            for (i, token) in golden.tokens.iter().enumerate() {
                let logits = run(&mut one_by_one, &[*token], &[0]).remove(0);
                if golden.positions.contains(&i) {
                    rows.push(logits.clone());
                }
                if i + 1 == golden.tokens.len() {
                    let mut logits = logits;
                    for &expected in &golden.greedy {
                        assert_eq!(best(&logits), expected, "{name}");
                        logits = run(&mut one_by_one, &[expected], &[0]).remove(0);
                    }
                }
            }
            check(name, golden, &rows);
        }
    }
}

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
fn top_k_logits_are_those_of_all() {
    for backend in wgpu::backends("top_k_logits_are_those_of_all") {
        let golden = &GoldenModel::read("llama");
        let model = model(golden, backend.clone());
        let mut state = state(&model, golden, KvDType::F32);
        // Both kinds of output in one step, of equal sequences.
        let mut plan = state.plan();
        for (slot, output) in [(0, OutputRequest::Logits), (1, OutputRequest::TopK(7))] {
            plan.add(Slot::new(slot), &[1, 2, 3], output, 2).unwrap();
        }
        let ticket = plan.run().unwrap();
        let outputs = block_on(state.outputs(ticket)).unwrap();
        for index in 0..2 {
            let OutputRow::TopK(top_k) = outputs.row(2 + index) else { panic!("top-k") };
            let logits = logits(outputs.row(index));
            let mut order: Vec<_> = (0..).zip(&logits).map(|(id, &logit)| (id, logit)).collect();
            order.sort_by(|a: &(u32, f32), b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            let got: Vec<_> = top_k.iter().map(|r| (r.index, r.value)).collect();
            assert_eq!(got, order[..7], "output {index}");
        }
    }
}

#[test]
fn texts_are_those_drawn_from_all_logits() {
    for backend in wgpu::backends("texts_are_those_drawn_from_all_logits") {
        let golden = &GoldenModel::read("qwen2");
        let model = model(golden, backend.clone());
        let options = SessionOptions { n_ctx: Some(golden.n_ctx), ..SessionOptions::default() };
        let mut session = Session::new(&model, options).unwrap();
        let n = golden.n_ctx - golden.tokens.len();
        let mut generate = |temperature, n_probs| {
            let sampling =
                SamplingOptions { temperature, seed: Some(7), ..SamplingOptions::default() };
            let options = GenerateOptions {
                n_predict: Some(n.min(20)),
                sampling,
                ignore_eos: true,
                n_probs,
                ..GenerateOptions::default()
            };
            let on_event = &mut |_: Event<'_>| ControlFlow::Continue(());
            block_on(session.generate(&golden.tokens, &options, on_event)).unwrap().tokens
        };
        assert_eq!(generate(0.0, 0)[..golden.greedy.len()], golden.greedy);
        // Probabilities are those of all logits.
        assert_eq!(generate(2.0, 0), generate(2.0, 1));
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

/// Checks a prompt and the greedy tokens after it.
fn check_split(name: &str, golden: &GoldenModel, devices: impl Into<Devices>) {
    let model = model(golden, devices);
    let mut state = state(&model, golden, KvDType::F32);
    let n = golden.tokens.len();
    check(name, golden, &run(&mut state, &golden.tokens, &golden.positions));
    state.truncate(TEXT, n - 1);
    let mut logits = run(&mut state, &golden.tokens[n - 1..], &[0]).remove(0);
    for &expected in &golden.greedy {
        assert_eq!(best(&logits), expected, "{name}");
        logits = run(&mut state, &[expected], &[0]).remove(0);
    }
}

#[test]
fn a_model_split_between_cpu_and_gpu_agrees_with_its_reference() {
    for gpu in wgpu::backends("a_model_split_between_cpu_and_gpu_agrees_with_its_reference") {
        for golden in &GoldenModel::all() {
            let name = &golden.name;
            let n_layers = Config::from_file(&golden.file()).unwrap().n_layers;
            for n_lower in 0..=n_layers {
                let cpu = Cpu::new(1).unwrap();
                check_split(name, golden, Devices::from(cpu.clone()).split(n_lower, gpu.clone()));
                if n_lower == n_layers / 2 {
                    check_split(name, golden, Devices::from(gpu.clone()).split(n_lower, cpu));
                }
            }
        }
    }
}
