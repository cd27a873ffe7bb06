//! Tiny models of every architecture on an NVIDIA GPU: logits of PyTorch, the same text as on the CPU, and counters of a
//! decode step.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../gpu/cases.rs"]
mod gpu;

use std::ops::ControlFlow;

use pollster::block_on;
use stonechat_compute::cuda::Counters;
use stonechat_llm::{
    Devices, Event, GenerateOptions, Model, OutputRequest, Session, SessionOptions,
};
use stonechat_nn::{Cpu, Cuda, Device, KvDType};
use stonechat_sampling::SamplingOptions;
use stonechat_testkit::{GoldenModel, cuda};

use self::gpu::{TEXT, model, output, state};

#[test]
fn a_decode_step_is_one_upload_one_graph_and_one_readback() {
    for backend in cuda::backends("a_decode_step_is_one_upload_one_graph_and_one_readback") {
        for golden in &GoldenModel::all() {
            for kv_dtype in [KvDType::F16, KvDType::Q8_0] {
                count_steps(&backend, golden, &model(golden, backend.clone()), kv_dtype);
                // The same counters if the first layer is on the CPU.
                let split = Devices::from(Cpu::new(1).unwrap()).split(1, backend.clone());
                count_steps(&backend, golden, &model(golden, split), kv_dtype);
            }
        }
    }
}

#[test]
fn a_decode_step_of_ranks_is_one_upload_and_one_graph_each_and_one_readback() {
    let name = "a_decode_step_of_ranks_is_one_upload_and_one_graph_each_and_one_readback";
    for group in cuda::groups(name) {
        for golden in &GoldenModel::all() {
            let model = model(golden, group.clone());
            let mut state = state(&model, golden, KvDType::F16);
            let mut step = |token| {
                block_on(state.run(TEXT, &[token], output(&model, 40), 1)).unwrap();
            };
            [1, 2].into_iter().for_each(&mut step);
            let before: Vec<Counters> = group.ranks().iter().map(Cuda::counters).collect();
            step(3);
            for (rank, (gpu, before)) in group.ranks().iter().zip(before).enumerate() {
                let made = gpu.counters() - before;
                let Counters { launches, host_us, .. } = made;
                let expected = Counters {
                    uploads: 1,
                    graph_launches: 1,
                    readbacks: u64::from(rank == 0),
                    launches,
                    host_us,
                    ..Counters::default()
                };
                assert_eq!(made, expected, "{}, rank {rank}", golden.name);
            }
        }
    }
}

fn count_steps(gpu: &Cuda, golden: &GoldenModel, model: &Model, kv_dtype: KvDType) {
    let what = format!("{} {kv_dtype:?}", golden.model);
    let mut state = state(model, golden, kv_dtype);
    let mut step = |token: u32, with_all: bool| {
        let output = if with_all { OutputRequest::Logits } else { output(model, 40) };
        block_on(state.run(TEXT, &[token], output, 1)).unwrap();
    };
    // The first step of a kind launches its kernels, the second one makes the graph.
    [true, true, false, false].into_iter().for_each(|with_all| step(1, with_all));
    for token in 3..8 {
        let before = gpu.counters();
        step(token, token == 5);
        let made = gpu.counters() - before;
        let Counters { launches, host_us, .. } = made;
        let expected = Counters {
            uploads: 1,
            graph_launches: 1,
            readbacks: 1,
            launches,
            host_us,
            ..Counters::default()
        };
        assert_eq!(made, expected, "{what}, token {token}");
    }
}

#[test]
fn every_architecture_agrees_with_its_reference() {
    for backend in cuda::backends("every_architecture_agrees_with_its_reference") {
        gpu::every_architecture_agrees_with_its_reference(&Device::from(backend));
    }
}

#[test]
fn top_k_logits_are_those_of_all() {
    for backend in cuda::backends("top_k_logits_are_those_of_all") {
        gpu::top_k_logits_are_those_of_all(&Device::from(backend));
    }
}

#[test]
fn texts_are_those_drawn_from_all_logits() {
    for backend in cuda::backends("texts_are_those_drawn_from_all_logits") {
        gpu::texts_are_those_drawn_from_all_logits(&Device::from(backend));
    }
}

