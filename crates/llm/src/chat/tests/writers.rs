//! Answers as models of each family write them.

use serde_json::{Map, Value};

/// Answer of a conversation.
#[derive(Debug, Clone, Default)]
pub(super) struct Answer {
    pub(super) name: &'static str,
    pub(super) reasoning: &'static str,
    pub(super) content: &'static str,
    pub(super) calls: Vec<(&'static str, Value)>,
}

/// Family: words of its template, and its writer.
pub(super) struct Writer {
    pub(super) name: &'static str,
    pub(super) words: &'static str,
    pub(super) write: fn(&Answer) -> String,
    /// Whether calls can follow content.
    pub(super) can_mix: bool,
}

fn think(answer: &Answer) -> String {
    match answer.reasoning {
        "" => String::new(),
        reasoning => format!("<think>\n{reasoning}\n</think>\n\n"),
    }
}

/// Reasoning, content, and calls between two markers.
fn joined(answer: &Answer, before: &str, calls: &[String], between: &str, after: &str) -> String {
    let text = think(answer) + answer.content;
    match calls.is_empty() {
        true => text,
        false => format!("{text}{before}{}{after}", calls.join(between)),
    }
}

fn each(answer: &Answer, call: impl Fn(&str, &Value) -> String) -> Vec<String> {
    answer.calls.iter().map(|(name, arguments)| call(name, arguments)).collect()
}

fn members(value: &Value) -> &Map<String, Value> {
    value.as_object().unwrap()
}

/// A string as it is, all else as JSON.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn elements(arguments: &Value, element: impl Fn(&str, &str) -> String) -> String {
    members(arguments).iter().map(|(key, value)| element(key, &plain(value))).collect()
}

fn object(name: &str, arguments: &Value) -> String {
    format!("{{\"name\": \"{name}\", \"arguments\": {arguments}}}")
}

fn python(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::String(text) => {
            let escaped = text.replace('\\', "\\\\").replace('\'', "\\'").replace('\n', "\\n");
            format!("'{escaped}'")
        }
        Value::Array(items) => {
            format!("[{}]", items.iter().map(python).collect::<Vec<_>>().join(", "))
        }
        Value::Object(members) => {
            let members = members.iter().map(|(key, value)| format!("'{key}': {}", python(value)));
            format!("{{{}}}", members.collect::<Vec<_>>().join(", "))
        }
        number @ Value::Number(_) => number.to_string(),
    }
}

fn gemma(value: &Value) -> String {
    match value {
        Value::String(text) => format!("<|\"|>{text}<|\"|>"),
        Value::Array(items) => {
            format!("[{}]", items.iter().map(gemma).collect::<Vec<_>>().join(","))
        }
        Value::Object(members) => {
            let members = members.iter().map(|(key, value)| format!("{key}:{}", gemma(value)));
            format!("{{{}}}", members.collect::<Vec<_>>().join(","))
        }
        other => other.to_string(),
    }
}

fn harmony(answer: &Answer) -> String {
    let mut messages = Vec::new();
    if !answer.reasoning.is_empty() {
        messages.push(format!("<|channel|>analysis<|message|>{}<|end|>", answer.reasoning));
    }
    let is_preamble = !answer.calls.is_empty();
    if !answer.content.is_empty() {
        let (channel, end) =
            if is_preamble { ("commentary", "<|end|>") } else { ("final", "<|return|>") };
        messages.push(format!("<|channel|>{channel}<|message|>{}{end}", answer.content));
    }
    messages.extend(each(answer, |name, arguments| {
        format!("<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>")
    }));
    messages.join("<|start|>assistant")
}

fn functionary(answer: &Answer) -> String {
    let mut messages = Vec::new();
    if !answer.content.is_empty() {
        messages.push(format!("all\n{}", answer.content));
    }
    messages.extend(each(answer, |name, arguments| format!("{name}\n{arguments}")));
    messages.join(">>>")
}

