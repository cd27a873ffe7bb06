//! The own reader of `tokenizer.json` against the `tokenizers` crate, on the same files.

use std::collections::{BTreeSet, HashMap};

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

use crate::byte_map::printable;
use crate::hf_json::File;
use crate::marked_text::MarkedText;
use crate::tokenizer::Tokenizer;
use crate::{Error, hf_text, hf_tokenizers};

/// Text that merges are learned from, with no pieces in between: most merges cross the boundaries of pieces.
const CORPUS: &str = "The quick brown fox doesn't jump over 1234567 lazy dogs.\r\n\r\nI'LL say: \"it's 12:45\", they've \
    said (we'd go)...  camelCase HTTPServer getURL2 don't DON'T\n\n\n    def f(x):\n\t\treturn x ** 2  # 100%\n \
    naïve café déjà Ünïcode Straße ǅ 日本語テキスト中文 한국어 Привет мир नमस्ते  مرحبا ١٢٣ ½ ① 🙂👩‍👩‍👧 e\u{301} \u{a0}\u{3000}x";
const N_MERGES: usize = 500;
const MARKER: &str = "803712664590";
const SPECIALS: [&str; 4] = ["<|begin|>", "<|end|>", "[INST]", "<｜sep▁x｜>"];
const PLAIN: [&str; 3] = ["<think>", "wörd", "    "];

/// Contractions in any case.
macro_rules! contraction {
    () => {
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    };
}

/// Last alternatives of most published patterns.
macro_rules! ends {
    () => {
        r"\s*[\r\n]+|\s+(?!\S)|\s+"
    };
}

/// Words of which an upper-case run ends where a lower-case one begins; `$not` is a part of each class.
macro_rules! cased {
    ($not:literal, $end:expr) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}",
            $not,
            r"]*[\p{Ll}\p{Lm}\p{Lo}\p{M}",
            $not,
            "]+",
            $end,
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}",
            $not,
            r"]+[\p{Ll}\p{Lm}\p{Lo}\p{M}",
            $not,
            "]*",
            $end
        )
    };
}

