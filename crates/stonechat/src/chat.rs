//! Request for an answer in a conversation, whatever the API that it comes from.

use serde_json::{Value, json};
use stonechat_llm::chat::{AnswerParser, ChatMessage, ToolChoice};
use stonechat_llm::{Completion, GenerateOptions, Request};
use stonechat_sampling::GrammarSource;
use stonechat_text::Conversation;

/// Conversation with the options of its answer.
///
/// ```
/// use stonechat::ChatRequest;
///
/// let chat = ChatRequest::new().system("Answer in one sentence.").user("Why is the sky blue?");
/// let chat = chat.max_tokens(100).temperature(0.2);
/// ```
#[derive(Debug, Clone)]
pub struct ChatRequest {
    /// Messages as objects of OpenAI's chat API, definitions of tools, and further variables of the chat template.
    pub conversation: Conversation,
    /// Tools that the answer may or must call.
    pub tool_choice: ToolChoice,
    /// Whether the answer may call several tools.
    pub parallel_tool_calls: bool,
    /// Reasoning before the answer.
    pub reasoning: ReasoningOptions,
    /// Options of the answer.
    pub options: GenerateOptions,
    /// Grammar of the content in place of that of `options`; it is compiled for the vocabulary of the model. With tools that
    /// the answer may call it is a JSON schema.
    pub grammar: Option<GrammarSource>,
}

/// Options of the reasoning before an answer. Templates without reasoning ignore them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReasoningOptions {
    /// Whether the model reasons; `None`: as its template has it.
    pub enabled: Option<bool>,
    /// Effort, a word of the template such as `low`.
    pub effort: Option<String>,
    /// Maximum tokens; the end of the reasoning follows them.
    pub budget: Option<usize>,
    /// Whether reasoning is a part of its own; otherwise it stays in the content.
    pub is_split: bool,
}

impl Default for ReasoningOptions {
    fn default() -> Self {
        Self { enabled: None, effort: None, budget: None, is_split: true }
    }
}

/// Request of the engine for the answer of a chat, and the parser of the answer.
#[derive(Debug)]
#[non_exhaustive]
pub struct PreparedChat {
    /// Request; the prompt by the chat template, the grammar compiled.
    pub request: Request,
    /// Parser of each text of the answer.
    pub parser: AnswerParser,
}

/// Answer of a chat in its parts.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ChatAnswer {
    /// Reasoning, content, tool calls.
    pub message: ChatMessage,
    /// Text as the model has written it, with counts and times.
    pub completion: Completion,
}

impl Default for ChatRequest {
    fn default() -> Self {
        Self {
            tool_choice: ToolChoice::default(),
            parallel_tool_calls: true,
            reasoning: ReasoningOptions::default(),
            conversation: Conversation { add_generation_prompt: true, ..Conversation::default() },
            options: GenerateOptions::default(),
            grammar: None,
        }
    }
}

impl ChatRequest {
    /// A conversation without messages.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a system message.
    #[must_use]
    pub fn system(self, text: impl Into<String>) -> Self {
        self.message(json!({"role": "system", "content": text.into()}))
    }

    /// Appends a message of the user.
    #[must_use]
    pub fn user(self, text: impl Into<String>) -> Self {
        self.message(json!({"role": "user", "content": text.into()}))
    }

    /// Appends an answer of the model.
    #[must_use]
    pub fn assistant(self, text: impl Into<String>) -> Self {
        self.message(json!({"role": "assistant", "content": text.into()}))
    }

    /// Appends a message as an object of OpenAI's chat API; the chat template gets every field.
    #[must_use]
    pub fn message(mut self, message: Value) -> Self {
        self.conversation.messages.push(message);
        self
    }

    /// Messages so far.
    #[must_use]
    pub fn messages(&self) -> &[Value] {
        &self.conversation.messages
    }

    /// Sets the maximum tokens of the answer; without it the context is the limit.
    #[must_use]
    pub fn max_tokens(mut self, n: usize) -> Self {
        self.options.n_predict = Some(n);
        self
    }

    /// Sets the temperature; 0 is greedy.
    #[must_use]
    pub fn temperature(mut self, temperature: f32) -> Self {
        self.options.sampling.temperature = temperature;
        self
    }

    /// Sets the seed of sampling; random without it.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.options.sampling.seed = Some(seed);
        self
    }

    /// Adds a stop string; the answer ends before it.
    #[must_use]
    pub fn stop(mut self, text: impl Into<String>) -> Self {
        self.options.stop.push(text.into());
        self
    }

    /// Constrains the answer to JSON that conforms to a schema. With tools the answer is calls or the JSON.
    #[must_use]
    pub fn json_schema(self, schema: &Value) -> Self {
        self.grammar(GrammarSource::JsonSchema(schema.to_string()))
    }

    /// Constrains the answer to a grammar.
    #[must_use]
    pub fn grammar(mut self, source: GrammarSource) -> Self {
        self.grammar = Some(source);
        self
    }

    /// Adds a tool that the answer may call, with the JSON schema of its arguments.
    #[must_use]
    pub fn tool(mut self, name: &str, description: &str, parameters: Value) -> Self {
        let function = json!({"name": name, "description": description, "parameters": parameters});
        let tool = json!({"type": "function", "function": function});
        match &mut self.conversation.tools {
            Some(Value::Array(tools)) => tools.push(tool),
            tools => *tools = Some(Value::Array(vec![tool])),
        }
        self
    }

    /// Sets the tools that the answer may or must call.
    #[must_use]
    pub fn tool_choice(mut self, choice: ToolChoice) -> Self {
        self.tool_choice = choice;
        self
    }

    /// Turns the thinking of a reasoning model on or off, if its template can.
    #[must_use]
    pub fn thinking(mut self, is_on: bool) -> Self {
        self.reasoning.enabled = Some(is_on);
        self
    }

    /// Replaces all options of generation, also those set before, but for the grammar.
    #[must_use]
    pub fn options(mut self, options: GenerateOptions) -> Self {
        self.options = options;
        self
    }
}

/// A conversation of one message of the user.
impl From<&str> for ChatRequest {
    fn from(text: &str) -> Self {
        Self::new().user(text)
    }
}

/// A conversation of one message of the user.
impl From<String> for ChatRequest {
    fn from(text: String) -> Self {
        Self::new().user(text)
    }
}

/// A conversation of one message of the user.
impl From<&String> for ChatRequest {
    fn from(text: &String) -> Self {
        Self::new().user(text)
    }
}

impl From<&Self> for ChatRequest {
    fn from(chat: &Self) -> Self {
        chat.clone()
    }
}
