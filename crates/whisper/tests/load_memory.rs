//! Memory of loading from a reader: the model and one tensor.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::File;

use pollster::block_on;
use stonechat_formats::ModelFile;
use stonechat_nn::{Backend as _, Cpu, KvDType, Repack};
use stonechat_testkit::{CountingAllocator, Lcg};
use stonechat_whisper::{Batch, Model, WINDOW_FRAMES};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/models/tiny.en-q5_1.gguf");

/// Header, windows of the reader, names, values of vectors, the tokenizer while it is built.
const OTHER_BYTES: usize = 2 << 20;

fn load(file: &ModelFile, repack: Repack) -> Model<Cpu> {
    Model::load(Cpu::new(1).unwrap().with_repack(repack), file, |_| {}).unwrap()
}

fn logits(model: &Model<Cpu>) -> Vec<f32> {
    let mut encoder = model.encoder_state(KvDType::F32).unwrap();
    model.encode(&mut encoder, &Lcg::new(5).normals(WINDOW_FRAMES * 80, 0.5));
    let mut decoder = model.decoder_state(1, 1, KvDType::F32).unwrap();
    model.set_audio(&mut decoder, 0, &encoder);
    let batch = Batch { tokens: &[50257, 50362, 11, 700], sequences: &[0; 4], outputs: &[3] };
    model.decode(&mut decoder, batch).unwrap();
    let mut logits = vec![0.0; model.config().vocab_size];
    block_on(model.read_logits(&decoder, 0, &mut logits)).unwrap();
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
        assert_eq!(model.backend().load_stats().mapped_bytes, 0);
        assert!(logits(&model) == expected, "{repack:?}: the logits differ");
    }
}
