//! Every architecture on a tiny model: logits of transformers and PyTorch, and properties that hold for all.
//!
//! Models and references are made by `test-data/golden/llm.py`; each has weights for which every switch matters.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use pollster::block_on;
use stonechat_formats::{DType, GgufWriter, ModelFile, TensorInfo};
use stonechat_llm::{
    Config, Devices, Error, KvFull, Model, OutputRequest, OutputRow, Slot, State, StateOptions,
    quantize,
};
use stonechat_nn::{Cpu, KvDType, Repack};
use stonechat_testkit::{GoldenModel, Reference, golden_folder};

/// Models that are also stored as a Hugging Face folder.
const FOLDERS: [&str; 20] = [
    "cohere2",
    "ernie4_5",
    "exaone4",
    "gemma3",
    "glm4",
    "granite",
    "hunyuan-dense",
    "llama",
    "mistral3",
    "olmo2",
    "olmo3",
    "phi3-long",
    "phi3-short",
    "qwen2",
    "qwen2vl",
    "qwen3",
    "qwen3moe",
    "qwen3vl",
    "seed_oss",
    "smollm3",
];

const N_SEQUENCES: usize = 3;

/// Relative error limit of the f64 oracle: against references of 6 digits, and against itself.
const ORACLE_LIMIT: f32 = 1e-5;

fn golden_model(golden: &GoldenModel, devices: impl Into<Devices>) -> Result<Model, String> {
    load(devices, &golden.model)
}

/// Error limit of the CPU, relative to the largest logit. MXFP4 weights are multiplied by activations rounded to 8 bits, which
/// this model amplifies: llama.cpp's own logits are up to 0.07 from the reference (`llm_check.py` prints the difference).
fn limit(golden: &GoldenModel) -> f32 {
    if golden.model == "gpt-oss.gguf" { 8e-2 } else { 1e-4 }
}

fn load(devices: impl Into<Devices>, name: &str) -> Result<Model, String> {
    let file = ModelFile::open(golden_folder().join(name)).map_err(|e| e.to_string())?;
    Model::load(devices, &file, |_| {}).map_err(|e| e.to_string())
}

/// A state with exact keys and values.
fn state(model: &Model, golden: &GoldenModel) -> State {
    let n_batch = golden.tokens.len() * N_SEQUENCES;
    let options = StateOptions {
        n_sequences: N_SEQUENCES,
        n_batch,
        n_outputs: n_batch,
        kv_dtype: KvDType::F32,
        ..StateOptions::new(golden.n_ctx)
    };
    model.state(options).unwrap()
}

/// Runs `tokens` as the continuation of `sequence`; returns the logits of the rows `outputs`, ascending.
fn run(state: &mut State, sequence: usize, tokens: &[u32], outputs: &[usize]) -> Vec<Vec<f32>> {
    let first = outputs.first().copied().unwrap_or(tokens.len());
    let rows = run_batch(state, &[(sequence, tokens, tokens.len() - first)]);
    outputs.iter().map(|&row| rows[row - first].clone()).collect()
}

/// Runs tokens of sequences in one step; returns the logits of the last rows of each.
fn run_batch(state: &mut State, runs: &[(usize, &[u32], usize)]) -> Vec<Vec<f32>> {
    let mut plan = state.plan();
    for &(sequence, tokens, n_outputs) in runs {
        plan.add(Slot::new(sequence), tokens, OutputRequest::Logits, n_outputs).unwrap();
    }
    let ticket = plan.run().unwrap();
    let outputs = block_on(state.outputs(ticket)).unwrap();
    let logits = |row: OutputRow<'_>| match row {
        OutputRow::Logits(logits) => logits.to_vec(),
        row => panic!("{row:?}"),
    };
    outputs.rows(0..outputs.len()).map(logits).collect()
}

/// Compares logits; the error limit is `limit` times the largest expected logit. Reports the largest difference.
fn close(got: &[Vec<f32>], expected: &[Vec<f32>], limit: f32) -> Result<(), String> {
    assert_eq!(got.len(), expected.len(), "rows of logits");
    let scale = expected.iter().flatten().fold(0.0f32, |m, v| m.max(v.abs()));
    let mut worst = (0.0, String::new());
    for (row, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert_eq!(got.len(), expected.len(), "logits of row {row}");
        for (token, (g, e)) in got.iter().zip(expected).enumerate() {
            let difference = (g - e).abs() / scale;
            if difference.is_nan() {
                return Err(format!("row {row}, token {token}: {g} instead of {e}"));
            }
            if difference > worst.0 {
                worst = (difference, format!("row {row}, token {token}: {g} instead of {e}"));
            }
        }
    }
    if worst.0 <= limit {
        return Ok(());
    }
    Err(format!("relative difference {:.1e}, {}", worst.0, worst.1))
}

