//! Tiny models of every architecture on an NVIDIA GPU: logits of PyTorch, the same text as on the CPU, and counters of a
//! decode step.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../gpu/cases.rs"]
mod gpu;

use pollster::block_on;
use stonechat_compute::cuda::Counters;
use stonechat_llm::{Devices, Model, OutputRequest};
use stonechat_nn::{Cpu, Cuda, Device, KvDType};
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
