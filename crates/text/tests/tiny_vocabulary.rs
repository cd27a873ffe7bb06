//! A hand-made vocabulary through every source, offline; round trips; damaged files.

#![expect(clippy::unwrap_used, reason = "a failing test shows where")]

use proptest::prelude::*;
use serde_json::json;
use stonechat_text::{Error, StreamDecoder, Tokenizer};

/// Merged tokens in rank order, after the 256 bytes.
const MERGED: [&str; 8] = ["h", "he", "ll", "hell", "hello", " w", " wo", "日"];

fn ranked_tokens() -> Vec<Vec<u8>> {
    let bytes = (0..=u8::MAX).map(|byte| vec![byte]);
    // The first entry repeats a byte: the byte keeps its first id.
    bytes.chain(MERGED.iter().map(|token| token.as_bytes().to_vec())).collect()
}

fn ranked() -> Tokenizer {
    let special = [(300, "<|end|>".to_owned()), (301, "<|end|>x".to_owned())];
    Tokenizer::from_ranked(&ranked_tokens()).unwrap().with_special(special).unwrap()
}

/// GPT-2's printable form, written independently of the crate's.
fn printable(bytes: &[u8]) -> String {
    let own = |b: &u8| (33..=126).contains(b) || (161..=172).contains(b) || *b >= 174;
    let shifted: Vec<u8> = (0..=u8::MAX).filter(|b| !own(b)).collect();
    let character = |b: &u8| match shifted.iter().position(|s| s == b) {
        Some(n) => char::from_u32(256 + n as u32).unwrap(),
        None => char::from(*b),
    };
    bytes.iter().map(character).collect()
}

fn hf_json(merges: serde_json::Value) -> serde_json::Value {
    let tokens = ranked_tokens();
    let vocab: serde_json::Map<String, serde_json::Value> = tokens
        .iter()
        .enumerate()
        .filter(|&(id, _)| id != 256)
        .map(|(id, token)| (printable(token), json!(id)))
        .collect();
    json!({
        "added_tokens": [
            {"id": 300, "content": "<|end|>", "special": true},
            {"id": 302, "content": "<tool>", "special": false},
        ],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
    })
}

fn merges() -> serde_json::Value {
    json!(["h e", "l l", "he ll", "hell o", "Ġ w", "Ġw o"])
}

fn from_hf(json: &serde_json::Value) -> Result<Tokenizer, Error> {
    Tokenizer::from_hf_json(&serde_json::to_vec(json).unwrap())
}

#[test]
fn merges_by_rank() {
    let tokenizer = ranked();
    assert_eq!(tokenizer.encode("hello world"), [260, 262, 114, 108, 100]);
    assert_eq!(tokenizer.encode("hellhe"), [259, 257]);
    assert_eq!(tokenizer.encode("lll"), [258, 108]);
    // A whole piece needs no merges; within a piece, no rule forms the three bytes of 日.
    assert_eq!(tokenizer.encode("日"), [263]);
    assert_eq!(tokenizer.encode("日本"), [230, 151, 165, 230, 156, 172]);
    assert_eq!(tokenizer.encode(""), [] as [u32; 0]);
}

#[test]
fn special_tokens() {
    let tokenizer = ranked();
    assert_eq!(tokenizer.vocab_size(), 302);
    assert_eq!(tokenizer.encode("<|end|>").len(), 7);
    assert_eq!(tokenizer.encode_with_special("a<|end|>b"), [97, 300, 98]);
    assert_eq!(tokenizer.encode_with_special("<|end|>x"), [301], "the longest match wins");
    assert_eq!(tokenizer.decode(&[97, 300, 98, 299, 9999]), "ab");
    assert_eq!(tokenizer.decode_with_special(&[97, 300]), "a<|end|>");
    assert_eq!(tokenizer.token_id("<|end|>"), Some(300));
    assert_eq!(tokenizer.token_id("hello"), Some(260));
    assert_eq!(tokenizer.token_id("h"), Some(104));
    assert_eq!(tokenizer.token_id("xyz"), None);
    assert_eq!(tokenizer.token_bytes(256), Some(b"h".as_slice()));
    assert_eq!(tokenizer.token_bytes(299), None);
    assert!(tokenizer.is_special(301) && !tokenizer.is_special(260) && !tokenizer.is_special(299));
    assert_eq!(tokenizer.specials().next(), Some((300, "<|end|>")));
}