const LLAMA3: &str = concat!(
    contraction!(),
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|",
    ends!()
);
const QWEN2: &str =
    concat!(contraction!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|", ends!());
const QWEN35: &str = concat!(
    contraction!(),
    r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|",
    ends!()
);
const GPT4: &str = concat!(
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*",
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
);
const GPT4O: &str = concat!(
    cased!("", concat!(contraction!(), "?")),
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|",
    ends!()
);
const TEKKEN: &str = concat!(cased!("", ""), r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|", ends!());
const KIMI: &str = concat!(
    r"[\p{Han}]+|",
    cased!(r"&&[^\p{Han}]", concat!(contraction!(), "?")),
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|",
    ends!()
);
const DEEPSEEK3: [&str; 3] = [
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    concat!(
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"##,
        "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
    ),
];
const DEEPSEEK_CODER: [&str; 5] =
    ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"];
const BLOOM: &str = r" ?[^(\s|[.,!?…。，、।۔،])]+";

fn split(pattern: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}

fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

fn sequence(mut steps: Vec<Value>, last: Value) -> Value {
    steps.push(last);
    json!({"type": "Sequence", "pretokenizers": steps})
}

fn splits(patterns: &[&str]) -> Value {
    sequence(patterns.iter().map(|pattern| split(pattern)).collect(), byte_level(false))
}

/// Every form of pre-tokenizer, with whether text is brought into NFC and pieces that are tokens are not merged.
fn forms() -> Vec<(&'static str, Value, bool, bool)> {
    let digits = |individual: bool| json!({"type": "Digits", "individual_digits": individual});
    let removed = json!({"type": "Split", "pattern": {"Regex": GPT4O}, "behavior": "Removed", "invert": true});
    let literal = json!({"type": "Split", "pattern": {"String": "()"}, "behavior": "Isolated", "invert": true});
    let falcon_like = json!({"type": "Split", "pattern": {"Regex": "[0-9][0-9][0-9]"}, "behavior": "Removed", "invert": true});
    vec![
        ("gpt-2", byte_level(true), false, false),
        ("olmo", byte_level(true), true, false),
        ("no pieces", byte_level(false), false, false),
        ("smollm", sequence(vec![digits(true)], byte_level(true)), false, false),
        ("runs of digits", sequence(vec![digits(false)], byte_level(true)), true, true),
        ("llama3", splits(&[LLAMA3]), false, true),
        ("qwen2", splits(&[QWEN2]), true, false),
        ("qwen35", splits(&[QWEN35]), true, false),
        ("gpt-4", splits(&[GPT4]), false, false),
        ("gpt-4o", sequence(vec![removed], byte_level(false)), false, true),
        ("tekken", splits(&[TEKKEN]), false, true),
        ("kimi-k2", splits(&[KIMI]), false, false),
        ("deepseek-v3", splits(&DEEPSEEK3), false, false),
        ("deepseek-coder", splits(&DEEPSEEK_CODER), false, false),
        ("bloom", splits(&[BLOOM]), false, false),
        ("literal", sequence(vec![literal], byte_level(true)), false, false),
        ("only some text", sequence(vec![falcon_like], byte_level(false)), false, false),
    ]
}

/// Bytes of the merged tokens, and the merges in their printable form.
fn learned() -> (Vec<Vec<u8>>, Vec<Value>) {
    let mut tokens: Vec<Vec<u8>> = (0..=u8::MAX).map(|byte| vec![byte]).collect();
    let mut text: Vec<usize> = CORPUS.bytes().map(usize::from).collect();
    let mut merges = Vec::new();
    let mut known: BTreeSet<Vec<u8>> = tokens.iter().cloned().collect();
    while merges.len() < N_MERGES {
        let mut counts = HashMap::new();
        text.windows(2).for_each(|pair| *counts.entry((pair[0], pair[1])).or_insert(0) += 1);
        let best = counts.into_iter().max_by_key(|&(pair, count)| (count, std::cmp::Reverse(pair)));
        let Some(((left, right), _)) = best else { break };
        let (id, joined) = (tokens.len(), [&*tokens[left], &*tokens[right]].concat());
        merges.push(json!([printable(&tokens[left]), printable(&tokens[right])]));
        let id = if known.insert(joined.clone()) {
            tokens.push(joined);
            id
        } else {
            tokens.iter().position(|token| *token == joined).unwrap()
        };
        let mut merged = Vec::with_capacity(text.len());
        let mut at = 0;
        while at < text.len() {
            let is_pair = text[at] == left && text.get(at + 1) == Some(&right);
            merged.push(if is_pair { id } else { text[at] });
            at += 1 + usize::from(is_pair);
        }
        text = merged;
    }
    (tokens, merges)
}

/// A file with all entries that Hugging Face's reader requires.
fn file(pre_tokenizer: &Value, nfc: bool, whole_pieces: bool) -> Value {
    let (tokens, merges) = learned();
    let mut vocab: Map<String, Value> =
        tokens.iter().map(|token| printable(token)).zip((0..).map(Value::from)).collect();
    // One added token is in the vocabulary, as in GPT-2's files; the others are numbered after it.
    vocab.insert(SPECIALS[0].to_owned(), json!(vocab.len()));
    let first = vocab.len() - 1;
    let names =
        SPECIALS.iter().map(|text| (text, true)).chain(PLAIN.iter().map(|text| (text, false)));
    let added = (first..).zip(names).map(|(id, (text, special))| {
        json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": text.starts_with('[') || *text == "wörd", "special": special})
    });
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": added.collect::<Vec<Value>>(),
        "normalizer": if nfc { json!({"type": "NFC"}) } else { json!({"type": "Sequence", "normalizers": []}) },
        "pre_tokenizer": pre_tokenizer,
        "post_processor": null,
        "decoder": byte_level(true),
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false, "ignore_merges": whole_pieces,
            "vocab": vocab, "merges": merges},
    })
}

/// The file by the own reader and by the crate.
fn both(file: &Value) -> (Tokenizer, Tokenizer) {
    let json = serde_json::to_vec(file).unwrap();
    let (own, other) =
        (Tokenizer::from_hf_json(&json).unwrap(), hf_tokenizers::read(&json).unwrap());
    assert!(
        format!("{own:?}").starts_with("Tokenizer { kind: ByteLevel"),
        "the own reader leaves this file to the crate"
    );
    (own, other)
}

