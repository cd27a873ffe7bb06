//! The translation against a naive matcher of the rules.

use std::collections::BTreeSet;

use super::{Expr, Rules, parse, to_lark};
use crate::rng::Rng;
use crate::{CompiledGrammar, GrammarSource, TokenTable, TokenText};

/// End positions of all matches of `expr` that start at `from`.
fn ends(rules: &Rules, expr: &Expr, text: &[char], from: usize) -> BTreeSet<usize> {
    let after = |expr: &Expr, starts: &BTreeSet<usize>| -> BTreeSet<usize> {
        starts.iter().flat_map(|&start| ends(rules, expr, text, start)).collect()
    };
    match expr {
        Expr::Chars(set) => {
            let c =
                text.get(from).map(|&c| super::CharSet::new(vec![(u32::from(c), u32::from(c))]));
            c.filter(|c| set.intersects(c)).map(|_| from + 1).into_iter().collect()
        }
        Expr::Token { .. } => BTreeSet::new(),
        Expr::Rule(rule) => ends(rules, &rules.bodies[*rule], text, from),
        Expr::Sequence(items) => {
            items.iter().fold(BTreeSet::from([from]), |starts, item| after(item, &starts))
        }
        Expr::Choice(choices) => {
            choices.iter().flat_map(|choice| ends(rules, choice, text, from)).collect()
        }
        Expr::Repeat { inner, min, max } => {
            let mut starts = BTreeSet::from([from]);
            let mut found = BTreeSet::new();
            for round in 0..=max.map_or(text.len() + *min as usize, |max| max as usize) {
                if round >= *min as usize {
                    found.extend(&starts);
                }
                starts = after(inner, &starts);
            }
            found
        }
    }
}

const END: u32 = 256;

/// One token per byte, and an end token.
fn table() -> TokenTable {
    let bytes: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
    let mut tokens: Vec<_> = bytes.iter().map(|byte| TokenText::Bytes(byte)).collect();
    tokens.push(TokenText::Special("<end>"));
    TokenTable::new(&tokens, &[END]).unwrap()
}

fn accepts(compiled: &CompiledGrammar, text: &str) -> bool {
    let mut grammar = compiled.start();
    text.bytes().all(|byte| grammar.accept(u32::from(byte)).is_ok()) && grammar.allows(END).unwrap()
}

#[test]
fn the_same_texts_match_as_by_the_rules() {
    let grammars = [
        // Keywords and names, operators with a common prefix: a longest-match lexer fails on them.
        r#"root ::= ("if" "(" name ")" | name "=" name) ";"
name ::= [a-z]+"#,
        r#"root ::= "a" ("<" | "<=" | "<" "=") "=" "a"?"#,
        "root ::= [ab]* \"ab\" [b]*",
        "root ::= [ab]* [b=]{2}",
        "root ::= (\"a\" | \"ab\") \"b\"? [ab]{1,3} \";\"",
        r#"root ::= digits ("." digits)?
digits ::= [0-1] | [1] [0-1]{0,3}"#,
        r#"root ::= list
list ::= "(" (item (";" item)*)? ")"
item ::= [ab]+ | list"#,
        r#"root ::= "\"" ([^"\\] | "\\" ["\\ab])* "\"" "="*"#,
        "root ::= | \"a\" root \"b\" | [=]+",
        "root ::= ([a] ([b]+ | \"=\")){2,3} .?",
        "root ::= x y \"b\"\nx ::= \"a\"*\ny ::= (\"=\" | \"a\" \"b\")?",
        "root ::= ([ab]+ \";\")* [ab]+ # the last one has no end",
        "root ::= [^a]{2} [é-ü]?",
    ];
    let table = table();
    let alphabet: Vec<char> = "aabbif(=);<\\\"01.é\n".chars().collect();
    let mut rng = Rng::new(11);
    for source in grammars {
        let rules = parse::parse(source).unwrap();
        let grammar = CompiledGrammar::new(&GrammarSource::Gbnf(source.into()), &table).unwrap();
        let (mut matched, mut refused) = (0, 0);
        for round in 0..1500 {
            let mut text = String::new();
            let mut state = grammar.start();
            // A random walk that mostly follows the grammar, so that there are matches.
            for _ in 0..(rng.uniform() * 12.0) as usize {
                let mut c = alphabet[(rng.uniform() * alphabet.len() as f64) as usize];
                for _ in 0..30 {
                    let mut utf8 = [0; 4];
                    let fits = |byte: &u8| state.clone().allows(u32::from(*byte)).unwrap();
                    if round % 4 == 0
                        || c.encode_utf8(&mut utf8).as_bytes().first().is_some_and(fits)
                    {
                        break;
                    }
                    c = alphabet[(rng.uniform() * alphabet.len() as f64) as usize];
                }
                text.push(c);
                let mut utf8 = [0; 4];
                c.encode_utf8(&mut utf8).bytes().for_each(|b| _ = state.accept(u32::from(b)));
            }
            let chars: Vec<char> = text.chars().collect();
            let expected =
                ends(&rules, &rules.bodies[rules.root], &chars, 0).contains(&chars.len());
            assert_eq!(accepts(&grammar, &text), expected, "{text:?} by {source}");
            if expected { matched += 1 } else { refused += 1 }
        }
        assert!(matched > 10 && refused > 10, "{source}: {matched} matched, {refused} refused");
    }
}