#[test]
fn naming_an_ordinary_id_special_takes_it_out_of_merging() {
    let tokenizer = ranked().with_special([(260, "<|hello|>".to_owned())]).unwrap();
    assert_eq!(tokenizer.encode("hello"), [259, 111]);
    assert_eq!(tokenizer.decode(&[260]), "");
    let error = ranked().with_special([(65, "<|A|>".to_owned())]).unwrap_err();
    assert!(matches!(error, Error::MissingByte { byte: 65 }));
}

#[test]
fn every_source_agrees() {
    let list: Vec<String> = ranked_tokens().iter().map(|token| printable(token)).collect();
    let txt = list.join("\n") + "\n<|end|>\n";
    let mut with_special = list.clone();
    with_special.push("<|end|>".to_owned());
    let pairs: Vec<_> = merges()
        .as_array()
        .unwrap()
        .iter()
        .map(|rule| rule.as_str().unwrap().split(' ').map(str::to_owned).collect::<Vec<_>>())
        .collect();
    let tokenizers = [
        Tokenizer::from_vocabulary_txt(txt.as_bytes()).unwrap(),
        Tokenizer::from_vocabulary_json(&serde_json::to_vec(&with_special).unwrap()).unwrap(),
        from_hf(&hf_json(merges())).unwrap(),
        from_hf(&hf_json(json!(pairs))).unwrap(),
    ];
    for tokenizer in &tokenizers {
        for text in ["hello world", "hellhe\r\n", "lll \u{0}\u{7f}", "  é'll", "<|end|"] {
            assert_eq!(tokenizer.encode(text), ranked().encode(text));
        }
        let end = tokenizer.token_id("<|end|>").unwrap();
        assert!(tokenizer.is_special(end));
        assert_eq!(tokenizer.encode_with_special("<|end|>hello"), [end, 260]);
    }
}

#[test]
fn added_tokens_that_are_not_special_are_text() {
    let tokenizer = from_hf(&hf_json(merges())).unwrap();
    assert_eq!(tokenizer.encode("a<tool><|end|>")[..2], [97, 302]);
    assert_eq!(tokenizer.decode(&[97, 302, 300]), "a<tool>");
}

#[test]
fn a_lost_merge_rule_is_made_up_for_by_the_ids() {
    let lost = json!(["h e", "l l", "he ll", "hell o", "Ġw o"]);
    let tokenizer = from_hf(&hf_json(lost)).unwrap();
    assert_eq!(tokenizer.encode("hello world"), [260, 262, 114, 108, 100]);
}

#[test]
fn merges_follow_the_file_and_not_the_ids() {
    let swapped = json!(["l l", "h e", "he ll", "hell o", "Ġ w", "Ġw o"]);
    assert_eq!(from_hf(&hf_json(swapped)).unwrap().encode("hello"), [260]);
    // Without the rule that makes "hello" it is never made, though the vocabulary has it.
    let short = json!(["h e", "l l", "he ll"]);
    assert_eq!(from_hf(&hf_json(short)).unwrap().encode("hello"), [259, 111]);
}

fn split(pattern: &str, behavior: &str) -> serde_json::Value {
    json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
    ]})
}

fn many_steps() -> serde_json::Value {
    let mut steps = split("x", "Isolated");
    let list = steps["pretokenizers"].as_array_mut().unwrap();
    (0..15).for_each(|_| list.insert(0, list[0].clone()));
    steps
}

