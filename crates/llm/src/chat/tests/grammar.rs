//! Grammars of calls: they allow what the family writes, and what they allow is a call.

use std::sync::Arc;

use serde_json::{Value, json};
use stonechat_sampling::{CompiledGrammar, GrammarSource, LazyGrammar, Rng};
use stonechat_text::Tokenizer;

use super::families::answers;
use super::writers::WRITERS;
use super::{parse_with, parser, syntax, tools};
use crate::chat::Tool;
use crate::chat::grammar::{Writer, content, start};
use crate::chat::syntax::Layout;
use crate::model::vocabulary::token_table;

const END: u32 = 256;
/// Markers that are control tokens in the second vocabulary.
const SPECIAL: [&str; 9] = [
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "<|tool_call>",
    "<tool_call|>",
    "<|\"|>",
    "<|message|>",
    "<|channel|>",
    "<|tool_calls_section_begin|>",
];

/// Bytes, an end token, and control tokens.
fn tokenizer(special: &[&str]) -> Tokenizer {
    let bytes: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
    let names = std::iter::once("<end>").chain(special.iter().copied());
    let named = (END..).zip(names.map(str::to_owned));
    Tokenizer::from_ranked(&bytes).unwrap().with_special(named).unwrap().with_roles(None, &[END])
}

fn compiled(
    words: &str,
    tokenizer: &Tokenizer,
    tools: &[Tool],
    is_parallel: bool,
    is_lazy: bool,
) -> CompiledGrammar {
    let syntax = syntax(words);
    let calls = syntax.calls.as_ref().unwrap();
    let tools: Vec<&Tool> = tools.iter().collect();
    let source =
        Writer::new(&syntax, calls, tokenizer).write(&tools, (is_parallel, is_lazy), None).unwrap();
    let table = token_table(tokenizer, tokenizer.vocab_size()).unwrap();
    let compiled = CompiledGrammar::new(&GrammarSource::Lark(source.clone()), &table);
    compiled.unwrap_or_else(|error| panic!("{words}: {error}\n{source}"))
}

/// Bytes of `text` that a grammar allows, and whether it may end there.
fn accepted(grammar: &CompiledGrammar, tokenizer: &Tokenizer, text: &str) -> (usize, bool) {
    let mut state = grammar.start();
    let mut n = 0;
    for token in tokenizer.tokenize(text, false, true) {
        if state.is_finished() || state.accept(token).is_err() {
            break;
        }
        n += tokenizer.token_piece(token, true).len();
    }
    (n, state.is_finished() || state.allows(END).unwrap())
}

#[test]
fn grammars_allow_what_a_family_writes() {
    // Python's notation is not JSON, and the tag with a type is another way to write calls.
    let others = ["LFM2", "Llama 3 with its tag"];
    for special in [&[][..], &SPECIAL[..]] {
        let tokenizer = tokenizer(special);
        for writer in WRITERS.iter().filter(|writer| !others.contains(&writer.name)) {
            let grammar = compiled(writer.words, &tokenizer, &tools(), true, false);
            let answers = answers();
            let has_calls = |answer: &&super::writers::Answer| {
                !answer.calls.is_empty() && answer.content.is_empty() && answer.reasoning.is_empty()
            };
            for answer in answers.iter().filter(has_calls) {
                let text = (writer.write)(answer);
                // The end of the message is the model's.
                let text = text.trim().trim_end_matches("<|call|>");
                // Control tokens are no text of a string, and gpt-oss calls once in a turn.
                let is_spelled = answer.name == "strings" && !special.is_empty();
                if is_spelled || (writer.name == "gpt-oss" && answer.calls.len() > 1) {
                    continue;
                }
                let got = accepted(&grammar, &tokenizer, text);
                assert_eq!(got, (text.len(), true), "{}, {}: {text}", writer.name, answer.name);
            }
        }
    }
}

#[test]
fn what_a_grammar_allows_is_a_call() {
    let tools = vec![Tool {
        name: "get_weather".to_owned(),
        parameters: json!({
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "maximum": 99, "minimum": 1}},
            "required": ["city"],
        }),
        is_strict: true,
    }];
    for special in [&[][..], &SPECIAL[..]] {
        let tokenizer = tokenizer(special);
        for writer in WRITERS {
            let grammar = compiled(writer.words, &tokenizer, &tools, false, false);
            let mut rng = Rng::new(7);
            let mut ended = 0;
            for _ in 0..4 {
                let (mut state, mut tokens) = (grammar.start(), Vec::new());
                while tokens.len() < 400 && !state.is_finished() {
                    let mut logits: Vec<f32> =
                        (0..tokenizer.vocab_size()).map(|_| rng.uniform() as f32).collect();
                    // Values end soon.
                    b"\"}])<".iter().for_each(|&byte| logits[usize::from(byte)] += 1.0);
                    logits[END as usize] += 2.0;
                    state.mask(&mut logits).unwrap();
                    let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
                    let token = best.unwrap() as u32;
                    if token == END {
                        break;
                    }
                    state.accept(token).unwrap();
                    tokens.push(token);
                }
                if tokens.len() == 400 {
                    continue;
                }
                ended += 1;
                let text = tokenizer.decode_with_special(&tokens);
                let message = parse_with(parser(writer.words), &[&text], true);
                assert_eq!(message.tool_calls.len(), 1, "{}: {text:?}: {message:?}", writer.name);
                let call = &message.tool_calls[0];
                let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
                assert_eq!(call.name, "get_weather");
                let city = arguments["city"].as_str();
                let is_free = writer.name == "Gemma 4";
                assert!(
                    is_free || matches!(city, Some("Rome" | "Oslo")),
                    "{}: {text:?}",
                    writer.name
                );
            }
            assert!(ended > 0, "{}: no text has ended", writer.name);
        }
    }
}

