//! Syntax of known families, recognised by words of their templates.
//!
//! A template that no row recognises is rendered, see `detect`.

use super::syntax::{Arguments, CallSyntax, Form, JsonForm, Layout, Syntax, Tags};

/// Row of the table: the syntax of templates that have all of the words.
struct Family {
    words: &'static [&'static str],
    section: [&'static str; 2],
    call: [&'static str; 2],
    between: &'static str,
    form: FamilyForm,
}

enum FamilyForm {
    /// Keys of the name and the arguments, in an object, or in objects of a list.
    Object(&'static str, &'static str),
    List(&'static str, &'static str),
    /// Objects without a marker.
    Bare(&'static str, &'static str),
    /// `{NAME: ARGUMENTS}` in a list.
    Keyed,
    Json(&'static [&'static str]),
    Keywords(&'static [&'static str]),
    Gemma(&'static [&'static str]),
    /// Headers; start, header and end of an argument; whether its value is on lines of its own.
    Tags(&'static [&'static str], [&'static str; 3], bool),
}

use FamilyForm::{Bare, Gemma, Json, Keyed, Keywords, List, Object, Tags as Elements};

const NONE: [&str; 2] = ["", ""];

/// Families; the first that fits is taken.
#[rustfmt::skip]
const FAMILIES: &[Family] = &[
    // gpt-oss; the layout has the headers.
    Family { words: &["<|return|>", "<|message|>"], section: NONE, call: ["", "<|call|>"], between: "", form: Json(&[]) },
    // Functionary 3.2.
    Family { words: &[">>>all"], section: NONE, call: NONE, between: "", form: Json(&[]) },
    // Kimi K2.
    Family { words: &["<|tool_calls_section_begin|>"], section: ["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"],
        call: ["<|tool_call_begin|>", "<|tool_call_end|>"], between: "",
        form: Json(&["functions.{name}:{index}<|tool_call_argument_begin|>", "{name}:{index}<|tool_call_argument_begin|>",
            "functions.{name}<|tool_call_argument_begin|>", "{name}<|tool_call_argument_begin|>"]) },
    // Kimi K3.
    Family { words: &["<|open|>", "<|sep|>"], section: ["<|open|>tools<|sep|>", "<|close|>tools<|sep|>"],
        call: ["<|open|>call tool=\"", "<|close|>call<|sep|>"], between: "",
        form: Elements(&["{name}\" index=\"{number}\"<|sep|>", "{name}\"<|sep|>"],
            ["<|open|>argument key=\"", "{key}\" type=\"{type}\"<|sep|>", "<|close|>argument<|sep|>"], false) },
    // DeepSeek V3.2 and V4.
    Family { words: &["｜DSML｜", "function_calls>"], section: ["<｜DSML｜function_calls>\n", "</｜DSML｜function_calls>"],
        call: ["<｜DSML｜invoke name=\"", "</｜DSML｜invoke>\n"], between: "",
        form: Elements(&["{name}\">\n"], ["<｜DSML｜parameter name=\"", "{key}\" string=\"{type}\">", "</｜DSML｜parameter>\n"], false) },
    Family { words: &["｜DSML｜"], section: ["<｜DSML｜tool_calls>\n", "</｜DSML｜tool_calls>"],
        call: ["<｜DSML｜invoke name=\"", "</｜DSML｜invoke>\n"], between: "",
        form: Elements(&["{name}\">\n"], ["<｜DSML｜parameter name=\"", "{key}\" string=\"{type}\">", "</｜DSML｜parameter>\n"], false) },
    // DeepSeek V3 and R1, then V3.1.
    Family { words: &["<｜tool▁call▁begin｜>", "```json"], section: ["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"],
        call: ["<｜tool▁call▁begin｜>", "\n```<｜tool▁call▁end｜>"], between: "\n",
        form: Json(&["function<｜tool▁sep｜>{name}\n```json\n", "{name}<｜tool▁sep｜>"]) },
    Family { words: &["<｜tool▁call▁begin｜>"], section: ["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"],
        call: ["<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"], between: "",
        form: Json(&["{name}<｜tool▁sep｜>"]) },
    // Hunyuan 3.
    Family { words: &["<tool_sep{}>", ":opensource"], section: ["<tool_calls:opensource>\n", "\n</tool_calls:opensource>"],
        call: ["<tool_call:opensource>", "</tool_call:opensource>"], between: "\n",
        form: Elements(&["{name}<tool_sep:opensource>\n"], ["<arg_key:opensource>",
            "{key}</arg_key:opensource>\n<arg_value:opensource>", "</arg_value:opensource>\n"], false) },
    // GLM 4.5 and its relatives.
    Family { words: &["<arg_key>", "<arg_value>"], section: NONE, call: ["<tool_call>", "</tool_call>"], between: "\n",
        form: Elements(&["{name}"], ["<arg_key>", "{key}</arg_key>\n<arg_value>", "</arg_value>\n"], false) },
    // Seed-OSS, Qwen3-Coder and its relatives.
    Family { words: &["<seed:tool_call>"], section: ["<seed:tool_call>\n", "\n</seed:tool_call>"],
        call: ["<function=", "</function>"], between: "\n</seed:tool_call>\n<seed:tool_call>\n",
        form: Elements(&["{name}>\n"], ["<parameter=", "{key}>", "</parameter>\n"], true) },
    Family { words: &["<function=", "<parameter="], section: ["<tool_call>\n", "\n</tool_call>"],
        call: ["<function=", "</function>"], between: "\n</tool_call>\n<tool_call>\n",
        form: Elements(&["{name}>\n"], ["<parameter=", "{key}>", "</parameter>\n"], true) },
    // Functionary 3.1.
    Family { words: &["<function=", "</function>"], section: NONE, call: ["<function=", "</function>"], between: "",
        form: Json(&["{name}>"]) },
    // MiniCPM 5.
    Family { words: &["<function name=", "<param name="], section: NONE, call: ["<function name=\"", "</function>"], between: "\n",
        form: Elements(&["{name}\">"], ["<param name=\"", "{key}\">", "</param>"], false) },
    // MiniMax M2.
    Family { words: &["<minimax:tool_call>"], section: ["<minimax:tool_call>\n", "</minimax:tool_call>"],
        call: ["<invoke name=\"", "</invoke>\n"], between: "",
        form: Elements(&["{name}\">\n"], ["<parameter name=\"", "{key}\">", "</parameter>\n"], false) },
    // Solar.
    Family { words: &["<|tool_call:begin|>", "<|tool_call:name|>"], section: ["<|tool_calls|>", "<|calls|>"],
        call: ["<|tool_call:begin|>", "<|tool_call:end|>"], between: "",
        form: Json(&["{id}<|tool_call:name|>{name}<|tool_call:args|>"]) },
    // LFM2.
    Family { words: &["<|tool_call_start|>"], section: ["<|tool_call_start|>[", "]<|tool_call_end|>"], call: NONE, between: ", ",
        form: Keywords(&["{name}("]) },
    Family { words: &["List of tools:", "<|im_start|>"], section: ["<|tool_call_start|>[", "]<|tool_call_end|>"], call: NONE, between: ", ",
        form: Keywords(&["{name}("]) },
    // Mistral since 2025, then before.
    Family { words: &["[TOOL_CALLS]", "[CALL_ID]"], section: NONE, call: ["[TOOL_CALLS]", ""], between: "",
        form: Json(&["{name}[CALL_ID]{id}[ARGS]", "{name}[ARGS]"]) },
    Family { words: &["[TOOL_CALLS]", "[ARGS]"], section: NONE, call: ["[TOOL_CALLS]", ""], between: "",
        form: Json(&["{name}[ARGS]", "{name}[CALL_ID]{id}[ARGS]"]) },
    Family { words: &["[TOOL_CALLS]"], section: ["[TOOL_CALLS]", ""], call: NONE, between: ", ", form: List("name", "arguments") },
    // Gemma 4.
    Family { words: &["<|tool_call>", "<|\"|>"], section: NONE, call: ["<|tool_call>", "<tool_call|>"], between: "",
        form: Gemma(&["call:{name}"]) },
    // Llama 4 and 3.
    Family { words: &["<|header_start|>"], section: NONE, call: ["<|python_tag|>", ""], between: "; ", form: Bare("name", "parameters") },
    Family { words: &["<|start_header_id|>", "\"parameters\""], section: NONE, call: ["<|python_tag|>", ""], between: "; ",
        form: Bare("name", "parameters") },
    // Apertus.
    Family { words: &["<|tools_prefix|>"], section: ["<|tools_prefix|>", "<|tools_suffix|>"], call: NONE, between: ", ", form: Keyed },
    // Command R7B, then Command R.
    Family { words: &["<|START_ACTION|>"], section: ["<|START_ACTION|>", "<|END_ACTION|>"], call: NONE, between: ",\n",
        form: List("tool_name", "parameters") },
    Family { words: &["Action:", "```json", "tool_name"], section: ["Action:", ""], call: ["```json\n", "\n```"], between: ",\n",
        form: List("tool_name", "parameters") },
    // Phi-4 mini, Granite 3.
    Family { words: &["<|tool_call|>", "<|/tool_call|>"], section: ["<|tool_call|>", "<|/tool_call|>"], call: NONE, between: ", ",
        form: List("name", "arguments") },
    Family { words: &["<|tool_call|>"], section: ["<|tool_call|>", ""], call: NONE, between: ", ", form: List("name", "arguments") },
    // Nemotron, Apriel, MiniMax M1.
    Family { words: &["<TOOLCALL>"], section: ["<TOOLCALL>", "</TOOLCALL>"], call: NONE, between: ", ", form: List("name", "arguments") },
    Family { words: &["<tool_calls>["], section: ["<tool_calls>", "</tool_calls>"], call: NONE, between: ", ",
        form: List("name", "arguments") },
    Family { words: &["<tool_calls>"], section: ["<tool_calls>\n", "\n</tool_calls>"], call: NONE, between: "\n",
        form: Object("name", "arguments") },
    // GigaChat 3.
    Family { words: &["<|function_call|>"], section: NONE, call: ["<|function_call|>", ""], between: "", form: Object("name", "arguments") },
    Family { words: &["<|role_sep|>", "function call"], section: NONE, call: ["<|message_sep|>\n\nfunction call<|role_sep|>\n", ""],
        between: "", form: Object("name", "arguments") },
    // FireFunction.
    Family { words: &["functools["], section: ["functools", ""], call: NONE, between: ", ", form: List("name", "arguments") },
    // Hermes, Qwen 2.5 and 3, and many more.
    Family { words: &["<tool_call>", "</tool_call>"], section: NONE, call: ["<tool_call>\n", "\n</tool_call>"], between: "\n",
        form: Object("name", "arguments") },
];

