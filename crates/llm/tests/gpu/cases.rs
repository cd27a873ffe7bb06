//! Tests of tiny models of every architecture, for any GPU.

use std::ops::ControlFlow;

use pollster::block_on;
use stonechat_llm::{
    Config, Devices, Event, GenerateOptions, Model, OutputRequest, OutputRow, Session,
    SessionOptions, Slot, State, StateOptions,
};
use stonechat_nn::{Cpu, Device, KvDType};
use stonechat_sampling::SamplingOptions;
use stonechat_testkit::GoldenModel;

/// Tolerance relative to the largest logit, with f32 factors or with f16 operands of products. The MXFP4 experts of gpt-oss are
/// multiplied with q8 activations, as on the CPU (see `architectures.rs`).
fn limit(name: &str, device: &Device) -> f32 {
    match (name, device.name()) {
        ("gpt-oss", _) => 8e-2,
        // Four roundings to f16.
        (_, "cuda") => 4.0 * 4.9e-4,
        _ => 1e-4,
    }
}

pub(crate) fn model(golden: &GoldenModel, devices: impl Into<Devices>) -> Model {
    Model::load(devices, &golden.file(), |_| ()).unwrap()
}

pub(crate) fn state(model: &Model, golden: &GoldenModel, kv_dtype: KvDType) -> State {
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

pub(crate) const TEXT: Slot = Slot::new(0);

pub(crate) fn logits(row: OutputRow<'_>) -> Vec<f32> {
    match row {
        OutputRow::Logits(logits) => logits.to_vec(),
        row => panic!("{row:?}"),
    }
}

pub(crate) fn run(state: &mut State, tokens: &[u32], outputs: &[usize]) -> Vec<Vec<f32>> {
    let first = outputs.first().copied().unwrap_or(tokens.len());
    let run = state.run(TEXT, tokens, OutputRequest::Logits, tokens.len() - first);
    let rows = block_on(run).unwrap();
    outputs.iter().map(|&row| logits(rows.row(row - first))).collect()
}

/// The top-k logits, or all of them for a model without.
pub(crate) fn output(model: &Model, k: usize) -> OutputRequest {
    match model.info().max_top_k() {
        0 => OutputRequest::Logits,
        max => OutputRequest::TopK(k.min(max)),
    }
}

pub(crate) fn best(logits: &[f32]) -> u32 {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as u32
}

/// Fails unless `got` is within a limit of the references.
pub(crate) fn check((name, limit): (&str, f32), golden: &GoldenModel, got: &[Vec<f32>]) {
    let scale = golden.logits.iter().flatten().fold(0.0f32, |m, v| m.max(v.abs()));
    for (row, (got, expected)) in got.iter().zip(&golden.logits).enumerate() {
        for (token, (g, e)) in got.iter().zip(expected).enumerate() {
            let difference = (g - e).abs() / scale;
            assert!(difference <= limit, "{name}: row {row}, token {token}: {g}, expected {e}");
        }
    }
}

/// Logits of a prompt, at once and token by token, and the greedy text after it.
pub(crate) fn every_architecture_agrees_with_its_reference(backend: &Device) {
    {
        for golden in &GoldenModel::all() {
            let name = &golden.name;
            let limit = limit(name, backend);
            let model = model(golden, backend.clone());
            // Prefill, and token by token.
            let mut at_once = state(&model, golden, KvDType::F32);
            check((name, limit), golden, &run(&mut at_once, &golden.tokens, &golden.positions));
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
            check((name, limit), golden, &rows);
        }
    }
}

/// The top-k logits of a row are the largest of all its logits.
pub(crate) fn top_k_logits_are_those_of_all(backend: &Device) {
    {
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

/// Texts drawn from top-k logits are those drawn from all logits.
pub(crate) fn texts_are_those_drawn_from_all_logits(backend: &Device) {
    {
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

/// Checks a prompt and the greedy tokens after it.
fn check_split((name, limit): (&str, f32), golden: &GoldenModel, devices: impl Into<Devices>) {
    let model = model(golden, devices);
    let mut state = state(&model, golden, KvDType::F32);
    let n = golden.tokens.len();
    check((name, limit), golden, &run(&mut state, &golden.tokens, &golden.positions));
    state.truncate(TEXT, n - 1);
    let mut logits = run(&mut state, &golden.tokens[n - 1..], &[0]).remove(0);
    for &expected in &golden.greedy {
        assert_eq!(best(&logits), expected, "{name}");
        logits = run(&mut state, &[expected], &[0]).remove(0);
    }
}

/// Layers on the CPU and on the GPU, in either order.
pub(crate) fn a_model_split_between_cpu_and_gpu_agrees_with_its_reference(gpu: &Device) {
    {
        for golden in &GoldenModel::all() {
            let name = &golden.name;
            let limit = limit(name, gpu);
            let n_layers = Config::from_file(&golden.file()).unwrap().n_layers;
            for n_lower in 0..=n_layers {
                let cpu = Cpu::new(1).unwrap();
                check_split(
                    (name, limit),
                    golden,
                    Devices::from(cpu.clone()).split(n_lower, gpu.clone()),
                );
                if n_lower == n_layers / 2 {
                    check_split(
                        (name, limit),
                        golden,
                        Devices::from(gpu.clone()).split(n_lower, cpu),
                    );
                }
            }
        }
    }
}
