//! Hand-made vocabularies of each kind that GGUF files hold, offline.

#![expect(clippy::unwrap_used, reason = "a failing test shows where")]

use proptest::prelude::*;
use stonechat_text::{Error, GgmlVocabulary, StreamDecoder, Tokenizer};

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const BYTE: i32 = 6;

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|&text| text.to_owned()).collect()
}

/// GPT-2's printable form of a byte.
fn printable(byte: u8) -> String {
    let own = |b: u8| (33..=126).contains(&b) || (161..=172).contains(&b) || b >= 174;
    let n_shifted = (0..byte).filter(|&b| !own(b)).count() as u32;
    let code = if own(byte) { u32::from(byte) } else { 256 + n_shifted };
    char::from_u32(code).unwrap().to_string()
}

/// Ids 0..256 are the bytes.
fn bpe_vocabulary() -> GgmlVocabulary<'static> {
    let mut tokens: Vec<String> = (0..=255).map(printable).collect();
    tokens.extend(strings(&["he", "ll", "hell", "hello", "Ġw", "<|im_start|>", "<|im_end|>"]));
    tokens.extend(strings(&["<think>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]));
    let mut token_types = vec![NORMAL; 261];
    token_types.extend([CONTROL, CONTROL, USER_DEFINED, CONTROL, CONTROL, CONTROL]);
    GgmlVocabulary {
        model: "gpt2".into(),
        pre: Some("qwen2".into()),
        tokens: tokens.into(),
        token_types: token_types.into(),
        merges: strings(&["h e", "l l", "he ll", "hell o", "Ġ w"]).into(),
        bos: Some(261),
        eos: Some(262),
        ..GgmlVocabulary::default()
    }
}

/// Ids 3..259 are the byte tokens.
fn scored_vocabulary() -> GgmlVocabulary<'static> {
    let mut tokens = strings(&["<unk>", "<s>", "</s>"]);
    tokens.extend((0..=255).map(|byte: u8| format!("<0x{byte:02X}>")));
    tokens.extend(strings(&["▁", "a", "b", "ab", "▁a", "▁ab", "日", "<turn>"]));
    let mut token_types = vec![UNKNOWN, CONTROL, CONTROL];
    token_types.extend([BYTE; 256]);
    token_types.extend([NORMAL; 7]);
    token_types.push(USER_DEFINED);
    let mut scores = vec![0.0; 259];
    scores.extend([-10.0, -9.0, -8.0, -2.0, -1.0, -3.0, -4.0, 0.0]);
    GgmlVocabulary {
        model: "llama".into(),
        tokens: tokens.into(),
        token_types: token_types.into(),
        scores: scores.into(),
        ..GgmlVocabulary::default()
    }
}

fn bpe() -> Tokenizer {
    Tokenizer::from_ggml(bpe_vocabulary()).unwrap()
}

fn scored() -> Tokenizer {
    Tokenizer::from_ggml(scored_vocabulary()).unwrap()
}

fn words() -> Tokenizer {
    let tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁run", "▁the", "ning", "▁,", "▁東", "▁cafe"];
    Tokenizer::from_ggml(GgmlVocabulary {
        model: "bert".into(),
        tokens: strings(&tokens).into(),
        token_types: [CONTROL; 4].into_iter().chain([NORMAL; 6]).collect(),
        bos: Some(2),
        sep: Some(3),
        unk: Some(1),
        ..GgmlVocabulary::default()
    })
    .unwrap()
}

fn unigram() -> Tokenizer {
    let tokens = ["<pad>", "</s>", "<unk>", "▁", "a", "b", "▁ab", "▁a", "bab"];
    Tokenizer::from_ggml(GgmlVocabulary {
        model: "t5".into(),
        tokens: strings(&tokens).into(),
        token_types: [CONTROL, CONTROL, UNKNOWN].into_iter().chain([NORMAL; 6]).collect(),
        scores: vec![0.0, 0.0, 0.0, -5.0, -4.0, -4.0, -3.0, -2.0, -2.5].into(),
        add_space_prefix: Some(true),
        ..GgmlVocabulary::default()
    })
    .unwrap()
}

#[test]
fn bpe_merges_and_special_tokens() {
    let tokenizer = bpe();
    assert_eq!(tokenizer.encode("hello wé"), [259, 260, 0xC3, 0xA9]);
    assert_eq!(tokenizer.encode("hellhe"), [258, 256]);
    let text = "<|im_start|>hello<think>";
    assert_eq!(tokenizer.tokenize(text, true, true), [261, 259, 263], "BOS is not asked for");
    let literal = tokenizer.tokenize("<|im_end|><think>", false, false);
    assert_eq!(literal.len(), "<|im_end|>".len() + 1, "user-defined tokens are always matched");
    assert_eq!(literal.last(), Some(&263));
    assert_eq!(tokenizer.decode(&[261, 259, 263]), "hello<think>");
    assert_eq!(tokenizer.decode_with_special(&[261, 259]), "<|im_start|>hello");
    assert_eq!(tokenizer.token_piece(260, false), b" w");
    assert_eq!(tokenizer.token_piece(261, false), b"");
    assert_eq!(tokenizer.token_piece(9999, true), b"");
    let mut with_bos = bpe_vocabulary();
    with_bos.add_bos = Some(true);
    with_bos.add_eos = Some(true);
    let tokenizer = Tokenizer::from_ggml(with_bos).unwrap();
    assert_eq!(tokenizer.tokenize("he", true, true), [261, 256, 262]);
    assert_eq!(tokenizer.tokenize("", true, true), [261, 262]);
    assert_eq!(tokenizer.tokenize("he", false, true), [256]);
}

#[test]
fn roles() {
    let tokenizer = bpe();
    assert_eq!(
        (tokenizer.bos(), tokenizer.eos(), tokenizer.eot()),
        (Some(261), Some(262), Some(262))
    );
    assert!(tokenizer.is_end_of_generation(262) && !tokenizer.is_end_of_generation(261));
    assert!(tokenizer.is_control(261) && !tokenizer.is_control(263) && !tokenizer.is_control(0));
    let fim = tokenizer.fim().unwrap();
    assert_eq!((fim.pre, fim.suf, fim.mid, fim.pad), (264, 265, 266, None));
    assert_eq!(tokenizer.token_id("<|im_end|>"), Some(262));
    assert_eq!(tokenizer.token_id(" w"), Some(260));
    assert_eq!(tokenizer.token_id("no such"), None);
    assert_eq!(tokenizer.specials().next(), Some((261, "<|im_start|>")));
    assert_eq!(tokenizer.vocab_size(), 267);
    assert_eq!(scored().token_id(" ab"), Some(264));
    let named = tokenizer.with_roles(Some(0), &[5]);
    assert_eq!(named.bos(), Some(0));
    assert!(named.is_end_of_generation(5) && named.is_end_of_generation(262));
}

#[test]
fn a_message_end_is_no_end_of_generation_where_there_are_channels() {
    let mut vocabulary = bpe_vocabulary();
    vocabulary.tokens.to_mut().extend(strings(&[
        "<|return|>",
        "<|call|>",
        "<|end|>",
        "<|channel|>",
    ]));
    vocabulary.token_types.to_mut().extend([CONTROL; 4]);
    vocabulary.eos = Some(267);
    let tokenizer = Tokenizer::from_ggml(vocabulary).unwrap();
    assert!(tokenizer.is_end_of_generation(267) && tokenizer.is_end_of_generation(268));
    assert!(!tokenizer.is_end_of_generation(269));
    assert_eq!(tokenizer.decode(&[270]), "<|channel|>", "shown as text");
}

#[test]
fn scores_decide_merges() {
    let tokenizer = scored();
    // "▁a" (-1) wins over "ab" (-2), and merges to "▁ab" all the same.
    assert_eq!(tokenizer.tokenize("ab", true, true), [1, 264]);
    assert_eq!(tokenizer.tokenize("bab", true, true), [1, 259, 261, 262]);
    assert_eq!(tokenizer.encode("日é"), [259, 265, 3 + 0xC3, 3 + 0xA9]);
    // The prefix follows every special token.
    assert_eq!(tokenizer.encode("ab<turn>ab"), [264, 266, 264]);
    assert_eq!(tokenizer.encode(""), [] as [u32; 0]);
    assert_eq!(tokenizer.tokenize("", true, true), [1]);
    assert_eq!(tokenizer.decode(&[264, 264]), "ab ab");
    let mut stream = StreamDecoder::continuing(&tokenizer);
    assert_eq!(stream.push(264).as_deref(), Some(" ab"));
    let mut stream = StreamDecoder::new(&tokenizer).with_special();
    assert_eq!(stream.push(1).as_deref(), Some("<s>"));
    let mut plain = scored_vocabulary();
    plain.add_space_prefix = Some(false);
    assert_eq!(Tokenizer::from_ggml(plain).unwrap().encode("ab"), [262]);
}

#[test]
fn special_tokens_of_phi3_swallow_the_white_space_after_them() {
    let mut vocabulary = scored_vocabulary();
    vocabulary.name = Some("Phi-3-mini".into());
    let tokenizer = Tokenizer::from_ggml(vocabulary).unwrap();
    assert_eq!(tokenizer.encode("ab<turn>\n  ab"), [264, 266, 264]);
    assert_eq!(scored().encode("ab<turn>\nab"), [264, 266, 259, 3 + 10, 262]);
}

#[test]
fn words_are_covered_by_the_longest_tokens() {
    let tokenizer = words();
    assert_eq!(tokenizer.tokenize("Running, the\tCafé", true, true), [2, 4, 6, 7, 5, 9, 3]);
    assert_eq!(tokenizer.tokenize("runing the running", false, false), [1, 5, 4, 6]);
    assert_eq!(tokenizer.encode("run東the"), [4, 8, 5]);
    assert_eq!(tokenizer.encode("runningx"), [1], "a word is covered whole or not at all");
    assert_eq!(tokenizer.decode(&[4, 5]), " run the");
}

#[test]
fn unigram_takes_the_likeliest_way() {
    let tokenizer = unigram();
    assert_eq!(tokenizer.tokenize("abab", true, true), [7, 8, 1]);
    assert_eq!(tokenizer.encode("ab"), [6]);
    assert_eq!(tokenizer.encode("a??b"), [7, 2, 5], "a run of unknown characters is one token");
    assert_eq!(tokenizer.encode(""), [] as [u32; 0]);
}

#[test]
fn what_is_not_known_is_refused() {
    let refused = |change: fn(&mut GgmlVocabulary<'_>)| {
        let mut vocabulary = bpe_vocabulary();
        change(&mut vocabulary);
        Tokenizer::from_ggml(vocabulary).unwrap_err()
    };
    let error = refused(|vocabulary| vocabulary.model = "rwkv".into());
    assert!(matches!(error, Error::UnknownVocabulary { .. }), "{error}");
    let error = refused(|vocabulary| vocabulary.pre = Some("nope".into()));
    assert!(matches!(error, Error::UnknownPreTokenizer { .. }), "{error}");
    let error = refused(|vocabulary| vocabulary.scores = vec![1.0].into());
    assert!(matches!(error, Error::ListLength { list: "scores", got: 1, .. }), "{error}");
    let error = refused(|vocabulary| vocabulary.tokens.to_mut().clear());
    assert!(matches!(error, Error::ListLength { list: "tokens", .. }), "{error}");
    assert!(bpe().with_special([(1, "x".to_owned())]).is_err());
}

#[test]
fn damaged_roles_and_merges_are_left_out() {
    let mut vocabulary = bpe_vocabulary();
    vocabulary.bos = Some(u32::MAX);
    vocabulary.merges.to_mut().extend(strings(&["", " ", "x", "日 本", "a  b", "h zz"]));
    vocabulary.tokens.to_mut().push(String::new());
    vocabulary.token_types.to_mut().push(99);
    let tokenizer = Tokenizer::from_ggml(vocabulary).unwrap();
    assert_eq!(tokenizer.bos(), Some(11), "what llama.cpp assumes");
    assert_eq!(tokenizer.encode("hello"), [259]);
    assert_eq!(tokenizer.token_piece(267, true), b"");
}

fn near_the_vocabularies() -> impl Strategy<Value = String> {
    let parts = vec![
        "he",
        "ll",
        "o",
        " ",
        "w",
        "a",
        "b",
        "\n",
        "<|im_end|>",
        "<think>",
        "<turn>",
        "<s>",
        "日",
        "é",
        "'s",
        "12",
        ",",
        "▁",
        "<0x0A>",
    ];
    prop::collection::vec(prop::sample::select(parts), 0..30).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn decoding_undoes_encoding(text in prop_oneof![any::<String>(), near_the_vocabularies()]) {
        let (bpe, scored) = (bpe(), scored());
        prop_assert_eq!(bpe.decode(&bpe.encode(&text)), text.clone());
        let parsed = bpe.decode_with_special(&bpe.encode_with_special(&text));
        prop_assert_eq!(parsed, text.clone());
        // The one thing that the escape of spaces cannot hold; a space is also put after
        // user-defined tokens.
        if !text.contains('▁') && !text.contains("<turn>") {
            prop_assert_eq!(scored.decode(&scored.encode(&text)), text);
        }
    }

    #[test]
    fn no_text_panics(text in prop_oneof![any::<String>(), near_the_vocabularies()]) {
        for tokenizer in [bpe(), scored(), words(), unigram()] {
            for (add, parse) in [(false, false), (true, true)] {
                let ids = tokenizer.tokenize(&text, add, parse);
                prop_assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
            }
        }
    }

    #[test]
    fn streaming_equals_decoding(ids in prop::collection::vec(0u32..280, 0..60)) {
        for tokenizer in [bpe(), scored(), words(), unigram()] {
            let mut stream = StreamDecoder::new(&tokenizer);
            let mut text: String = ids.iter().filter_map(|&id| stream.push(id)).collect();
            text.extend(stream.flush());
            prop_assert_eq!(text, tokenizer.decode(&ids));
        }
    }

    #[test]
    fn damaged_character_maps_never_panic(
        map in prop::collection::vec(any::<u8>(), 0..200), text in any::<String>()
    ) {
        let built = Tokenizer::from_ggml(GgmlVocabulary {
            model: "t5".into(),
            tokens: strings(&["<pad>", "</s>", "<unk>", "a"]).into(),
            precompiled_charsmap: [&[64, 0, 0, 0], map.as_slice()].concat().into(),
            ..GgmlVocabulary::default()
        });
        prop_assert_eq!(built.is_ok(), map.len() > 64);
        if let Ok(tokenizer) = built {
            tokenizer.encode(&text);
        }
    }
}