/// Reasoning: words of a template, start and end.
const REASONING: &[(&[&str], [&str; 2])] = &[
    (&["<|return|>", "<|message|>"], ["<|channel|>analysis<|message|>", "<|end|>"]),
    (&["<seed:think>"], ["<seed:think>", "</seed:think>"]),
    (&["<mm:think>"], ["<mm:think>", "</mm:think>"]),
    (&["'<think{}>'", ":opensource"], ["<think:opensource>", "</think:opensource>"]),
    (&["[THINK]"], ["[THINK]", "[/THINK]"]),
    (&["<|START_THINKING|>"], ["<|START_THINKING|>", "<|END_THINKING|>"]),
    (&["<|channel>thought"], ["<|channel>thought", "<channel|>"]),
    (&["<|open|>", "<|sep|>", "think"], ["<|open|>think<|sep|>", "<|close|>think<|sep|>"]),
    (&["<|tool_call:begin|>", "<|think|>"], ["<|think|>", "<|end|>"]),
    (&["[BEGIN FINAL RESPONSE]"], ["Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"]),
    (&["<|inner_prefix|>"], ["<|inner_prefix|>", "<|inner_suffix|>"]),
    (&["</think>"], ["<think>", "</think>"]),
    (&["</reasoning>"], ["<reasoning>", "</reasoning>"]),
    (&["</thought>"], ["<thought>", "</thought>"]),
];

