//! Output items of OpenAI's Responses, and their events.

use std::collections::HashMap;

use serde::Serialize;

use super::objects::{Event, Status};
use crate::ids::new_id;

/// Output item.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) id: String,
    pub(super) status: Status,
    pub(super) kind: ItemKind,
    /// Text, or arguments of a call.
    pub(super) text: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ItemKind {
    /// Reasoning as content.
    Reasoning,
    /// Reasoning as its summary.
    Summary,
    Message,
    Call {
        call_id: String,
        name: String,
        namespace: Option<String>,
    },
}

/// Names of the events of a text.
#[derive(Debug, Clone, Copy)]
pub(super) struct EventNames {
    /// Start and end of the part that has the text; calls have none.
    pub(super) part: Option<[&'static str; 2]>,
    pub(super) delta: &'static str,
    pub(super) done: &'static str,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum ItemObject<'a> {
    Reasoning {
        id: &'a str,
        status: Status,
        summary: Vec<Part<'a>>,
        content: Vec<Part<'a>>,
    },
    Message {
        id: &'a str,
        status: Status,
        role: &'static str,
        content: Vec<Part<'a>>,
    },
    FunctionCall {
        id: &'a str,
        status: Status,
        call_id: &'a str,
        name: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<&'a str>,
        arguments: &'a str,
    },
}

#[derive(Debug, Serialize)]
#[serde(tag = "type")]
pub(super) enum Part<'a> {
    #[serde(rename = "reasoning_text")]
    Reasoning { text: &'a str },
    #[serde(rename = "summary_text")]
    Summary { text: &'a str },
    #[serde(rename = "output_text")]
    Output { text: &'a str, annotations: [(); 0], logprobs: [(); 0] },
}

impl ItemKind {
    /// A call of the function `name`. Codex finds the tools of MCP servers by namespace and own name (codex 36942).
    pub(super) fn call(
        namespaces: &HashMap<String, [String; 2]>,
        call_id: String,
        name: &str,
    ) -> Self {
        match namespaces.get(name) {
            Some([namespace, own]) => {
                Self::Call { call_id, name: own.clone(), namespace: Some(namespace.clone()) }
            }
            None => Self::Call { call_id, name: name.to_owned(), namespace: None },
        }
    }

    pub(super) fn events(&self) -> EventNames {
        match self {
            Self::Reasoning => EventNames {
                part: Some(["response.content_part.added", "response.content_part.done"]),
                delta: "response.reasoning_text.delta",
                done: "response.reasoning_text.done",
            },
            Self::Summary => EventNames {
                part: Some([
                    "response.reasoning_summary_part.added",
                    "response.reasoning_summary_part.done",
                ]),
                delta: "response.reasoning_summary_text.delta",
                done: "response.reasoning_summary_text.done",
            },
            Self::Message => EventNames {
                part: Some(["response.content_part.added", "response.content_part.done"]),
                delta: "response.output_text.delta",
                done: "response.output_text.done",
            },
            Self::Call { .. } => EventNames {
                part: None,
                delta: "response.function_call_arguments.delta",
                done: "response.function_call_arguments.done",
            },
        }
    }
}

impl Item {
    pub(super) fn new(kind: ItemKind) -> Self {
        let prefix = match kind {
            ItemKind::Reasoning | ItemKind::Summary => "rs_",
            ItemKind::Message => "msg_",
            ItemKind::Call { .. } => "fc_",
        };
        Self { id: new_id(prefix), status: Status::InProgress, kind, text: String::new() }
    }

    pub(super) fn object(&self) -> ItemObject<'_> {
        let (id, status) = (self.id.as_str(), self.status);
        // An item that begins has no parts.
        let has_parts = status != Status::InProgress || !self.text.is_empty();
        let parts = || self.part().filter(|_| has_parts).into_iter().collect();
        match &self.kind {
            ItemKind::Reasoning => {
                ItemObject::Reasoning { id, status, summary: Vec::new(), content: parts() }
            }
            ItemKind::Summary => {
                ItemObject::Reasoning { id, status, summary: parts(), content: Vec::new() }
            }
            ItemKind::Message => {
                ItemObject::Message { id, status, role: "assistant", content: parts() }
            }
            ItemKind::Call { call_id, name, namespace } => ItemObject::FunctionCall {
                id,
                status,
                call_id,
                name,
                namespace: namespace.as_deref(),
                arguments: &self.text,
            },
        }
    }

    /// Part that has the text; calls have none.
    pub(super) fn part(&self) -> Option<Part<'_>> {
        let text = self.text.as_str();
        match self.kind {
            ItemKind::Reasoning => Some(Part::Reasoning { text }),
            ItemKind::Summary => Some(Part::Summary { text }),
            ItemKind::Message => Some(Part::Output { text, annotations: [], logprobs: [] }),
            ItemKind::Call { .. } => None,
        }
    }

    /// Event of this item, which is the output `index`.
    pub(super) fn event(&self, kind: &'static str, index: usize) -> Event<'_> {
        let is_content = matches!(self.kind, ItemKind::Reasoning | ItemKind::Message);
        Event {
            kind,
            item_id: Some(&self.id),
            output_index: Some(index),
            content_index: is_content.then_some(0),
            summary_index: (self.kind == ItemKind::Summary).then_some(0),
            logprobs: kind.starts_with("response.output_text").then_some([]),
            ..Event::default()
        }
    }

    /// Event of the end of the text.
    pub(super) fn done_event(&self, index: usize) -> Event<'_> {
        let text = Some(self.text.as_str());
        let event = self.event(self.kind.events().done, index);
        match &self.kind {
            ItemKind::Call { name, .. } => Event { name: Some(name), arguments: text, ..event },
            _ => Event { text, ..event },
        }
    }

    /// Event of the whole item.
    pub(super) fn whole_event(&self, kind: &'static str, index: usize) -> Event<'_> {
        let output_index = Some(index);
        Event { kind, output_index, item: Some(self.object()), ..Event::default() }
    }
}