/// Runs `check` on each of `names` and reports all failures together.
#[track_caller]
fn check_all(all: &[GoldenModel], check: impl Fn(&GoldenModel) -> Result<(), String>) {
    let failed: Vec<String> = all
        .iter()
        .filter_map(|golden| check(golden).err().map(|e| format!("{}: {e}", golden.name)))
        .collect();
    assert!(failed.is_empty(), "{} of {} fail\n{}", failed.len(), all.len(), failed.join("\n"));
}

fn argmax(logits: &[f32]) -> u32 {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as u32
}

fn cpu() -> Cpu {
    Cpu::new(2).unwrap()
}

/// The CPU with memory-mapped weights.
fn mapped() -> Cpu {
    cpu().with_repack(Repack::Off)
}

/// Checks a property on the f64 oracle, within rounding to f32 logits, and on the CPU.
macro_rules! holds_everywhere {
    ($property:ident) => {
        check_all(&GoldenModel::all(), |golden| {
            $property(Reference, golden, ORACLE_LIMIT).map_err(|e| format!("oracle: {e}"))?;
            $property(cpu(), golden, limit(golden)).map_err(|e| format!("cpu: {e}"))
        })
    };
}

#[test]
fn the_oracle_computes_the_references() {
    check_all(&GoldenModel::all(), |golden| {
        let model = golden_model(golden, Reference)?;
        let mut state = state(&model, golden);
        let got = run(&mut state, 0, &golden.tokens, &golden.positions);
        close(&got, &golden.logits, ORACLE_LIMIT)
    });
}

#[test]
fn the_cpu_computes_the_references() {
    check_all(&GoldenModel::all(), |golden| {
        let model = golden_model(golden, cpu())?;
        let mut state = state(&model, golden);
        let got = run(&mut state, 0, &golden.tokens, &golden.positions);
        close(&got, &golden.logits, limit(golden).min(3e-2))
    });
}

#[test]
fn greedy_continuations_equal_the_references() {
    check_all(&GoldenModel::all(), |golden| {
        for backend in [cpu(), mapped()] {
            let model = golden_model(golden, backend)?;
            let mut state = state(&model, golden);
            let mut logits = run(&mut state, 0, &golden.tokens, &[golden.tokens.len() - 1]);
            let mut got = Vec::new();
            for _ in &golden.greedy {
                let next = argmax(&logits[0]);
                got.push(next);
                logits = run(&mut state, 0, &[next], &[0]);
            }
            if got != golden.greedy {
                let device = model.describe();
                return Err(format!("{device}: {got:?}, not {:?}", golden.greedy));
            }
        }
        Ok(())
    });
}

#[test]
fn mapped_weights_are_neither_copied_nor_repacked() {
    check_all(&GoldenModel::all(), |golden| {
        let model = golden_model(golden, mapped())?;
        let cost = model.load_stats();
        let file = golden.file();
        // Vectors, norms and the like, are the rest.
        let all: usize = file.tensors().map(|t| t.data.len()).sum();
        if cost.mapped_bytes * 10 < all as u64 * 8 || cost.copied_bytes + cost.repacked_bytes > 0 {
            return Err(format!("{cost:?} of {all} bytes"));
        }
        // The model holds the last reference to the memory map.
        drop(file);
        let mut state = state(&model, golden);
        let got = run(&mut state, 0, &golden.tokens, &golden.positions);
        close(&got, &golden.logits, limit(golden).min(3e-2))
    });
}

