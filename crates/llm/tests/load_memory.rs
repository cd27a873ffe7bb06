//! Memory of loading from a reader: the model and one tensor.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use pollster::block_on;
use stonechat_formats::{DType, GgufWriter, ModelFile, ReadAt, TensorInfo};
use stonechat_llm::{Model, OutputRequest, OutputRow, Slot, StateOptions};
use stonechat_nn::{Cpu, KvDType, Repack};
use stonechat_testkit::{CountingAllocator, Lcg};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// Header, windows of the reader, names, values of vectors.
const OTHER_BYTES: usize = 1 << 20;

const N_LAYERS: usize = 6;
const D: usize = 256;
const FFN: usize = 1024;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test-data/golden/llm").join(name)
}

/// Writes a random Llama with matrices of `dtype` and the vocabulary of the golden one.
fn write_model(dtype: DType) -> PathBuf {
    let small = ModelFile::open(golden("llama.gguf")).unwrap();
    let mut metadata = small.metadata().clone();
    for (key, value) in [
        ("block_count", N_LAYERS),
        ("embedding_length", D),
        ("feed_forward_length", FFN),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 4),
        ("attention.key_length", D / 4),
        ("attention.value_length", D / 4),
        ("rope.dimension_count", D / 4),
    ] {
        metadata.set(format!("llama.{key}"), value as u32);
    }
    let n_vocab = small.require("token_embd.weight").unwrap().shape[0];
    let matrix = |name: String, rows, cols| TensorInfo::new(name, dtype, [rows, cols]);
    let vector = |name: String| TensorInfo::new(name, DType::F32, [D]);
    let mut infos = vec![
        matrix("token_embd.weight".into(), n_vocab, D),
        matrix("output.weight".into(), n_vocab, D),
        vector("output_norm.weight".into()),
    ];
    for layer in 0..N_LAYERS {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        infos.extend([vector(name("attn_norm")), vector(name("ffn_norm"))]);
        let attention = ["attn_q", "attn_k", "attn_v", "attn_output"];
        infos.extend(attention.map(|part| matrix(name(part), D, D)));
        infos.extend(["ffn_gate", "ffn_up"].map(|part| matrix(name(part), FFN, D)));
        infos.push(matrix(name("ffn_down"), D, FFN));
    }
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("load-memory-{dtype}.gguf"));
    let mut writer =
        GgufWriter::new(File::create(&path).unwrap(), &metadata, infos.clone()).unwrap();
    let mut random = Lcg::new(1);
    for info in infos {
        let cols = info.shape.last().copied().unwrap();
        let values = random.normals(info.shape.iter().product(), 1.0 / (cols as f32).sqrt());
        let mut bytes = vec![0; info.data_bytes().unwrap()];
        stonechat_quant::quantize_rows(info.dtype, &values, cols, &mut bytes).unwrap();
        writer.write_tensor(&info.name, &bytes).unwrap();
    }
    writer.finish().unwrap();
    path
}

fn load(file: &ModelFile, repack: Repack) -> Model {
    Model::load(Cpu::new(1).unwrap().with_repack(repack), file, |_| {}).unwrap()
}

fn logits(model: &Model) -> Vec<f32> {
    let options = StateOptions { kv_dtype: KvDType::F32, ..StateOptions::new(64) };
    let mut state = model.state(options).unwrap();
    let mut plan = state.plan();
    plan.add(Slot::new(0), &[0, 43, 51, 3, 52][..], OutputRequest::Logits, 1).unwrap();
    let ticket = plan.run().unwrap();
    let outputs = block_on(state.outputs(ticket)).unwrap();
    let row = outputs.rows(0..1).next().unwrap();
    let OutputRow::Logits(logits) = row else { panic!("{row:?}") };
    logits.to_vec()
}

#[test]
fn a_reader_needs_the_model_and_one_tensor() {
    for dtype in [DType::F16, DType::Q8_0, DType::Q4K] {
        let path = write_model(dtype);
        let mapped = ModelFile::open(&path).unwrap();
        let largest = mapped.tensors().map(|tensor| tensor.data.len()).max().unwrap();
        let weights = mapped.weight_bytes() as usize;
        assert!(weights > 2 * (largest + OTHER_BYTES), "the bound would be loose");
        for repack in [Repack::On, Repack::Off] {
            let expected = logits(&load(&mapped, repack));
            let before = ALLOCATOR.bytes();
            let (model, peak) = ALLOCATOR.peak_bytes(|| {
                let file = ModelFile::from_reader(File::open(&path).unwrap()).unwrap();
                load(&file, repack)
            });
            let (model_bytes, peak) = (ALLOCATOR.bytes() - before, peak - before);
            let bound = model_bytes + largest + OTHER_BYTES;
            let what = format!("{dtype} {repack:?}: {peak} bytes, {model_bytes} of the model");
            assert!(peak <= bound, "{what}");
            assert!(model_bytes >= weights * 9 / 10, "the allocator sees the weights: {what}");
            assert_eq!(model.load_stats().mapped_bytes, 0, "{what}");
            assert!(logits(&model) == expected, "the logits differ: {what}");
        }
    }
}

/// Every architecture, and folders with stacked experts, fused tensors and absolute norms.
#[test]
fn readers_give_the_logits_of_the_map() {
    let mut n_models = 0;
    for entry in fs::read_dir(golden("")).unwrap() {
        let path = entry.unwrap().path();
        let read = if path.is_dir() {
            let reader = |entry: std::io::Result<fs::DirEntry>| {
                let entry = entry.unwrap();
                let file: Box<dyn ReadAt> = Box::new(File::open(entry.path()).unwrap());
                (entry.file_name().into_string().unwrap(), file)
            };
            ModelFile::from_readers(fs::read_dir(&path).unwrap().map(reader)).unwrap()
        } else if path.extension().is_some_and(|extension| extension == "gguf") {
            ModelFile::from_reader(File::open(&path).unwrap()).unwrap()
        } else {
            continue;
        };
        n_models += 1;
        let mapped = ModelFile::open(&path).unwrap();
        for repack in [Repack::On, Repack::Off] {
            let [read, mapped] = [&read, &mapped].map(|file| load(file, repack));
            assert_eq!(read.summary(), mapped.summary(), "{}", path.display());
            assert!(logits(&read) == logits(&mapped), "{} {repack:?}", path.display());
        }
    }
    assert!(n_models >= 20, "{n_models} models");
}
