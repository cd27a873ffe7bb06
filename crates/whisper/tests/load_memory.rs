//! Memory of loading from a reader: the model and one tensor.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::File;

use pollster::block_on;
use stonechat_formats::ModelFile;
use stonechat_nn::{Cpu, KvDType, Repack};
use stonechat_testkit::{CountingAllocator, Lcg};
use stonechat_whisper::{Model, StateOptions, WINDOW_FRAMES};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/models/tiny.en-q5_1.gguf");

/// Header, windows of the reader, names, values of vectors, the tokenizer while it is built.
const OTHER_BYTES: usize = 2 << 20;

fn load(file: &ModelFile, repack: Repack) -> Model {
    Model::load(Cpu::new(1).unwrap().with_repack(repack), file, |_| {}).unwrap()
}

fn logits(model: &Model) -> Vec<f32> {
    let options = StateOptions { n_windows: 1, n_sequences: 1, kv_dtype: KvDType::F32 };
    let mut state = model.state(options).unwrap();
    state.encode(&Lcg::new(5).normals(WINDOW_FRAMES * 80, 0.5));
    state.set_audio(0);
    let slot = state.slot(0, 0);
    let mut plan = state.plan();
    plan.add(slot, &[50257, 50362, 11, 700], [3]).unwrap();
    plan.run();
    let mut logits = vec![0.0; model.config().vocab_size];
    block_on(state.read_logits(&mut logits)).unwrap();
    logits
}

#[test]
fn a_reader_needs_the_model_and_one_tensor() {
    let mapped = ModelFile::open(PATH).unwrap();
    let largest = mapped.tensors().map(|tensor| tensor.data.len()).max().unwrap();
    assert!(mapped.weight_bytes() as usize > largest + 4 * OTHER_BYTES, "the bound would be loose");
    for repack in [Repack::On, Repack::Off] {
        let expected = logits(&load(&mapped, repack));
        let before = ALLOCATOR.bytes();
        let (model, peak) = ALLOCATOR.peak_bytes(|| {
            let file = ModelFile::from_reader(File::open(PATH).unwrap()).unwrap();
            load(&file, repack)
        });
        let (model_bytes, peak) = (ALLOCATOR.bytes() - before, peak - before);
        let bound = model_bytes + largest + OTHER_BYTES;
        assert!(peak <= bound, "{repack:?}: {peak} bytes at most, {model_bytes} of the model");
        assert!(peak >= largest, "{repack:?}: the allocator sees the tensors");
        assert_eq!(model.load_stats().mapped_bytes, 0);
        assert!(logits(&model) == expected, "{repack:?}: the logits differ");
    }
}
