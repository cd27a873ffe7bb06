//! Truncated, malformed and interleaved answers: nothing is lost.

use super::{HARMONY, HERMES, LLAMA, QWEN_CODER, parse, parse_with, parser, syntax, tools};
use crate::chat::{AnswerParser, ChatMessage};

/// Name and arguments of each call.
fn calls(message: &ChatMessage) -> Vec<(&str, &str)> {
    message.tool_calls.iter().map(|call| (call.name.as_str(), call.arguments.as_str())).collect()
}

#[track_caller]
fn check(words: &str, text: &str, content: &str, expected: &[(&str, &str)]) {
    let got = parse(words, text);
    assert_eq!((got.content.as_str(), calls(&got)), (content, expected.to_vec()), "{text:?}");
}

/// An answer that a limit has cut off.
#[track_caller]
fn check_cut(words: &str, text: &str, content: &str, expected: &[(&str, &str)]) {
    let got = parse_with(parser(words), &[text], false);
    assert_eq!((got.content.as_str(), calls(&got)), (content, expected.to_vec()), "{text:?}");
}

#[test]
fn what_is_no_call_is_content_byte_for_byte() {
    for text in [
        "<tool_call>",
        "Use <tool_call> for that.",
        "<tool_call>\n{\"name\": 3}\n</tool_call>",
        "<tool_call>\n{\"name\" \"f\"}\n</tool_call>",
        "<tool_call>\nget_weather\n</tool_call>",
        "<tool_call>\n{\"arguments\": {\"a\": 1}}\n</tool_call>",
        "<tool_call>\n{\"name\": \"{\\\"a\\\"}\", \"arguments\": {}}\n</tool_call>",
        "  \n<tool_call> x",
        "a <tool_call>\n{\"na",
        "a <tool_c",
        "</tool_call> alone",
    ] {
        check(HERMES, text, text, &[]);
    }
    for text in [
        "{\"city\": \"Paris\"}",
        "{\"name\": \"Bob\", \"age\": 3}",
        "{",
        "[1, 2]",
        "{\"type\": \"x\"}",
    ] {
        check(LLAMA, text, text, &[]);
    }
    for text in ["<function=>", "<function=a b>x", "<tool_call>\n<tool_call>", "<function"] {
        check(QWEN_CODER, text, text, &[]);
    }
}

#[test]
fn a_call_without_its_end_is_complete_if_the_model_has_ended() {
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}";
    check(HERMES, call, "", &[("f", "{\"a\": 1}")]);
    check(
        HERMES,
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}",
        "",
        &[("f", "{\"a\": 1}")],
    );
    check(HERMES, &format!("{call}\n</tool_c"), "", &[("f", "{\"a\": 1}")]);
    check(HERMES, "<tool_call>\n{\"name\": \"f\"}", "", &[("f", "{}")]);
    check(HERMES, "<tool_call>\n{\"name\": \"f\"", "", &[("f", "{}")]);
    let element = "<function=f>\n<parameter=a>\nx";
    check(QWEN_CODER, element, "", &[("f", "{\"a\": \"x\"}")]);
    check(QWEN_CODER, "<function=f>\n", "", &[("f", "{}")]);
}

#[test]
fn a_call_that_was_cut_off_has_what_came_so_far() {
    check_cut(
        HERMES,
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"x",
        "",
        &[("f", "{\"a\": \"x")],
    );
    check_cut(HERMES, "<tool_call>\n{\"name\": \"f\", ", "", &[("f", "")]);
    let text = "<function=get_weather>\n<parameter=city>\nPar";
    check_cut(QWEN_CODER, text, "", &[("get_weather", "{\"city\": \"Par")]);
    let text = " to=functions.get_weather<|channel|>commentary json<|message|>{\"city\": ";
    check_cut(HARMONY, text, "", &[("get_weather", "{\"city\": ")]);
    check_cut(HARMONY, "<|channel|>anal", "", &[]);
}

#[test]
fn content_follows_calls() {
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
    let text = format!("One\n{call}\nTwo\n\n{call}\n");
    check(HERMES, &text, "OneTwo", &[("f", "{}"), ("f", "{}")]);
    let text = format!("{call}\n<think>\nHm\n</think>\n{call}");
    let got = parse(HERMES, &text);
    assert_eq!((got.reasoning.as_str(), got.content.as_str(), got.tool_calls.len()), ("Hm", "", 2));
}

