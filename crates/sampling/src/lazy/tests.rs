//! Triggers that tokens split anywhere.

use std::sync::Arc;

use super::LazyGrammar;
use crate::{
    CompiledGrammar, DryBreakers, GrammarSource, GrammarStart, Rng, SampleScratch, Sampler,
    SamplingOptions, TokenTable, TokenText, Trigger,
};

/// Text whose pieces are tokens of the vocabulary.
const TEXT: &str = "I call <tool>{é12}";
const CALL: u32 = 900;
const END: u32 = 901;
const VOCAB_SIZE: usize = 902;

/// All bytes, and then all pieces of 2 to 8 bytes of the text, which end at `CALL`.
fn texts() -> Vec<Vec<u8>> {
    let mut texts: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
    for len in 2..=8 {
        texts.extend(TEXT.as_bytes().windows(len).map(<[u8]>::to_vec));
    }
    texts.resize(CALL as usize, Vec::new());
    texts
}

fn compiled(source: &str) -> Arc<CompiledGrammar> {
    let texts = texts();
    let mut tokens: Vec<_> = texts.iter().map(|text| TokenText::Bytes(text)).collect();
    tokens.extend(["<call>", "<end>"].map(TokenText::Special));
    let table = TokenTable::new(&tokens, &[END]).unwrap();
    let source = GrammarSource::Lark(source.to_owned());
    Arc::new(CompiledGrammar::new(&source, &table).unwrap())
}

fn after(trigger: Trigger) -> GrammarStart {
    GrammarStart::After(vec![trigger])
}

/// Splits a text at random into tokens, each with its bytes.
fn split(texts: &[Vec<u8>], text: &str, rng: &mut Rng) -> Vec<(u32, Vec<u8>)> {
    let mut rest = text.as_bytes();
    let mut tokens = Vec::new();
    while !rest.is_empty() {
        let piece = &rest[..(1 + (rng.uniform() * 8.0) as usize).min(rest.len())];
        rest = &rest[piece.len()..];
        let token = texts.iter().position(|text| text == piece).unwrap();
        tokens.push((token as u32, piece.to_vec()));
    }
    tokens
}

/// Appends a text as bytes.
fn accept(grammar: &mut LazyGrammar, text: &str) {
    for byte in text.bytes() {
        grammar.accept(byte.into(), &[byte]).unwrap();
    }
}

#[test]
fn a_trigger_split_anywhere_starts_the_grammar_at_the_same_place() {
    let (texts, mut rng) = (texts(), Rng::new(41));
    let with = compiled("start: \"<tool>{\" /[é0-9]+/ \"}\"");
    let without = compiled("start: \"{\" /[é0-9]+/ \"}\"");
    let trigger_end = TEXT.find('{').unwrap();
    let mut inside = 0;
    for round in 0..400 {
        let trigger = Trigger::text("<tool>");
        let (compiled, start) = match round % 2 {
            0 => (&with, after(trigger)),
            _ => (&without, after(trigger.excluded())),
        };
        let mut lazy = LazyGrammar::new(compiled, &start).unwrap();
        let mut reference = compiled.start();
        if round % 2 == 0 {
            reference.accept_bytes(b"<tool>").unwrap();
        }
        let (mut at, mut fed) = (0, trigger_end);
        for (token, bytes) in split(&texts, TEXT, &mut rng) {
            at += bytes.len();
            inside += usize::from(at > trigger_end && !lazy.is_active());
            lazy.accept(token, &bytes).unwrap();
            assert_eq!(lazy.is_active(), at >= trigger_end, "at {at}");
            if at > fed {
                assert!(reference.accept_bytes(&TEXT.as_bytes()[fed..at]).unwrap());
                fed = at;
            }
            if lazy.is_active() {
                for token in 0..VOCAB_SIZE as u32 {
                    assert_eq!(lazy.allows(token).unwrap(), reference.allows(token).unwrap());
                }
            }
        }
        assert!(lazy.is_finished());
    }
    assert!(inside > 50, "{inside} triggers ended inside of a token");
}

#[test]
fn text_that_the_grammar_refuses_is_no_trigger() {
    let grammar = compiled("start: \"<tool>{\" /[0-9]+/ \"}\"");
    let mut lazy = LazyGrammar::new(&grammar, &after(Trigger::text("<tool>"))).unwrap();
    let piece = b"<tool>?";
    lazy.accept(0, piece).unwrap();
    assert!(!lazy.is_active() && !lazy.forbids_end() && lazy.allows(END).unwrap());
    // The second of two in one token is taken.
    lazy.accept(0, b"<tool>! <tool>{1").unwrap();
    assert!(lazy.is_active() && lazy.allows(u32::from(b'}')).unwrap());
    assert!(!lazy.allows(u32::from(b'!')).unwrap());
}