/// Markers around content.
#[rustfmt::skip]
const WRAPPERS: &[&str] = &[
    "<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>", "[END FINAL RESPONSE]", "<|inner_suffix|>",
];
/// Words of a template, and markers around content that other templates have otherwise.
const OTHER_WRAPPERS: &[(&[&str], &[&str])] = &[
    (&["<|tool_call:begin|>"], &["<|begin|>assistant", "<|content|>", "<|end|>"]),
    (
        &["<|open|>", "<|sep|>"],
        &[
            "<|open|>response<|sep|>",
            "<|close|>response<|sep|>",
            "<|close|>message<|sep|>",
            "<|end_of_msg|>",
        ],
    ),
    (&["<think>", "<response>", "</response>"], &["<response>", "</response>"]),
];

/// Special tokens after which a model wants the results of its calls.
const ENDS: &[&str] = &["<|call|>", "<|eom_id|>", "<|eom|>", "<|calls|>", "<|tool_response>"];

/// Syntax of a template by the words of its source.
pub(crate) fn of_source(source: &str) -> Syntax {
    let has_all = |words: &[&str]| words.iter().all(|word| source.contains(word));
    let family = FAMILIES.iter().find(|family| has_all(family.words));
    let reasoning = REASONING.iter().find(|(words, _)| has_all(words));
    let mut wrappers: Vec<_> = WRAPPERS.iter().filter(|word| source.contains(**word)).collect();
    for (_, words) in OTHER_WRAPPERS.iter().filter(|(words, _)| has_all(words)) {
        wrappers.extend(words.iter());
    }
    let layout = match family.and_then(|family| family.words.first()) {
        Some(&"<|return|>") => Layout::Harmony,
        Some(&">>>all") => Layout::Recipients,
        _ => Layout::Markers,
    };
    Syntax {
        reasoning: reasoning.map(|(_, markers)| markers.map(Into::into)),
        calls: family.map(Family::calls),
        layout,
        wrappers: wrappers.into_iter().map(|&word| word.into()).collect(),
        ends: ENDS.iter().filter(|word| source.contains(**word)).map(|&word| word.into()).collect(),
    }
}

