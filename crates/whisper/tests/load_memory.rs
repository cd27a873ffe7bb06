//! Memory of loading from a reader: the model and one tensor.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/logits.rs"]
mod logits;

use std::fs::File;

use logits::logits;
use stonechat_formats::ModelFile;
use stonechat_nn::{Cpu, Repack};
use stonechat_testkit::CountingAllocator;
use stonechat_whisper::Model;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/models/tiny.en-q5_1.gguf");

/// Header, windows of the reader, names, values of vectors, the tokenizer while it is built.
const OTHER_BYTES: usize = 2 << 20;

fn load(file: &ModelFile, repack: Repack) -> Model {
    Model::load(Cpu::new(1).unwrap().with_repack(repack), file, |_| {}).unwrap()
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