#[test]
fn strings_and_numbers_become_regular_expressions() {
    let source = r#"root ::= "[" (value ("," value)*)? "]"
value ::= string | [0-9]+
string ::= "\"" ([^"\\] | "\\" ["\\/bfnrt])* "\"""#;
    let lark = to_lark(source, |_| None).unwrap();
    assert!(lark.contains("/(?:[\\x{30}-\\x{39}]){1,}/"), "{lark}");
    assert!(lark.contains("){1,}/") && !lark.contains("g2*"), "{lark}");
}

#[test]
fn mistakes_are_errors_that_name_the_place() {
    #[track_caller]
    fn refused(source: &str, message: &str) {
        let error = to_lark(source, |_| None).unwrap_err();
        assert!(error.contains(message), "{source:?}: {error}");
    }
    refused("", "there is no rule `root`");
    refused("root ::= item", "rule `item` is used but not defined");
    refused("root ::= root \"a\" | \"b\"", "rule `root` is left-recursive");
    refused("root ::= a\na ::= \"x\"? b\nb ::= a | \"y\"", "is left-recursive");
    refused("root ::= (\"\"* a)\na ::= root", "is left-recursive");
    refused("root ::= \"a", "line 1: expected more text, got the end of the text");
    refused("root ::= [a", "expected more text");
    refused("root ::= \"a\"\nroot2 = \"b\"", "line 2: expected `::=`, got \"= \\\"b\\\"\"");
    refused("root ::= (\"a\"", "expected `)`");
    refused("root ::= *", "expected an item to repeat");
    refused("root ::= \"a\"{3,2}", "a greater end");
    refused("root ::= \"a\"{", "expected a number");
    refused("root ::= \"a\"{99999999999}", "expected a number");
    refused("root ::= \"a\"{2001}", "at most 2000 repetitions");
    refused("root ::= ((\"a\"{100}){100}){100}", "at most 2000 repetitions");
    refused("root ::= \"\\q\"", "a known escape");
    refused("root ::= \"\\uD800\"", "4 hex digits of a character");
    refused("root ::= [z-a]", "ascending order");
    refused("root ::= []", "an empty class");
    refused("root ::= <think>", "no special token `<think>`");
    refused("root ::= <think", "expected a token");
    refused("root ::= \"a\" )", "the end of the rule");
    refused(&format!("root ::= {}\"a\"{}", "(".repeat(500), ")".repeat(500)), "nested more than");
    refused(&format!("root ::= \"a\"{}", "?".repeat(500)), "repetitions of repetitions");
    refused(&"r ::= \"\"\n".repeat(1 << 16), "longer than");
}

#[test]
fn random_bytes_are_parsed_or_refused() {
    let mut rng = Rng::new(12);
    let pieces = [
        "root", " ::= ", "\n", "|", "(", ")", "\"a\"", "[a-z]", "[^", "]", "*", "+", "?", "{2,3}",
        "{", "}", "a", ".", "<[1]>", "!", "\\x41", "\"", "#", "é", "-",
    ];
    let mut parsed = 0;
    for _ in 0..20_000 {
        let mut text = String::from("root ::= ");
        for _ in 0..(rng.uniform() * 14.0) as usize {
            text.push_str(pieces[(rng.uniform() * pieces.len() as f64) as usize]);
        }
        parsed += usize::from(to_lark(&text, |_| None).is_ok());
    }
    assert!(parsed > 100, "only {parsed} texts were grammars");
}
