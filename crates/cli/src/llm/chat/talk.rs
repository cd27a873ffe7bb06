//! State of a conversation that outlives its model.

use serde_json::Value;

use super::args::ChatArgs;
use super::thinking::Thinking;

/// Messages and parameters of a conversation, carried over to another model.
#[derive(Debug, Default)]
pub(super) struct Talk {
    pub(super) messages: Vec<Value>,
    /// Arguments of `/set`.
    pub(super) parameters: Vec<String>,
    /// Files of `/save`.
    pub(super) saved: Vec<String>,
    /// Whether the first message was answered.
    pub(super) has_begun: bool,
    /// Reasoning, once a command has changed it.
    pub(super) thinking: Option<Thinking>,
}

impl Talk {
    /// Reasoning of the conversation, as the flags or the last `/think` have set it.
    pub(super) fn thinking_mut(&mut self, args: &ChatArgs) -> &mut Thinking {
        self.thinking.get_or_insert_with(|| Thinking::new(&args.thinking))
    }
}
