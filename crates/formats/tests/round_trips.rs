//! Round trips of every writer, and hand-made files read field by field.

#[path = "support/sample_files.rs"]
mod sample_files;

use sample_files::pattern;
use stonechat_formats::{
    DType, Error, Format, GgufWriter, Metadata, ModelFile, TensorInfo, WhisperBinWriter,
    WhisperHparams,
};

#[track_caller]
fn check_tensors(model: &ModelFile, expected: &[TensorInfo]) {
    let got: Vec<TensorInfo> =
        model.tensors().map(|t| TensorInfo::new(t.name, t.dtype, t.shape)).collect();
    assert_eq!(got, expected);
    for info in expected {
        let tensor = model.require(&info.name).expect("a tensor of the list");
        let n_bytes = info.data_bytes().expect("a small shape");
        assert_eq!(
            *tensor.data.load().expect("a Vec can be read"),
            pattern(n_bytes),
            "{}",
            info.name
        );
    }
}

#[test]
fn names_and_content_agree() {
    for (name, bytes) in sample_files::all() {
        let expected = match name {
            "ctranslate2" => Format::CTranslate2,
            "whisper_bin" => Format::WhisperBin,
            "gguf" => Format::Gguf,
            _ => Format::SafeTensors,
        };
        assert_eq!(ModelFile::from_reader(bytes).unwrap().format(), expected);
    }
}

#[test]
fn gguf() {
    let bytes = sample_files::gguf();
    let model = ModelFile::from_reader(bytes.clone()).unwrap();
    assert_eq!((model.format(), model.version()), (Format::Gguf, 3));
    assert_eq!(*model.metadata(), sample_files::gguf_metadata());
    check_tensors(&model, &sample_files::gguf_tensors());
    assert_eq!(bytes, sample_files::gguf(), "writing is deterministic");
}

#[test]
fn gguf_data_is_aligned_in_the_file() {
    let bytes = sample_files::gguf();
    let model = ModelFile::from_reader(bytes.clone()).unwrap();
    let data = model.require("norm.weight").unwrap().data;
    let at = bytes.windows(data.len()).enumerate().filter(|(_, w)| *w == &*data.load().unwrap());
    assert!(at.map(|(i, _)| i).any(|i| i % 64 == 0));
    assert_eq!(bytes.len() % 64, 0);
}

#[test]
fn gguf_version_2_reads_the_same() {
    let mut bytes = sample_files::gguf();
    bytes[4] = 2;
    let model = ModelFile::from_reader(bytes).unwrap();
    assert_eq!(model.version(), 2);
    check_tensors(&model, &sample_files::gguf_tensors());
}

#[test]
fn gguf_of_metadata_alone() {
    let mut metadata = Metadata::new();
    metadata.set("k", 1u8);
    let out = GgufWriter::new(Vec::new(), &metadata, Vec::new()).unwrap().finish().unwrap();
    let unpadded = out[..24 + 8 + 1 + 4 + 1].to_vec();
    for bytes in [out, unpadded] {
        let model = ModelFile::from_reader(bytes).unwrap();
        assert_eq!(*model.metadata(), metadata);
        assert_eq!(model.tensors().len(), 0);
    }
}

#[test]
fn gguf_writer_checks_order_and_sizes() {
    let infos = sample_files::gguf_tensors();
    let mut w = GgufWriter::new(Vec::new(), &Metadata::new(), infos.clone()).unwrap();
    let e = w.write_tensor("norm.weight", &[0; 28]).unwrap_err().to_string();
    assert_eq!(e, "tensor `norm.weight`: expected `token_embd.weight` to be next, got this one");
    let e = w.write_tensor("token_embd.weight", &[0; 3]).unwrap_err().to_string();
    assert_eq!(e, "tensor `token_embd.weight`: expected 288 bytes of data, got 3 bytes");
    w.write_tensor("token_embd.weight", &[0; 288]).unwrap();
    assert!(matches!(w.finish(), Err(Error::MissingTensor { tensor }) if tensor == "norm.weight"));

    let twice = vec![infos[1].clone(), infos[1].clone()];
    assert!(GgufWriter::new(Vec::new(), &Metadata::new(), twice).is_err());
    let partial_block = vec![TensorInfo::new("t", DType::Q4K, [256, 2])];
    assert!(GgufWriter::new(Vec::new(), &Metadata::new(), partial_block).is_err());
}

