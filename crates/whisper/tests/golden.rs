//! Encoder, logits and greedy tokens against CTranslate2 in float32, for the real models.
//!
//! The golden files come from `test-data/golden/whisper.py`, which documents their fields.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking and says what it measured"
)]

use std::path::{Path, PathBuf};

use pollster::block_on;
use serde_json::Value;
use stonechat_formats::ModelFile;
use stonechat_nn::{Cpu, KvDType};
use stonechat_whisper::{Model, StateOptions, WINDOW_FRAMES, WINDOW_SAMPLES};

/// Largest relative error of a matrix: `|got - expected|` over the root mean square of `expected`.
const MAX_RELATIVE_ERROR: f64 = 1e-3;
/// Golden values are rounded to six digits.
const ROUNDING: f64 = 1e-5;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test-data")
}

fn load(name: &str) -> Option<Model> {
    let folder = stonechat_testkit::models_folder()?.join(name);
    let file = ModelFile::open(&folder).ok()?;
    Some(Model::load(Cpu::new(0).unwrap(), &file, |_| {}).unwrap())
}

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

/// Compares an excerpt and row sums of a `[rows, cols]` matrix read through `at`.
#[track_caller]
fn check_matrix(what: &str, golden: &Value, at: impl Fn(usize, usize) -> f32) {
    let shape = ids(&golden["shape"]);
    let n = f64::from(shape[0] * shape[1]);
    let rms = golden["l2"].as_f64().unwrap() / n.sqrt();
    let (rows, cols) = (ids(&golden["rows"]), ids(&golden["cols"]));
    let l2 = floats(&golden["row_l2"]);
    let mut worst = 0.0f64;
    for (i, &row) in rows.iter().enumerate() {
        let expected = floats(&golden["values"][i]);
        for (j, &col) in cols.iter().enumerate() {
            let got = f64::from(at(row as usize, col as usize));
            worst = worst.max((got - expected[j]).abs() / rms);
        }
        let sum: f64 = (0..shape[1] as usize).map(|c| f64::from(at(row as usize, c)).powi(2)).sum();
        worst = worst.max((sum.sqrt() - l2[i]).abs() / l2[i].max(rms));
    }
    println!("{what}: largest relative error {worst:.2e}");
    assert!(worst <= MAX_RELATIVE_ERROR + ROUNDING, "{what}: relative error {worst}");
}

fn samples(case: &Value) -> Vec<f32> {
    let gap = case["gap_samples"].as_u64().unwrap() as usize;
    let mut samples: Vec<f32> = Vec::new();
    for (i, name) in case["audio"].as_array().unwrap().iter().enumerate() {
        if i > 0 {
            samples.resize(samples.len() + gap, 0.0);
        }
        let path = root().join("audio").join(name.as_str().unwrap());
        samples.extend(stonechat_audio::decode_file(path).unwrap().samples);
    }
    let l2 = samples.iter().map(|s| f64::from(*s).powi(2)).sum::<f64>().sqrt();
    let expected = case["samples_l2"].as_f64().unwrap();
    assert!((l2 - expected).abs() < 1e-4 * expected, "another recording: {l2} {expected}");
    samples.resize(WINDOW_SAMPLES, 0.0);
    samples
}

fn check_model(name: &str) {
    let Some(model) = load(name) else {
        println!(
            "SKIPPED golden {name}: no such model in STONECHAT_MODELS, run `cargo xtask test`"
        );
        return;
    };
    let golden = std::fs::read(root().join(format!("golden/whisper-{name}.json"))).unwrap();
    let golden: Value = serde_json::from_slice(&golden).unwrap();
    let config = *model.config();
    let options = StateOptions { kv_dtype: KvDType::F32, ..StateOptions::default() };
    let mut state = model.state(options).unwrap();
    let slot = state.slot(0, 0);
    let (mut encoded, mut logits) = (Vec::new(), Vec::new());
    let cases = golden["cases"].as_array().unwrap();
    assert!(cases.len() >= 5);
    for case in cases {
        let what = format!("{name} {}", case["name"]);
        let mel = model.mel(&samples(case), 0);
        check_matrix(&format!("{what} mel"), &case["mel"], |band, frame| {
            mel.data[frame * config.n_mels + band]
        });
        state.encode(&mel.data[..WINDOW_FRAMES * config.n_mels]);
        block_on(state.read_encoded(&mut encoded)).unwrap();
        check_matrix(&format!("{what} encoder"), &case["encoder"], |row, col| {
            encoded[row * config.d_model + col]
        });
        state.set_audio(0);

        let raw = &case["raw"];
        let (mut input, expected) = (ids(&raw["prompt"]), ids(&raw["tokens"]));
        let fixed_ids = ids(&raw["fixed_ids"]);
        let mut worst = 0.0f64;
        for (step, &token) in expected.iter().enumerate() {
            let mut plan = state.plan();
            plan.add(slot, &input, [input.len() - 1]).unwrap();
            plan.run();
            block_on(state.read_logits(1, &mut logits)).unwrap();
            let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
            assert_eq!(best as u32, token, "{what}: token {step}");
            let rms = raw["l2"][step].as_f64().unwrap() / (logits.len() as f64).sqrt();
            let fixed = floats(&raw["fixed"][step]);
            let top = raw["top"][step].as_array().unwrap().iter();
            let top =
                top.map(|pair| (pair[0].as_u64().unwrap() as usize, pair[1].as_f64().unwrap()));
            let fixed = fixed_ids.iter().map(|&id| id as usize).zip(fixed);
            for (id, expected) in top.chain(fixed) {
                worst = worst.max((f64::from(logits[id]) - expected).abs() / rms);
            }
            input = vec![token];
        }
        println!(
            "{what} logits: largest relative error {worst:.2e}, {} tokens equal",
            expected.len()
        );
        assert!(worst <= MAX_RELATIVE_ERROR + ROUNDING, "{what}: relative error of logits {worst}");
    }
}

#[test]
fn tiny_en_matches_ctranslate2() {
    check_model("tiny.en");
}

#[test]
fn base_matches_ctranslate2() {
    check_model("base");
}