fn all_forms() -> Vec<(&'static str, Tokenizer, Tokenizer)> {
    let tokenizers = |(name, pre_tokenizer, nfc, whole): (_, Value, _, _)| {
        let (own, other) = both(&file(&pre_tokenizer, nfc, whole));
        (name, own, other)
    };
    forms().into_iter().map(tokenizers).collect()
}

#[track_caller]
fn assert_same_encoding(name: &str, own: &Tokenizer, other: &Tokenizer, text: &str) {
    for (add, parse) in [(false, false), (false, true), (true, false), (true, true)] {
        let (ids, expected) = (own.tokenize(text, add, parse), other.tokenize(text, add, parse));
        assert_eq!(ids, expected, "{name}: {text:?}, add {add}, parse {parse}");
    }
    let ids = own.encode_with_special(text);
    assert_eq!(own.decode(&ids), other.decode(&ids), "{name}: {text:?}");
    assert_eq!(own.decode_with_special(&ids), other.decode_with_special(&ids), "{name}: {text:?}");
    let marked = SPECIALS.iter().fold(text.to_owned(), |text, special| {
        let (first, rest) = special.split_at(1);
        text.replacen(special, &format!("{first}{MARKER}{rest}"), 1)
    });
    let marked = MarkedText::new(marked, MARKER.to_owned());
    for add in [false, true] {
        assert_eq!(
            own.tokenize_marked(&marked, add),
            other.tokenize_marked(&marked, add),
            "{name}: {marked:?}"
        );
    }
}

#[track_caller]
fn assert_same_vocabulary(own: &Tokenizer, other: &Tokenizer) {
    assert_eq!(own.vocab_size(), other.vocab_size());
    for id in 0..own.vocab_size() as u32 + 2 {
        assert_eq!(own.token_bytes(id), other.token_bytes(id), "{id}");
        assert_eq!(own.token_piece(id, false), other.token_piece(id, false), "{id}");
        assert_eq!(own.is_special(id), other.is_special(id), "{id}");
        assert_eq!(own.is_control(id), other.is_control(id), "{id}");
        assert_eq!(own.is_end_of_generation(id), other.is_end_of_generation(id), "{id}");
        let text = own.token_bytes(id).and_then(|bytes| std::str::from_utf8(bytes).ok());
        if let Some(text) = text {
            assert_eq!(own.token_id(text), other.token_id(text), "{text:?}");
        }
    }
    assert_eq!(own.specials().collect::<Vec<_>>(), other.specials().collect::<Vec<_>>());
    assert_eq!((own.bos(), own.eos(), own.eot()), (other.bos(), other.eos(), other.eot()));
    assert_eq!((own.adds_bos(), own.adds_eos()), (other.adds_bos(), other.adds_eos()));
}

fn texts() -> impl Strategy<Value = String> {
    let words = "the|The|quick|don't|DON'T|I'LL|'s|'S|'ſ|'Ve|'re|it's|camelCase|HTTPServer|ǅungla|ʰx|naïve|Ünï|日本|テキスト|中文\
        |한국|Привет|नमस्ते|مرحبا|123|1234567|١٢٣|½①|🙂|👩\u{200d}👩|(x)|...|!?|{}|/n|#|x2y|x_y|\u{2028}|\u{85}|\u{0}|\u{7f}|\u{200b}|\
        a\u{301}\u{323}|é|e\u{301}|\u{1100}\u{1161}\u{11a8}|가|\u{212b}|\u{958}|\u{16d63}\u{16d67}|a\u{1ab0}\u{1abf}\u{301}|\u{fb01}|\u{345}";
    let spaces = " |  |    |\t|\n|\r\n|\n\n\n| \n |\u{a0}|\u{3000}|\u{3000}\u{3000} ";
    let select = |list: &'static str| {
        prop::sample::select(list.split('|').map(str::to_owned).collect::<Vec<String>>())
    };
    let added: Vec<String> = SPECIALS.iter().chain(&PLAIN).map(|&text| text.to_owned()).collect();
    let part = prop_oneof![
        6 => select(words),
        4 => select(spaces),
        2 => prop::sample::select(added),
        1 => "[a-zA-Z]{1,6}",
        1 => r"[\p{L}\p{M}\p{N}\p{P}\p{S}\p{Z}]{1,4}",
        1 => any::<char>().prop_map(String::from),
        1 => select("<|\u{fffd}|<|begin|>|think>|wo\u{308}rd|[INS|T]|▁"),
    ];
    prop::collection::vec(part, 0..24).prop_map(|parts| parts.concat())
}