#[test]
fn a_trigger_that_repeats_its_beginning_is_found() {
    let grammar = compiled("start: \"<<a>\" /[0-9]/");
    let mut lazy = LazyGrammar::new(&grammar, &after(Trigger::text("<<a>"))).unwrap();
    accept(&mut lazy, "<<<a");
    assert!(!lazy.is_active());
    accept(&mut lazy, ">");
    assert!(lazy.is_active() && lazy.allows(u32::from(b'7')).unwrap());
}

#[test]
fn a_special_token_starts_the_grammar_by_name_or_by_text() {
    for (source, is_included) in [
        ("start: <call> /[0-9]/", true),
        ("start: <[900]> /[0-9]/", true),
        ("start: \"<call>\" /[0-9]/", true),
        ("start: /[0-9]/", false),
    ] {
        let grammar = compiled(source);
        for trigger in [Trigger::token(CALL), Trigger::text("<call>")] {
            let trigger = if is_included { trigger } else { trigger.excluded() };
            let mut lazy = LazyGrammar::new(&grammar, &after(trigger)).unwrap();
            accept(&mut lazy, "a <cal");
            assert!(!lazy.is_active());
            lazy.accept(CALL, b"<call>").unwrap();
            assert!(lazy.is_active() && lazy.allows(u32::from(b'7')).unwrap(), "{source}");
            assert!(!lazy.allows(u32::from(b'a')).unwrap(), "{source}");
        }
    }
    // Tokens before the end of the trigger are those of the text.
    let grammar = compiled("start: <call> \"x=\" /[0-9]/");
    let mut lazy = LazyGrammar::new(&grammar, &after(Trigger::text("<call>x="))).unwrap();
    lazy.accept(CALL, b"<call>").unwrap();
    accept(&mut lazy, "x=");
    assert!(lazy.is_active());
}

#[test]
fn a_required_trigger_forbids_the_end_until_it_occurs() {
    let grammar = compiled("start: \"a\" /[0-9]/");
    let start = GrammarStart::Required(vec![Trigger::text("a")]);
    let mut lazy = LazyGrammar::new(&grammar, &start).unwrap();
    assert!(lazy.forbids_end());
    accept(&mut lazy, "a");
    assert!(lazy.is_active() && !lazy.forbids_end() && !lazy.allows(END).unwrap());
    accept(&mut lazy, "1");
    assert!(lazy.is_finished() && lazy.allows(END).unwrap());
}

#[test]
fn an_interrupted_trigger_starts_nothing() {
    let grammar = compiled("start: \"ab\" /[0-9]/");
    let mut lazy = LazyGrammar::new(&grammar, &after(Trigger::text("ab"))).unwrap();
    accept(&mut lazy, "a");
    lazy.interrupt();
    accept(&mut lazy, "b");
    assert!(!lazy.is_active());
    lazy.accept_rest(b"xab1").unwrap();
    assert!(lazy.is_finished());
}

#[test]
fn only_a_started_grammar_rules_the_draw() {
    let grammar = compiled("start: \"<tool>\" /[0-9]/");
    let mut lazy = LazyGrammar::new(&grammar, &after(Trigger::text("<tool>"))).unwrap();
    let greedy = SamplingOptions::greedy();
    let mut sampler = Sampler::new(&greedy, VOCAB_SIZE, DryBreakers::default()).unwrap();
    let mut scratch = SampleScratch::new(VOCAB_SIZE);
    let mut logits = vec![0.0; VOCAB_SIZE];
    (logits[b'x' as usize], logits[b'7' as usize]) = (2.0, 1.0);
    let mut draw = |lazy: &mut LazyGrammar| {
        lazy.sample(&mut sampler, &mut logits.clone(), &mut scratch).unwrap()
    };
    assert_eq!(draw(&mut lazy), u32::from(b'x'));
    accept(&mut lazy, "<tool>");
    assert_eq!(draw(&mut lazy), u32::from(b'7'));
}

#[test]
fn a_long_text_without_its_trigger_keeps_little() {
    let grammar = compiled("start: \"<tool>\" /[0-9]/");
    let mut lazy = LazyGrammar::new(&grammar, &after(Trigger::text("<tool>"))).unwrap();
    for _ in 0..1000 {
        accept(&mut lazy, "<too");
        let super::Phase::Armed(armed) = &lazy.phase else { panic!("not a trigger") };
        assert!(armed.recent.bytes.len() <= 8 && armed.recent.tokens.len() <= 8);
    }
}
