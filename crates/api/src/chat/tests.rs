//! Chunks of a chat, with parts of answers made by hand.

use std::sync::LazyLock;

use serde_json::{Value, json};
use stonechat::llm::chat::ChatEvent;
use stonechat::{Device, Llm};

use super::{AnswerHead, ChatObjects};
use crate::chat_answer::{ChatStep, ChatWriter};
use crate::generation::RequestStats;

fn writer() -> ChatObjects {
    static LLM: LazyLock<Llm> = LazyLock::new(|| {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/golden/llm/llama.gguf");
        Llm::builder().device(Device::Cpu).open(path).unwrap()
    });
    ChatObjects {
        head: AnswerHead { id: "chatcmpl-1".to_owned(), created: 7, model: "m".to_owned() },
        model: LLM.info().model.clone(),
        probs: None,
        native: None,
        n_choices: 1,
        has_timings_per_token: false,
        has_progress: false,
        includes_usage: true,
    }
}

/// Deltas of the chunks of a stream of these parts.
fn deltas(events: Vec<ChatEvent>) -> Vec<Value> {
    let (mut writer, stats) = (writer(), RequestStats::new(9, 1));
    let mut frames = writer.start(&stats);
    frames.extend(writer.step(ChatStep { choice: 0, events, probs: Vec::new(), stats: &stats }));
    let delta = |data: &str| {
        let mut chunk: Value = serde_json::from_str(data).unwrap();
        assert_eq!(chunk["object"], "chat.completion.chunk");
        chunk["choices"][0]["delta"].take()
    };
    frames.iter().map(|frame| delta(&frame.data)).collect()
}

fn call(index: usize) -> ChatEvent {
    ChatEvent::ToolCall { index, id: Some(format!("call_{index}")), name: "f".to_owned() }
}

fn arguments(index: usize, fragment: &str) -> ChatEvent {
    ChatEvent::Arguments { index, fragment: fragment.to_owned() }
}

/// litellm 20480 joins what comes twice; ollama 15467 and oh-my-pi 1970 gave each call the index 0.
#[test]
fn identifier_and_name_of_a_call_come_once_and_its_index_always() {
    let events =
        vec![call(0), arguments(0, "{\"a\":"), arguments(0, "1}"), call(1), arguments(1, "{}")];
    let begun = |index: usize| {
        let function = json!({"name": "f", "arguments": ""});
        json!({"tool_calls": [
            {"index": index, "id": format!("call_{index}"), "type": "function", "function": function},
        ]})
    };
    let continued = |index: usize, fragment: &str| json!({"tool_calls": [{"index": index, "function": {"arguments": fragment}}]});
    let expected = [
        json!({"role": "assistant", "content": null}),
        begun(0),
        continued(0, "{\"a\":"),
        continued(0, "1}"),
        begun(1),
        continued(1, "{}"),
    ];
    assert_eq!(deltas(events), expected);
}

/// opencode, Zed and `DeepSeek`'s clients read the one name, vLLM's and `OpenRouter`'s the other.
#[test]
fn reasoning_has_both_names_and_is_no_content() {
    let deltas =
        deltas(vec![ChatEvent::Reasoning("Hm.".to_owned()), ChatEvent::Content("So.".to_owned())]);
    let reasoning = json!({"reasoning_content": "Hm.", "reasoning": "Hm."});
    assert_eq!(deltas[1..], [reasoning, json!({"content": "So."})]);
}