#[test]
fn random_texts_have_the_same_tokens() {
    let forms = all_forms();
    let config =
        ProptestConfig { failure_persistence: None, cases: 500, ..ProptestConfig::default() };
    proptest!(config, |(text in texts())| {
        for (name, own, other) in &forms {
            assert_same_encoding(name, own, other, &text);
        }
    });
}

#[test]
fn the_corpus_and_the_vocabulary_are_the_same() {
    for (name, own, other) in all_forms() {
        assert_same_encoding(name, &own, &other, CORPUS);
        assert_same_encoding(name, &own, &other, "");
        assert_same_vocabulary(&own, &other);
    }
}

/// Characters that pre-tokenizers may tell apart, and samples of the others.
fn characters() -> impl Iterator<Item = char> {
    let ranges = [
        0..0x3400,
        0x4DF0..0x4E10,
        0x9F90..0xAC10,
        0xD790..0x1_1200,
        0x1_D400..0x1_D800,
        0x1_E000..0x2_0010,
        0xE_0000..0xE_0080,
    ];
    ranges.into_iter().flatten().filter_map(char::from_u32)
}

#[test]
fn every_character_is_cut_as_in_the_crate() {
    for (name, pre_tokenizer, ..) in forms() {
        let file = serde_json::to_vec(&file(&pre_tokenizer, false, false)).unwrap();
        let parsed: File<'_> = serde_json::from_slice(&file).unwrap();
        let Some(own) = hf_text::rules(&parsed).unwrap() else { continue };
        let other = tokenizers::Tokenizer::from_bytes(&file).unwrap();
        let other = other.get_pre_tokenizer().unwrap();
        let all: Vec<char> = characters().collect();
        for some in all.chunks(100) {
            let text: String =
                some.iter().map(|c| format!("a{c}B{c}1{c}{c}.{c} {c}'{c}\n")).collect();
            let mut pieces = Vec::new();
            own.split(&text, &mut |piece| pieces.push(piece.to_owned()));
            let mut pre_tokenized = PreTokenizedString::from(text.as_str());
            other.pre_tokenize(&mut pre_tokenized).unwrap();
            let splits = pre_tokenized.get_splits(OffsetReferential::Original, OffsetType::Byte);
            let expected: Vec<&str> =
                splits.iter().map(|(_, (start, end), _)| &text[*start..*end]).collect();
            assert_eq!(pieces, expected, "{name}");
        }
    }
}

#[test]
fn every_character_is_normalized_as_in_the_crate() {
    let file = serde_json::to_vec(&file(&splits(&[QWEN2]), true, false)).unwrap();
    let parsed: File<'_> = serde_json::from_slice(&file).unwrap();
    let own = hf_text::rules(&parsed).unwrap().unwrap();
    let other = tokenizers::Tokenizer::from_bytes(&file).unwrap();
    for c in (0..=u32::from(char::MAX)).filter_map(char::from_u32) {
        // Marks of three classes around the character, and characters that compose with many others.
        let text = format!(
            "{c} e\u{301}{c}\u{301}\u{316}\u{334}{c}\u{307} {c}{c}\u{16d67}{c}\u{1611f}{c}\u{3099}"
        );
        let mut expected = tokenizers::NormalizedString::from(text.as_str());
        tokenizers::Normalizer::normalize(other.get_normalizer().unwrap(), &mut expected).unwrap();
        assert_eq!(own.normalized(&text), expected.get(), "{c:?}");
    }
}

