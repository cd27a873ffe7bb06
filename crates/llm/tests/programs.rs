//! Programs of every architecture: fusion changes no logit of the f64 oracle, and fused programs equal their snapshots.
//!
//! `UPDATE_SNAPSHOTS=1 cargo test -p stonechat-llm --test programs` writes `test-data/golden/programs`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use pollster::block_on;
use stonechat_formats::{DType, ModelFile};
use stonechat_llm::{
    Config, Devices, Model, OutputRequest, OutputRow, Slot, State, StateOptions, quantize,
};
use stonechat_nn::{Cpu, Device, KvDType, Program, fuse, shard};
use stonechat_testkit::{Adapted, GoldenModel, Reference, ReferenceGroup, check_snapshot, wgpu};

fn load(golden: &GoldenModel, devices: impl Into<Devices>) -> Model {
    Model::load(devices, &golden.file(), |_| {}).unwrap()
}

fn options(golden: &GoldenModel) -> StateOptions {
    StateOptions {
        n_sequences: 2,
        n_batch: golden.tokens.len() + 1,
        n_outputs: golden.tokens.len() + 1,
        kv_dtype: KvDType::F32,
        ..StateOptions::new(golden.n_ctx)
    }
}

/// Appends the logits of all tokens of a step.
fn run(state: &mut State, runs: &[(usize, &[u32])], logits: &mut Vec<f32>) {
    let mut plan = state.plan();
    for &(slot, tokens) in runs {
        plan.add(Slot::new(slot), tokens, OutputRequest::Logits, tokens.len()).unwrap();
    }
    let ticket = plan.run().unwrap();
    let outputs = block_on(state.outputs(ticket)).unwrap();
    for row in outputs.rows(0..outputs.len()) {
        match row {
            OutputRow::Logits(row) => logits.extend_from_slice(row),
            row => panic!("{row:?}"),
        }
    }
}

/// Logits of a prompt, then of steps of two sequences.
fn story(model: &Model, golden: &GoldenModel) -> Vec<f32> {
    let mut state = model.state(options(golden)).unwrap();
    let mut logits = Vec::new();
    run(&mut state, &[(0, &golden.tokens)], &mut logits);
    state.truncate(Slot::new(0), 20);
    state.fork(Slot::new(0), Slot::new(1));
    run(&mut state, &[(1, &[9, 8]), (0, &[7])], &mut logits);
    run(&mut state, &[(0, &[6]), (1, &[5])], &mut logits);
    logits
}

fn text(programs: &[Program], device: &Device) -> String {
    programs.iter().map(|program| fuse(program, &device.capabilities()).to_string()).collect()
}

#[test]
fn fusion_changes_no_logit() {
    for golden in &GoldenModel::all() {
        let name = &golden.name;
        let (fused, unfused) = (load(golden, Reference), load(golden, Adapted::unfused()));
        let (got, expected) = (story(&fused, golden), story(&unfused, golden));
        assert!(got.iter().all(|logit| logit.is_finite()), "{name}: finite logits");
        // Experts are added to the residual one by one, else summed first: equal once f64 is rounded to f32.
        assert_eq!(got.len(), expected.len());
        let differs = got.iter().zip(&expected).position(|(a, b)| a.to_bits() != b.to_bits());
        assert_eq!(differs, None, "{name}: index of the first logit that differs");
    }
}

#[test]
fn ranks_give_the_logits_of_one_device() {
    for golden in &GoldenModel::all() {
        for (quantization, file) in [("", golden.file()), (" q8_0", quantized(golden))] {
            let load = |device: Device| Model::load(device, &file, |_| {}).unwrap();
            let expected = story(&load(Reference.into()), golden);
            for n_ranks in 2..=4 {
                let got = story(&load(ReferenceGroup(n_ranks).into()), golden);
                let name = format!("{}{quantization}, {n_ranks} ranks", golden.name);
                assert_eq!(got.len(), expected.len());
                // Sums in another order.
                let differs = got.iter().zip(&expected).position(|(a, b)| (a - b).abs() > 1e-5);
                assert_eq!(differs, None, "{name}: index of the first logit that differs");
            }
        }
    }
}

