//! The built-in chat templates print the same as llama.cpp's of their names.
//!
//! The texts are made by `test-data/golden/chat-templates/make.py` with llama.cpp itself.

use std::collections::BTreeMap;

use serde::Deserialize;
use stonechat_text::{ChatTemplate, Conversation};

#[derive(Deserialize)]
struct Golden {
    conversations: Vec<Vec<serde_json::Value>>,
    texts: BTreeMap<String, Vec<[String; 2]>>,
}

#[test]
fn builtin_templates_equal_llama_cpps() {
    let path =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/golden/chat-templates/builtin.json");
    let golden: Golden = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    for (name, expected) in &golden.texts {
        let template = ChatTemplate::builtin(name, "<s>", "</s>").unwrap();
        assert_eq!(expected.len(), golden.conversations.len(), "{name}");
        for (messages, texts) in golden.conversations.iter().zip(expected) {
            for (add_generation_prompt, text) in [false, true].into_iter().zip(texts) {
                let conversation = Conversation {
                    messages: messages.clone(),
                    add_generation_prompt,
                    ..Conversation::default()
                };
                let got = template.render(&conversation).unwrap();
                assert_eq!(&got, text, "{name}: {messages:?}");
            }
        }
    }
    // llama.cpp has no `plain`.
    assert_eq!(golden.texts.len(), ChatTemplate::builtin_names().count() - 1);
}