#[test]
fn an_answer_is_calls_or_the_content() {
    let schema =
        r#"{"type": "object", "properties": {"sky": {"type": "string"}}, "required": ["sky"]}"#;
    let content = content(schema).unwrap();
    let json = "{\"sky\": \"blue\"}";
    for special in [&[][..], &SPECIAL[..]] {
        let tokenizer = tokenizer(special);
        let table = token_table(&tokenizer, tokenizer.vocab_size()).unwrap();
        for writer in WRITERS {
            let syntax = syntax(writer.words);
            let (calls, tools) = (syntax.calls.as_ref().unwrap(), tools());
            let tools: Vec<&Tool> = tools.iter().collect();
            let new = || Writer::new(&syntax, calls, &tokenizer);
            let framed = match syntax.layout {
                Layout::Harmony => format!("<|channel|>final<|message|>{json}"),
                Layout::Recipients => format!("all\n{json}"),
                Layout::Markers => json.to_owned(),
            };
            let got = parse_with(parser(writer.words), &[&framed], true);
            assert_eq!((got.content.as_str(), got.tool_calls.len()), (json, 0), "{}", writer.name);
            let both = new().write(&tools, (true, false), Some(&content)).unwrap();
            for source in [both, new().write_content(&content)] {
                let grammar = CompiledGrammar::new(&GrammarSource::Lark(source), &table).unwrap();
                let got = accepted(&grammar, &tokenizer, &framed);
                assert_eq!(got, (framed.len(), true), "{}: {framed}", writer.name);
                assert_eq!(accepted(&grammar, &tokenizer, "The sky is blue.").0, 0);
            }
            let both = new().write(&tools, (true, false), Some(&content)).unwrap();
            let both = CompiledGrammar::new(&GrammarSource::Lark(both), &table).unwrap();
            let answers = answers();
            let is_calls = |answer: &&super::writers::Answer| {
                answer.calls.len() == 1 && answer.content.is_empty() && answer.reasoning.is_empty()
            };
            let call = answers.iter().find(is_calls).unwrap();
            let text = (writer.write)(call);
            let text = text.trim().trim_end_matches("<|call|>");
            if !["LFM2", "Llama 3 with its tag"].contains(&writer.name) {
                let got = accepted(&both, &tokenizer, text);
                assert_eq!(got, (text.len(), true), "{}: {text}", writer.name);
            }
        }
    }
}

#[test]
fn calls_without_markers_are_constrained_by_name() {
    let tokenizer = tokenizer(&[]);
    for words in [super::HERMES, super::LLAMA] {
        let syntax = syntax(words);
        let calls = syntax.calls.as_ref().unwrap();
        let tools = tools();
        let tools: Vec<&Tool> = tools.iter().collect();
        let start = start(&syntax, calls, &tools).unwrap();
        let key = &calls.loose().unwrap().arguments;
        let grammar = Arc::new(compiled(words, &tokenizer, &self::tools(), true, true));
        let one =
            format!("{{\n  \"name\": \"get_weather\",\n  \"{key}\": {{\"city\": \"Oslo\"}}\n}}");
        let flat = format!("{{\"name\": \"set-alarm\", \"{key}\": {{}}}}");
        for text in [
            one.clone(),
            format!("I look.\n```json\n{one}\n```"),
            format!("```\n{flat}\n{one}\n```"),
        ] {
            let mut lazy = LazyGrammar::new(&grammar, &start).unwrap();
            for token in tokenizer.tokenize(&text, false, true) {
                let accepted = lazy.accept(token, tokenizer.token_piece(token, true));
                accepted.unwrap_or_else(|error| panic!("{error}: {text}"));
            }
            assert!(lazy.is_active() && lazy.allows(END).unwrap(), "{text}");
        }
        // Neither another name, nor a call in a sentence.
        for text in
            ["{\"name\": \"Bob\", \"age\": 3}".to_owned(), format!("It is {flat} and so on.")]
        {
            let mut lazy = LazyGrammar::new(&grammar, &start).unwrap();
            for token in tokenizer.tokenize(&text, false, true) {
                lazy.accept(token, tokenizer.token_piece(token, true)).unwrap();
            }
            assert!(!lazy.is_active(), "{text}");
        }
    }
}

#[test]
fn one_call_is_all_unless_they_may_be_parallel() {
    let tokenizer = tokenizer(&[]);
    let one = "<tool_call>\n{\"name\": \"set-alarm\", \"arguments\": {}}\n</tool_call>";
    let two = format!("{one}\n{one}");
    for is_parallel in [false, true] {
        let grammar = compiled(super::HERMES, &tokenizer, &tools(), is_parallel, true);
        assert_eq!(accepted(&grammar, &tokenizer, one), (one.len(), true));
        let (n, _) = accepted(&grammar, &tokenizer, &two);
        assert_eq!(n == two.len(), is_parallel, "{n} of {}", two.len());
        assert_eq!(accepted(&grammar, &tokenizer, " Hello").0, 0);
    }
}