#[test]
fn a_model_split_between_cpu_and_gpu_agrees_with_its_reference() {
    for backend in cuda::backends("a_model_split_between_cpu_and_gpu_agrees_with_its_reference") {
        gpu::a_model_split_between_cpu_and_gpu_agrees_with_its_reference(&Device::from(backend));
    }
}

#[test]
fn ranks_agree_with_the_references() {
    for group in cuda::groups("ranks_agree_with_the_references") {
        gpu::every_architecture_agrees_with_its_reference(&Device::from(group));
    }
}

#[test]
fn top_k_logits_of_ranks_are_those_of_all() {
    for group in cuda::groups("top_k_logits_of_ranks_are_those_of_all") {
        gpu::top_k_logits_are_those_of_all(&Device::from(group));
    }
}

#[test]
fn texts_of_ranks_are_those_drawn_from_all_logits() {
    for group in cuda::groups("texts_of_ranks_are_those_drawn_from_all_logits") {
        gpu::texts_are_those_drawn_from_all_logits(&Device::from(group));
    }
}

#[test]
fn a_model_split_between_cpu_and_ranks_agrees_with_its_reference() {
    for group in cuda::groups("a_model_split_between_cpu_and_ranks_agrees_with_its_reference") {
        gpu::a_model_split_between_cpu_and_gpu_agrees_with_its_reference(&Device::from(group));
    }
}

/// Logits of a prompt and of tokens after it.
fn run_of(model: &Model, golden: &GoldenModel) -> Vec<Vec<f32>> {
    let mut state = state(model, golden, KvDType::F16);
    let n = golden.tokens.len();
    let mut logits = gpu::run(&mut state, &golden.tokens, &(0..n).collect::<Vec<_>>());
    for &token in &golden.greedy {
        logits.extend(gpu::run(&mut state, &[token], &[0]));
    }
    logits
}

#[test]
fn ranks_give_equal_bits_in_every_run() {
    for group in cuda::groups("ranks_give_equal_bits_in_every_run") {
        for golden in &GoldenModel::all() {
            let model = model(golden, group.clone());
            let first = run_of(&model, golden);
            assert!((0..3).all(|_| run_of(&model, golden) == first), "{}", golden.name);
        }
    }
}

#[test]
fn pages_of_ranks_are_those_of_one_gpu() {
    let path = std::env::temp_dir().join(format!("stonechat-ranks-{}", std::process::id()));
    for group in cuda::groups("pages_of_ranks_are_those_of_one_gpu") {
        let golden = &GoldenModel::read("llama");
        for kv_dtype in [KvDType::F16, KvDType::Q8_0] {
            let n_ctx = Some(golden.n_ctx);
            let options = SessionOptions { n_ctx, kv_dtype, ..SessionOptions::default() };
            let [one, ranks] =
                [model(golden, group.ranks()[0].clone()), model(golden, group.clone())];
            let mut of_one = Session::new(&one, options).unwrap();
            let mut of_ranks = Session::new(&ranks, options).unwrap();
            let go_on = |session: &mut Session, tokens: &[u32]| {
                let options = GenerateOptions { n_predict: Some(4), ..greedy() };
                let on_event = &mut |_: Event<'_>| ControlFlow::Continue(());
                block_on(session.generate(tokens, &options, on_event)).unwrap().tokens
            };
            go_on(&mut of_one, &golden.tokens);
            block_on(of_one.save(&path)).unwrap();
            let saved = std::fs::read(&path).unwrap();
            block_on(of_ranks.restore(&path)).unwrap();
            block_on(of_ranks.save(&path)).unwrap();
            assert!(std::fs::read(&path).unwrap() == saved, "{kv_dtype:?}");
            let longer = [of_one.tokens(), &[3]].concat();
            assert_eq!(go_on(&mut of_ranks, &longer), go_on(&mut of_one, &longer), "{kv_dtype:?}");
        }
        std::fs::remove_file(&path).unwrap();
    }
}

fn greedy() -> GenerateOptions {
    let sampling = SamplingOptions { temperature: 0.0, ..SamplingOptions::default() };
    GenerateOptions { sampling, ignore_eos: true, ..GenerateOptions::default() }
}
