//! A model of another vocabulary.

use std::path::Path;

use stonechat_formats::{GgufWriter, ModelFile, TensorInfo};

/// The GGUF file at `path`, with two tokens of its vocabulary exchanged.
///
/// # Panics
/// If the file is no GGUF file, or has fewer than 22 tokens.
#[must_use]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
pub fn exchanged_tokens(path: &Path) -> Vec<u8> {
    let file = ModelFile::open(path).unwrap();
    let mut metadata = file.metadata().clone();
    let mut tokens = metadata.strings("tokenizer.ggml.tokens").unwrap().to_vec();
    tokens.swap(20, 21);
    metadata.set("tokenizer.ggml.tokens", tokens);
    let infos = file.tensors().map(|t| TensorInfo::new(t.name, t.dtype, t.shape)).collect();
    let mut writer = GgufWriter::new(Vec::new(), &metadata, infos).unwrap();
    for tensor in file.tensors() {
        writer.write_tensor(tensor.name, &tensor.data.load().unwrap()).unwrap();
    }
    writer.finish().unwrap()
}