#[test]
fn tokens_around_a_text_are_the_same() {
    let (begin, end) = (SPECIALS[0], SPECIALS[1]);
    let name = |text: &str| json!({"SpecialToken": {"id": text, "type_id": 0}});
    let text = json!({"Sequence": {"id": "A", "type_id": 0}});
    let file = file(&splits(&[LLAMA3]), false, true);
    let id = |text: &str| {
        file["added_tokens"]
            .as_array()
            .unwrap()
            .iter()
            .find(|token| token["content"] == text)
            .unwrap()["id"]
            .clone()
    };
    let template = |single: Value| {
        json!({"type": "TemplateProcessing", "single": single, "pair": [text, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {
                begin: {"id": begin, "ids": [id(begin)], "tokens": [begin]},
                end: {"id": end, "ids": [id(end), id(begin)], "tokens": [end, begin]}}})
    };
    let offsets = byte_level(true);
    let cases = [
        (json!(null), None),
        (offsets.clone(), None),
        (template(json!([name(begin), text])), Some(begin)),
        (template(json!([text, name(end)])), None),
        (template(json!([name(begin), name(end), text, name(end)])), Some(begin)),
        (
            json!({"type": "Sequence", "processors": [offsets, template(json!([name(begin), text, name(end)]))]}),
            Some(begin),
        ),
        (
            json!({"type": "RobertaProcessing", "sep": [end, id(end)], "cls": [begin, id(begin)], "trim_offsets": true,
            "add_prefix_space": false}),
            Some(begin),
        ),
        (
            json!({"type": "BertProcessing", "sep": [end, id(end)], "cls": [begin, id(begin)]}),
            Some(begin),
        ),
    ];
    for (post_processor, bos) in cases {
        let mut file = file.clone();
        file["post_processor"] = post_processor;
        let (own, other) = both(&file);
        assert_eq!(own.bos(), bos.and_then(|text| own.token_id(text)));
        assert_same_vocabulary(&own, &other);
        let end = own.token_id(end).unwrap();
        let [own, other] = [own, other].map(|tokenizer| tokenizer.with_roles(None, &[end]));
        assert_same_vocabulary(&own, &other);
        for text in ["", "hello", "<|end|>", "x [INST]"] {
            assert_same_encoding("around", &own, &other, text);
        }
    }
}

#[test]
fn bytes_without_a_token_are_the_same() {
    let mut file = file(
        &sequence(vec![json!({"type": "Digits", "individual_digits": true})], byte_level(true)),
        false,
        false,
    );
    let vocab = file["model"]["vocab"].as_object_mut().unwrap();
    // Neither is part of a merge.
    for byte in [0x00, 0x7F, 0xC1] {
        let id = vocab.remove(&printable(&[byte])).unwrap();
        vocab.insert(format!("unused {byte}"), id);
    }
    let text = "a\u{0}b \u{0}\u{0}th\u{0}e\u{7f}";
    for unknown in [json!(null), json!(SPECIALS[0])] {
        file["model"]["unk_token"] = unknown;
        let (own, other) = both(&file);
        assert_same_vocabulary(&own, &other);
        assert_same_encoding("bytes", &own, &other, text);
    }
    file["model"]["fuse_unk"] = json!(true);
    let fused = Tokenizer::from_hf_json(&serde_json::to_vec(&file).unwrap()).unwrap();
    assert_eq!(fused.encode("\u{0}\u{0}"), fused.encode_with_special(SPECIALS[0]));
}

/// A file that the own reader refuses is read by the crate, or is an error.
#[test]
fn what_is_read_differently_is_left_to_the_crate() {
    let with = |pattern: &str| splits(&[pattern]);
    let mut contiguous = split(r"\p{N}");
    contiguous["behavior"] = json!("Contiguous");
    let mut matches_removed = split(r"\p{N}");
    matches_removed["behavior"] = json!("Removed");
    let cases = [
        with(r"\p{L}++\p{Lu}|\s"),
        with(r"\p{N}{1,2}+|x"),
        with(r"(?=\p{L})\p{L}+"),
        with(r"\bthe\b|\s"),
        with(r"(?>a+)b"),
        with(r"(a)\1"),
        with(r"\h+"),
        sequence(vec![contiguous], byte_level(false)),
        sequence(vec![matches_removed], byte_level(false)),
        sequence(vec![json!({"type": "Punctuation", "behavior": "Isolated"})], byte_level(false)),
    ];
    for pre_tokenizer in cases {
        let json = serde_json::to_vec(&file(&pre_tokenizer, false, false)).unwrap();
        let parsed: File<'_> = serde_json::from_slice(&json).unwrap();
        let error = hf_text::rules(&parsed).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{pre_tokenizer}: {error}");
        let (tokenizer, other) =
            (Tokenizer::from_hf_json(&json).unwrap(), hf_tokenizers::read(&json).unwrap());
        assert_eq!(tokenizer.encode(CORPUS), other.encode(CORPUS), "{pre_tokenizer}");
    }
}
