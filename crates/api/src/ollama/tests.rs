//! Bodies and lines of Ollama.

use serde_json::{Value, json};
use stonechat::llm::chat::{ChatEvent, ChatMessage};
use stonechat::sampling::SamplingOptions;
use stonechat::{Completion, Finish};

use super::answer::{Lines, Route, now};
use super::{Action, EmbedBody, OllamaBody, OllamaChat, OllamaGenerate};
use crate::chat_answer::{Chat, ChatAnswer, ChatDialect, ChatStep, ChatWriter};
use crate::generation::RequestStats;
use crate::text::{Dialect, Frame};
use crate::{Defaults, ParseBody};

#[track_caller]
fn adapted(body: Value) -> Value {
    let Value::Object(mut body) = body else { panic!("an object") };
    OllamaChat::adapt(&mut body).unwrap();
    Value::Object(body)
}

fn parsed<T: ParseBody>(body: &Value) -> Result<T, String> {
    let sampling = SamplingOptions::default();
    let parsed = T::parse(body.to_string().as_bytes(), &Defaults::new(&sampling));
    parsed.map_err(|error| error.message().to_owned())
}

fn chat(fields: Value) -> Value {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}]});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

#[test]
fn options_of_home_assistant_may_be_floats() {
    let body = chat(json!({
        "options": {"num_ctx": 8192.0, "num_predict": -2.0, "top_k": 4.0, "num_gpu": 1},
        "keep_alive": -1, "think": "low", "stream": false,
        "format": {"type": "object"},
    }));
    let expected = json!({
        "model": "m", "stream": false, "n_predict": -1, "top_k": 4.0,
        "messages": [{"role": "user", "content": "Hi"}],
        "enable_thinking": true, "reasoning_effort": "low",
        "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
    });
    assert_eq!(adapted(body.clone()), expected);
    let body: OllamaBody<Chat<OllamaChat>> = parsed(&body).unwrap();
    assert_eq!((body.num_ctx(), body.unloads()), (Some(8192.0), false));
    assert!(!body.is_stream());
}

#[test]
fn a_stream_is_the_default() {
    assert_eq!(adapted(chat(json!({})))["stream"], true);
    let body: OllamaBody<Chat<OllamaChat>> = parsed(&chat(json!({}))).unwrap();
    assert!(body.is_stream());
}

#[test]
fn a_history_of_calls_gets_identifiers() {
    let call = |name: &str| json!({"function": {"name": name, "arguments": {"x": 1}}});
    let body = chat(json!({"messages": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "tool_calls": [call("f"), call("g")], "thinking": "hm"},
        {"role": "tool", "tool_name": "g", "content": "2"},
        {"role": "tool", "content": "1"},
    ]}));
    let known = |id: &str, name: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": "{\"x\":1}"}});
    let expected = json!([
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant", "content": "", "reasoning_content": "hm",
            "tool_calls": [known("call00000", "f"), known("call00001", "g")],
        },
        {"role": "tool", "name": "g", "tool_call_id": "call00001", "content": "2"},
        {"role": "tool", "name": "f", "tool_call_id": "call00000", "content": "1"},
    ]);
    assert_eq!(adapted(body)["messages"], expected);
}

#[test]
fn bodies_without_text_load_or_unload() {
    let wanted = |body: Value| {
        let body: OllamaBody<Chat<OllamaChat>> = parsed(&body).unwrap();
        (body.wanted(), body.unloads())
    };
    assert_eq!(wanted(json!({"model": "m"})), (Action::Load, false));
    assert_eq!(wanted(json!({"model": "m", "messages": []})), (Action::Load, false));
    for zero in [json!(0), json!(0.0), json!("0"), json!("0s"), json!("0m0s")] {
        let body = json!({"model": "m", "messages": [], "keep_alive": zero});
        assert_eq!(wanted(body), (Action::Unload, true), "{zero}");
        assert_eq!(wanted(chat(json!({"keep_alive": zero}))), (Action::Text, true), "{zero}");
    }
    for other in [json!(-1), json!(300), json!("300s"), json!("1h30m"), json!("-1"), json!(null)] {
        assert_eq!(wanted(chat(json!({"keep_alive": other}))), (Action::Text, false), "{other}");
    }
}

#[test]
fn invalid_fields_are_named() {
    for (fields, expected) in [
        (json!({"model": ""}), "`model`: expected the name of a model, got none"),
        (
            json!({"keep_alive": "soon"}),
            "`keep_alive`: expected seconds, or a duration such as `5m`, got `soon`",
        ),
        (json!({"options": {"num_ctxt": 1}}), "`options.num_ctxt`: no such option"),
        (json!({"format": "xml"}), "`format`: expected `json` or a JSON schema, got a string"),
        (
            json!({"think": "much"}),
            "`think`: expected a boolean, `low`, `medium`, `high` or `max`, got `much`",
        ),
        (
            json!({"messages": [{"role": "user", "content": "a", "images": ["aa"]}]}),
            "`messages[0].images`: expected no images, got a list, which needs a model that sees",
        ),
    ] {
        let error = parsed::<OllamaBody<Chat<OllamaChat>>>(&chat(fields)).unwrap_err();
        assert_eq!(error, expected);
    }
    let generate = json!({"model": "m", "prompt": "a", "template": "{{ .Prompt }}"});
    let error = parsed::<OllamaBody<OllamaGenerate>>(&generate).unwrap_err();
    assert_eq!(
        error,
        "`template`: expected none: the chat template is that of the model, got a string"
    );
}

