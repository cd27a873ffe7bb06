//! Text cut anywhere.

use proptest::prelude::*;

use super::families::{answers, can_write};
use super::writers::WRITERS;
use super::{HERMES, LLAMA, parse_with, parser};

/// Pieces of `text`, cut at `cuts`.
fn pieces<'a>(text: &'a str, cuts: &[usize]) -> Vec<&'a str> {
    let mut cuts: Vec<usize> =
        cuts.iter().map(|cut| text.floor_char_boundary(cut % (text.len() + 1))).collect();
    cuts.extend([0, text.len()]);
    cuts.sort_unstable();
    cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect()
}

proptest! {
    #[test]
    fn an_answer_is_the_same_wherever_it_is_cut(
        family in 0..WRITERS.len(),
        answer in 0..12_usize,
        end in 0..4000_usize,
        cuts in prop::collection::vec(0..4000_usize, 0..12),
        is_complete: bool,
    ) {
        let (writer, answer) = (&WRITERS[family], &answers()[answer]);
        if can_write(writer, answer) {
            let text = (writer.write)(answer);
            let text = &text[..text.floor_char_boundary(end)];
            let whole = parse_with(parser(writer.words), &[text], is_complete);
            let cut = parse_with(parser(writer.words), &pieces(text, &cuts), is_complete);
            prop_assert_eq!(whole, cut);
        }
    }

    #[test]
    fn any_text_is_the_same_wherever_it_is_cut(
        family in 0..WRITERS.len(),
        parts in prop::collection::vec(prop_oneof![
            Just("<tool_call>"), Just("</tool_call>"), Just("{\"name\": \"f\""), Just(", \"arguments\": "),
            Just("{\"a\": \"b"), Just("\"}"), Just("}"), Just("]"), Just("["), Just("\n"), Just(" "), Just("<think>"),
            Just("</think>"), Just("<function="), Just("f>"), Just("<parameter=a>"), Just("</parameter>"),
            Just("[TOOL_CALLS]"), Just("[ARGS]"), Just("<|channel|>"), Just("<|message|>"), Just("<|end|>"),
            Just("to=functions.f"), Just("<|tool_call>call:f{"), Just("<|\"|>"), Just("f(a='"), Just("')"), Just("\\"),
            Just("\\u00"), Just("é"), Just("text"), Just("<"), Just(">>>"), Just("<|python_tag|>"), Just("{"),
            Just("```json\n"), Just("```"), Just("<tools>"), Just("{\"name\": \"get_weather\""),
            Just("<arg_key>"), Just("</arg_key>"), Just("<arg_value>"), Just("</arg_value>"), Just("<invoke name=\""),
            Just("<|tool_call_start|>["), Just("<｜tool▁calls▁begin｜>"), Just("<｜tool▁call▁begin｜>"),
        ], 0..24),
        cuts in prop::collection::vec(0..400_usize, 0..12),
        is_complete: bool,
    ) {
        let text = parts.concat();
        let words = WRITERS[family].words;
        let whole = parse_with(parser(words), &[&text], is_complete);
        let cut = parse_with(parser(words), &pieces(&text, &cuts), is_complete);
        prop_assert_eq!(whole, cut, "{:?} of {}", text, WRITERS[family].name);
    }

    #[test]
    fn text_without_markers_is_content(text in "[a-z \\n.{}\\[\\]\"é]{0,80}") {
        for words in [HERMES, ""] {
            let got = parse_with(parser(words), &[&text], true);
            prop_assert_eq!(&got.content, &text);
            prop_assert!(got.tool_calls.is_empty() && got.reasoning.is_empty());
        }
        let got = parse_with(parser(LLAMA), &[&text], true);
        prop_assert_eq!(&got.content, &text);
    }
}

#[test]
fn the_parser_knows_where_reasoning_begins_and_ends() {
    let mut parser = parser(HERMES);
    let pieces = ["<th", "ink>\n", "Hm", "</thi", "nk>", "\n\nLook", "<tool_call>"];
    let is_reasoning = pieces.map(|piece| {
        parser.push(piece);
        parser.is_reasoning()
    });
    assert_eq!(is_reasoning, [false, true, true, true, false, false, false]);
}