#[test]
fn whisper_bin() {
    for (dtype, version) in [(DType::F32, 0), (DType::F16, 0), (DType::Q5_1, 2), (DType::Q8_0, 2)] {
        let model = ModelFile::from_reader(sample_files::whisper_bin(dtype)).unwrap();
        assert_eq!((model.format(), model.version()), (Format::WhisperBin, version));
        check_tensors(&model, &sample_files::whisper_tensors(dtype));
        let bin = model.whisper_bin().unwrap();
        assert_eq!(bin.hparams, sample_files::whisper_hparams(dtype));
        assert_eq!(bin.hparams.dtype().unwrap(), dtype);
        assert_eq!(bin.mel_filters, sample_files::whisper_mel_filters());
        assert_eq!(bin.vocab, sample_files::whisper_vocab());
        assert_eq!(model.metadata().u32("whisper.n_audio_state").unwrap(), 32);
        assert_eq!(model.metadata().u32("whisper.ftype").unwrap(), bin.hparams.ftype);
    }
}

/// The bytes as `convert-pt-to-ggml.py` would write them.
#[test]
fn whisper_bin_layout() {
    let bytes = sample_files::whisper_bin(DType::Q5_1);
    let mut expected: Vec<u8> = Vec::new();
    let mut ints = |values: &[i32]| values.iter().for_each(|v| expected.extend(v.to_le_bytes()));
    ints(&[0x6767_6d6c, 12, 3, 32, 2, 0, 4, 32, 2, 0, 2, 2009, 2, 3]);
    for f in sample_files::whisper_mel_filters().data {
        expected.extend(f.to_le_bytes());
    }
    expected.extend(b"\x04\0\0\0\x01\0\0\0!\x02\0\0\0\xff\xfe\0\0\0\0\x04\0\0\0 the");
    let mut ints = |values: &[i32]| values.iter().for_each(|v| expected.extend(v.to_le_bytes()));
    ints(&[2, 28, 0, 32, 3]);
    expected.extend(b"encoder.positional_embedding");
    expected.extend(pattern(3 * 32 * 4));
    let mut ints = |values: &[i32]| values.iter().for_each(|v| expected.extend(v.to_le_bytes()));
    ints(&[3, 20, 1, 3, 2, 32]);
    expected.extend(b"encoder.conv1.weight");
    assert_eq!(bytes[..expected.len()], expected);
}

#[test]
fn whisper_bin_writer_refuses_what_whisper_cpp_would_not_load() {
    let hparams = sample_files::whisper_hparams(DType::Q5_1);
    let filters = sample_files::whisper_mel_filters();
    let mut w = WhisperBinWriter::new(Vec::new(), &hparams, &filters, &[b"a".as_slice()]).unwrap();
    let mut refuse = |info: TensorInfo, data: usize, expected: &str| {
        let e = w.write_tensor(&info, &vec![0; data]).unwrap_err().to_string();
        assert!(e.contains(expected), "{e}");
    };
    let weight = |dtype| TensorInfo::new("decoder.token_embedding.weight", dtype, [12, 32]);
    refuse(weight(DType::F16), 768, "expected q5_1 in a whisper.cpp file of q5_1, got f16");
    refuse(weight(DType::Q5_1), 7, "expected 288 bytes of data, got 7 bytes");
    let bias = TensorInfo::new("encoder.conv1.bias", DType::Q5_1, [32, 1]);
    refuse(bias, 0, "expected f32");
    refuse(TensorInfo::new("scalar", DType::F32, []), 4, "1 to 4 dimensions");

    let bad_filters = stonechat_formats::MelFilters { n_mels: 5, ..filters.clone() };
    assert!(WhisperBinWriter::new(Vec::new(), &hparams, &bad_filters, &[b""]).is_err());
    let bad_ftype = WhisperHparams { ftype: 4, ..hparams };
    assert!(WhisperBinWriter::new(Vec::new(), &bad_ftype, &filters, &[b""]).is_err());
}

#[test]
fn whisper_bin_of_an_old_quantization_is_refused() {
    let mut bytes = sample_files::whisper_bin(DType::Q5_1);
    bytes[44..48].copy_from_slice(&1009i32.to_le_bytes());
    let e = ModelFile::from_reader(bytes).unwrap_err().to_string();
    assert_eq!(e, "unsupported whisper.cpp quantization version: expected 2, got 1");
}

