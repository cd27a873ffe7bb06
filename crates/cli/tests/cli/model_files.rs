//! `inspect`, `convert`, `quantize`, `models`.

use std::fs;

use crate::run::{Folder, voice};

#[test]
fn inspect_prints_what_is_in_a_model() {
    let folder = Folder::new("inspect_model").with_tiny_model(51865);
    let ran = folder.run(&["inspect", "tiny.gguf"]);
    let text = ran.succeeds();
    assert!(text.lines().next().unwrap().ends_with("version 3"), "{text}");
    for part in ["whisper.n_vocab", "51865", "decoder.token_embedding.weight", "[51865, 64]", "f32"]
    {
        assert!(text.contains(part), "no {part} in {text}");
    }
    let ran = folder.run(&["inspect", "--json", "tiny.gguf"]);
    let json: serde_json::Value = serde_json::from_str(ran.succeeds()).unwrap();
    assert_eq!(json["kind"], "model");
    assert_eq!(json["metadata"]["whisper.n_vocab"], "51865");
    let bytes = fs::metadata(folder.path("tiny.gguf")).unwrap().len();
    assert_eq!(json["file_bytes"], bytes);
}

#[test]
fn inspect_prints_what_is_in_a_recording() {
    let folder = Folder::new("inspect_audio");
    folder.write("voice.wav", &voice(8_000));
    let ran = folder.run(&["inspect", "--json", "voice.wav"]);
    let json: serde_json::Value = serde_json::from_str(ran.succeeds()).unwrap();
    assert_eq!((&json["kind"], &json["sample_rate"]), (&"audio".into(), &16_000.into()));
    assert_eq!((&json["channels"], &json["duration_s"]), (&1.into(), &0.5.into()));
    let ran = folder.run(&["inspect", "voice.wav"]);
    assert!(ran.succeeds().contains("sample rate  16000 Hz"), "{ran:?}");
    folder.write("text", b"nothing of the kind\n");
    folder.run(&["inspect", "text"]).fails("neither a model");
    folder.run(&["inspect", "gone"]).fails("gone");
}

#[test]
fn models_are_converted_and_quantized() {
    let folder = Folder::new("convert").with_tiny_model(51865);
    let ran = folder.run(&["quantize", "tiny.gguf", "small.gguf", "q8_0"]);
    assert!(ran.succeeds().contains("small.gguf"), "{ran:?}");
    let size = |name: &str| fs::metadata(folder.path(name)).unwrap().len();
    assert!(size("small.gguf") * 2 < size("tiny.gguf"));
    folder.run(&["convert", "small.gguf", "small.bin"]).succeeds();
    let ran = folder.run(&["inspect", "--json", "small.bin"]);
    let json: serde_json::Value = serde_json::from_str(ran.succeeds()).unwrap();
    let find = |json: &serde_json::Value| {
        let tensors = json["tensors"].as_array().unwrap();
        let name = "decoder.token_embedding.weight";
        tensors.iter().find(|t| t["name"] == name).unwrap()["dtype"].clone()
    };
    assert_eq!(find(&json), "q8_0");
    // The data types survive the round trip.
    folder.run(&["convert", "small.bin", "again.gguf"]).succeeds();
    assert_eq!(fs::read(folder.path("again.gguf")).unwrap().len() as u64, size("small.gguf"));
    assert_eq!(
        folder.names("."),
        ["again.gguf", "small.bin", "small.gguf", "tiny.gguf", "voice.wav"]
    );
}

