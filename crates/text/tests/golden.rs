//! Token ids of OpenAI's tokenizers, from every source a vocabulary can come from.
//!
//! The cases are made by `test-data/golden/tokenizer/make.py`; the vocabularies are the model
//! folders that `cargo xtask models` installs.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a failing test shows where")]

use std::collections::BTreeMap;

use serde::Deserialize;
use stonechat_text::{StreamDecoder, Tokenizer};

#[path = "installed/folder.rs"]
mod folder;

use folder::models_folder;

#[derive(Deserialize)]
struct Golden {
    texts: Vec<String>,
    special_texts: Vec<String>,
    models: BTreeMap<String, Expected>,
}

#[derive(Deserialize)]
struct Expected {
    ids: Vec<Vec<u32>>,
    special_ids: Vec<Vec<u32>>,
    decoded: Vec<(Vec<u32>, String)>,
    special: BTreeMap<String, u32>,
}

fn golden() -> Golden {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/golden/tokenizer/cases.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// The tokenizer of an installed model from each of its files.
fn sources(model: &str, test: &str) -> Vec<(&'static str, Tokenizer)> {
    let folder = models_folder().join(model);
    let read = |name: &str| std::fs::read(folder.join(name));
    let (Ok(hf), Ok(list)) = (read("tokenizer.json"), read("vocabulary.txt")) else {
        println!("skipped: {test} needs the model {model} in {}", folder.display());
        return Vec::new();
    };
    let from_txt = Tokenizer::from_vocabulary_txt(&list).unwrap();
    let lines: Vec<&str> =
        std::str::from_utf8(&list).unwrap().trim_end_matches('\n').split('\n').collect();
    let json = serde_json::to_vec(&lines).unwrap();
    let end_of_text = from_txt.token_id("<|endoftext|>").unwrap();
    let ranked: Vec<Vec<u8>> =
        (0..end_of_text).map(|id| from_txt.token_bytes(id).unwrap_or_default().to_vec()).collect();
    let specials = from_txt.specials().map(|(id, text)| (id, text.to_owned()));
    let from_ranked = Tokenizer::from_ranked(&ranked).unwrap().with_special(specials).unwrap();
    vec![
        ("tokenizer.json", Tokenizer::from_hf_json(&hf).unwrap()),
        ("vocabulary.json", Tokenizer::from_vocabulary_json(&json).unwrap()),
        ("ranked bytes", from_ranked),
        ("vocabulary.txt", from_txt),
    ]
}

fn check_model(model: &str, test: &str) {
    let golden = golden();
    let expected = &golden.models[model];
    for (source, tokenizer) in sources(model, test) {
        for (text, ids) in golden.texts.iter().zip(&expected.ids) {
            assert_eq!(&tokenizer.encode(text), ids, "{model} {source}: {text:?}");
            assert_eq!(&tokenizer.decode(ids), text, "{model} {source}");
        }
        for (text, ids) in golden.special_texts.iter().zip(&expected.special_ids) {
            assert_eq!(&tokenizer.encode_with_special(text), ids, "{model} {source}: {text:?}");
            assert_eq!(&tokenizer.decode_with_special(ids), text, "{model} {source}");
        }
        for (ids, text) in &expected.decoded {
            assert_eq!(&tokenizer.decode(ids), text, "{model} {source}: {ids:?}");
            let mut stream = StreamDecoder::new(&tokenizer);
            let mut streamed: String = ids.iter().filter_map(|&id| stream.push(id)).collect();
            streamed.extend(stream.flush());
            assert_eq!(&streamed, text, "{model} {source}: {ids:?}");
        }
        for (text, &id) in &expected.special {
            assert_eq!(tokenizer.token_id(text), Some(id), "{model} {source}");
            assert!(tokenizer.is_special(id), "{model} {source}: {text}");
        }
        println!("{model} from {source}: {} texts equal", golden.texts.len());
    }
}

#[test]
fn multilingual_ids_equal_openai() {
    check_model("base", "multilingual_ids_equal_openai");
}

#[test]
fn english_ids_equal_openai() {
    check_model("tiny.en", "english_ids_equal_openai");
}