#[test]
fn calls_without_the_markers_of_the_template_are_calls_of_known_tools() {
    let call = "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}";
    let expected = ("get_weather", "{\"city\": \"Oslo\"}");
    for words in [HERMES, LLAMA] {
        check(words, call, "", &[expected]);
        check(words, &format!("```json\n{call}\n```"), "", &[expected]);
        check(words, &format!("```\n{call}\n```\nDone."), "Done.", &[expected]);
        check(
            words,
            &format!("I look.\n\n```json\n{call}\n{call}\n```"),
            "I look.",
            &[expected; 2],
        );
        check(words, &format!("<tools>\n[{call}, {call}]\n</tools>"), "", &[expected; 2]);
    }
    check(HERMES, &format!("{call}\n</tool_call>"), "", &[expected]);
    for text in [
        "```json\n{\"name\": \"Bob\", \"age\": 3}\n```",
        "```json\n{\"age\": 3, \"name\": \"get_weather\"}\n```",
        "```python\nprint({\"name\": \"get_weather\"})\n```",
        "{\"name\": \"Bob\"}",
        "{\"city\": \"Oslo\"}",
        "[1, 2]",
        "```",
        "```json\n{",
        "<tools> are",
    ] {
        check(HERMES, text, text, &[]);
    }
    let later = format!("It is {call}.");
    check(HERMES, &later, &later, &[]);
}

#[test]
fn small_mistakes_in_arguments_are_repaired() {
    let check = |arguments: &str, expected: &str| {
        let text =
            format!("<tool_call>{{\"name\": \"f\", \"arguments\": {arguments}}}</tool_call>");
        check(HERMES, &text, "", &[("f", expected)]);
    };
    check("{'a': 'it\\'s', \"b\": True}", "{\"a\": \"it's\", \"b\": true}");
    check("{\"a\": \"C:\\path\\users\"}", "{\"a\": \"C:\\\\path\\\\users\"}");
    check("{\"a\": \"\\u00e9\\/\"}", "{\"a\": \"\\u00e9\\/\"}");
    check("{\"a\": \"one\ntwo\"}", "{\"a\": \"one\\ntwo\"}");
    check("{\"a\": [1, 2,], }", "{\"a\": [1, 2]}");
    check("{a: 1}", "{\"a\": 1}");
    check("\"{\\\"a\\\": \\\"\\u00e9\\\\n\\\"}\"", "{\"a\": \"é\\n\"}");
    check("null", "{}");
}

#[test]
fn arguments_that_cannot_be_repaired_are_passed_on_as_they_are() {
    let text = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\" 1}}\n</tool_call> Done";
    check(HERMES, text, "Done", &[("f", "{\"a\" 1}}\n")]);
}

#[test]
fn calls_are_content_without_tools() {
    let text = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
    let parser = AnswerParser::new(&syntax(HERMES), &[], true, false);
    assert_eq!(parse_with(parser, &[text], true).content, text);
    let text = "<|channel|>commentary to=functions.f<|message|>{}<|call|>";
    let parser = AnswerParser::new(&syntax(HARMONY), &[], true, false);
    let got = parse_with(parser, &[text], true);
    assert_eq!((got.reasoning.as_str(), got.tool_calls.len()), ("{}", 0));
}

#[test]
fn reasoning_that_the_prompt_opened_ends_at_its_marker() {
    let open = || AnswerParser::new(&syntax(HERMES), &tools(), true, true);
    let got = parse_with(open(), &["\nHm <tool_call> </thi", "nk>\n\n", "So."], true);
    assert_eq!((got.reasoning.as_str(), got.content.as_str()), ("Hm <tool_call>", "So."));
    let got = parse_with(open(), &["Hm.\n"], false);
    assert_eq!((got.reasoning.as_str(), got.content.as_str()), ("Hm.", ""));
    // Later, the marker is text.
    let got = parse(HERMES, "The tag <think> opens reasoning.");
    assert_eq!(
        (got.reasoning.as_str(), got.content.as_str()),
        ("", "The tag <think> opens reasoning.")
    );
}

#[test]
fn reasoning_stays_in_the_content_unless_it_is_split() {
    let text = "<think>\nHm\n</think>\n\nSo.";
    let parser = AnswerParser::new(&syntax(HERMES), &tools(), false, false);
    let got = parse_with(parser, &[text], true);
    assert_eq!((got.reasoning.as_str(), got.content.as_str()), ("", text));
}

#[test]
fn special_markers_of_calls_end_reasoning() {
    let kimi = "<|tool_calls_section_begin|> <think> </think>";
    let text = "<think>Hm<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>";
    let got = parse(kimi, text);
    assert_eq!((got.reasoning.as_str(), calls(&got)), ("Hm", vec![("f", "{}")]));
}

#[test]
fn content_in_markers_loses_them() {
    let got = parse(
        "<|START_ACTION|> <|START_RESPONSE|> <|END_RESPONSE|>",
        "<|START_RESPONSE|>Hello<|END_RESPONSE|>",
    );
    assert_eq!(got.content, "Hello");
}

#[test]
fn a_prompt_of_python_is_content() {
    let got = parse(">>>all", "all\nTry\n>>> f(x)\nTrue");
    assert_eq!(got.content, "Try\n>>> f(x)\nTrue");
}
