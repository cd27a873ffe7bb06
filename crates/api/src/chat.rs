//! Chats in OpenAI's format: answers to [`ChatBody`], `chat.completion` and `chat.completion.chunk`.

use std::sync::Arc;

use serde_json::{Value, json};
use stonechat::llm::ModelInfo;
use stonechat::text::Tokenizer;
use stonechat::{ChatRequest, Completion, Finish, RequestEvent};
use web_time::{SystemTime, UNIX_EPOCH};

use crate::completion::NativeAnswer;
use crate::generation::{GenerationFields, ProbFields, RequestStats, Usage, chat_logprobs};
use crate::ids::new_id;
use crate::text::{Answer, Dialect, Model, Prepared};
use crate::{ApiResult, Defaults};

pub use crate::chat_body::ChatBody;

/// Common fields of the objects of an answer.
#[derive(Debug)]
struct ChatAnswer {
    head: AnswerHead,
    model: Arc<ModelInfo>,
    /// Form of the log-probabilities, if they were asked for.
    probs: Option<ProbFields>,
    /// Answer of `/completion`, for `__verbose`.
    native: Option<NativeAnswer>,
    n_choices: usize,
    has_timings_per_token: bool,
    has_progress: bool,
    includes_usage: bool,
}

impl Dialect for ChatBody {
    fn check(&mut self) -> ApiResult<()> {
        self.check_answer()
    }

    fn prepare(
        self,
        fields: &GenerationFields,
        model: Model<'_>,
        defaults: &Defaults<'_>,
    ) -> ApiResult<Prepared> {
        let info = model.llm.info();
        let n_probs = fields.chat_probs()?;
        let options = fields.options(info, defaults, n_probs.map_or(0, |n| n.max(1)))?;
        let chat = ChatRequest { options, ..self.request()? };
        let mut request = fields.schedule(model.llm.request(chat)?);
        let prompts = vec![std::mem::take(&mut request.prompt)];
        let is_verbose = fields.verbose == Some(true);
        let answer = ChatAnswer {
            head: AnswerHead::new("chatcmpl-", model),
            model: Arc::clone(&info.model),
            probs: n_probs.map(|n| fields.prob_fields(n)),
            native: is_verbose
                .then(|| NativeAnswer::new(fields, model, &prompts, &request.options)),
            n_choices: request.n_choices,
            has_timings_per_token: fields.timings_per_token.unwrap_or(false),
            has_progress: fields.return_progress.unwrap_or(false),
            includes_usage: fields.includes_usage(),
        };
        Ok(Prepared::new(prompts, request, answer))
    }
}

/// Fields that all objects of an answer of OpenAI have.
#[derive(Debug)]
pub(crate) struct AnswerHead {
    id: String,
    created: u64,
    model: String,
}

impl AnswerHead {
    /// Fields of an answer of this moment.
    pub(crate) fn new(prefix: &str, model: Model<'_>) -> Self {
        let time = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            id: new_id(prefix),
            created: time.map_or(0, |time| time.as_secs()),
            model: model.name.to_owned(),
        }
    }

    /// An object with the given kind and choices.
    pub(crate) fn object(&self, kind: &str, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": concat!("stonechat-", env!("CARGO_PKG_VERSION")),
            "choices": choices,
        })
    }
}

/// `finish_reason` of OpenAI.
pub(crate) fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::EndOfText | Finish::StopString | Finish::GrammarEnd => "stop",
        _ => "length",
    }
}

impl ChatAnswer {
    fn tokenizer(&self) -> &Tokenizer {
        self.model.tokenizer()
    }

    /// Chunk with the progress of the prompt, if it was asked for.
    fn progress(&self, stats: &RequestStats) -> Option<Value> {
        let mut chunk = self.has_progress.then(|| self.chunk(0, json!({}), None))?;
        chunk["prompt_progress"] = stats.progress();
        chunk["timings"] = stats.usage().timings();
        Some(chunk)
    }

    /// `chat.completion.chunk` of one choice.
    fn chunk(&self, index: usize, delta: Value, finish: Option<Finish>) -> Value {
        let choice = json!({
            "index": index,
            "delta": delta,
            "finish_reason": finish.map(finish_reason),
            "logprobs": null,
        });
        self.head.object("chat.completion.chunk", json!([choice]))
    }
}

impl Answer for ChatAnswer {
    fn event(&mut self, stats: &RequestStats, event: RequestEvent) -> Vec<Value> {
        match event {
            RequestEvent::Started { .. } => {
                let delta = || json!({"role": "assistant", "content": null});
                let firsts = (0..self.n_choices).map(|index| self.chunk(index, delta(), None));
                firsts.chain(self.progress(stats)).collect()
            }
            RequestEvent::Prompt { .. } => self.progress(stats).into_iter().collect(),
            RequestEvent::Text { choice, tokens, text } => {
                if text.is_empty() && (self.probs.is_none() || tokens.is_empty()) {
                    return Vec::new();
                }
                let mut chunk = self.chunk(choice, json!({"content": text}), None);
                if let Some(fields) = self.probs {
                    let probs: Vec<_> =
                        tokens.into_iter().filter_map(|token| token.probs).collect();
                    chunk["choices"][0]["logprobs"] =
                        chat_logprobs(self.tokenizer(), &probs, fields);
                }
                if self.has_timings_per_token {
                    chunk["timings"] = stats.usage().timings();
                }
                vec![chunk]
            }
            _ => Vec::new(),
        }
    }

    /// The reasons of the end, and the counts.
    fn end(&mut self, completions: &[Completion]) -> Vec<Value> {
        let mut chunks = Vec::new();
        let usage = Usage::of(completions);
        for (index, completion) in completions.iter().enumerate() {
            let mut chunk = self.chunk(index, json!({}), Some(completion.finish));
            if index + 1 == completions.len() {
                chunk["timings"] = usage.timings();
            }
            if let Some(native) = &self.native {
                chunk["__verbose"] = native.last((0, index), completions, false);
            }
            chunks.push(chunk);
        }
        if self.includes_usage {
            let mut chunk = self.head.object("chat.completion.chunk", json!([]));
            usage.write(&mut chunk);
            chunks.push(chunk);
        }
        chunks
    }

    /// `chat.completion`.
    fn whole(&self, texts: &[Vec<Completion>]) -> Value {
        let completions = texts.first().map_or(&[][..], Vec::as_slice);
        let choice = |(index, completion): (usize, &Completion)| {
            let logprobs =
                self.probs.map(|fields| chat_logprobs(self.tokenizer(), &completion.probs, fields));
            json!({
                "index": index,
                "message": {"role": "assistant", "content": completion.text},
                "finish_reason": finish_reason(completion.finish),
                "logprobs": logprobs,
            })
        };
        let choices: Vec<Value> = completions.iter().enumerate().map(choice).collect();
        let mut object = self.head.object("chat.completion", choices.into());
        Usage::of(completions).write(&mut object);
        if let Some(native) = self.native.as_ref().filter(|_| !completions.is_empty()) {
            object["__verbose"] = native.last((0, 0), completions, true);
        }
        object
    }
}
