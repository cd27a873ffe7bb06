//! One model in every format and naming convention gives the same logits.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/logits.rs"]
mod logits;

use std::fs;
use std::path::{Path, PathBuf};

use logits::logits;
use serde_json::json;
use stonechat_compute::DType;
use stonechat_formats::{ModelFile, ReadAt};
use stonechat_nn::{Cpu, Repack};
use stonechat_testkit::TinyWhisper;
use stonechat_whisper::{ExportFormat, Model, export};

const D: usize = 64;

/// A tensor by openai/whisper's name.
#[derive(Clone)]
struct Tensor {
    name: String,
    shape: Vec<usize>,
    values: Vec<f32>,
}

fn tiny() -> ModelFile {
    TinyWhisper { d_model: D, n_layers: 1, ..TinyWhisper::default() }.file()
}

fn tensors(file: &ModelFile) -> Vec<Tensor> {
    file.tensors()
        .map(|view| Tensor {
            name: view.name.to_owned(),
            shape: view.shape.to_vec(),
            values: bytemuck::pod_collect_to_vec(&view.data.load().unwrap()),
        })
        .collect()
}

/// Temporary folder, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("stonechat-{test}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        let tokens = tiny().metadata().strings("tokenizer.ggml.tokens").unwrap().to_vec();
        fs::write(path.join("vocabulary.json"), json!(tokens).to_string()).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn write_config(&self, heads: usize) {
        let config = json!({
            "num_mel_bins": 80, "max_source_positions": 1500, "d_model": D,
            "encoder_attention_heads": heads, "encoder_layers": 1, "encoder_ffn_dim": 4 * D,
            "max_target_positions": 448, "decoder_attention_heads": heads, "decoder_layers": 1,
            "decoder_ffn_dim": 4 * D, "vocab_size": 51864,
        });
        fs::write(self.path("config.json"), config.to_string()).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn load(file: &ModelFile) -> Result<Model, String> {
    Model::load(Cpu::new(1).unwrap(), file, |_| {}).map_err(|e| e.to_string())
}

fn open(path: &Path) -> Result<Model, String> {
    load(&ModelFile::open(path).map_err(|e| e.to_string())?)
}

/// Asserts that the model in `folder` has the same logits through readers.
#[track_caller]
fn assert_same_read(folder: &Path) {
    let reader = |entry: std::io::Result<fs::DirEntry>| {
        let entry = entry.unwrap();
        let file: Box<dyn ReadAt> = Box::new(fs::File::open(entry.path()).unwrap());
        (entry.file_name().into_string().unwrap(), file)
    };
    let file = ModelFile::from_readers(fs::read_dir(folder).unwrap().map(reader)).unwrap();
    assert_same(&load(&file).unwrap(), &open(folder).unwrap());
}

/// Asserts that memory-mapped weights of the model at `path` give the logits of repacked ones.
#[track_caller]
fn assert_same_mapped(path: &Path, limit: f32) {
    let cpu = Cpu::new(1).unwrap().with_repack(Repack::Off);
    let model = Model::load(cpu, &ModelFile::open(path).unwrap(), |_| {}).unwrap();
    let cost = model.load_stats();
    assert!(cost.repacked_bytes == 0 && cost.mapped_bytes > 0, "{cost:?}");
    let difference = difference(&logits(&model), &logits(&open(path).unwrap()));
    assert!(difference <= limit, "relative difference {difference}");
}

/// Root mean square of the difference, relative to what is expected.
fn difference(got: &[f32], expected: &[f32]) -> f32 {
    let squares: f32 = got.iter().zip(expected).map(|(a, b)| (a - b).powi(2)).sum();
    (squares / expected.iter().map(|v| v * v).sum::<f32>()).sqrt()
}

fn write_safetensors(path: &Path, tensors: &[Tensor]) {
    let mut header = serde_json::Map::new();
    let mut data: Vec<u8> = Vec::new();
    for tensor in tensors {
        let start = data.len();
        data.extend(bytemuck::cast_slice::<f32, u8>(&tensor.values));
        let entry =
            json!({ "dtype": "F32", "shape": tensor.shape, "data_offsets": [start, data.len()] });
        header.insert(tensor.name.clone(), entry);
    }
    let header = serde_json::Value::from(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    fs::write(path, file).unwrap();
}

/// Name by the conversion script of `transformers`.
fn hugging_face(name: &str) -> String {
    let (stack, rest) = name.split_once('.').unwrap();
    let rest = match rest {
        "positional_embedding" => "embed_positions.weight".to_owned(),
        "token_embedding.weight" => "embed_tokens.weight".to_owned(),
        "ln_post.weight" | "ln.weight" => "layer_norm.weight".to_owned(),
        "ln_post.bias" | "ln.bias" => "layer_norm.bias".to_owned(),
        _ if rest.starts_with("conv") => rest.to_owned(),
        _ => {
            let part = rest.strip_prefix("blocks.0.").unwrap();
            let (layer, kind) = part.rsplit_once('.').unwrap();
            let layer = match layer {
                "attn_ln" => "self_attn_layer_norm",
                "cross_attn_ln" => "encoder_attn_layer_norm",
                "mlp_ln" => "final_layer_norm",
                "mlp.0" => "fc1",
                "mlp.2" => "fc2",
                "attn.query" => "self_attn.q_proj",
                "attn.key" => "self_attn.k_proj",
                "attn.value" => "self_attn.v_proj",
                "attn.out" => "self_attn.out_proj",
                "cross_attn.query" => "encoder_attn.q_proj",
                "cross_attn.key" => "encoder_attn.k_proj",
                "cross_attn.value" => "encoder_attn.v_proj",
                "cross_attn.out" => "encoder_attn.out_proj",
                other => panic!("{other}"),
            };
            format!("layers.0.{layer}.{kind}")
        }
    };
    format!("{stack}.{rest}")
}

/// Variables of a CTranslate2 `WhisperSpec`: stacked projections, gamma and beta, scalars.
fn ctranslate2(tensors: &[Tensor]) -> Vec<Tensor> {
    let get = |name: &str| tensors.iter().find(|t| t.name == name).unwrap().clone();
    let mut out = Vec::new();
    let mut add = |name: &str, parts: &[Tensor]| {
        let mut shape = parts[0].shape.clone();
        shape[0] = parts.iter().map(|t| t.shape[0]).sum();
        let values = parts.iter().flat_map(|t| t.values.iter().copied()).collect();
        out.push(Tensor { name: name.to_owned(), shape, values });
    };
    let zero = Tensor { name: String::new(), shape: vec![D], values: vec![0.0; D] };
    for conv in ["conv1", "conv2"] {
        for kind in ["weight", "bias"] {
            add(&format!("encoder/{conv}/{kind}"), &[get(&format!("encoder.{conv}.{kind}"))]);
        }
    }
    add("decoder/embeddings/weight", &[get("decoder.token_embedding.weight")]);
    for (stack, last) in [("encoder", "ln_post"), ("decoder", "ln")] {
        let position = get(&format!("{stack}.positional_embedding"));
        add(&format!("{stack}/position_encodings/encodings"), &[position]);
        let mut norm = |name: &str, from: &str| {
            add(&format!("{stack}/{name}/gamma"), &[get(&format!("{stack}.{from}.weight"))]);
            add(&format!("{stack}/{name}/beta"), &[get(&format!("{stack}.{from}.bias"))]);
        };
        norm("layer_norm", last);
        norm("layer_0/self_attention/layer_norm", "blocks.0.attn_ln");
        norm("layer_0/ffn/layer_norm", "blocks.0.mlp_ln");
        if stack == "decoder" {
            norm("layer_0/attention/layer_norm", "blocks.0.cross_attn_ln");
        }
        let mut linear = |name: &str, from: &[&str]| {
            let weight = |part: &&str| get(&format!("{stack}.blocks.0.{part}.weight"));
            let bias = |part: &&str| {
                if part.ends_with("key") {
                    zero.clone()
                } else {
                    get(&format!("{stack}.blocks.0.{part}.bias"))
                }
            };
            let name = format!("{stack}/layer_0/{name}");
            add(&format!("{name}/weight"), &from.iter().map(weight).collect::<Vec<_>>());
            add(&format!("{name}/bias"), &from.iter().map(bias).collect::<Vec<_>>());
        };
        linear("self_attention/linear_0", &["attn.query", "attn.key", "attn.value"]);
        linear("self_attention/linear_1", &["attn.out"]);
        linear("ffn/linear_0", &["mlp.0"]);
        linear("ffn/linear_1", &["mlp.2"]);
        if stack == "decoder" {
            linear("attention/linear_0", &["cross_attn.query"]);
            linear("attention/linear_1", &["cross_attn.key", "cross_attn.value"]);
            linear("attention/linear_2", &["cross_attn.out"]);
        }
    }
    out
}

/// A version 6 `model.bin`; matrices become int8 rows with scales if `int8`.
fn ctranslate2_bytes(variables: &[Tensor], int8: bool) -> Vec<u8> {
    let mut entries: Vec<(String, Vec<usize>, u8, Vec<u8>)> = Vec::new();
    for Tensor { name, shape, values } in variables {
        let matrix = shape.len() == 2 && !name.contains("position_encodings");
        if int8 && matrix {
            let (bytes, scales) = int8_rows(values, shape[1]);
            entries.push((name.clone(), shape.clone(), 1, bytes));
            let scales: Vec<u8> = scales.iter().flat_map(|s| s.to_le_bytes()).collect();
            entries.push((format!("{name}_scale"), vec![shape[0]], 0, scales));
        } else {
            entries.push((name.clone(), shape.clone(), 0, bytemuck::cast_slice(values).to_vec()));
        }
    }
    for stack in ["encoder", "decoder"] {
        let heads = (D / 32) as i16;
        entries.push((format!("{stack}/num_heads"), vec![], 2, heads.to_le_bytes().to_vec()));
    }
    let string = |out: &mut Vec<u8>, text: &str| {
        out.extend((text.len() as u16 + 1).to_le_bytes());
        out.extend(text.as_bytes());
        out.push(0);
    };
    let mut out = 6u32.to_le_bytes().to_vec();
    string(&mut out, "WhisperSpec");
    out.extend(3u32.to_le_bytes());
    out.extend((entries.len() as u32).to_le_bytes());
    for (name, shape, dtype, data) in entries {
        string(&mut out, &name);
        out.push(shape.len() as u8);
        for axis in shape {
            out.extend((axis as u32).to_le_bytes());
        }
        out.push(dtype);
        out.extend((data.len() as u32).to_le_bytes());
        out.extend(data);
    }
    // The converter finds equal variables, scales among them.
    let kinds = if int8 { &["weight", "weight_scale"][..] } else { &["weight"] };
    out.extend((kinds.len() as u32).to_le_bytes());
    for kind in kinds {
        string(&mut out, &format!("decoder/projection/{kind}"));
        string(&mut out, &format!("decoder/embeddings/{kind}"));
    }
    out
}

/// CTranslate2's quantization: `scale = 127 / max|row|`, `int8 = round(value * scale)`.
fn int8_rows(values: &[f32], row_len: usize) -> (Vec<u8>, Vec<f32>) {
    let (mut bytes, mut scales) = (Vec::new(), Vec::new());
    for row in values.chunks_exact(row_len) {
        let scale = 127.0 / row.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        bytes.extend(row.iter().map(|v| ((v * scale).round() as i8).cast_unsigned()));
        scales.push(scale);
    }
    (bytes, scales)
}

#[track_caller]
fn assert_same(got: &Model, expected: &Model) {
    assert_eq!(got.config(), expected.config());
    assert_eq!(got.tokenizer().encode("any text"), expected.tokenizer().encode("any text"));
    assert!(logits(got) == logits(expected), "the logits differ");
}

#[test]
fn hugging_face_and_openai_names_in_safetensors() {
    let file = tiny();
    let (tensors, expected) = (tensors(&file), load(&file).unwrap());
    let folder = Folder::new("names");
    folder.write_config(2);
    for prefix in ["model.", ""] {
        let renamed: Vec<_> = tensors
            .iter()
            .map(|t| Tensor { name: format!("{prefix}{}", hugging_face(&t.name)), ..t.clone() })
            .collect();
        write_safetensors(&folder.path("model.safetensors"), &renamed);
        assert_same(&open(&folder.0).unwrap(), &expected);
    }
    write_safetensors(&folder.path("model.safetensors"), &tensors);
    assert_same(&open(&folder.0).unwrap(), &expected);

    fs::remove_file(folder.path("model.safetensors")).unwrap();
    let mut shards = serde_json::Map::new();
    for (i, part) in tensors.chunks(tensors.len().div_ceil(3)).enumerate() {
        let name = format!("model-{:05}-of-00003.safetensors", i + 1);
        write_safetensors(&folder.path(&name), part);
        shards.extend(part.iter().map(|t| (t.name.clone(), json!(name))));
    }
    let index = json!({ "metadata": {}, "weight_map": shards });
    fs::write(folder.path("model.safetensors.index.json"), index.to_string()).unwrap();
    assert_same(&open(&folder.0).unwrap(), &expected);
    assert_same_mapped(&folder.0, 0.0);
    assert_same_read(&folder.0);
}

#[test]
fn ctranslate2_in_f32_and_int8() {
    let file = tiny();
    let expected = load(&file).unwrap();
    let folder = Folder::new("ct2");
    let variables = ctranslate2(&tensors(&file));
    fs::write(folder.path("model.bin"), ctranslate2_bytes(&variables, false)).unwrap();
    assert_same(&open(&folder.0).unwrap(), &expected);
    assert_same_mapped(&folder.0, 0.0);
    assert_same_read(&folder.0);

    // int8 against the same integers times their scales in f32: the difference is the rounding of
    // the scales to f16, and the 8-bit activations of the decoder.
    let rounded: Vec<_> = variables
        .iter()
        .cloned()
        .map(|mut t| {
            if t.shape.len() == 2 && !t.name.contains("position_encodings") {
                let (bytes, scales) = int8_rows(&t.values, t.shape[1]);
                let integers = bytes.iter().map(|b| f32::from(b.cast_signed()));
                let row = t.shape[1];
                t.values = integers.enumerate().map(|(i, q)| q / scales[i / row]).collect();
            }
            t
        })
        .collect();
    fs::write(folder.path("model.bin"), ctranslate2_bytes(&rounded, false)).unwrap();
    let expected = logits(&open(&folder.0).unwrap());
    fs::write(folder.path("model.bin"), ctranslate2_bytes(&variables, true)).unwrap();
    let relative = difference(&logits(&open(&folder.0).unwrap()), &expected);
    assert!(relative < 0.02, "relative error {relative}");
    assert_same_read(&folder.0);
}

#[test]
fn written_files_hold_the_same_weights() {
    let file = tiny();
    let expected = load(&file).unwrap();
    let folder = Folder::new("export");
    let save = |name: &str, format, dtype| {
        let path = folder.path(name);
        export(&file, &path, format, dtype, |_| {}).unwrap();
        open(&path).unwrap()
    };
    assert_same(&save("same.gguf", ExportFormat::Gguf, None), &expected);
    for dtype in [DType::F16, DType::Q8_0, DType::Q5_1] {
        let gguf = save("a.gguf", ExportFormat::Gguf, Some(dtype));
        let bin = save("a.bin", ExportFormat::WhisperBin, Some(dtype));
        assert_same(&bin, &gguf);
        // In a GEMM, repacked panels take 8-bit activations, memory-mapped rows take f32.
        let limit = if dtype.is_quantized() { 0.02 } else { 0.0 };
        assert_same_mapped(&folder.path("a.gguf"), limit);
        assert_same_mapped(&folder.path("a.bin"), limit);
        assert!(logits(&gguf) != logits(&expected), "{dtype} is not exact");
    }
    // Rows of 64 values hold no block of 256.
    let path = folder.path("k.bin");
    let refused = export(&file, &path, ExportFormat::WhisperBin, Some(DType::Q4K), |_| {});
    assert!(refused.unwrap_err().to_string().contains("blocks of 32"));
    assert!(!path.exists(), "a refused export leaves no file");
}

#[test]
fn missing_and_wrong_tensors_are_named() {
    let file = tiny();
    let tensors = tensors(&file);
    let folder = Folder::new("wrong");
    let weights = folder.path("model.safetensors");
    write_safetensors(&weights, &tensors);
    let error = |expected: &str| {
        let error = open(&folder.0).map(|_| ()).unwrap_err();
        assert!(error.contains(expected) && !error.contains('\n'), "{error}");
    };
    error("config.json");
    folder.write_config(3);
    error("3 does not divide d_model 64");
    folder.write_config(2);
    let without: Vec<_> =
        tensors.iter().filter(|t| !t.name.ends_with("mlp.2.bias")).cloned().collect();
    write_safetensors(&weights, &without);
    error("tensor `encoder.blocks.0.mlp.2.bias` is missing");
    let mut misshapen = tensors.clone();
    for tensor in misshapen.iter_mut().filter(|t| t.name == "decoder.ln.weight") {
        tensor.shape = vec![D / 2];
        tensor.values.truncate(D / 2);
    }
    write_safetensors(&weights, &misshapen);
    error("tensor `decoder.ln.weight`: expected shape [64], got [32]");
}
