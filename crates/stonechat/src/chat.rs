//! Request for an answer in a conversation, whatever the API that it comes from.

use serde_json::{Value, json};
use stonechat_llm::GenerateOptions;
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
    /// Messages as objects of OpenAI's chat API, and further variables of the chat template. Tools are refused: their calls
    /// cannot be read from an answer.
    pub conversation: Conversation,
    /// Options of the answer.
    pub options: GenerateOptions,
    /// Grammar in place of that of `options`; it is compiled for the vocabulary of the model.
    pub grammar: Option<GrammarSource>,
}

impl Default for ChatRequest {
    fn default() -> Self {
        Self {
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

    /// Constrains the answer to JSON that conforms to a schema.
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

    /// Turns the thinking of a reasoning model on or off, if its template can.
    #[must_use]
    pub fn thinking(mut self, is_on: bool) -> Self {
        self.conversation.variables.insert("enable_thinking".to_owned(), Value::Bool(is_on));
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
