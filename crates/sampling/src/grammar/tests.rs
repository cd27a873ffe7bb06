//! Grammars over a small vocabulary whose tokens do not align with terminals.

use super::{CompiledGrammar, Grammar, GrammarSource, TokenTable, TokenText};
use crate::{DryBreakers, Rng, SampleScratch, Sampler, SamplingOptions};

const WORDS: [&str; 24] = [
    "true", "false", "null", "{\"", "\":", "\": ", "\",\"", "12", "abc", "name", "name\"", "  ",
    "age", "tags", "[\"", "\"]", "],", "}\n", " - ", "é", "日本", "red", "gre", "-1",
];
const THINK: u32 = 280;
const END: u32 = 281;
const OTHER_END: u32 = 282;
const VOCAB_SIZE: usize = 284;

fn texts() -> Vec<Vec<u8>> {
    let bytes = (0..=255u8).map(|byte| vec![byte]);
    bytes.chain(WORDS.iter().map(|word| word.as_bytes().to_vec())).collect()
}

fn table() -> TokenTable {
    let texts = texts();
    let mut tokens: Vec<_> = texts.iter().map(|text| TokenText::Bytes(text)).collect();
    tokens.extend(["<think>", "<end>", "<eot>"].map(TokenText::Special));
    tokens.push(TokenText::Unused);
    TokenTable::new(&tokens, &[END, OTHER_END]).unwrap()
}

fn compiled(source: GrammarSource) -> CompiledGrammar {
    CompiledGrammar::new(&source, &table()).unwrap()
}

fn grammar(source: GrammarSource) -> Grammar {
    compiled(source).start()
}

/// Whether the grammar of a JSON schema allows a text.
fn matches(schema: &str, text: &str) -> bool {
    let mut grammar = grammar(GrammarSource::JsonSchema(schema.into()));
    text.bytes().all(|byte| grammar.accept(byte.into()).is_ok()) && grammar.accept(END).is_ok()
}

/// A random text of allowed tokens; `None` if it does not end within `max` tokens.
fn generate(compiled: &CompiledGrammar, rng: &mut Rng, max: usize) -> Option<String> {
    let (texts, mut grammar) = (texts(), compiled.start());
    let mut text = Vec::new();
    for step in 0..max {
        let mut logits: Vec<f32> = (0..VOCAB_SIZE).map(|_| rng.uniform() as f32).collect();
        // Quotes and brackets become more likely, so that texts end.
        for byte in b"\"}]" {
            logits[*byte as usize] += step as f32 / 40.0;
        }
        grammar.mask(&mut logits).unwrap();
        let best = (0..VOCAB_SIZE).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
        assert!(logits[best] > f32::NEG_INFINITY, "nothing is allowed after {text:?}");
        grammar.accept(best as u32).unwrap();
        if best as u32 == END || best as u32 == OTHER_END {
            assert!(grammar.is_finished());
            return Some(String::from_utf8(text).unwrap());
        }
        text.extend(&texts[best]);
    }
    None
}

#[test]
fn a_schema_makes_json_that_matches_it() {
    let grammar = compiled(GrammarSource::JsonSchema(
        r#"{"type": "object", "additionalProperties": false, "required": ["name", "age", "tags"],
            "properties": {
                "name": {"type": "string", "maxLength": 12},
                "age": {"type": "integer", "minimum": 0, "maximum": 150},
                "tags": {"type": "array", "maxItems": 3, "items": {"enum": ["red", "green"]}},
                "note": {"type": ["string", "null"], "maxLength": 5}}}"#
            .into(),
    ));
    let mut rng = Rng::new(21);
    let mut made = 0;
    for _ in 0..150 {
        let Some(text) = generate(&grammar, &mut rng, 400) else { continue };
        made += 1;
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let object = value.as_object().unwrap();
        assert!(object["name"].as_str().unwrap().chars().count() <= 12, "{text}");
        assert!(object["age"].as_u64().unwrap() <= 150, "{text}");
        let tags = object["tags"].as_array().unwrap();
        assert!(tags.len() <= 3 && tags.iter().all(|t| t == "red" || t == "green"), "{text}");
        assert!(object.keys().all(|k| ["name", "age", "tags", "note"].contains(&k.as_str())));
    }
    assert!(made > 100, "only {made} of 150 texts ended");
}

