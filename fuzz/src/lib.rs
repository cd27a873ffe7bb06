//! What the fuzz targets of model files share.
#![forbid(unsafe_code)]

use stonechat_formats::{DType, GgufWriter, ModelFile, TensorInfo};

/// Parses `magic` and `rest` as one file and checks what must hold of any model. The magic is
/// put in front so that no input is spent on another format or on none.
///
/// # Panics
/// If a parser breaks a promise.
pub fn check_model(magic: &[u8], rest: &[u8]) {
    let bytes = [magic, rest].concat();
    let model = match ModelFile::from_bytes(bytes) {
        Ok(model) => model,
        Err(e) => {
            let message = e.to_string();
            assert!(!message.is_empty() && !message.contains('\n'), "{message}");
            return;
        }
    };
    for tensor in model.tensors() {
        let n_bytes = tensor.dtype.bytes_for(tensor.n_elements());
        assert_eq!(n_bytes, Some(tensor.data.len()), "{}", tensor.name);
        let found = model.tensor(tensor.name).map(|t| (t.dtype, t.shape, t.data));
        assert_eq!(found, Some((tensor.dtype, tensor.shape, tensor.data)));
    }
    let summary = model.summary();
    assert!(summary.tensor_bytes <= model.file_bytes());
    round_trip(&model);
}

/// Writes the model as GGUF, if GGUF can hold it, and reads it back.
fn round_trip(model: &ModelFile) {
    let infos: Vec<TensorInfo> =
        model.tensors().map(|t| TensorInfo::new(t.name, t.dtype, t.shape)).collect();
    let Ok(mut writer) = GgufWriter::new(Vec::new(), model.metadata(), infos) else {
        return;
    };
    for tensor in model.tensors() {
        writer.write_tensor(tensor.name, tensor.data).expect("announced in this order");
    }
    let bytes = writer.finish().expect("every tensor was written");
    let back = ModelFile::from_bytes(bytes).expect("what is written can be read");
    // Compared as text: a NaN is not equal to itself.
    assert_eq!(format!("{:?}", back.metadata()), format!("{:?}", model.metadata()));
    let tensors = |m: &ModelFile| -> Vec<(String, DType, Vec<usize>, Vec<u8>)> {
        m.tensors()
            .map(|t| (t.name.to_owned(), t.dtype, t.shape.to_vec(), t.data.to_vec()))
            .collect()
    };
    assert_eq!(tensors(&back), tensors(model));
}
