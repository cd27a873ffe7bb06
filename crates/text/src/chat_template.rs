//! Chat templates: from the messages of a conversation to the prompt that a model was trained on.
//!
//! A template is a Jinja program that comes with the model. It is rendered as Hugging Face's
//! transformers renders it (`apply_chat_template`: jinja2 with `trim_blocks`, `lstrip_blocks`,
//! loop controls, its own `tojson`, `raise_exception` and `strftime_now`), byte for byte; messages
//! are fitted to the capabilities of the template as llama.cpp does.
//!
//! File map: `limits` resource limits; `source` rewriting before parsing; `hooks` and `operators` the
//! operators; `program` the compiled template; `python` methods, filters and tests with Python's
//! results; `json` the filter `tojson`; `strftime` dates; `capabilities` detection of them, and
//! fitting messages to them; `builtin` templates by llama.cpp's names.

mod builtin;
mod capabilities;
mod hooks;
mod jinja;
mod json;
mod limits;
mod operators;
mod program;
mod python;
mod source;
mod strftime;
#[cfg(test)]
mod tests;

use std::fmt;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{Environment, ErrorKind, UndefinedBehavior};

pub use capabilities::ChatTemplateCapabilities;
use program::Program;

use crate::conversation::Conversation;
use crate::error::{Error, Result};
use crate::marked_text::MarkedText;
use crate::special_texts::{SpecialTexts, unused_marker};

/// A compiled chat template.
///
/// ```
/// use stonechat_text::{ChatTemplate, Conversation};
///
/// let source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}";
/// let template = ChatTemplate::new(source, "<s>", "</s>")?;
/// let conversation = Conversation {
///     messages: vec![serde_json::json!({"role": "user", "content": "Hello"})],
///     ..Conversation::default()
/// };
/// assert_eq!(template.render(&conversation)?, "<user>Hello\n");
/// # Ok::<(), stonechat_text::Error>(())
/// ```
pub struct ChatTemplate {
    env: Environment<'static>,
    program: Program,
    bos: String,
    eos: String,
    capabilities: ChatTemplateCapabilities,
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate")
            .field("bos", &self.bos)
            .field("eos", &self.eos)
            .field("capabilities", &self.capabilities)
            .finish_non_exhaustive()
    }
}

/// White space that templates never emit.
const TRIMMED: char = '\u{1f}';

/// Maximum number of special tokens in assistant messages that are probed, one rendering each.
const MAX_SAID: usize = 16;

