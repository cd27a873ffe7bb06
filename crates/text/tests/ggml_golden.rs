//! Token ids of llama.cpp over 2,000 strings, for the vocabularies of installed models.
//!
//! The strings and the hashes of the ids are made by `test-data/golden/tokenizer/ggml.py`; the
//! models are those that `cargo xtask models` installs.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a failing test shows where")]

use std::collections::BTreeMap;

use serde::Deserialize;
use stonechat_text::{StreamDecoder, Tokenizer};

#[path = "installed/folder.rs"]
mod folder;
#[path = "installed/gguf.rs"]
mod gguf;

#[derive(Deserialize)]
struct Expected {
    /// Eight hexadecimal digits for each string.
    ids: String,
    pieces: u32,
    bos: i64,
    eos: i64,
    adds_bos: bool,
    ends: Vec<u32>,
    n_control: usize,
}

fn read<T: for<'a> Deserialize<'a>>(file: &str) -> T {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/golden/tokenizer/");
    serde_json::from_slice(&std::fs::read(format!("{folder}{file}")).unwrap()).unwrap()
}

/// FNV-1a of `bytes`, continuing `hash`.
fn fnv(hash: u32, bytes: impl IntoIterator<Item = u8>) -> u32 {
    bytes.into_iter().fold(hash, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

const FNV_START: u32 = 0x811C_9DC5;

fn ids_hash(tokenizer: &Tokenizer, text: &str) -> u32 {
    let plain = tokenizer.tokenize(text, false, false);
    let special = tokenizer.tokenize(text, true, true);
    let ids = plain.into_iter().chain([u32::MAX]).chain(special);
    fnv(FNV_START, ids.flat_map(u32::to_le_bytes))
}

fn tokenizer(model: &str, test: &str) -> Option<Tokenizer> {
    let path = folder::models_folder().join(model).join("model.gguf");
    if !path.is_file() {
        println!("skipped: {test} needs the model {model} at {}", path.display());
        return None;
    }
    Some(Tokenizer::from_ggml(gguf::read(&path)).unwrap())
}

fn check_model(model: &str, test: &str) {
    let Some(tokenizer) = tokenizer(model, test) else { return };
    let texts: Vec<String> = read("ggml_strings.json");
    let expected = &read::<BTreeMap<String, Expected>>("ggml_hashes.json")[model];
    assert!(texts.len() > 2000);
    assert_eq!(expected.ids.len(), 8 * texts.len());
    for (text, hash) in texts.iter().zip(expected.ids.as_bytes().chunks(8)) {
        let hash = u32::from_str_radix(std::str::from_utf8(hash).unwrap(), 16).unwrap();
        assert_eq!(ids_hash(&tokenizer, text), hash, "{model}: {text:?}");
    }
    let ids = 0..tokenizer.vocab_size() as u32;
    let pieces = ids.clone().flat_map(|id| tokenizer.token_piece(id, true).iter().chain(&[0xFF]));
    assert_eq!(fnv(FNV_START, pieces.copied()), expected.pieces, "{model}: pieces");
    assert_eq!(tokenizer.bos().map_or(-1, i64::from), expected.bos, "{model}");
    assert_eq!(tokenizer.eos().map_or(-1, i64::from), expected.eos, "{model}");
    assert_eq!(tokenizer.adds_bos(), expected.adds_bos, "{model}");
    assert_eq!(tokenizer.ends_of_generation().collect::<Vec<_>>(), expected.ends, "{model}");
    let n_control = ids.filter(|&id| tokenizer.is_control(id)).count();
    assert_eq!(n_control, expected.n_control, "{model}");
    check_decoding(&tokenizer, &texts, model);
    println!("{model}: {} texts equal", texts.len());
}

/// Decoding undoes encoding, whole and as a stream, of all text that the vocabulary can hold.
fn check_decoding(tokenizer: &Tokenizer, texts: &[String], model: &str) {
    let mut has_byte = [false; 256];
    for id in 0..tokenizer.vocab_size() as u32 {
        if let &[byte] = tokenizer.token_piece(id, true) {
            has_byte[usize::from(byte)] = true;
        }
    }
    // U+2581 is how vocabularies that escape spaces write a space.
    let escapes =
        tokenizer.token_id("\u{2581}").is_none_or(|id| tokenizer.token_piece(id, true) == b" ");
    let holds = |text: &str| {
        text.bytes().all(|byte| has_byte[usize::from(byte)])
            && !(escapes && text.contains('\u{2581}'))
    };
    let mut n_checked = 0;
    for text in texts.iter().filter(|text| holds(text)) {
        let ids = tokenizer.encode(text);
        assert_eq!(&tokenizer.decode(&ids), text, "{model}");
        let mut stream = StreamDecoder::new(tokenizer);
        let mut streamed: String = ids.iter().filter_map(|&id| stream.push(id)).collect();
        streamed.extend(stream.flush());
        assert_eq!(&streamed, text, "{model}");
        n_checked += 1;
    }
    assert!(n_checked > 1500, "{model}: {n_checked} texts");
}

#[test]
fn smollm2_ids_equal_llama_cpp() {
    check_model("smollm2-135m", "smollm2_ids_equal_llama_cpp");
}

#[test]
fn gemma3_ids_equal_llama_cpp() {
    check_model("gemma3-270m", "gemma3_ids_equal_llama_cpp");
}

#[test]
fn qwen2_ids_equal_llama_cpp() {
    check_model("qwen2.5-coder-0.5b", "qwen2_ids_equal_llama_cpp");
}

#[test]
fn long_runs_of_one_character_are_encoded() {
    for model in ["smollm2-135m", "gemma3-270m", "qwen2.5-coder-0.5b"] {
        let test = "long_runs_of_one_character_are_encoded";
        let Some(tokenizer) = tokenizer(model, test) else { continue };
        for character in ["a", " "] {
            let text = character.repeat(1_000_000);
            let ids = tokenizer.tokenize(&text, true, true);
            let ids = &ids[usize::from(tokenizer.adds_bos())..];
            assert!(tokenizer.decode(ids) == text, "{model}: {character:?}");
        }
    }
}
