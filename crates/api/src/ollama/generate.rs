//! `/api/generate`: a completion by the chat template, without it (`raw`), or between two texts (`suffix`).

use serde::Deserialize;
use serde_json::{Map, Value};
use stonechat::llm::chat::AnswerParser;
use stonechat::{ChatRequest, PreparedChat, Request};

use super::answer::{Lines, Route};
use super::fields::Fields;
use crate::chat_answer::prepared;
use crate::chat_body::ChatBody;
use crate::chat_messages::message;
use crate::generation::GenerationFields;
use crate::json::JsonFields;
use crate::text::{Dialect, Model, Prepared};
use crate::{ApiError, ApiResult, Defaults};

/// Body of `/api/generate`.
#[derive(Debug)]
pub struct OllamaGenerate {
    own: Own,
    chat: ChatBody,
}

/// Fields beside those of a chat.
#[derive(Debug, Deserialize)]
struct Own {
    #[serde(default)]
    prompt: String,
    #[serde(default)]
    suffix: Option<String>,
    #[serde(default)]
    raw: bool,
    /// Tokens of an earlier answer, before the prompt.
    #[serde(default)]
    context: Vec<u32>,
}

impl Dialect for OllamaGenerate {
    fn adapt(body: &mut Map<String, Value>) -> ApiResult<()> {
        let mut fields = Fields::new(body);
        fields.common(body)?;
        fields.no_images("images")?;
        if fields.text("template")?.is_some() {
            let expected = "none: the chat template is that of the model";
            return Err(ApiError::field("template", expected, "a string"));
        }
        let prompt = fields.text("prompt")?.unwrap_or_default();
        let system = fields.text("system")?.map(|text| message("system", text));
        let user = message("user", prompt.as_str());
        let messages: Vec<Value> = system.into_iter().chain([user]).collect();
        body.insert("messages".to_owned(), messages.into());
        body.insert("prompt".to_owned(), prompt.into());
        if let Some(suffix) = fields.text("suffix")? {
            body.insert("suffix".to_owned(), suffix.into());
        }
        let raw = fields.flag("raw")?;
        body.insert("raw".to_owned(), raw.into());
        body.extend(fields.take("context").map(|it| ("context".to_owned(), it)));
        Ok(())
    }

    fn take(body: &mut JsonFields) -> ApiResult<Self> {
        Ok(Self { own: body.take()?, chat: body.take()? })
    }

    fn ignores_unknown() -> bool {
        true
    }

    fn check(&mut self) -> ApiResult<()> {
        if self.own.raw && !self.own.context.is_empty() {
            return Err(ApiError::field("context", "none with `raw`", "tokens"));
        }
        self.chat.check_answer()
    }

    fn prepare(
        self,
        fields: &GenerationFields,
        model: Model<'_>,
        defaults: &Defaults<'_>,
    ) -> ApiResult<Prepared> {
        let Self { own, chat } = self;
        let info = model.llm.info();
        let probs = fields.chat_probs()?;
        let n_probs = probs.map_or(0, |n| n.max(1));
        let options = || fields.options(info, defaults, n_probs);
        let (mut request, parser) = if let Some(suffix) = &own.suffix {
            let prompt = info.model.infill(&own.prompt, suffix)?;
            (Request::new(prompt, options()?), AnswerParser::default())
        } else if own.raw {
            let prompt = info.model.tokenize_prompt(&own.prompt);
            (Request::new(prompt, options()?), AnswerParser::default())
        } else {
            let options = fields.free_options(info, defaults, n_probs)?;
            let grammar = fields.grammar_source()?;
            let chat = chat.request(defaults.chat, fields.is_stream())?;
            let chat = ChatRequest { options, grammar, ..chat };
            let PreparedChat { request, parser, .. } = model.llm.prepare_chat(chat)?;
            (request, parser)
        };
        let n = info.model.config().vocab_size;
        if let Some(id) = own.context.iter().find(|&&id| id as usize >= n) {
            return Err(ApiError::field("context", &format!("token ids below {n}"), id));
        }
        request.prompt.splice(..0, own.context);
        let context = (!own.raw && own.suffix.is_none()).then(|| request.prompt.clone());
        let probs = probs.map(|n| fields.prob_fields(n));
        let writer = Lines::new(model.name, Route::Generate { context }).with_probs(model, probs);
        Ok(prepared(&info.model, fields.schedule(request), parser, Box::new(writer)))
    }
}
