//! Bodies of chats as requests of the library.

use serde_json::{Value, json};
use stonechat::ReasoningOptions;
use stonechat::text::ChatTemplate;

use super::{ChatBody, ChatDefaults, ChatRequest, ReasoningFormat};

fn body(value: Value) -> ChatBody {
    serde_json::from_value(value).unwrap()
}

fn request(value: Value) -> ChatRequest {
    body(value).request(&ChatDefaults::default(), false).unwrap()
}

fn messages(value: Value) -> Vec<Value> {
    request(json!({ "messages": value })).conversation.messages
}

#[track_caller]
fn refused(value: Value, expected: &str) {
    let error = body(value).request(&ChatDefaults::default(), false).unwrap_err();
    assert_eq!((error.status(), error.message()), (400, expected));
}

/// Text with `ChatML`.
fn rendered(value: Value) -> String {
    let template = ChatTemplate::builtin("chatml", "", "").unwrap();
    template.render(&request(value).conversation).unwrap()
}

#[test]
fn messages_get_the_form_of_templates() {
    let got = messages(json!([
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "1"}]},
        {"role": "tool", "tool_call_id": "1", "content": "7"},
    ]));
    let expected = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]},
        {"role": "tool", "tool_call_id": "1", "content": "7"},
    ]);
    assert_eq!(Value::Array(got), expected);
}

#[test]
fn invalid_messages_are_named() {
    refused(json!({"messages": []}), "`messages`: expected at least one message, got none");
    refused(json!({"messages": ["hi"]}), "`messages[0]`: expected an object, got a string");
    refused(
        json!({"messages": [{"content": "hi"}]}),
        "`messages[0].role`: expected a string, got nothing",
    );
    refused(
        json!({"messages": [{"role": "wizard", "content": "hi"}]}),
        "`messages[0].role`: expected `system`, `developer`, `user`, `assistant`, `tool`, `function`, got `wizard`",
    );
    refused(
        json!({"messages": [{"role": "user"}]}),
        "`messages[0].content`: expected a text, got nothing",
    );
    refused(
        json!({"messages": [{"role": "assistant"}]}),
        "`messages[0].content`: expected a text, or `tool_calls` beside it, got nothing",
    );
    refused(
        json!({"messages": [{"role": "user", "content": 7}]}),
        "`messages[0].content`: expected a string or a list of parts, got a number",
    );
    refused(
        json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
        "`messages[0].content[0].type`: expected `text`, got `image_url`, which needs a model that sees or hears; recordings go to `/v1/audio/transcriptions`",
    );
    refused(
        json!({"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
        "`messages[0].content[0].text`: expected a string, got null",
    );
}

#[test]
fn the_billing_line_is_cut_from_system_messages_alone() {
    let line = "x-anthropic-billing-header: cc_version=2.1; cch=0a1b2;";
    let got = messages(json!([
        {"role": "system", "content": format!("{line}\nYou are Claude Code.\n")},
        {"role": "system", "content": [{"type": "text", "text": line}, {"type": "text", "text": "Second."}]},
        {"role": "user", "content": line},
    ]));
    assert_eq!(got[0]["content"], "You are Claude Code.\n");
    assert_eq!(got[1]["content"], "Second.");
    assert_eq!(got[2]["content"], line);
}

#[test]
fn an_answer_begins_or_continues() {
    let user = json!({"role": "user", "content": "Hi"});
    let begin = "<|im_start|>user\nHi<|im_end|>\n";
    assert_eq!(rendered(json!({"messages": [user]})), format!("{begin}<|im_start|>assistant\n"));
    assert_eq!(rendered(json!({"messages": [user], "add_generation_prompt": false})), begin);
    let prefilled = json!([user, {"role": "assistant", "content": "Hello, "}]);
    let continued = format!("{begin}<|im_start|>assistant\nHello, ");
    // llama-server continues a last message of the assistant without being told.
    assert_eq!(rendered(json!({"messages": prefilled})), continued);
    assert_eq!(rendered(json!({"messages": prefilled, "continue_final_message": true})), continued);
    assert_eq!(
        rendered(json!({"messages": prefilled, "continue_final_message": false})),
        format!("{continued}<|im_end|>\n<|im_start|>assistant\n")
    );
    let empty = json!([user, {"role": "assistant", "content": ""}]);
    assert_eq!(rendered(json!({"messages": empty})), format!("{begin}<|im_start|>assistant\n"));
    refused(
        json!({"messages": [user], "continue_final_message": true}),
        "`continue_final_message`: expected a text of the assistant as the last message, got another message",
    );
    refused(
        json!({"messages": prefilled, "continue_final_message": true, "add_generation_prompt": true}),
        "`continue_final_message`: expected false with `add_generation_prompt`, got both true",
    );
}

#[test]
fn variables_and_tools_reach_the_template() {
    let ChatRequest { conversation, .. } = request(json!({
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "chat_template_kwargs": {"enable_thinking": false},
    }));
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    assert_eq!(conversation.tools, Some(tools));
    assert_eq!(conversation.variables["enable_thinking"], false);
}

#[test]
fn what_a_chat_cannot_do_is_refused() {
    let checked = |fields: &Value| {
        let mut body = fields.clone();
        body["messages"] = json!([]);
        self::body(body).check_answer()
    };
    let tool = json!([{"type": "function", "function": {"name": "f"}}]);
    for fine in [
        json!({}),
        json!({"tools": [], "tool_choice": "auto", "functions": null}),
        json!({"tools": tool, "tool_choice": "none", "modalities": ["text"]}),
        json!({"tools": tool, "tool_choice": "required", "parallel_tool_calls": false}),
        json!({"reasoning_format": "deepseek", "reasoning_budget_tokens": -1}),
        json!({"reasoning_format": "deepseek-legacy"}),
    ] {
        assert!(checked(&fine).is_ok(), "{fine}");
    }
    for (body, name) in [
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"functions": tool}), "functions"),
        (json!({"function_call": {"name": "f"}}), "function_call"),
        (json!({"modalities": ["text", "audio"]}), "modalities"),
        (json!({"web_search_options": {}}), "web_search_options"),
        (json!({"reasoning_format": "xml"}), "reasoning_format"),
    ] {
        let error = checked(&body).unwrap_err();
        assert!(error.message().starts_with(&format!("`{name}`: expected ")), "{error}");
    }
}