/// 10^10 tokens around a text.
fn many_specials() -> serde_json::Value {
    let name = json!({"SpecialToken": {"id": "x", "type_id": 0}});
    let mut single = vec![name; 100_000];
    single.push(json!({"Sequence": {"id": "A", "type_id": 0}}));
    json!({"type": "TemplateProcessing", "single": single, "special_tokens": {"x": {"ids": vec![300; 100_000]}}})
}

#[test]
fn long_lists_take_no_quadratic_time() {
    let mut json = hf_json(merges());
    let token = |n: u32| json!({"id": 1000 + n, "content": format!("<{n}>"), "special": n.is_multiple_of(2)});
    json["added_tokens"] = (0..100_000).map(token).collect();
    json["model"]["merges"] = vec![json!("h e"); 100_000].into();
    let tokenizer = from_hf(&json).unwrap();
    assert_eq!(tokenizer.vocab_size(), 101_000);
    assert_eq!(tokenizer.encode_with_special("he<99998><99999>"), [257, 100_998, 100_999]);
}

/// The file lacks entries that the `tokenizers` crate requires, so there is no fallback.
#[test]
fn what_is_not_implemented_is_refused_by_name() {
    let cases = [
        ("/model/type", json!("Unigram"), "Unigram"),
        ("/normalizer", json!({"type": "NFKC"}), "NFKC"),
        ("/pre_tokenizer", json!(null), "none"),
        ("/pre_tokenizer/type", json!("Metaspace"), "Metaspace"),
        ("/pre_tokenizer/add_prefix_space", json!(true), "add_prefix_space"),
        ("/pre_tokenizer", split(r"(?=x)y", "Isolated"), "(?="),
        ("/pre_tokenizer", split(r"\p{L}++x", "Isolated"), "possessive"),
        ("/pre_tokenizer", split(r"\p{L}", "MergedWithNext"), "MergedWithNext"),
        ("/pre_tokenizer", split(r"(\p{L}{100}){1000}", "Isolated"), "size"),
        ("/pre_tokenizer", split(r"x*", "Isolated"), "empty"),
        ("/pre_tokenizer", many_steps(), "17"),
        ("/decoder", json!({"type": "WordPiece"}), "WordPiece"),
        ("/post_processor", json!({"type": "TemplateProcessing"}), "TemplateProcessing"),
        ("/post_processor", many_specials(), "TemplateProcessing"),
        ("/model/dropout", json!(0.5), "0.5"),
        ("/model/merges", json!(["h e", "x  y"]), "merge 1"),
        ("/model/merges", json!(["h zz"]), "zz"),
        ("/model/vocab/hello", json!(4_000_000_000_u32), "4000000000"),
        ("/model/vocab/hello", json!(-1), "tokenizer.json"),
        ("/model/vocab/hello", json!(65), "65"),
        ("/added_tokens/0/id", json!(4_000_000_000_u32), "4000000000"),
        ("/added_tokens/0/content", json!(""), "empty"),
        ("/added_tokens/0/content", json!("<tool>"), "<tool>"),
        ("/added_tokens/0/id", json!(302), "302"),
        ("/added_tokens/0/id", json!(65), "<|end|>"),
    ];
    for (pointer, value, named) in cases {
        let mut json = hf_json(merges());
        for missing in ["decoder", "post_processor"] {
            json[missing] = json!(null);
        }
        json["model"]["dropout"] = json!(null);
        *json.pointer_mut(pointer).unwrap() = value;
        let message = from_hf(&json).unwrap_err().to_string();
        assert!(message.contains(named), "{pointer}: {message}");
    }
}

#[test]
fn a_vocabulary_without_some_byte_is_refused() {
    let error = Tokenizer::from_ranked(&ranked_tokens()[..255]).unwrap_err();
    assert!(matches!(error, Error::MissingByte { byte: 255 }));
    assert!(Tokenizer::from_vocabulary_txt(b"").is_err());
    let error = Tokenizer::from_vocabulary_txt(b"a\n\xff").unwrap_err();
    assert!(matches!(error, Error::NotUtf8 { offset: 2, .. }));
}

