//! Programs of every architecture: fusion changes no logit of the f64 oracle, and fused programs equal their snapshots.
//!
//! `UPDATE_SNAPSHOTS=1 cargo test -p stonechat-llm --test programs` writes `test-data/golden/programs`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;

use pollster::block_on;
use serde::Deserialize;
use stonechat_formats::ModelFile;
use stonechat_llm::{Devices, Model, OutputRequest, OutputRow, Slot, State, StateOptions};
use stonechat_nn::{Device, KvDType, Program, fuse};
use stonechat_testkit::{Adapted, Reference, check_snapshot};

/// References of `llm.py`.
#[derive(Deserialize)]
struct Golden {
    model: String,
    n_ctx: usize,
    tokens: Vec<u32>,
}

impl Golden {
    /// All models with their names.
    fn all() -> Vec<(String, Self)> {
        let paths = folder().read_dir().unwrap().map(|entry| entry.unwrap().path());
        let mut all: Vec<(String, Self)> = paths
            .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
            .map(|path| {
                let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
                (name, serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap())
            })
            .collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        assert!(all.len() >= 19, "{} models", all.len());
        all
    }

    fn load(&self, devices: impl Into<Devices>) -> Model {
        let file = ModelFile::open(folder().join(&self.model)).unwrap();
        Model::load(devices, &file, |_| {}).unwrap()
    }

    fn options(&self) -> StateOptions {
        StateOptions {
            n_sequences: 2,
            n_batch: self.tokens.len() + 1,
            n_outputs: self.tokens.len() + 1,
            kv_dtype: KvDType::F32,
            ..StateOptions::new(self.n_ctx)
        }
    }
}

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/golden/llm"))
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
fn story(model: &Model, golden: &Golden) -> Vec<f32> {
    let mut state = model.state(golden.options()).unwrap();
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
    for (name, golden) in Golden::all() {
        let (fused, unfused) = (golden.load(Reference), golden.load(Adapted::unfused()));
        let (got, expected) = (story(&fused, &golden), story(&unfused, &golden));
        assert!(got.iter().all(|logit| logit.is_finite()), "{name}: finite logits");
        // Experts are added to the residual one by one, else summed first: equal once f64 is rounded to f32.
        assert_eq!(got.len(), expected.len());
        let differs = got.iter().zip(&expected).position(|(a, b)| a.to_bits() != b.to_bits());
        assert_eq!(differs, None, "{name}: index of the first logit that differs");
    }
}

#[test]
fn stages_record_the_layers_of_the_whole() {
    let (_, golden) = Golden::all().swap_remove(0);
    let device = Device::from(Reference);
    let whole = golden.load(device.clone()).programs(golden.options()).unwrap();
    let devices = Devices::from(device.clone()).split(1, device.clone());
    let split = golden.load(devices).programs(golden.options()).unwrap();
    let n_ops = |programs: &[Program]| {
        let lines = text(programs, &device);
        lines.lines().filter(|line| line.starts_with("  ")).count()
    };
    assert_eq!((whole.len(), split.len()), (1, 2));
    // The second stage imports the residual stream.
    assert_eq!(n_ops(&split), n_ops(&whole) + 1);
}

#[test]
fn fused_programs_equal_their_snapshots() {
    let device = Device::from(Reference);
    let mut failed = Vec::new();
    for (name, golden) in Golden::all() {
        let programs = golden.load(device.clone()).programs(golden.options()).unwrap();
        let fused = text(&programs, &device);
        assert_ne!(fused, text(&programs, &Adapted::unfused()), "{name}: ops are fused");
        failed.extend(check_snapshot(&format!("programs/{name}.txt"), &fused).err());
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
