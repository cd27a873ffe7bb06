//! Chat format of a model: from the messages of a conversation to the tokens of a prompt.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use stonechat_text::{
    ChatTemplate, ChatTemplateCapabilities, Conversation, MarkedText, SpecialTexts,
};
use web_time::{SystemTime, UNIX_EPOCH};

use crate::chat::syntax::{CallSyntax, Layout, Syntax};
use crate::chat::{detect, families, hermes};
use crate::model::vocabulary;
use crate::{Error, ModelInfo};

/// Name of the built-in template of models without one.
const PLAIN: &str = "plain";
/// Stop string of the template [`PLAIN`]: the start of the next question.
const PLAIN_STOP: &str = "\nQuestion:";

/// Chat template of a model, and the stop string of its answers.
#[derive(Debug)]
pub struct ChatFormat {
    template: ChatTemplate,
    specials: SpecialTexts,
    stop: Option<&'static str>,
    is_fallback: bool,
    syntax: Arc<Syntax>,
    /// Text before an answer without what opens reasoning.
    head: String,
}

impl ChatFormat {
    /// Compiles `replacement` (the name of a built-in template, or Jinja), else the template of the model's file, else
    /// `plain`: a file without a template is a base model, which continues text and has no turns.
    ///
    /// # Errors
    /// If the template does not compile.
    pub fn new(model: &ModelInfo, replacement: Option<&str>) -> Result<Self, Error> {
        let source = replacement.or(model.chat_template());
        let name = source.unwrap_or(PLAIN);
        let template = vocabulary::template(name, model.tokenizer())?;
        let syntax = syntax_of(&template);
        let head = answer_head(&template, &syntax);
        Ok(Self {
            template,
            syntax: Arc::new(syntax),
            head,
            specials: SpecialTexts::new(model.tokenizer()),
            stop: (name == PLAIN).then_some(PLAIN_STOP),
            is_fallback: source.is_none(),
        })
    }

    /// Whether the model has no template and none was given.
    #[must_use]
    pub fn is_fallback(&self) -> bool {
        self.is_fallback
    }

    /// Stop string of an answer, in addition to those of the caller.
    #[must_use]
    pub fn stop(&self) -> Option<&'static str> {
        self.stop
    }

    /// Capabilities of the template.
    #[must_use]
    pub fn capabilities(&self) -> &ChatTemplateCapabilities {
        self.template.capabilities()
    }

    /// Syntax of answers.
    pub(crate) fn syntax(&self) -> &Arc<Syntax> {
        &self.syntax
    }

    /// Text before an answer; empty if it is unknown.
    pub(crate) fn answer_head(&self) -> &str {
        &self.head
    }

    /// Whether the template has reasoning.
    #[must_use]
    pub fn supports_reasoning(&self) -> bool {
        self.syntax.reasoning.is_some()
    }

    /// Whether the template writes tools. Without, [`prompt`](Self::prompt) writes them itself.
    #[must_use]
    pub fn supports_tools(&self) -> bool {
        self.capabilities().supports_tools
    }

    /// Support of tools and of reasoning by a template, Jinja or the name of a built-in one, without its model.
    #[must_use]
    pub fn supports(template: &str) -> (bool, bool) {
        let builtin = ChatTemplate::builtin(template, "", "").ok();
        let source = builtin.as_ref().map_or(template, ChatTemplate::source);
        let syntax = families::of_source(source);
        (syntax.calls.is_some(), syntax.reasoning.is_some())
    }

    /// Text of the prompt of a conversation, for [`ModelInfo::tokenize_marked_chat`]: the names of special tokens in
    /// messages, tools and variables are text. Without [`Conversation::now`] the template gets the time of the system's clock.
    /// Tools that the template cannot write are written into the system message.
    ///
    /// # Errors
    /// If the template fails or refuses the messages.
    pub fn prompt(&self, mut conversation: Conversation) -> Result<MarkedText, Error> {
        if conversation.now.is_none() {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).ok();
            conversation.now = now.and_then(|now| i64::try_from(now.as_secs()).ok());
        }
        if !self.supports_tools() {
            hermes::write_tools(&mut conversation);
        }
        Ok(self.template.render_marked(&conversation, &self.specials)?)
    }

    /// Tokens of the prompt for the assistant's next answer. `messages` are objects of OpenAI's chat API, `variables`
    /// further variables of the template, such as `enable_thinking`. The names of special tokens in them are text.
    ///
    /// # Errors
    /// If the template fails or refuses the messages.
    pub fn tokenize(
        &self,
        model: &ModelInfo,
        messages: &[Value],
        variables: Map<String, Value>,
    ) -> Result<Vec<u32>, Error> {
        let conversation = Conversation {
            messages: messages.to_vec(),
            add_generation_prompt: true,
            variables,
            ..Conversation::default()
        };
        Ok(model.tokenize_marked_chat(&self.prompt(conversation)?))
    }
}

/// Syntax of the answers of a template: by its words, by what it prints, or Hermes' calls.
fn syntax_of(template: &ChatTemplate) -> Syntax {
    let mut syntax = families::of_source(template.source());
    if !template.capabilities().supports_tools {
        syntax.calls = Some(CallSyntax::hermes());
        syntax.layout = match syntax.layout {
            Layout::Recipients => Layout::Markers,
            other => other,
        };
    } else if syntax.calls.is_none() {
        let end = syntax.reasoning.as_ref().map(|[_, end]| end.as_ref());
        let found = detect::calls(template, end);
        syntax.calls = Some(found.unwrap_or_else(CallSyntax::hermes));
    }
    syntax
}

/// Text that `add_generation_prompt` adds, up to a start of reasoning.
fn answer_head(template: &ChatTemplate, syntax: &Syntax) -> String {
    let render = |add_generation_prompt| {
        let conversation = Conversation {
            messages: vec![json!({"role": "user", "content": "Hello"})],
            add_generation_prompt,
            now: Some(0),
            ..Conversation::default()
        };
        template.render(&conversation).unwrap_or_default()
    };
    let (with, without) = (render(true), render(false));
    let added = with.strip_prefix(without.as_str()).unwrap_or_default();
    let start = syntax.reasoning.as_ref().and_then(|[start, _]| added.find(start.trim()));
    added[..start.unwrap_or(added.len())].trim_end().to_owned()
}