#[test]
fn members_are_those_of_the_schema() {
    let (own, more) = (r#"{"a":1}"#, r#"{"a":1,"b":2}"#);
    let members =
        r#""type": "object", "properties": {"a": {"type": "integer", "format": "int64"}}"#;
    for (rule, is_open) in [
        ("", false),
        (r#", "additionalProperties": false"#, false),
        (r#", "additionalProperties": true"#, true),
        (r#", "additionalProperties": {"type": "integer"}"#, true),
        (r#", "additionalProperties": {"type": "string"}"#, false),
    ] {
        let schema = format!("{{{members}{rule}}}");
        assert!(matches(&schema, own) && matches(&schema, more) == is_open, "{schema}");
    }
    let both = r##"{"allOf": [{"$ref": "#/$defs/A"}, {"properties": {"b": {"type": "integer"}}}],
        "$defs": {"A": {"type": "object", "properties": {"a": {"type": "integer"}}}}}"##;
    assert!(matches(both, more));
}

#[test]
fn a_lone_backslash_is_no_expression() {
    for source in [
        GrammarSource::Regex("a\\".into()),
        GrammarSource::JsonSchema(r#"{"type": "string", "pattern": "a\\"}"#.into()),
    ] {
        let error = CompiledGrammar::new(&source, &table()).unwrap_err().to_string();
        assert!(error.contains("after the last `\\`"), "{error}");
    }
}

/// TGI 2902: the grammar of eight optional members and more grew without bound.
#[test]
fn a_schema_of_many_optional_members_is_followed() {
    let members: Vec<String> =
        ('a'..='z').map(|name| format!("\"{name}\": {{\"type\": \"integer\"}}")).collect();
    let schema = format!("{{\"type\": \"object\", \"properties\": {{{}}}}}", members.join(", "));
    let all: Vec<String> = ('a'..='z').map(|name| format!("\"{name}\":1")).collect();
    let all = format!("{{{}}}", all.join(","));
    for text in ["{}", all.as_str(), r#"{"z":1}"#, r#"{"b":1,"k":2,"y":3}"#] {
        assert!(matches(&schema, text), "{text}");
    }
    for text in [r#"{"A":1}"#, r#"{"b":1,"b":1}"#] {
        assert!(!matches(&schema, text), "{text}");
    }
}

/// llama.cpp refuses schemas of more than 2000 repetitions.
#[test]
fn bounds_of_schemas_may_exceed_2000() {
    let list =
        r#"{"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 5000}"#;
    assert!(matches(list, "[1,2]") && !matches(list, "[]"));
    let text = r#"{"type": "string", "minLength": 1, "maxLength": 5000}"#;
    assert!(matches(text, "\"ab\"") && !matches(text, "\"\""));
}

#[test]
fn white_space_cannot_fill_a_json_text() {
    let member = r#""type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]"#;
    for schema in [format!("{{{member}}}"), "{}".to_owned(), "true".to_owned()] {
        assert!(matches(&schema, "{\n  \"a\": 1\n}"), "{schema}");
        assert!(matches(&schema, r#"{"a":1}"#) && matches(&schema, r#"{ "a" : 1 }"#), "{schema}");
        assert!(matches(&schema, "{\n\n\t\"a\": 1}"), "{schema}");
        assert!(!matches(&schema, "{\n\n\n\"a\": 1}"), "{schema}");
        assert!(!matches(&schema, "{  \"a\": 1}"), "{schema}");
        assert!(!matches(&schema, &format!("{{\n{}\"a\": 1}}", " ".repeat(21))), "{schema}");
    }
    let own = |rule: &str| format!(r#"{{{member}, "x-guidance": {{{rule}}}}}"#);
    assert!(matches(&own(r#""whitespace_flexible": true"#), "{\n\n\n\"a\": 1}"));
    assert!(!matches(&own(r#""whitespace_flexible": false"#), "{ \"a\": 1}"));
    assert!(matches(&own(r#""whitespace_pattern": "~+""#), "{~~~\"a\":1}"));
    assert!(!matches(&own(r#""lenient": true"#), "{\n\n\n\"a\": 1}"));
}

#[test]
fn a_gbnf_of_json_makes_json() {
    let grammar = compiled(GrammarSource::Gbnf(
        r#"root ::= object
value ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}"
array ::= "[" ws (value ("," ws value)*)? "]"
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" "0" [0-9a-f]{3}))* "\""
number ::= "-"? ("0" | [1-9] [0-9]{0,9}) ("." [0-9]{1,4})?
ws ::= " "?"#
            .into(),
    ));
    let mut rng = Rng::new(22);
    let mut made = 0;
    for _ in 0..150 {
        let Some(text) = generate(&grammar, &mut rng, 400) else { continue };
        made += 1;
        let value: Result<serde_json::Value, _> = serde_json::from_str(&text);
        assert!(value.is_ok_and(|value| value.is_object()), "{text:?}");
    }
    assert!(made > 100, "only {made} of 150 texts ended");
}

#[test]
fn arithmetic_and_lists_are_followed_to_the_end() {
    let sum = compiled(GrammarSource::Gbnf(
        "root ::= (expr \"=\" term \"\\n\")\nexpr ::= term ([-+*/] term)*\n\
         term ::= [0-9]+ | \"(\" expr \")\""
            .into(),
    ));
    let accepts = |compiled: &CompiledGrammar, text: &str| {
        let mut grammar = compiled.start();
        text.bytes().all(|b| grammar.accept(u32::from(b)).is_ok()) && grammar.allows(END).unwrap()
    };
    assert!(accepts(&sum, "1+(2*34)=69\n"));
    assert!(!accepts(&sum, "1+(2*34=69\n"));
    assert!(!accepts(&sum, "1+=2\n"));
    assert!(!accepts(&sum, "1=1"));
    let list = compiled(GrammarSource::Gbnf("root ::= (\"- \" [^\\r\\n]+ \"\\n\")+".into()));
    assert!(accepts(&list, "- milk\n- eggs - and bread\n"));
    assert!(!accepts(&list, "- milk\n-eggs\n"));
}

#[test]
fn end_tokens_stay_where_the_text_may_end() {
    let compiled = compiled(GrammarSource::Regex("[0-9]{2,3}".into()));
    let mut digits = compiled.start();
    let can_end = |state: &mut Grammar| {
        let mut logits = [0.0; VOCAB_SIZE];
        state.mask(&mut logits).unwrap();
        assert_eq!(logits[END as usize], logits[OTHER_END as usize]);
        assert_eq!(logits[END as usize] == 0.0, state.allows(END).unwrap());
        logits[END as usize] == 0.0
    };
    assert!(!can_end(&mut digits));
    digits.accept(u32::from(b'1')).unwrap();
    assert!(!can_end(&mut digits));
    assert!(digits.accept(END).is_err());
    digits.accept(u32::from(b'2')).unwrap();
    assert!(can_end(&mut digits));
    let mut longer = digits.clone();
    longer.accept(u32::from(b'3')).unwrap();
    assert!(can_end(&mut longer) && longer.is_finished() && !digits.is_finished());
    assert!(!longer.allows(u32::from(b'4')).unwrap());
    digits.accept(END).unwrap();
    assert!(digits.is_finished());
    assert!(!can_end(&mut compiled.start()), "every text starts with the state of the empty text");
}

#[test]
fn special_tokens_come_only_where_they_are_named() {
    let mut plain = grammar(GrammarSource::Regex("(?s:.*)".into()));
    assert!(!plain.allows(THINK).unwrap());
    for source in [
        GrammarSource::Gbnf("root ::= <think> \"x\"".into()),
        GrammarSource::Gbnf("root ::= <[280]> \"x\"".into()),
        GrammarSource::Lark("start: <[280]> \"x\"".into()),
    ] {
        let mut grammar = grammar(source.clone());
        assert!(!grammar.allows(u32::from(b'<')).unwrap(), "{source:?}");
        grammar.accept(THINK).unwrap();
        grammar.accept(u32::from(b'x')).unwrap();
    }
    let mut other = grammar(GrammarSource::Gbnf("root ::= !<think> \"x\"".into()));
    assert!(!other.allows(THINK).unwrap() && other.allows(u32::from(b'a')).unwrap());
}

#[test]
fn a_draw_is_masked_only_when_it_is_refused() {
    let mut digits = grammar(GrammarSource::Regex("[0-9]+".into()));
    let mut sampler =
        Sampler::new(&SamplingOptions::greedy(), VOCAB_SIZE + 1, DryBreakers::default()).unwrap();
    let mut scratch = SampleScratch::new(VOCAB_SIZE + 1);
    let mut logits = vec![0.0; VOCAB_SIZE + 1];
    logits[b'7' as usize] = 1.0;
    let mut draw = |logits: &mut [f32]| digits.sample(&mut sampler, logits, &mut scratch).unwrap();
    assert_eq!(draw(&mut logits), u32::from(b'7'));
    assert_eq!(logits[b'a' as usize], 0.0);
    logits[b'a' as usize] = 2.0;
    assert_eq!(draw(&mut logits), u32::from(b'7'));
    assert_eq!(logits[b'a' as usize], f32::NEG_INFINITY);
    assert_eq!(logits[VOCAB_SIZE], f32::NEG_INFINITY);
}

#[test]
fn broken_grammars_are_errors() {
    #[track_caller]
    fn refused(source: GrammarSource, message: &str) {
        let error = CompiledGrammar::new(&source, &table()).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
    refused(GrammarSource::Gbnf("root ::= root".into()), "GBNF: rule `root` is left-recursive");
    refused(GrammarSource::JsonSchema("{".into()), "JSON schema: ");
    refused(GrammarSource::JsonSchema(r#"{"type": "colour"}"#.into()), "JSON schema: ");
    refused(GrammarSource::Regex("(".into()), "regular expression: ");
    refused(GrammarSource::Lark("start: foo".into()), "Lark: ");
    refused(GrammarSource::Lark("begin: \"a\"".into()), "Lark: ");
    refused(GrammarSource::Lark(" ".repeat(5 << 20)), "longer than");
    let tokens = [TokenText::Bytes(b"a")];
    for eos in [&[][..], &[1]] {
        let error = TokenTable::new(&tokens, eos).unwrap_err().to_string();
        assert!(error.contains("expected end tokens below 1"), "{error}");
    }
}

#[test]
fn a_huge_repetition_is_followed_without_being_written_out() {
    let mut grammar = grammar(GrammarSource::Regex("((a{1000}){1000}){1000}".into()));
    let mut logits = [0.0; VOCAB_SIZE];
    grammar.mask(&mut logits).unwrap();
    let allowed = (0..VOCAB_SIZE).filter(|&token| logits[token] == 0.0).collect::<Vec<_>>();
    assert_eq!(allowed, [usize::from(b'a')]);
    grammar.accept(u32::from(b'a')).unwrap();
    assert!(!grammar.allows(END).unwrap());
}

#[test]
fn grammars_move_between_threads() {
    fn check<T: Send + Clone>() {}
    check::<Grammar>();
    check::<TokenTable>();
}