#[test]
fn a_model_of_two_ranks_has_two_sums_a_layer() {
    for name in ["llama", "gemma3", "falcon-40b", "qwen3moe", "bloom"] {
        let golden = &GoldenModel::read(name);
        let n_layers = Config::from_file(&golden.file()).unwrap().n_layers();
        let programs = load(golden, ReferenceGroup(2)).programs(options(golden)).unwrap();
        let shards = shard(&programs[0], &[Reference.into(), Reference.into()]).unwrap();
        assert_eq!(shards.replicated, [""; 0], "{name}");
        for program in shards.programs {
            let count = |op: &str| program.nodes().filter(|node| node.op.name() == op).count();
            let n = ["all_reduce", "all_gather"].map(count);
            assert_eq!(n, [2 * n_layers, 1], "{name}\n{program}");
        }
    }
}

#[test]
fn stages_record_the_layers_of_the_whole() {
    let golden = &GoldenModel::read("bloom");
    let device = Device::from(Reference);
    let whole = load(golden, device.clone()).programs(options(golden)).unwrap();
    let devices = Devices::from(device.clone()).split(1, device.clone());
    let split = load(golden, devices).programs(options(golden)).unwrap();
    let n_ops = |programs: &[Program]| {
        let lines = text(programs, &device);
        lines.lines().filter(|line| line.starts_with("  ")).count()
    };
    assert_eq!((whole.len(), split.len()), (1, 2));
    // The second stage imports the residual stream.
    assert_eq!(n_ops(&split), n_ops(&whole) + 1);
}

/// The file of a model with its matrices in q8_0, whose operands devices convert.
fn quantized(golden: &GoldenModel) -> ModelFile {
    // Tests run at the same time.
    let (process, thread) = (std::process::id(), std::thread::current().id());
    let name = format!("stonechat-programs-{}-{process}-{thread:?}.gguf", golden.name);
    let path = std::env::temp_dir().join(name);
    quantize(&golden.file(), &path, DType::Q8_0, |_| ()).unwrap();
    let file = ModelFile::from_reader(std::fs::read(&path).unwrap()).unwrap();
    std::fs::remove_file(&path).unwrap();
    file
}

/// Compares the fused programs of all models on a device with their snapshots in `folder`.
fn check_snapshots(device: &Device, folder: &str, file: impl Fn(&GoldenModel) -> ModelFile) {
    let mut failed = Vec::new();
    for golden in &GoldenModel::all() {
        let name = &golden.name;
        let model = Model::load(device.clone(), &file(golden), |_| {}).unwrap();
        let programs = model.programs(options(golden)).unwrap();
        let fused = text(&programs, device);
        assert_ne!(fused, text(&programs, &Adapted::unfused()), "{name}: ops are fused");
        failed.extend(check_snapshot(&format!("{folder}/{name}.txt"), &fused).err());
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn fused_programs_equal_their_snapshots() {
    check_snapshots(&Reference.into(), "programs", GoldenModel::file);
}

#[test]
fn fused_programs_of_the_cpu_equal_their_snapshots() {
    let cpu = Cpu::new(1).unwrap();
    match cpu.isa().name() {
        // Weights without panels.
        "scalar" => println!("SKIPPED fused_programs_of_the_cpu_equal_their_snapshots: scalar"),
        _ => check_snapshots(&cpu.into(), "programs/cpu", quantized),
    }
}

#[test]
fn fused_programs_of_gpus_equal_their_snapshots() {
    let name = "fused_programs_of_gpus_equal_their_snapshots";
    for backend in wgpu::backends(name) {
        // Groups of matmuls have more buffers than every browser allows.
        let is_any_browser = backend.gpu().max_buffers() <= 8;
        let folder = if is_any_browser { "programs/wgpu-browser" } else { "programs/wgpu" };
        check_snapshots(&backend.into(), folder, quantized);
    }
    if let Some(backend) = wgpu::with_matrices(name) {
        check_snapshots(&backend.into(), "programs/wgpu-matrices", quantized);
    }
}