impl ChatTemplate {
    /// Compiles `source`; `bos` and `eos` are the texts of the model's special tokens, which the
    /// template sees as `bos_token` and `eos_token`.
    ///
    /// The source may come from anywhere: size, nesting, running time and output are bounded.
    ///
    /// # Errors
    /// [`Error::ChatTemplate`] with the line, if the source is too long or no Jinja template.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<Self> {
        let env = environment();
        let program = Program::compile(source::rewrite(source)?, &env)?;
        let mut template = Self {
            env,
            program,
            bos: bos.to_owned(),
            eos: eos.to_owned(),
            capabilities: ChatTemplateCapabilities::default(),
        };
        template.capabilities = ChatTemplateCapabilities::probe(
            |conversation| template.render_unchanged(conversation).unwrap_or_default(),
            |word| template.program.source().contains(word),
        );
        Ok(template)
    }

    /// The built-in template `name`, for models that come without one: the common ones of
    /// llama.cpp's `--chat-template`, see [`ChatTemplate::builtin_names`].
    ///
    /// # Errors
    /// [`Error::UnknownChatTemplate`], which lists the names.
    pub fn builtin(name: &str, bos: &str, eos: &str) -> Result<Self> {
        match builtin::source(name) {
            Some(source) => Self::new(source, bos, eos),
            None => Err(Error::UnknownChatTemplate {
                name: name.to_owned(),
                expected: builtin::names().collect::<Vec<_>>().join(", "),
            }),
        }
    }

    /// The names that [`ChatTemplate::builtin`] knows.
    pub fn builtin_names() -> impl Iterator<Item = &'static str> {
        builtin::names()
    }

    /// Source of the template.
    pub fn source(&self) -> &str {
        self.program.source()
    }

    /// Capabilities of the template, found by rendering small conversations with it.
    pub fn capabilities(&self) -> &ChatTemplateCapabilities {
        &self.capabilities
    }

    /// The prompt of `conversation`, its messages fitted to the capabilities of the template:
    ///
    /// * the role `developer` becomes `system`, unless the template knows it;
    /// * without a system role, the system message goes in front of the next message;
    /// * content in parts becomes one string, or a string one part, where only the other works;
    /// * the arguments of tool calls become an object, where the template wants that;
    /// * a message with tool calls and no content gets an empty one.
    ///
    /// # Errors
    /// [`Error::ChatRefused`] if the template refuses the conversation, [`Error::ChatTemplate`] if
    /// it fails or takes too much.
    pub fn render(&self, conversation: &Conversation) -> Result<String> {
        if conversation.continues {
            return self.render_continued(conversation);
        }
        self.render_unchanged(&self.capabilities.fit(conversation))
    }

    /// The prompt up to the end of the last message. It is what comes before a unique end of the content; trailing white
    /// space is cut where the template trims it.
    fn render_continued(&self, conversation: &Conversation) -> Result<String> {
        let mut conversation = conversation.clone();
        (conversation.add_generation_prompt, conversation.continues) = (false, false);
        let Some(last) = conversation.messages.last_mut() else {
            return self.render(&conversation);
        };
        let content = last["content"].as_str().unwrap_or_default().to_owned();
        if !content.trim().is_empty() {
            let end = unused_marker(&conversation, self.program.source());
            if let Some(last) = conversation.messages.last_mut() {
                last["content"] = format!("{content}{end}{TRIMMED}").into();
            }
            let text = self.render(&conversation)?;
            if let Some((start, rest)) = text.rsplit_once(&end) {
                let start = if rest.starts_with(TRIMMED) { start } else { start.trim_end() };
                return Ok(start.to_owned());
            }
        }
        // An empty message, or one that the template changes: it follows the prompt of an answer.
        conversation.messages.pop();
        conversation.add_generation_prompt = true;
        Ok(self.render(&conversation)? + &content)
    }

    /// The prompt of [`render`](Self::render), in which special tokens come only from the template's own text, and from
    /// tokens that it looks for in assistant messages.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn render_marked(
        &self,
        conversation: &Conversation,
        specials: &SpecialTexts,
    ) -> Result<MarkedText> {
        let marker = unused_marker(conversation, self.program.source());
        let marked = |kept: &[usize]| match specials.mark(conversation, &marker, kept) {
            Some(marked) => self.render(&marked),
            None => self.render(conversation),
        };
        let said = specials.said(conversation);
        let text = if said.is_empty() {
            marked(&[])?
        } else {
            let unmarked = marked(&said)?.replace(&marker, "");
            let is_same = |kept: &[usize]| {
                marked(kept).ok().filter(|text| text.replace(&marker, "") == unmarked)
            };
            match is_same(&[]) {
                Some(text) => text,
                None => {
                    let others = |one: usize| said.iter().copied().filter(move |&it| it != one);
                    let is_read =
                        |&one: &usize| is_same(&others(one).collect::<Vec<_>>()).is_none();
                    let read = said.iter().copied().take(MAX_SAID).filter(is_read);
                    marked(&read.collect::<Vec<_>>())?
                }
            }
        };
        Ok(MarkedText::new(text, marker))
    }

    /// The prompt of `conversation`, its messages exactly as they are: the result of transformers'
    /// `apply_chat_template`.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn render_unchanged(&self, conversation: &Conversation) -> Result<String> {
        self.program.run(&self.env, self.variables(conversation))
    }

    fn variables(&self, conversation: &Conversation) -> Value {
        let now = conversation.now;
        let strftime_now = Value::from_function(move |format: &str| {
            strftime::strftime(format, now.unwrap_or_else(system_time))
        });
        let fixed = [
            ("messages", Value::from(Serde(&conversation.messages))),
            ("tools", Value::from(Serde(&conversation.tools))),
            ("documents", Value::from(Serde(&conversation.documents))),
            ("add_generation_prompt", Value::from(conversation.add_generation_prompt)),
            ("bos_token", Value::from(self.bos.as_str())),
            ("eos_token", Value::from(self.eos.as_str())),
            ("strftime_now", strftime_now),
        ];
        let further = conversation
            .variables
            .iter()
            .map(|(name, value)| (name.as_str(), Value::from(Serde(value))));
        Value::from_pairs(fixed.into_iter().chain(further))
    }
}

/// Seconds since the Unix epoch, in UTC.
fn system_time() -> i64 {
    let since = web_time::SystemTime::now().duration_since(web_time::UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or_default())
}

fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    let mut syntax = SyntaxConfig::builder();
    if let Ok(syntax) = syntax.trim_blocks(true).lstrip_blocks(true).build() {
        env.set_syntax(syntax);
    }
    env.set_undefined_behavior(UndefinedBehavior::Lenient);
    env.set_recursion_limit(limits::MAX_RECURSION);
    env.set_fuel(Some(limits::FUEL));
    env.set_formatter(limits::print_counted);
    python::register(&mut env);
    jinja::register(&mut env);
    operators::register(&mut env);
    env.add_filter("tojson", json::tojson);
    env.add_function("raise_exception", |message: Value| -> std::result::Result<(), _> {
        let refusal = Refusal(message.to_string());
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, "refused").with_source(refusal))
    });
    env
}

/// Message of a template's `raise_exception`.
#[derive(Debug)]
struct Refusal(String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

/// Converts an error of the engine.
fn failure(error: &minijinja::Error) -> Error {
    // Errors inside macros are wrapped; the innermost line is where it happened.
    let mut line = error.line().unwrap_or_default();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if let Some(refusal) = cause.downcast_ref::<Refusal>() {
            return Error::ChatRefused { line, message: refusal.0.clone() };
        }
        if let Some(inner) = cause.downcast_ref::<minijinja::Error>() {
            line = inner.line().unwrap_or(line);
        }
        source = cause.source();
    }
    let reason = match (error.kind(), error.detail()) {
        (ErrorKind::OutOfFuel, _) => "takes too many steps".to_owned(),
        (kind, Some(detail)) => format!("{kind}: {detail}"),
        (kind, None) => kind.to_string(),
    };
    Error::ChatTemplate { line, reason }
}