#[test]
fn a_completion_has_the_messages_of_a_chat() {
    let body = json!({"model": "m", "prompt": "Hi", "system": "Be brief.", "template": ""});
    let Value::Object(mut body) = body else { panic!("an object") };
    <OllamaGenerate as Dialect>::adapt(&mut body).unwrap();
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]);
    assert_eq!(body["messages"], messages);
    assert_eq!((&body["stream"], &body["raw"]), (&json!(true), &json!(false)));
}

/// [LocalAI 9780](https://github.com/mudler/LocalAI/pull/9780).
#[test]
fn embed_takes_a_prompt() {
    for name in ["input", "prompt"] {
        let body: EmbedBody = parsed(&json!({"model": "m", name: "a", "truncate": true})).unwrap();
        let sampling = SamplingOptions::default();
        assert!(body.request(&Defaults::new(&sampling)).unwrap().is_some(), "{name}");
    }
    let body: EmbedBody = parsed(&json!({"model": "m"})).unwrap();
    let sampling = SamplingOptions::default();
    assert!(body.request(&Defaults::new(&sampling)).unwrap().is_none());
}

fn parts() -> Vec<ChatEvent> {
    let call =
        |index| ChatEvent::ToolCall { index, id: Some("c".to_owned()), name: "f".to_owned() };
    let fragment =
        |index, fragment: &str| ChatEvent::Arguments { index, fragment: fragment.to_owned() };
    vec![
        ChatEvent::Reasoning("hm".to_owned()),
        ChatEvent::Content("a".to_owned()),
        call(0),
        fragment(0, "{\"x\":"),
        fragment(0, "1}"),
        call(1),
        fragment(1, "{}"),
    ]
}

fn answer(finish: Finish) -> ChatAnswer {
    let mut completion = Completion::default();
    (completion.finish, completion.tokens) = (finish, vec![1, 2, 3]);
    completion.prompt_tokens = 9;
    completion.timings.prompt_ms = 1.5;
    let message = parts().into_iter().collect::<ChatMessage>();
    ChatAnswer { message, completion, reasoning_tokens: 0 }
}

/// Lines without their times.
fn lines(frames: Vec<Frame>) -> Vec<Value> {
    let line = |frame: Frame| {
        assert_eq!(frame.event, None);
        let mut line: Value = serde_json::from_str(&frame.data).unwrap();
        let fields = line.as_object_mut().unwrap();
        assert!(fields.remove("created_at").unwrap().as_str().unwrap().ends_with('Z'));
        fields.remove("total_duration");
        line
    };
    frames.into_iter().map(line).collect()
}

/// [LocalAI 9849](https://github.com/mudler/LocalAI/pull/9849).
#[test]
fn calls_are_whole_and_their_arguments_are_objects() {
    let mut writer = Lines::new("m", Route::Chat);
    let stats = RequestStats::new(9, 1);
    assert!(writer.start(&stats).is_empty());
    let step = ChatStep { choice: 0, events: parts(), probs: Vec::new(), stats: &stats };
    let mut got = lines(writer.step(step));
    got.extend(lines(writer.end(&[answer(Finish::EndOfText)])));
    let line = |mut message: Value| {
        message["role"] = "assistant".into();
        json!({"model": "m", "message": message, "done": false})
    };
    let call = |index: usize, arguments: Value| {
        let function = json!({"index": index, "name": "f", "arguments": arguments});
        line(json!({"content": "", "tool_calls": [{"id": "c", "function": function}]}))
    };
    let expected = vec![
        line(json!({"content": "", "thinking": "hm"})),
        line(json!({"content": "a"})),
        call(0, json!({"x": 1})),
        call(1, json!({})),
        json!({
            "model": "m", "message": {"role": "assistant", "content": ""}, "done": true,
            "done_reason": "stop", "load_duration": 0, "prompt_eval_count": 9,
            "prompt_eval_duration": 1_500_000, "eval_count": 3, "eval_duration": 0,
        }),
    ];
    assert_eq!(got, expected);
}

#[test]
fn a_whole_answer_has_all_parts() {
    let whole = lines(vec![Lines::new("m", Route::Chat).whole(&[answer(Finish::Length)])]);
    let message = &whole[0]["message"];
    assert_eq!((&message["content"], &message["thinking"]), (&json!("a"), &json!("hm")));
    assert_eq!(message["tool_calls"][1]["function"]["index"], 1);
    assert_eq!((&whole[0]["done"], &whole[0]["done_reason"]), (&json!(true), &json!("length")));
    let route = Route::Generate { context: Some(vec![7]) };
    let whole = lines(vec![Lines::new("m", route).whole(&[answer(Finish::EndOfText)])]);
    assert_eq!((&whole[0]["response"], &whole[0]["thinking"]), (&json!("a"), &json!("hm")));
    assert_eq!(whole[0]["context"], json!([7, 1, 2, 3]));
}

#[test]
fn times_have_nanoseconds() {
    let time = now();
    assert_eq!(time.len(), "2026-11-30T09:00:00.123456789Z".len(), "{time}");
}