#[test]
fn quantized_mapped_weights_are_multiplied_as_their_values() {
    let path = std::env::temp_dir().join(format!("stonechat-in-place-{}.gguf", std::process::id()));
    for dtype in [DType::Q8_0, DType::Q4_0] {
        let golden = &GoldenModel::read("llama");
        let file = golden.file();
        quantize(&file, &path, dtype, |_| ()).unwrap();
        let devices: [Devices; 2] = [Reference.into(), mapped().into()];
        let [oracle, rows] = devices.map(|devices| {
            let model = Model::load(devices, &ModelFile::open(&path).unwrap(), |_| {}).unwrap();
            let mut state = state(&model, golden);
            let mut step = |token| run(&mut state, 0, &[token], &[0]).remove(0);
            golden.tokens.iter().map(|&token| step(token)).collect::<Vec<_>>()
        });
        // Activations are not rounded to 8 bits.
        close(&rows, &oracle, 1e-4).unwrap();
    }
    std::fs::remove_file(path).unwrap();
}

fn prefill(backend: impl Into<Devices>, golden: &GoldenModel, limit: f32) -> Result<(), String> {
    let model = golden_model(golden, backend)?;
    let mut state = state(&model, golden);
    let rows: Vec<usize> = (0..golden.tokens.len()).collect();
    let at_once = run(&mut state, 0, &golden.tokens, &rows);
    let step = |&token: &u32| run(&mut state, 1, &[token], &[0]).remove(0);
    let one_by_one: Vec<_> = golden.tokens.iter().map(step).collect();
    close(&one_by_one, &at_once, limit)
}

#[test]
fn prefill_equals_token_by_token() {
    holds_everywhere!(prefill);
}

fn chunks(backend: impl Into<Devices>, golden: &GoldenModel, limit: f32) -> Result<(), String> {
    let model = golden_model(golden, backend)?;
    let mut state = state(&model, golden);
    let rows: Vec<usize> = (0..golden.tokens.len()).collect();
    let whole = run(&mut state, 0, &golden.tokens, &rows);
    for (sequence, chunk_len) in [(1, 7), (2, 17)] {
        let chunk = |c: &[u32]| run(&mut state, sequence, c, &rows[..c.len()]);
        let parts: Vec<_> = golden.tokens.chunks(chunk_len).flat_map(chunk).collect();
        close(&parts, &whole, limit)?;
    }
    Ok(())
}

#[test]
fn a_prompt_in_chunks_equals_the_whole() {
    holds_everywhere!(chunks);
}

fn ragged_batch(
    backend: impl Into<Devices>,
    golden: &GoldenModel,
    limit: f32,
) -> Result<(), String> {
    let model = golden_model(golden, backend)?;
    // Prompts of three lengths in one call, then one token of each.
    let prompt = &golden.tokens;
    let prompts = [&prompt[..], &prompt[3..8], &prompt[5..30]];
    let next = [5, 11, 40];
    let ids = [2, 0, 1];
    let alone = |(prompt, next): (&&[u32], u32)| {
        let mut state = state(&model, golden);
        let first = run(&mut state, 1, prompt, &[prompt.len() - 1]).remove(0);
        [first, run(&mut state, 1, &[next], &[0]).remove(0)]
    };
    let expected: Vec<_> = prompts.iter().zip(next).map(alone).collect();

    let mut state = state(&model, golden);
    let runs: Vec<_> = ids.iter().zip(prompts).map(|(&id, prompt)| (id, prompt, 1)).collect();
    let first = run_batch(&mut state, &runs);
    let runs: Vec<_> = ids.iter().zip(next.chunks(1)).map(|(&id, next)| (id, next, 1)).collect();
    let second = run_batch(&mut state, &runs);
    for (step, got) in [first, second].iter().enumerate() {
        let expected: Vec<_> = expected.iter().map(|rows| rows[step].clone()).collect();
        close(got, &expected, limit).map_err(|e| format!("step {step}: {e}"))?;
    }
    Ok(())
}

#[test]
fn a_batch_of_sequences_equals_each_alone() {
    holds_everywhere!(ragged_batch);
}

fn truncate_and_fork(
    backend: impl Into<Devices>,
    golden: &GoldenModel,
    limit: f32,
) -> Result<(), String> {
    let model = golden_model(golden, backend)?;
    let mut state = state(&model, golden);
    let (kept, rest) = golden.tokens.split_at(20);
    run(&mut state, 0, &golden.tokens, &[]);
    assert_eq!(state.truncate(Slot::new(0), kept.len()), kept.len());
    state.fork(Slot::new(0), Slot::new(2));
    run(&mut state, 2, &[9, 8, 7], &[]);
    run(&mut state, 1, kept, &[]);
    let expected = run(&mut state, 1, rest, &[rest.len() - 1]);
    let got = run(&mut state, 0, rest, &[rest.len() - 1]);
    close(&got, &expected, limit)
}

