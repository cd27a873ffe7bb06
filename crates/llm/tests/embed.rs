//! Embeddings equal the pooled hidden states of each text alone.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use pollster::block_on;
use stonechat_formats::ModelFile;
use stonechat_llm::{Devices, Error, Model, OutputRequest, OutputRow, Pooling, Slot, StateOptions};
use stonechat_nn::Cpu;
use stonechat_testkit::Reference;

const POOLINGS: [Pooling; 3] = [Pooling::Mean, Pooling::Cls, Pooling::Last];

fn load(devices: impl Into<Devices>, name: &str) -> Model {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/golden/llm");
    let file = ModelFile::open(format!("{folder}/{name}.gguf")).unwrap();
    Model::load(devices, &file, |_| ()).unwrap()
}

fn cpu() -> Cpu {
    Cpu::new(2).unwrap()
}

/// More texts than fit a batch, more tokens than a step has, one text of one token.
fn texts() -> Vec<Vec<u32>> {
    let len = |text: usize| if text == 3 { 1 } else { 20 + text * 53 % 97 };
    let token = |text: usize, i: usize| ((i * (text + 3) + text) % 61 + 2) as u32;
    (0..20).map(|text| (0..len(text)).map(|i| token(text, i)).collect()).collect()
}

/// Hidden states of each token of a text, one step per token.
fn hidden_states(model: &Model, text: &[u32]) -> Vec<Vec<f32>> {
    let options = StateOptions { n_batch: 1, n_hidden: 1, ..StateOptions::new(text.len()) };
    let mut state = model.state(options).unwrap();
    let step = |token: &[u32]| {
        let run = state.run(Slot::new(0), token, OutputRequest::Hidden, 1);
        match block_on(run).unwrap().row(0) {
            OutputRow::Hidden(row) => row.to_vec(),
            row => panic!("{row:?}"),
        }
    };
    text.chunks(1).map(step).collect()
}

fn pooled(hidden: &[Vec<f32>], pooling: Pooling) -> Vec<f32> {
    match pooling {
        Pooling::Cls => hidden[0].clone(),
        Pooling::Last => hidden[hidden.len() - 1].clone(),
        _ => {
            let mean = |i: usize| hidden.iter().map(|row| f64::from(row[i])).sum::<f64>();
            (0..hidden[0].len()).map(|i| (mean(i) / hidden.len() as f64) as f32).collect()
        }
    }
}

/// Largest difference, relative to the largest value.
fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let scale = b.iter().fold(0.0f32, |max, v| max.max(v.abs()));
    let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs() / scale);
    differences.fold(0.0, |max, d| if d > max || d.is_nan() { d } else { max })
}

/// Compares embeddings, of all texts together and of each alone, with the naive ones.
fn check(model: &Model, limit: f32) {
    let texts = texts();
    let hidden: Vec<_> = texts.iter().map(|text| hidden_states(model, text)).collect();
    for pooling in POOLINGS {
        let together = block_on(model.embed(&texts, pooling)).unwrap();
        assert_eq!(together.len(), texts.len());
        for (index, text) in texts.iter().enumerate() {
            let alone = block_on(model.embed(std::slice::from_ref(text), pooling)).unwrap();
            let expected = pooled(&hidden[index], pooling);
            for got in [&alone[0], &together[index]] {
                let difference = difference(got, &expected);
                let name = model.config().architecture.name;
                assert!(difference <= limit, "{name}, text {index}, {pooling}: {difference:.1e}");
            }
        }
    }
}

#[test]
fn embeddings_are_pooled_hidden_states() {
    // Keys and values in f16, as `embed` has them.
    for name in ["llama", "gemma3", "qwen3moe", "bloom"] {
        check(&load(Reference, name), 1e-5);
        check(&load(cpu(), name), 5e-3);
    }
    check(&load(Devices::from(cpu()).split(1, cpu()), "llama"), 5e-3);
}

#[test]
fn texts_that_cannot_be_embedded_have_errors() {
    let model = load(cpu(), "llama");
    let embed = |texts: &[Vec<u32>]| block_on(model.embed(texts, Pooling::Mean));
    assert!(embed(&[]).unwrap().is_empty());
    assert!(matches!(embed(&[vec![3], Vec::new()]), Err(Error::EmptyPrompt)));
    let n_ctx = model.config().n_ctx_train;
    assert_eq!(embed(&[vec![3; n_ctx]]).unwrap().len(), 1);
    let error = embed(&[vec![3], vec![3; n_ctx + 1]]).unwrap_err();
    assert!(matches!(error, Error::ContextFull { tokens, .. } if tokens == n_ctx + 1), "{error:?}");
    let error = embed(&[vec![3], vec![64]]).unwrap_err();
    assert!(matches!(error, Error::UnknownToken { token: 64, .. }), "{error:?}");
}
