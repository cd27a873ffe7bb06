//! The conversations that every template is rendered with.

use serde_json::{Value, json};

/// Conversation with its name in the table.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) messages: Vec<Value>,
    pub(super) tools: Option<Value>,
    pub(super) add_generation_prompt: bool,
    pub(super) variables: serde_json::Map<String, Value>,
}

/// Each conversation without and with the generation prompt, some with further variables.
pub(super) fn cases() -> Vec<Case> {
    let user = json!({"role": "user", "content": "  What is 2 < 3 & \"so\"? Größe, 日本, 🙂\n"});
    let system = json!({"role": "system", "content": "You are terse.\n"});
    let answer = json!({"role": "assistant", "content": "Yes.  "});
    let more = json!({"role": "user", "content": "And 'why'?"});
    let thought = json!({
        "role": "assistant",
        "content": "<think>\nLet me see.\n</think>\n\nYes.",
        "reasoning_content": null,
    });
    let reasoned = json!({
        "role": "assistant",
        "content": "Yes.",
        "reasoning_content": "Two is less than three.",
    });
    let part = |text: &str| json!([{"type": "text", "text": text}]);
    let mut cases = Vec::new();
    let mut add = |name: &str, messages: &[&Value], tools: Option<Value>| {
        for (suffix, add_generation_prompt) in [("", false), ("+", true)] {
            cases.push(Case {
                name: format!("{name}{suffix}"),
                messages: messages.iter().map(|message| (*message).clone()).collect(),
                tools: tools.clone(),
                add_generation_prompt,
                variables: serde_json::Map::new(),
            });
        }
    };
    add("user", &[&user], None);
    add("system", &[&system, &user], None);
    add("turns", &[&user, &answer, &more], None);
    add("system-turns", &[&system, &user, &answer, &more, &answer], None);
    add("thought", &[&user, &thought, &more], None);
    add("reasoned", &[&system, &user, &reasoned, &more], None);
    add("parts", &[&json!({"role": "user", "content": part("Hello")})], None);
    let system_parts = json!({"role": "system", "content": part("Terse.")});
    let user_parts = json!({"role": "user", "content": [
        {"type": "text", "text": "One."},
        {"type": "text", "text": "Two."},
    ]});
    add("system-parts", &[&system_parts, &user_parts, &answer, &more], None);
    add("developer", &[&json!({"role": "developer", "content": "Be brief."}), &user], None);
    add("tools", &[&user], Some(tools()));
    add("system-tools", &[&system, &user], Some(tools()));
    for (name, arguments) in
        [("object", arguments()), ("string", json!("{\"city\": \"Zürich\", \"days\": 3}"))]
    {
        let call = call("call00001", "get_weather", &arguments);
        let result = result("call00001", "get_weather", "{\"celsius\": 21.5}");
        let calling = json!({"role": "assistant", "content": "", "tool_calls": [call]});
        let null = json!({"role": "assistant", "content": null, "tool_calls": [call]});
        let spoken = json!({
            "role": "assistant",
            "content": "I look it up.",
            "reasoning_content": "It depends on the weather.",
            "tool_calls": [call],
        });
        add(&format!("call-{name}"), &[&user, &calling], Some(tools()));
        add(&format!("result-{name}"), &[&user, &calling, &result], Some(tools()));
        add(
            &format!("null-{name}"),
            &[&system, &user, &null, &result, &answer, &more],
            Some(tools()),
        );
        add(&format!("spoken-{name}"), &[&system, &user, &spoken, &result, &answer], Some(tools()));
        add(&format!("no-tools-{name}"), &[&user, &calling, &result, &answer, &more], None);
    }
    let both = json!({"role": "assistant", "content": "", "tool_calls": [
        call("call00001", "get_weather", &arguments()),
        call("call00002", "now", &json!({})),
    ]});
    let first = result("call00001", "get_weather", "sunny");
    let second = result("call00002", "now", "noon");
    add("parallel", &[&system, &user, &both, &first, &second, &answer, &more], Some(tools()));
    add("assistant-first", &[&answer, &user], None);
    add("two-users", &[&user, &more], None);
    add("empty", &[], None);
    with_variables(&mut cases);
    cases
}

/// Some conversations again with the variables that templates ask for.
fn with_variables(cases: &mut Vec<Case>) {
    let settings = [
        ("no-thinking", json!({"enable_thinking": false, "thinking": false})),
        (
            "thinking",
            json!({
                "enable_thinking": true,
                "thinking": true,
                "reasoning_effort": "high",
                "preserve_thinking": true,
            }),
        ),
        ("dated", json!({"date_string": "1 Jan 2025", "tools_in_user_message": false})),
    ];
    for (setting, variables) in settings {
        for name in ["system-turns+", "reasoned+", "spoken-object+", "system-tools+"] {
            let Some(case) = cases.iter().find(|case| case.name == name) else { continue };
            let case = Case {
                name: format!("{setting}/{name}"),
                messages: case.messages.clone(),
                tools: case.tools.clone(),
                add_generation_prompt: true,
                variables: variables.as_object().cloned().unwrap_or_default(),
            };
            cases.push(case);
        }
    }
}

fn arguments() -> Value {
    json!({
        "city": "Zürich \"Mitte\" <1>",
        "days": 3,
        "ratio": 0.5,
        "exact": true,
        "unit": null,
        "tags": ["a", 1, false],
        "nested": {"z": 1, "a": {}},
    })
}

fn call(id: &str, name: &str, arguments: &Value) -> Value {
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

fn result(id: &str, name: &str, content: &str) -> Value {
    json!({"role": "tool", "tool_call_id": id, "name": name, "content": content})
}

fn tools() -> Value {
    json!([
        {
            "type": "function",
            "function": {
                "name": "get_weather",
                "description": "The weather of a city.\nIn \"plain\" words & <numbers>.",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "city": {"type": "string", "description": "The city, e.g. Zürich"},
                        "days": {"type": "integer", "default": 1, "minimum": 0},
                        "ratio": {"type": ["number", "null"]},
                        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "nullable": true},
                        "tags": {"type": "array", "items": {"type": "string"}},
                        "nested": {
                            "type": "object",
                            "properties": {"z": {"type": "integer"}},
                            "required": ["z"],
                        },
                    },
                    "required": ["city"],
                },
                "return": {"type": "string", "description": "The weather"},
            },
        },
        {
            "type": "function",
            "function": {
                "name": "now",
                "description": "The time of day",
                "parameters": {"type": "object", "properties": {}},
            },
        },
    ])
}