#[test]
fn a_truncated_sequence_and_its_fork_do_not_disturb_each_other() {
    holds_everywhere!(truncate_and_fork);
}

/// Logits of two prompts in one batch, then of one token of each sequence after a truncation and a fork.
fn story(model: &Model, golden: &GoldenModel) -> Vec<Vec<f32>> {
    let mut state = state(model, golden);
    let (a, b) = (&golden.tokens[..], &golden.tokens[3..20]);
    let mut logits = run_batch(&mut state, &[(1, a, a.len()), (0, b, b.len())]);
    state.truncate(Slot::new(1), 20);
    state.fork(Slot::new(1), Slot::new(2));
    logits.extend(run_batch(&mut state, &[(2, &[9], 1), (1, &[8], 1), (0, &[7], 1)]));
    assert_eq!([0, 1, 2].map(|i| state.len(Slot::new(i))), [18, 21, 21]);
    logits
}

#[test]
fn a_model_split_anywhere_computes_the_same() {
    check_all(&GoldenModel::all(), |golden| {
        let whole = golden_model(golden, cpu())?;
        let expected = story(&whole, golden);
        let options = StateOptions::new(golden.n_ctx);
        let all = &whole.placements(&options)[0];
        for n_first in 0..=whole.config().n_layers() {
            let split = golden_model(golden, Devices::from(cpu()).split(n_first, cpu()))?;
            if story(&split, golden) != expected {
                return Err(format!("other logits with the first {n_first} layers apart"));
            }
            let [first, second] = &split.placements(&options)[..] else { unreachable!("two") };
            assert_eq!((first.layers.end, second.layers.start), (n_first, n_first));
            assert_eq!(first.kv_bytes + second.kv_bytes, all.kv_bytes);
            // Each stage has its own ALiBi slopes, and a tied embedding is in both.
            let twice = first.weight_bytes + second.weight_bytes - all.weight_bytes;
            let file = golden.file();
            let bytes = |name| file.tensor(name).map_or(0, |tensor| tensor.data.len());
            let tied = bytes("output.weight") == 0;
            let embedding = if tied { bytes("token_embd.weight") } else { 0 };
            let slopes = whole.config().alibi_slopes().map_or(0, |slopes| 4 * slopes.len());
            assert_eq!(twice, (embedding + slopes) as u64, "{}", golden.model);
        }
        Ok(())
    });
}

#[test]
fn a_hugging_face_folder_can_be_split() {
    check_all(&FOLDERS.map(GoldenModel::read), |golden| {
        let name = golden.model.replace(".gguf", "-hf");
        let expected = story(&load(cpu(), &name)?, golden);
        let split = load(Devices::from(cpu()).split(1, cpu()), &name)?;
        if story(&split, golden) == expected { Ok(()) } else { Err("other logits".to_owned()) }
    });
}

#[test]
fn there_are_no_more_layers_to_split_than_the_model_has() {
    let file = ModelFile::open(golden_folder().join("llama.gguf")).unwrap();
    let n_layers = Config::from_file(&file).unwrap().n_layers();
    let error =
        Model::load(Devices::from(cpu()).split(n_layers + 1, cpu()), &file, |_| {}).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("layers of the first devices: expected 0 to {n_layers}, got {}", n_layers + 1)
    );
}

