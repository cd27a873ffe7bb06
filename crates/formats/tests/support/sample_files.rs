//! Small valid files of every format: for the tests here and as fuzzing seeds.

use stonechat_formats::{
    Array, DType, GgufWriter, MelFilters, Metadata, TensorInfo, WhisperBinWriter, WhisperHparams,
};

/// Bytes that differ from place to place.
pub(crate) fn pattern(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i * 37 + 11) as u8).collect()
}

pub(crate) fn all() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("ctranslate2", ctranslate2(6)),
        ("ctranslate2", ctranslate2(3)),
        ("ctranslate2", ctranslate2(1)),
        ("whisper_bin", whisper_bin(DType::F16)),
        ("whisper_bin", whisper_bin(DType::Q5_1)),
        ("gguf", gguf()),
        ("safetensors", safetensors()),
    ]
}

fn ct2_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u16 + 1).to_le_bytes());
    out.extend(text.as_bytes());
    out.push(0);
}

fn ct2_variable(
    out: &mut Vec<u8>,
    version: u32,
    name: &str,
    dims: &[u32],
    (type_id, item_size): (u8, u32),
) {
    ct2_string(out, name);
    out.push(dims.len() as u8);
    dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
    let n_items: u32 = dims.iter().product();
    if version >= 4 {
        out.push(type_id);
        out.extend((n_items * item_size).to_le_bytes());
    } else {
        out.push(item_size as u8);
        out.extend(n_items.to_le_bytes());
    }
    out.extend(pattern((n_items * item_size) as usize));
}

/// A CTranslate2 file: an i8 matrix with its scale, a vector, a scalar; from version 3 on an
/// alias of the matrix.
pub(crate) fn ctranslate2(version: u32) -> Vec<u8> {
    let mut out = version.to_le_bytes().to_vec();
    if version >= 2 {
        ct2_string(&mut out, "WhisperSpec");
        out.extend(3u32.to_le_bytes());
    }
    out.extend(4u32.to_le_bytes());
    ct2_variable(&mut out, version, "decoder/embeddings/weight", &[6, 4], (1, 1));
    ct2_variable(&mut out, version, "decoder/embeddings/weight_scale", &[6], (0, 4));
    let half = if version >= 4 { 4 } else { 2 };
    ct2_variable(&mut out, version, "encoder/layer_norm/beta", &[5], (half, 2));
    ct2_variable(&mut out, version, "decoder/num_heads", &[], (2, 2));
    if version >= 3 {
        out.extend(1u32.to_le_bytes());
        ct2_string(&mut out, "decoder/projection/weight");
        ct2_string(&mut out, "decoder/embeddings/weight");
    }
    out
}

pub(crate) fn whisper_hparams(dtype: DType) -> WhisperHparams {
    WhisperHparams {
        n_vocab: 12,
        n_audio_ctx: 3,
        n_audio_state: 32,
        n_audio_head: 2,
        n_audio_layer: 0,
        n_text_ctx: 4,
        n_text_state: 32,
        n_text_head: 2,
        n_text_layer: 0,
        n_mels: 2,
        ftype: dtype.ggml_ftype().expect("a type that files have"),
    }
}

pub(crate) fn whisper_mel_filters() -> MelFilters {
    MelFilters { n_mels: 2, n_bins: 3, data: vec![0.0, 0.5, 1.0, 0.25, 0.125, -0.0] }
}

pub(crate) fn whisper_vocab() -> Vec<Vec<u8>> {
    vec![b"!".to_vec(), vec![0xff, 0xfe], Vec::new(), " the".into()]
}

/// The tensors of [`whisper_bin`], each in the type that whisper.cpp wants.
pub(crate) fn whisper_tensors(dtype: DType) -> Vec<TensorInfo> {
    let shapes: [(&str, &[usize]); 5] = [
        ("encoder.positional_embedding", &[3, 32]),
        ("encoder.conv1.weight", &[32, 2, 3]),
        ("encoder.conv1.bias", &[32, 1]),
        ("decoder.token_embedding.weight", &[12, 32]),
        ("decoder.ln.weight", &[32]),
    ];
    let hparams = whisper_hparams(dtype);
    shapes
        .into_iter()
        .map(|(name, shape)| {
            let stored = hparams.stored_dtype(name, shape).expect("a known ftype");
            TensorInfo::new(name, stored, shape)
        })
        .collect()
}

pub(crate) fn whisper_bin(dtype: DType) -> Vec<u8> {
    let (hparams, filters) = (whisper_hparams(dtype), whisper_mel_filters());
    let mut writer = WhisperBinWriter::new(Vec::new(), &hparams, &filters, &whisper_vocab())
        .expect("a Vec takes everything");
    for info in whisper_tensors(dtype) {
        let data = pattern(info.data_bytes().expect("a small shape"));
        writer.write_tensor(&info, &data).expect("the stored type");
    }
    writer.finish().expect("a Vec takes everything")
}

pub(crate) fn gguf_metadata() -> Metadata {
    let mut m = Metadata::new();
    m.set("general.architecture", "whisper");
    m.set("general.alignment", 64u32);
    m.set("u8", 200u8);
    m.set("i8", -100i8);
    m.set("u16", 60_000u16);
    m.set("i16", -30_000i16);
    m.set("i32", -2_000_000_000i32);
    m.set("f32", -0.5f32);
    m.set("bool", true);
    m.set("u64", u64::MAX);
    m.set("i64", i64::MIN);
    m.set("f64", 1e300f64);
    m.set("bytes", vec![1u8, 2, 3]);
    m.set("floats", vec![1.0f32, 2.0]);
    m.set("flags", vec![true, false]);
    m.set("tokens", vec!["a".to_owned(), "é".to_owned(), String::new()]);
    m.set("nested", Array::Array(vec![Array::U64(vec![1, 2]), Array::Array(Vec::new())]));
    m
}

pub(crate) fn gguf_tensors() -> Vec<TensorInfo> {
    vec![
        TensorInfo::new("token_embd.weight", DType::Q4K, [2, 256]),
        TensorInfo::new("norm.weight", DType::F32, [7]),
        TensorInfo::new("conv.weight", DType::F16, [2, 3, 4]),
        TensorInfo::new("scalar", DType::I32, []),
    ]
}

pub(crate) fn gguf() -> Vec<u8> {
    let infos = gguf_tensors();
    let mut writer = GgufWriter::new(Vec::new(), &gguf_metadata(), infos.clone())
        .expect("a Vec takes everything");
    for info in infos {
        let data = pattern(info.data_bytes().expect("a small shape"));
        writer.write_tensor(&info.name, &data).expect("the next tensor");
    }
    writer.finish().expect("a Vec takes everything")
}

/// A header and its data as a safetensors file.
pub(crate) fn safetensors_of(header: &str, n_bytes: usize) -> Vec<u8> {
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.extend(pattern(n_bytes));
    out
}

pub(crate) fn safetensors() -> Vec<u8> {
    let header = r#"{"__metadata__":{"format":"pt"},
        "model.conv.weight":{"dtype":"BF16","shape":[2,3],"data_offsets":[24,36]},
        "model.norm.weight":{"dtype":"F32","shape":[6],"data_offsets":[0,24]},
        "empty":{"dtype":"I64","shape":[0,4],"data_offsets":[36,36]},
        "scalar":{"dtype":"I64","shape":[],"data_offsets":[36,44]}}   "#;
    safetensors_of(header, 44)
}
