//! Parts of an answer, one by one and collected.

/// Part of an answer. Parts of one kind follow one another; their texts are to be appended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChatEvent {
    /// Reasoning before or between the other parts.
    Reasoning(String),
    /// Content for the user.
    Content(String),
    /// Start of a tool call. Calls are numbered from 0; one ends where the next part begins.
    ToolCall {
        /// Number of the call in the answer.
        index: usize,
        /// Identifier that the model has written; most formats have none.
        id: Option<String>,
        /// Name of the tool.
        name: String,
    },
    /// Fragment of the arguments of a tool call. All fragments of a call are one JSON object.
    Arguments {
        /// Number of the call in the answer.
        index: usize,
        /// Fragment of JSON.
        fragment: String,
    },
}

/// Parts of an answer, collected.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChatMessage {
    /// Reasoning; empty without any.
    pub reasoning: String,
    /// Content for the user.
    pub content: String,
    /// Tool calls in their order.
    pub tool_calls: Vec<ToolCall>,
}

/// Tool call of an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolCall {
    /// Identifier that the model has written; most formats have none.
    pub id: Option<String>,
    /// Name of the tool.
    pub name: String,
    /// Arguments, a JSON object; cut off if the answer was.
    pub arguments: String,
}

impl ChatEvent {
    /// Text of the part: that to append, or the name of a tool.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Reasoning(text) | Self::Content(text) => text,
            Self::ToolCall { name, .. } => name,
            Self::Arguments { fragment, .. } => fragment,
        }
    }
}

impl ChatMessage {
    /// Appends a part.
    pub fn push(&mut self, event: &ChatEvent) {
        match event {
            ChatEvent::Reasoning(text) => self.reasoning.push_str(text),
            ChatEvent::Content(text) => self.content.push_str(text),
            ChatEvent::ToolCall { id, name, .. } => {
                let call = ToolCall { id: id.clone(), name: name.clone(), ..ToolCall::default() };
                self.tool_calls.push(call);
            }
            ChatEvent::Arguments { index, fragment } => {
                if let Some(call) = self.tool_calls.get_mut(*index) {
                    call.arguments.push_str(fragment);
                }
            }
        }
    }
}

impl FromIterator<ChatEvent> for ChatMessage {
    fn from_iter<I: IntoIterator<Item = ChatEvent>>(events: I) -> Self {
        let mut message = Self::default();
        events.into_iter().for_each(|event| message.push(&event));
        message
    }
}