pub(super) const WRITERS: &[Writer] = &[
    Writer {
        name: "Hermes",
        words: "<tool_call> </tool_call> </think>",
        write: |answer| {
            let calls = each(answer, |name, arguments| {
                format!("<tool_call>\n{}\n</tool_call>", object(name, arguments))
            });
            joined(answer, "\n", &calls, "\n", "")
        },
        can_mix: true,
    },
    Writer {
        name: "Llama 3",
        words: "<|start_header_id|> \"parameters\" </think>",
        write: |answer| {
            let calls = each(answer, |name, arguments| {
                format!("{{\"name\": \"{name}\", \"parameters\": {arguments}}}")
            });
            joined(answer, "", &calls, "; ", "")
        },
        can_mix: false,
    },
    Writer {
        name: "Llama 3 with its tag",
        words: "<|start_header_id|> \"parameters\" </think>",
        write: |answer| {
            let calls = each(answer, |name, arguments| {
                format!(
                    "{{\"type\": \"function\", \"name\": \"{name}\", \"parameters\": {arguments}}}"
                )
            });
            joined(answer, "<|python_tag|>", &calls, "; ", "")
        },
        can_mix: true,
    },
    Writer {
        name: "Mistral Nemo",
        words: "[TOOL_CALLS] </think>",
        write: |answer| {
            let calls = each(answer, |name, arguments| {
                format!(
                    "{{\"name\": \"{name}\", \"arguments\": {arguments}, \"id\": \"call00001\"}}"
                )
            });
            joined(answer, "[TOOL_CALLS][", &calls, ", ", "]")
        },
        can_mix: true,
    },
    Writer {
        name: "Ministral",
        words: "[TOOL_CALLS] [ARGS] </think>",
        write: |answer| {
            let calls =
                each(answer, |name, arguments| format!("[TOOL_CALLS]{name}[ARGS]{arguments}"));
            joined(answer, "", &calls, "", "")
        },
        can_mix: true,
    },
    Writer {
        name: "DeepSeek R1",
        words: "<｜tool▁call▁begin｜> ```json </think>",
        write: |answer| {
            let calls = each(answer, |name, arguments| {
                format!(
                    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>"
                )
            });
            joined(answer, "<｜tool▁calls▁begin｜>", &calls, "\n", "<｜tool▁calls▁end｜>")
        },
        can_mix: true,
    },
    Writer {
        name: "DeepSeek V3.1",
        words: "<｜tool▁call▁begin｜> </think>",
        write: |answer| {
            let calls = each(answer, |name, arguments| {
                format!("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>")
            });
            joined(answer, "<｜tool▁calls▁begin｜>", &calls, "", "<｜tool▁calls▁end｜>")
        },
        can_mix: true,
    },
    Writer {
        name: "Kimi K2",
        words: "<|tool_calls_section_begin|> </think>",
        write: |answer| {
            let calls = each(answer, |name, arguments| {
                format!(
                    "<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"
                )
            });
            joined(answer, "<|tool_calls_section_begin|>", &calls, "", "<|tool_calls_section_end|>")
        },
        can_mix: true,
    },
    Writer {
        name: "Qwen3-Coder",
        words: "<function= <parameter= </think>",
        write: |answer| {
            let calls = each(answer, |name, arguments| {
                let elements = elements(arguments, |key, value| {
                    format!("<parameter={key}>\n{value}\n</parameter>\n")
                });
                format!("<tool_call>\n<function={name}>\n{elements}</function>\n</tool_call>")
            });
            joined(answer, "\n\n", &calls, "\n", "")
        },
        can_mix: true,
    },
    Writer {
        name: "GLM",
        words: "<arg_key> <arg_value> </think>",
        write: |answer| {
            let calls = each(answer, |name, arguments| {
                let elements = elements(arguments, |key, value| {
                    format!("<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n")
                });
                format!("<tool_call>{name}\n{elements}</tool_call>")
            });
            joined(answer, "\n", &calls, "\n", "")
        },
        can_mix: true,
    },
    Writer {
        name: "MiniMax M2",
        words: "<minimax:tool_call> </think>",
        write: |answer| {
            let calls = each(answer, |name, arguments| {
                let elements = elements(arguments, |key, value| {
                    format!("<parameter name=\"{key}\">{value}</parameter>\n")
                });
                format!("<invoke name=\"{name}\">\n{elements}</invoke>\n")
            });
            joined(answer, "\n<minimax:tool_call>\n", &calls, "", "</minimax:tool_call>")
        },
        can_mix: true,
    },
    Writer {
        name: "LFM2",
        words: "<|tool_call_start|> </think>",
        write: |answer| {
            let calls = each(answer, |name, arguments| {
                let items = members(arguments)
                    .iter()
                    .map(|(key, value)| format!("{key}={}", python(value)));
                format!("{name}({})", items.collect::<Vec<_>>().join(", "))
            });
            joined(answer, "<|tool_call_start|>[", &calls, ", ", "]<|tool_call_end|>")
        },
        can_mix: true,
    },
    Writer {
        name: "Gemma 4",
        words: "<|tool_call> <|\"|> </think>",
        write: |answer| {
            let calls = each(answer, |name, arguments| {
                format!("<|tool_call>call:{name}{}<tool_call|>", gemma(arguments))
            });
            joined(answer, "", &calls, "", "")
        },
        can_mix: true,
    },
    Writer {
        name: "Command R7B",
        words: "<|START_ACTION|> </think>",
        write: |answer| {
            let calls = each(answer, |name, arguments| {
                format!(
                    "    {{\"tool_call_id\": \"0\", \"tool_name\": \"{name}\", \"parameters\": {arguments}}}"
                )
            });
            joined(answer, "<|START_ACTION|>[\n", &calls, ",\n", "\n]<|END_ACTION|>")
        },
        can_mix: true,
    },
    Writer {
        name: "Granite 3",
        words: "<|tool_call|> </think>",
        write: |answer| {
            let calls = each(answer, object);
            joined(answer, "<|tool_call|>[", &calls, ", ", "]")
        },
        can_mix: true,
    },
    Writer {
        name: "MiniMax M1",
        words: "<tool_calls> </think>",
        write: |answer| {
            let calls = each(answer, object);
            joined(answer, "\n<tool_calls>\n", &calls, "\n", "\n</tool_calls>")
        },
        can_mix: true,
    },
    Writer {
        name: "Functionary 3.1",
        words: "<function= </function> </think>",
        write: |answer| {
            let calls =
                each(answer, |name, arguments| format!("<function={name}>{arguments}</function>"));
            joined(answer, "", &calls, "", "")
        },
        can_mix: true,
    },
    Writer {
        name: "Apertus",
        words: "<|tools_prefix|> </think>",
        write: |answer| {
            let calls = each(answer, |name, arguments| format!("{{\"{name}\": {arguments}}}"));
            joined(answer, "<|tools_prefix|>[", &calls, ", ", "]<|tools_suffix|>")
        },
        can_mix: true,
    },
    Writer { name: "gpt-oss", words: "<|return|> <|message|>", write: harmony, can_mix: true },
    Writer { name: "Functionary 3.2", words: ">>>all", write: functionary, can_mix: true },
];