#[test]
fn reasoning_has_one_meaning_under_all_its_names() {
    let reasoning = |mut fields: Value| {
        fields["messages"] = json!([{"role": "user", "content": "Hi"}]);
        request(fields).reasoning
    };
    let off = reasoning(json!({"reasoning_effort": "none"}));
    assert_eq!((off.enabled, off.effort), (Some(false), None));
    let low = reasoning(json!({"reasoning": {"effort": "low", "max_tokens": 9}}));
    assert_eq!((low.effort.as_deref(), low.budget), (Some("low"), Some(9)));
    assert_eq!(reasoning(json!({"thinking_budget_tokens": 0})).budget, Some(0));
    assert_eq!(reasoning(json!({"reasoning_budget_tokens": -1})).budget, None);
    assert!(!reasoning(json!({"reasoning_format": "none"})).is_split);
}

#[test]
fn reasoning_of_earlier_answers_has_the_name_of_templates() {
    let got = messages(json!([{"role": "assistant", "content": "a", "reasoning": "r"}]));
    assert_eq!(got[0]["reasoning_content"], "r");
    assert!(got[0].get("reasoning").is_none());
}

/// Request of a chat with `fields`, in a stream or not.
fn defaulted(mut fields: Value, defaults: &ChatDefaults, is_stream: bool) -> ChatRequest {
    fields["messages"] = json!([{"role": "user", "content": "Hi"}]);
    body(fields).request(defaults, is_stream).unwrap()
}

#[test]
fn a_request_wins_over_the_defaults_of_the_server() {
    let variables = json!({"enable_thinking": true, "tone": "dry"});
    let defaults = ChatDefaults {
        thinking: Some(false),
        reasoning_budget: Some(7),
        reasoning_format: ReasoningFormat::Content,
        variables: variables.as_object().unwrap().clone(),
    };
    let none = defaulted(json!({}), &defaults, false);
    let ReasoningOptions { enabled, budget, is_split, .. } = none.reasoning;
    assert_eq!((enabled, budget, is_split), (Some(false), Some(7), false));
    assert_eq!(json!(none.conversation.variables), variables);
    let all = defaulted(
        json!({
            "enable_thinking": true, "reasoning_budget_tokens": -1, "reasoning_format": "auto",
            "chat_template_kwargs": {"enable_thinking": false},
        }),
        &defaults,
        false,
    );
    let ReasoningOptions { enabled, budget, is_split, .. } = all.reasoning;
    assert_eq!((enabled, budget, is_split), (Some(true), None, true));
    let expected = json!({"enable_thinking": false, "tone": "dry"});
    assert_eq!(json!(all.conversation.variables), expected);
    // An effort asks for reasoning.
    let effort = defaulted(json!({"reasoning_effort": "low"}), &defaults, false);
    assert_eq!(effort.reasoning.enabled, None);
}

#[test]
fn the_legacy_format_leaves_reasoning_in_the_content_of_streams() {
    let is_split = |fields: Value, is_stream| {
        let defaults = ChatDefaults::default();
        defaulted(fields, &defaults, is_stream).reasoning.is_split
    };
    let legacy = json!({"reasoning_format": "deepseek-legacy"});
    assert!(is_split(legacy.clone(), false) && !is_split(legacy, true));
    assert!(is_split(json!({}), true));
}