impl Family {
    fn calls(&self) -> CallSyntax {
        let json = |name: &'static str, arguments: &'static str| JsonForm {
            name: name.into(),
            arguments: arguments.into(),
            ..JsonForm::HERMES
        };
        let named = |headers: &[&'static str], arguments| Form::Named {
            headers: headers.iter().map(|&header| header.into()).collect(),
            arguments,
        };
        CallSyntax {
            section: self.section.map(Into::into),
            call: self.call.map(Into::into),
            between: self.between.into(),
            form: match self.form {
                Object(name, arguments) => Form::Json(json(name, arguments)),
                List(name, arguments) => {
                    Form::Json(JsonForm { is_list: true, ..json(name, arguments) })
                }
                Bare(name, arguments) => {
                    Form::Json(JsonForm { is_bare: true, ..json(name, arguments) })
                }
                Keyed => Form::Json(JsonForm { is_list: true, is_keyed: true, ..JsonForm::HERMES }),
                Json(headers) => named(headers, Arguments::Json),
                Keywords(headers) => named(headers, Arguments::Keywords),
                Gemma(headers) => named(headers, Arguments::Gemma),
                Elements(headers, [start, header, end], is_padded) => {
                    let tags = Tags {
                        start: start.into(),
                        headers: vec![header.into()],
                        end: end.into(),
                        is_padded,
                    };
                    named(headers, Arguments::Tagged(tags))
                }
            },
        }
    }
}
