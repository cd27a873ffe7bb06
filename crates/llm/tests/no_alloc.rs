//! A decode step allocates nothing: forward pass, logits and draw under a counting allocator.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use stonechat_formats::ModelFile;
use stonechat_llm::{Batch, Devices, Model, Split, StateOptions};
use stonechat_nn::sample::{DryBreakers, Sampler, SamplingOptions};
use stonechat_nn::{Cpu, KvDType};
use stonechat_testkit::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// Every kind of layer: dense, sliding-window, parallel, MoE, ALiBi.
const MODELS: [&str; 8] =
    ["llama", "qwen3", "gemma3", "phi2", "phi3", "gpt-oss", "falcon-40b", "bloom"];

#[test]
fn a_decode_step_allocates_nothing() {
    for name in MODELS {
        for (kv_dtype, n_threads) in [(KvDType::F16, 1), (KvDType::F16, 2), (KvDType::Q8_0, 2)] {
            let cpu = Cpu::new(n_threads).unwrap();
            let split = Split::new(cpu.clone(), cpu.clone(), 1);
            assert_eq!(fewest(name, kv_dtype, cpu), 0, "{name} {kv_dtype:?} {n_threads}");
            assert_eq!(fewest(name, kv_dtype, split), 0, "split: {name} {kv_dtype:?} {n_threads}");
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
fn fewest(name: &str, kv_dtype: KvDType, devices: impl Devices) -> usize {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test-data/golden/llm");
    let file = ModelFile::open(folder.join(format!("{name}.gguf"))).unwrap();
    let model = Model::load(devices, &file, |_| ()).unwrap();
    let options = StateOptions { kv_dtype, n_sequences: 2, ..StateOptions::new(128) };
    let mut state = model.state(options).unwrap();
    let vocab_size = model.config().vocab_size;
    let mut sampler =
        Sampler::new(&SamplingOptions::default(), vocab_size, DryBreakers::default()).unwrap();
    let mut logits = vec![0.0; vocab_size];
    let mut top_k = Vec::new();
    let prompt: Vec<u32> = (0..40).collect();
    let batch = Batch { tokens: &prompt, sequences: &[0; 40], outputs: &[39] };
    ready(model.forward(&mut state, batch)).unwrap();
    let mut token = 1;
    let mut round = || {
        let before = ALLOCATOR.count();
        for _ in 0..5 {
            let batch = Batch { tokens: &[token], sequences: &[0], outputs: &[0] };
            ready(model.forward(&mut state, batch)).unwrap();
            ready(model.read_logits(&state, 0, &mut logits)).unwrap();
            token = sampler.sample(&logits);
            sampler.accept(token);
            let k = model.max_top_k().min(40);
            if k > 0 {
                ready(model.read_top_k(&mut state, 1, k, &mut top_k)).unwrap();
            }
        }
        ALLOCATOR.count() - before
    };
    (0..15).map(|_| round()).min().unwrap()
}