#[test]
fn language_models_are_quantized() {
    let folder = Folder::new("quantize_llm");
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/golden/llm/llama.gguf");
    fs::copy(golden, folder.path("llama.gguf")).unwrap();
    folder.run(&["quantize", "llama.gguf", "small.gguf", "iq4_nl"]).succeeds();
    let inspect = |name: &str| -> serde_json::Value {
        serde_json::from_str(folder.run(&["inspect", "--json", name]).succeeds()).unwrap()
    };
    let (before, after) = (inspect("llama.gguf"), inspect("small.gguf"));
    assert_eq!(after["metadata"]["general.file_type"], "25");
    assert_eq!(after["metadata"]["llama.block_count"], before["metadata"]["llama.block_count"]);
    let dtype = |json: &serde_json::Value, name: &str| {
        let tensors = json["tensors"].as_array().unwrap();
        tensors.iter().find(|t| t["name"] == name).unwrap()["dtype"].clone()
    };
    assert_eq!(dtype(&after, "blk.0.ffn_up.weight"), "iq4_nl");
    assert_eq!(dtype(&after, "blk.0.attn_norm.weight"), "f32");
    // Rows of fewer than 256 values fall back from q6_k.
    assert_eq!(dtype(&after, "output.weight"), "q8_0");
    let size = |name: &str| fs::metadata(folder.path(name)).unwrap().len();
    assert!(size("small.gguf") < size("llama.gguf"));
    let ran = folder.run(&["quantize", "llama.gguf", "x.gguf", "iq2_xxs"]);
    ran.fails("importance matrix");
    folder.run(&["quantize", "llama.gguf", "x.bin", "q8_0"]).fails(".gguf");
    folder.run(&["convert", "llama.gguf", "x.gguf"]).fails("language model");
}

#[test]
fn models_are_not_written_over_themselves() {
    let folder = Folder::new("convert_errors").with_tiny_model(51865);
    let before = fs::read(folder.path("tiny.gguf")).unwrap();
    folder.run(&["quantize", "tiny.gguf", "tiny.gguf", "q8_0"]).fails("choose another name");
    folder.run(&["quantize", "tiny.gguf", "x.gguf", "q9_9"]).misused("type: expected f32,");
    let mix = folder.run(&["quantize", "tiny.gguf", "x.gguf", "Q4_K_M"]);
    mix.misused("type: expected q4_k for `Q4_K_M`, which is a mix of types");
    folder.run(&["convert", "tiny.gguf", "x.onnx"]).fails(".gguf or .bin");
    folder.run(&["convert", "voice.wav", "x.gguf"]).fails("voice.wav");
    folder.run(&["convert", "tiny.gguf", "no/such/folder/x.gguf"]).fails("x.gguf");
    assert_eq!(fs::read(folder.path("tiny.gguf")).unwrap(), before);
    assert_eq!(folder.names("."), ["tiny.gguf", "voice.wav"]);
}

#[test]
fn models_are_listed() {
    let folder = Folder::new("models");
    assert!(folder.run(&["models"]).succeeds().contains("no models"));
    // A folder without a model is not listed, a damaged model is.
    fs::create_dir_all(folder.path("models/empty")).unwrap();
    folder.write("models/ggml-tiny.bin", &[0; 2000]);
    let ran = folder.run(&["models", "--json"]);
    let json: serde_json::Value = serde_json::from_str(ran.succeeds()).unwrap();
    let names: Vec<_> = json["models"].as_array().unwrap().iter().map(|m| &m["name"]).collect();
    assert_eq!(names, ["tiny"]);
    assert_eq!(json["models"][0]["bytes"], 2000);
    assert_eq!(json["models"][0]["kind"], serde_json::Value::Null);
    assert!(folder.run(&["models"]).stderr.starts_with("tiny: "));
}

#[test]
fn the_version_names_the_instruction_set() {
    let folder = Folder::new("version");
    let ran = folder.run(&["--version"]);
    let text = ran.succeeds();
    assert!(text.starts_with(&format!("stonechat {} (", env!("CARGO_PKG_VERSION"))), "{text}");
    let mut command = folder.command(&["--version"]);
    let scalar = crate::run::finish(command.env("STONECHAT_ISA", "scalar").spawn().unwrap());
    assert!(scalar.succeeds().contains("scalar"), "{scalar:?}");
}
