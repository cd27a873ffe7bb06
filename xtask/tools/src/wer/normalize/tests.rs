//! Texts with what OpenAI's normalizers make of them.

use super::basic::BasicNormalizer;
use super::english::EnglishNormalizer;
use super::numbers::NumberNormalizer;
use super::{Unit, units};

/// `test_number_normalizer` of openai/whisper `tests/test_normalizer.py`.
#[test]
fn numbers() {
    let cases = [
        ("two", "2"),
        ("thirty one", "31"),
        ("five twenty four", "524"),
        ("nineteen ninety nine", "1999"),
        ("twenty nineteen", "2019"),
        ("two point five million", "2500000"),
        ("four point two billions", "4200000000s"),
        ("200 thousand", "200000"),
        ("200 thousand dollars", "$200000"),
        ("$20 million", "$20000000"),
        ("€52.4 million", "€52400000"),
        ("£77 thousands", "£77000s"),
        ("two double o eight", "2008"),
        ("three thousand twenty nine", "3029"),
        ("forty three thousand two hundred sixty", "43260"),
        ("forty three thousand two hundred and sixty", "43260"),
        ("nineteen fifties", "1950s"),
        ("thirty first", "31st"),
        ("thirty three thousand and three hundred and thirty third", "33333rd"),
        ("three billion", "3000000000"),
        ("millions", "1000000s"),
        ("july third twenty twenty", "july 3rd 2020"),
        ("august twenty sixth twenty twenty one", "august 26th 2021"),
        ("3 14", "3 14"),
        ("3.14", "3.14"),
        ("3 point 2", "3.2"),
        ("3 point 14", "3.14"),
        ("fourteen point 4", "14.4"),
        ("two point two five dollars", "$2.25"),
        ("two hundred million dollars", "$200000000"),
        ("$20.1 million", "$20100000"),
        ("ninety percent", "90%"),
        ("seventy six per cent", "76%"),
        ("double oh seven", "007"),
        ("double zero seven", "007"),
        ("nine one one", "911"),
        ("nine double one", "911"),
        ("one triple oh one", "10001"),
        ("two thousandth", "2000th"),
        ("thirty two thousandth", "32000th"),
        ("minus 500", "-500"),
        ("positive twenty thousand", "+20000"),
        ("two dollars and seventy cents", "$2.70"),
        ("3 cents", "¢3"),
        ("$0.36", "¢36"),
        ("three euros and sixty five cents", "€3.65"),
        ("three and a half million", "3500000"),
        ("forty eight and a half dollars", "$48.5"),
        ("b747", "b 747"),
        ("10 th", "10th"),
        ("10th", "10th"),
    ];
    let (numbers, english) = (NumberNormalizer::new(), EnglishNormalizer::new());
    for (text, expected) in cases {
        assert_eq!(numbers.normalize(text), expected, "{text:?}");
        // The sign is a symbol to the English normalizer, which adds it back from words only.
        assert_eq!(english.normalize(text), expected, "{text:?}");
    }
}

/// `test_spelling_normalizer` and `test_text_normalizer` of the same file.
#[test]
fn english() {
    let english = EnglishNormalizer::new();
    assert_eq!(english.spell("mobilisation"), "mobilization");
    assert_eq!(english.spell("cancelation"), "cancellation");
    let cases = [
        ("Let's", "let us"),
        ("he's like", "he is like"),
        ("she's been like", "she has been like"),
        ("10km", "10 km"),
        ("10mm", "10 mm"),
        ("RC232", "rc 232"),
        (
            "Mr. Park visited Assoc. Prof. Kim Jr.",
            "mister park visited associate professor kim junior",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(english.normalize(text), expected, "{text:?}");
    }
}

/// Texts of many kinds with the results of the Python originals, made by `make.py` beside them.
#[test]
fn equal_to_the_originals() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/golden/normalizers/cases.jsonl");
    check_file(path);
}

/// The same for a file of other texts, such as transcripts: `NORMALIZER_CASES` names it.
#[test]
fn equal_to_the_originals_on_given_texts() {
    match std::env::var("NORMALIZER_CASES") {
        Ok(path) => check_file(&path),
        Err(_) => println!("skipped: equal_to_the_originals_on_given_texts needs NORMALIZER_CASES"),
    }
}

#[track_caller]
fn check_file(path: &str) {
    let (english, basic) = (EnglishNormalizer::new(), BasicNormalizer::new());
    let cases = std::fs::read_to_string(path).unwrap();
    let mut n = 0;
    for line in cases.lines() {
        let [text, as_english, as_basic, as_letters]: [String; 4] =
            serde_json::from_str(line).unwrap();
        assert_eq!(english.normalize(&text), as_english, "English of {text:?}");
        assert_eq!(basic.normalize(&text), as_basic, "basic of {text:?}");
        assert_eq!(basic.normalize_letters(&text), as_letters, "letters of {text:?}");
        n += 1;
    }
    assert!(n > 0, "{path} holds no case");
    println!("{path}: {n} texts equal");
}

#[test]
fn units_by_language() {
    assert_eq!(units("It's twenty!", Some("en"), Unit::Word), ["it", "is", "20"]);
    assert_eq!(units("C'est vingt!", Some("fr"), Unit::Word), ["c", "est", "vingt"]);
    assert_eq!(units("我能 吞下。", Some("zh"), Unit::Letter), ["我", "能", "吞", "下"]);
    assert_eq!(units("It's (sighs) on", None, Unit::Word), ["it", "s", "on"]);
    assert_eq!(units(" ♪ ", Some("en"), Unit::Word), [""; 0]);
}