#[test]
fn ctranslate2() {
    for version in [1, 2, 3, 4, 5, 6] {
        let model = ModelFile::from_reader(sample_files::ctranslate2(version)).unwrap();
        assert_eq!((model.format(), model.version()), (Format::CTranslate2, version));
        let half = if version >= 4 { DType::F16 } else { DType::I16 };
        let mut expected = vec![
            TensorInfo::new("decoder/embeddings/weight", DType::I8, [6, 4]),
            TensorInfo::new("decoder/embeddings/weight_scale", DType::F32, [6]),
            TensorInfo::new("encoder/layer_norm/beta", half, [5]),
            TensorInfo::new("decoder/num_heads", DType::I16, []),
        ];
        if version >= 3 {
            let alias = |name, i: usize| TensorInfo { name, ..expected[i].clone() };
            let weight = alias("decoder/projection/weight".to_owned(), 0);
            let scale = alias("decoder/projection/weight_scale".to_owned(), 1);
            expected.extend([weight, scale]);
        }
        check_tensors(&model, &expected);
        if version >= 2 {
            assert_eq!(model.metadata().str("ctranslate2.spec").unwrap(), "WhisperSpec");
            assert_eq!(model.metadata().u32("ctranslate2.revision").unwrap(), 3);
        }
        let summary = model.summary();
        assert_eq!(summary.tensors.len(), expected.len());
        assert_eq!(summary.n_parameters, 24 + 6 + 5 + 1, "aliases are counted once");
    }
}

#[test]
fn ctranslate2_of_a_later_version_is_named() {
    let e = ModelFile::from_reader(sample_files::ctranslate2(7)).unwrap_err().to_string();
    assert_eq!(e, "unsupported CTranslate2 binary version: expected 1 to 6, got 7");
}

#[test]
fn safetensors() {
    let model = ModelFile::from_reader(sample_files::safetensors()).unwrap();
    assert_eq!(model.format(), Format::SafeTensors);
    assert_eq!(model.metadata().str("format").unwrap(), "pt");
    let names: Vec<&str> = model.tensors().map(|t| t.name).collect();
    assert_eq!(names, ["model.norm.weight", "model.conv.weight", "empty", "scalar"]);
    let conv = model.require("model.conv.weight").unwrap();
    assert_eq!((conv.dtype, conv.shape), (DType::BF16, [2, 3].as_slice()));
    assert_eq!(*conv.data.load().unwrap(), pattern(44)[24..36]);
    assert_eq!(model.require("empty").unwrap().n_elements(), 0);
    assert_eq!(model.require("scalar").unwrap().n_elements(), 1);
}

#[track_caller]
fn refuse_safetensors(header: &str, n_bytes: usize, expected: &str) {
    let bytes = sample_files::safetensors_of(header, n_bytes);
    let e = ModelFile::from_reader(bytes).expect_err("a broken header").to_string();
    assert!(e.contains(expected), "{e}");
    assert!(!e.contains('\n'), "{e}");
}

#[test]
fn bad_safetensors() {
    let one = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    refuse_safetensors(&one("F8_E4M3", "[4]", "[0,4]"), 4, "tensor `a`: expected dtype F64,");
    refuse_safetensors(&one("F32", "[4]", "[0,12]"), 12, "expected 16 bytes of data at offset 0");
    refuse_safetensors(&one("F32", "[4]", "[16,0]"), 16, "offsets 16..0");
    refuse_safetensors(&one("F32", "[4]", "[4,20]"), 20, "offsets 4..20");
    refuse_safetensors(&one("F32", "[4]", "[0,16]"), 12, "file ends inside tensor data");
    refuse_safetensors(&one("F32", "[4]", "[0,16]"), 17, "invalid end of file");
    refuse_safetensors(&one("F32", "[18446744073709551615,2]", "[0,8]"), 8, "fits in memory");
    refuse_safetensors(&one("F32", "[-1]", "[0,4]"), 4, "invalid JSON in the safetensors header");
    refuse_safetensors(&"[".repeat(100), 0, "expected CTranslate2");
    refuse_safetensors(&("{\"a\":".repeat(5000) + "0"), 0, "invalid JSON");
    let twice = r#"{"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},
                    "a":{"dtype":"I8","shape":[1],"data_offsets":[1,2]}}"#;
    refuse_safetensors(twice, 2, "a second one");
    let overlap = r#"{"a":{"dtype":"I8","shape":[2],"data_offsets":[0,2]},
                      "b":{"dtype":"I8","shape":[2],"data_offsets":[1,3]}}"#;
    refuse_safetensors(overlap, 3, "tensor `b`");
}