#[test]
fn streaming_holds_back_half_a_code_point() {
    let tokenizer = ranked();
    let mut stream = StreamDecoder::new(&tokenizer);
    assert_eq!(stream.push(0xE6), None);
    assert_eq!(stream.push(300), None);
    assert_eq!(stream.push(0x9C), None);
    assert_eq!(stream.push(0xAC).as_deref(), Some("本"));
    assert_eq!(stream.push(0xE6), None);
    assert_eq!(stream.push(97).as_deref(), Some("\u{FFFD}a"), "no continuation can come");
    assert_eq!(stream.push(0xF0), None);
    assert_eq!(stream.flush().as_deref(), Some("\u{FFFD}"));
    assert_eq!(stream.flush(), None);
}

#[test]
fn a_long_run_without_a_break_is_encoded() {
    let text = "he".repeat(200_000);
    assert_eq!(ranked().encode(&text), vec![257; 200_000]);
    let spaces = " ".repeat(200_000);
    assert_eq!(ranked().encode(&spaces).len(), 200_000);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn encode_then_decode_is_identity(text in any::<String>()) {
        let hf = from_hf(&hf_json(merges())).unwrap();
        for tokenizer in [ranked(), hf] {
            prop_assert_eq!(tokenizer.decode(&tokenizer.encode(&text)), text.clone());
            let with_special = tokenizer.encode_with_special(&text);
            prop_assert_eq!(tokenizer.decode_with_special(&with_special), text.clone());
        }
    }

    #[test]
    fn encode_then_decode_is_identity_near_the_vocabulary(
        parts in prop::collection::vec(
            prop::sample::select(vec!["he", "ll", "o", " ", "wo", "\n", "<|end|>", "x", "日", "<tool>", "'ll", "9"]),
            0..40,
        )
    ) {
        let (text, hf) = (parts.concat(), from_hf(&hf_json(merges())).unwrap());
        for tokenizer in [ranked(), hf] {
            prop_assert_eq!(tokenizer.decode(&tokenizer.encode(&text)), text.clone());
            let with_special = tokenizer.encode_with_special(&text);
            prop_assert_eq!(tokenizer.decode_with_special(&with_special), text.clone());
        }
    }

    #[test]
    fn streaming_equals_decoding(ids in prop::collection::vec(0u32..310, 0..60)) {
        let tokenizer = ranked();
        let mut stream = StreamDecoder::new(&tokenizer);
        let mut text: String = ids.iter().filter_map(|&id| stream.push(id)).collect();
        text.extend(stream.flush());
        prop_assert_eq!(text, tokenizer.decode(&ids));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        prop_assert!(Tokenizer::from_hf_json(&bytes).is_err());
        prop_assert!(Tokenizer::from_vocabulary_json(&bytes).is_err());
        // Random bytes are hardly ever UTF-8, and 256 lines of the right single characters never.
        prop_assert!(Tokenizer::from_vocabulary_txt(&bytes).is_err());
    }

    #[test]
    fn damaged_files_never_panic(
        at in any::<prop::sample::Index>(), bit in 0u8..8, cut in any::<prop::sample::Index>()
    ) {
        let json = serde_json::to_vec(&hf_json(merges())).unwrap();
        prop_assert!(Tokenizer::from_hf_json(&json[..cut.index(json.len())]).is_err());
        let mut flipped = json.clone();
        let at = at.index(flipped.len());
        flipped[at] ^= 1 << bit;
        // A flip may leave a valid file (another letter in a token), which must work. A byte without a token is dropped.
        if let Ok(tokenizer) = Tokenizer::from_hf_json(&flipped) {
            let has_token = |c: &char| tokenizer.token_id(c.encode_utf8(&mut [0; 4])).is_some();
            let kept: String = "hello wo".chars().filter(has_token).collect();
            prop_assert_eq!(tokenizer.decode(&tokenizer.encode("hello wo")), kept);
        }
    }
}
