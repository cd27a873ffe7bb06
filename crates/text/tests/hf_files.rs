//! `tokenizer.json` files of language models; the `tokenizers` crate encodes all but byte-level BPE.

#![expect(clippy::unwrap_used, reason = "a failing test shows where")]

use proptest::prelude::*;
use serde_json::{Value, json};
use stonechat_text::{StreamDecoder, Tokenizer};

fn read(json: &Value) -> Tokenizer {
    Tokenizer::from_hf_json(&serde_json::to_vec(json).unwrap()).unwrap()
}

/// Byte-level BPE with a pattern of its own, as the qwen2 family has it.
fn byte_level() -> Tokenizer {
    let own = |b: u32| (33..=126).contains(&b) || (161..=172).contains(&b) || b >= 174;
    let shifted: Vec<u32> = (0..256).filter(|&b| !own(b)).collect();
    let printable = |b: u32| match shifted.iter().position(|&s| s == b) {
        Some(n) => char::from_u32(256 + n as u32).unwrap(),
        None => char::from_u32(b).unwrap(),
    };
    let mut vocab: serde_json::Map<String, Value> =
        (0..256).map(|b| (printable(b).to_string(), json!(b))).collect();
    for (id, token) in (256..).zip(["he", "ll", "hell", "hello"]) {
        vocab.insert(token.to_owned(), json!(id));
    }
    read(&json!({
        "version": "1.0",
        "added_tokens": [
            {"id": 260, "content": "<|im_end|>", "single_word": false, "lstrip": false,
             "rstrip": false, "normalized": false, "special": true},
            {"id": 261, "content": "<think>", "single_word": false, "lstrip": false,
             "rstrip": false, "normalized": false, "special": false},
        ],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "behavior": "Isolated", "invert": false, "pattern": {"Regex":
                r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"}},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
             "use_regex": false},
        ]},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
                    "use_regex": false},
        "model": {"type": "BPE", "vocab": vocab,
                  "merges": ["h e", "l l", "he ll", "hell o"]},
    }))
}

/// BPE over text with escaped spaces and byte tokens, as the llama family has it.
fn escaped() -> Tokenizer {
    let mut vocab = json!({"<unk>": 0, "<s>": 1, "</s>": 2});
    for byte in 0..256 {
        vocab[format!("<0x{byte:02X}>")] = json!(3 + byte);
    }
    for (id, token) in (259..).zip(["▁", "a", "b", "ab", "▁ab"]) {
        vocab[token] = json!(id);
    }
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false,
               "rstrip": false, "normalized": false, "special": true})
    };
    read(&json!({
        "version": "1.0",
        "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null,
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                       {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
                  "vocab": vocab, "merges": ["a b", "▁ ab"]},
    }))
}

#[test]
fn byte_level_with_its_own_pattern() {
    let tokenizer = byte_level();
    assert_eq!(tokenizer.encode("hello 12"), [259, 32, 49, 50]);
    let text = "<|im_end|>he<think>";
    assert_eq!(tokenizer.encode_with_special(text), [260, 256, 261]);
    assert_eq!(tokenizer.encode(text).len(), "<|im_end|>".len() + 2);
    assert_eq!(tokenizer.decode(&[260, 256, 261, 999]), "he<think>");
    assert_eq!(tokenizer.decode_with_special(&[260, 256]), "<|im_end|>he");
    assert_eq!(tokenizer.token_id("<|im_end|>"), Some(260));
    assert_eq!(tokenizer.token_id("hello"), Some(259));
    assert!(tokenizer.is_end_of_generation(260) && !tokenizer.is_end_of_generation(261));
    assert!(tokenizer.is_special(260) && !tokenizer.is_special(261));
    assert_eq!(tokenizer.specials().collect::<Vec<_>>(), [(260, "<|im_end|>")]);
    assert_eq!((tokenizer.bos(), tokenizer.adds_bos()), (None, false));
    assert_eq!(tokenizer.vocab_size(), 262);
}

#[test]
fn escaped_spaces_and_byte_tokens() {
    let tokenizer = escaped();
    assert_eq!(tokenizer.tokenize("ab ab", true, true), [1, 263, 263]);
    assert_eq!(tokenizer.encode("é"), [259, 3 + 0xC3, 3 + 0xA9]);
    assert_eq!(tokenizer.decode(&[263, 263]), "ab ab");
    assert_eq!(tokenizer.decode(&[259, 3 + 0xC3, 3 + 0xA9]), "é");
    assert_eq!((tokenizer.bos(), tokenizer.adds_bos(), tokenizer.eos()), (Some(1), true, None));
    assert!(tokenizer.is_end_of_generation(2));
    assert_eq!(tokenizer.with_roles(None, &[2]).eos(), Some(2));
}

#[test]
fn unigram_and_word_pieces() {
    let unigram = read(&json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "post_processor": null,
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always",
                          "split": true},
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always",
                    "split": true},
        "model": {"type": "Unigram", "unk_id": 0,
                  "vocab": [["<unk>", 0.0], ["▁", -3.0], ["a", -2.0], ["▁a", -1.0]]},
    }));
    assert_eq!(unigram.encode("a aa"), [3, 3, 2]);
    assert_eq!(unigram.decode(&[3, 3, 2]), "a aa");
    let words = read(&json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "post_processor": null,
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": false},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100,
                  "vocab": {"[UNK]": 0, "run": 1, "##ning": 2, "the": 3}},
    }));
    assert_eq!(words.encode("the running"), [3, 1, 2]);
    assert_eq!(words.decode(&[3, 1, 2]), "the running");
}

#[test]
fn what_no_reader_knows_is_an_error() {
    let bytes = |json: Value| serde_json::to_vec(&json).unwrap();
    assert!(Tokenizer::from_hf_json(&bytes(json!({"model": {"type": "Nope"}}))).is_err());
    assert!(Tokenizer::from_hf_json(&bytes(json!([1, 2]))).is_err());
    assert!(Tokenizer::from_hf_json(b"{").is_err());
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None, cases: 64, ..ProptestConfig::default()
    })]

    #[test]
    fn decoding_undoes_encoding(text in "[ a-z0-9日é\n<>|'_.]{0,40}") {
        for tokenizer in [byte_level(), escaped()] {
            let ids = tokenizer.encode(&text);
            prop_assert_eq!(tokenizer.decode(&ids), text.clone());
            let mut stream = StreamDecoder::new(&tokenizer);
            let mut streamed: String = ids.iter().filter_map(|&id| stream.push(id)).collect();
            streamed.extend(stream.flush());
            prop_assert_eq!(streamed, text.clone());
        }
    }
}
