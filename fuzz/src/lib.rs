//! Invariants for any input, shared by the fuzz targets.
#![forbid(unsafe_code)]

mod llm;

use std::panic;
use std::sync::Once;

use stonechat_formats::{GgufWriter, ModelFile, TensorInfo, TensorView, WhisperBinWriter};

pub use llm::{check_chat_template, check_grammar, check_llm, check_tokenizer};

/// Parses `magic` and `rest` as one file and checks the invariants of any model. The magic is
/// put in front so that no input is spent on another format or on none.
///
/// # Panics
/// If a parser breaks a promise.
pub fn check_model(magic: &[u8], rest: &[u8]) {
    let model = match ModelFile::from_reader([magic, rest].concat()) {
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
        let found = model.tensor(tensor.name).map(|t| (t.dtype, t.shape, bytes(&t)));
        assert_eq!(found, Some((tensor.dtype, tensor.shape, bytes(&tensor))));
    }
    let summary = model.summary();
    assert!(summary.tensor_bytes as u64 <= model.file_bytes());
    gguf_round_trip(&model);
    whisper_bin_round_trip(&model);
}

/// Everything that a tensor is, to compare it.
fn tensors(model: &ModelFile) -> Vec<(TensorInfo, Vec<u8>)> {
    model.tensors().map(|t| (TensorInfo::new(t.name, t.dtype, t.shape), bytes(&t))).collect()
}

fn bytes(tensor: &TensorView<'_>) -> Vec<u8> {
    tensor.data.load().expect("a Vec can be read").to_vec()
}

/// Writes the model as GGUF, if GGUF can hold it, and reads it back.
fn gguf_round_trip(model: &ModelFile) {
    let Some(bytes) = as_gguf(model) else {
        return;
    };
    let back = ModelFile::from_reader(bytes.clone()).expect("what is written can be read");
    assert_eq!(tensors(&back), tensors(model));
    // Bytes also compare where a value is NaN.
    assert_eq!(as_gguf(&back), Some(bytes));
}

fn as_gguf(model: &ModelFile) -> Option<Vec<u8>> {
    let infos = tensors(model).into_iter().map(|(info, _)| info).collect();
    let mut writer = GgufWriter::new(Vec::new(), model.metadata(), infos).ok()?;
    for tensor in model.tensors() {
        writer.write_tensor(tensor.name, &bytes(&tensor)).expect("announced in this order");
    }
    Some(writer.finish().expect("every tensor was written"))
}

/// Writes the model as a whisper.cpp file, if it is one that whisper.cpp would load, and reads
/// it back.
fn whisper_bin_round_trip(model: &ModelFile) {
    let Some(bytes) = as_whisper_bin(model) else {
        return;
    };
    let back = ModelFile::from_reader(bytes.clone()).expect("what is written can be read");
    assert_eq!(back.metadata(), model.metadata());
    assert_eq!(tensors(&back), tensors(model));
    assert_eq!(as_whisper_bin(&back), Some(bytes));
}

fn as_whisper_bin(model: &ModelFile) -> Option<Vec<u8>> {
    let bin = model.whisper_bin()?;
    let mut writer =
        WhisperBinWriter::new(Vec::new(), &bin.hparams, &bin.mel_filters, &bin.vocab).ok()?;
    for (info, data) in tensors(model) {
        writer.write_tensor(&info, &data).ok()?;
    }
    Some(writer.finish().expect("a Vec takes everything"))
}

/// Decodes `magic` and `rest` as one audio file and checks the invariants of any audio.
///
/// # Panics
/// If a decoder breaks a promise.
pub fn check_audio(magic: &[u8], rest: &[u8]) {
    pass_contained_panics();
    match stonechat_audio::decode_bytes([magic, rest].concat()) {
        Ok(audio) => {
            assert!(audio.samples.iter().all(|s| s.is_finite()));
            // A container without a packet has neither.
            let has_source = audio.source.sample_rate > 0 && audio.source.channels > 0;
            assert!(audio.samples.is_empty() || has_source);
        }
        Err(e) => {
            let message = e.to_string();
            assert!(!message.is_empty() && !message.contains('\n'), "{message}");
        }
    }
}

/// Panics in the decoders of other crates are contained by the audio crate; the fuzzer's own hook
/// would abort on them. Panics anywhere else still go to it.
fn pass_contained_panics() {
    static SET: Once = Once::new();
    SET.call_once(|| {
        let abort = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let is_foreign =
                |file: &str| file.contains("/registry/src/") || file.starts_with("/rustc/");
            if !info.location().is_some_and(|at| is_foreign(at.file())) {
                abort(info);
            }
        }));
    });
}