#[test]
fn a_batch_that_does_not_fit_changes_neither_side() {
    let golden = &GoldenModel::read("llama");
    let model = golden_model(golden, Devices::from(cpu()).split(1, cpu())).unwrap();
    let options = StateOptions {
        n_sequences: 2,
        n_pages: Some(1),
        n_batch: golden.n_ctx,
        ..StateOptions::new(golden.n_ctx)
    };
    let mut state = model.state(options).unwrap();
    let expected = run(&mut state, 0, &golden.tokens[..9], &[8]);
    state.truncate(Slot::new(0), 8);
    let mut plan = state.plan();
    plan.add(Slot::new(0), &golden.tokens[8..9], OutputRequest::Logits, 1).unwrap();
    let full = plan.add(Slot::new(1), &[1], OutputRequest::Logits, 0).unwrap_err();
    assert!(matches!(full, Error::KvFull(KvFull { needed: 1, free: 0 })), "{full:?}");
    drop(plan);
    assert_eq!([0, 1].map(|i| state.len(Slot::new(i))), [8, 0]);
    // A step that was dropped between the devices has not happened.
    let mut plan = state.plan();
    plan.add(Slot::new(0), &[3, 4, 5], OutputRequest::Logits, 0).unwrap();
    let _never_awaited = plan.run().unwrap();
    let again = run(&mut state, 0, &golden.tokens[8..9], &[0]);
    close(&again, &expected, limit(golden)).unwrap();
    let long = vec![1; golden.n_ctx];
    let error = state.plan().add(Slot::new(0), &long, OutputRequest::Logits, 0).unwrap_err();
    assert!(matches!(error, Error::ContextFull { .. }), "{error:?}");
    state.truncate(Slot::new(0), 0);
    assert_eq!(run(&mut state, 0, &golden.tokens[..9], &[8]), expected);
}

#[test]
fn half_precision_keys_and_values_stay_near() {
    check_all(&GoldenModel::all(), |golden| {
        let model = golden_model(golden, cpu())?;
        let options = StateOptions {
            n_outputs: golden.tokens.len(),
            kv_dtype: KvDType::F16,
            ..StateOptions::new(golden.n_ctx)
        };
        let mut state = model.state(options).unwrap();
        let got = run(&mut state, 0, &golden.tokens, &golden.positions);
        close(&got, &golden.logits, limit(golden) + 5e-3)
    });
}

#[test]
fn a_hugging_face_folder_equals_its_gguf() {
    check_all(&FOLDERS.map(GoldenModel::read), |golden| {
        let name = golden.model.replace(".gguf", "-hf");
        let (gguf, folder) = (golden_model(golden, Reference)?, load(Reference, &name)?);
        let (mut a, mut b) = (state(&gguf, golden), state(&folder, golden));
        let expected = run(&mut a, 0, &golden.tokens, &golden.positions);
        let got = run(&mut b, 0, &golden.tokens, &golden.positions);
        close(&got, &expected, 1e-6)?;
        let folder = load(mapped(), &name)?;
        let got = run(&mut state(&folder, golden), 0, &golden.tokens, &golden.positions);
        close(&got, &expected, limit(golden))
    });
}

/// The model `name` with its tensors renamed or left out.
fn rewritten(name: &str, rename: impl Fn(&str) -> Option<String>) -> ModelFile {
    let file = ModelFile::open(golden_folder().join(name)).unwrap();
    let tensors: Vec<_> = file.tensors().filter_map(|t| Some((rename(t.name)?, t))).collect();
    let infos =
        tensors.iter().map(|(name, t)| TensorInfo::new(name.clone(), t.dtype, t.shape)).collect();
    let mut writer = GgufWriter::new(Vec::new(), file.metadata(), infos).unwrap();
    for (name, tensor) in &tensors {
        writer.write_tensor(name, &tensor.data.load().unwrap()).unwrap();
    }
    ModelFile::from_reader(writer.finish().unwrap()).unwrap()
}

#[test]
fn tensors_are_those_of_the_architecture() {
    let error = |rename: &dyn Fn(&str) -> Option<String>| {
        let file = rewritten("llama.gguf", rename);
        Model::load(cpu(), &file, |_| {}).map_or_else(|e| e.to_string(), |_| String::new())
    };
    assert_eq!(error(&|name| Some(name.to_owned())), "");
    let without = |name: &str| (name != "blk.0.ffn_up.weight").then(|| name.to_owned());
    assert_eq!(error(&without), "tensor `blk.0.ffn_up.weight` is missing");
    // Some converters store NVFP4 weights with such a factor.
    let unknown = |name: &str| {
        Some(if name == "output.weight" { "output.scale".to_owned() } else { name.to_owned() })
    };
    let name = error(&unknown);
    assert!(name.contains("expected none of this name in architecture `llama`"), "{name}");
    let swapped = |name: &str| {
        Some(match name {
            "blk.0.attn_q.weight" => "blk.0.attn_k.weight".to_owned(),
            "blk.0.attn_k.weight" => "blk.0.attn_q.weight".to_owned(),
            other => other.to_owned(),
        })
    };
    let shape = error(&swapped);
    assert!(shape.contains("expected shape"), "{shape}");
}
