//! OpenAI's text completions: `text_completion`.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use stonechat::llm::{ModelInfo, TokenProbs};
use stonechat::{Completion, Request, RequestEvent};

use crate::chat::{AnswerHead, finish_reason};
use crate::chat_answer::FinishReason;
use crate::completion::NativeAnswer;
use crate::generation::{
    GenerationFields, ProbFields, RequestStats, Usage, completion_logprobs, prompts,
};
use crate::json::JsonFields;
use crate::limits::{MAX_TEXTS, check_items, check_texts};
use crate::text::{Answer, Dialect, Frame, Model, Prepared};
use crate::{ApiError, ApiResult, Defaults};

/// Fields of a completion beside those of generation.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CompletionFields {
    /// A text, a list of texts, token ids, or lists of them.
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    prompt: Value,
    /// Whether the text begins with the prompt.
    #[serde(default)]
    echo: Option<bool>,
    /// Text after the completion: only `/infill` has it.
    #[serde(default)]
    suffix: Option<String>,
}

/// Common fields of the objects of an answer.
#[derive(Debug)]
struct CompletionAnswer {
    head: AnswerHead,
    model: Arc<ModelInfo>,
    /// Texts of the prompts, if they are repeated.
    echoes: Vec<String>,
    n_choices: usize,
    probs: Option<ProbFields>,
    /// Answer of `/completion`, for `__verbose`.
    native: Option<NativeAnswer>,
    includes_usage: bool,
    /// Characters of each text of the prompt that were sent; `None` before the first.
    lengths: Vec<Option<usize>>,
    n_prompts: usize,
    /// Index of the running prompt.
    prompt: usize,
    /// Counts of the prompts that have ended.
    usage: Usage,
}

impl Dialect for CompletionFields {
    fn take(body: &mut JsonFields) -> ApiResult<Self> {
        body.take()
    }

    fn check(&mut self) -> ApiResult<()> {
        if self.suffix.as_ref().is_some_and(|suffix| !suffix.is_empty()) {
            return Err(ApiError::field("suffix", "none: `/infill` has one", "a text"));
        }
        check_items("prompt", &self.prompt, MAX_TEXTS)
    }

    fn prepare(
        self,
        fields: &GenerationFields,
        model: Model<'_>,
        defaults: &Defaults<'_>,
    ) -> ApiResult<Prepared> {
        let info = model.llm.info();
        let prompts = prompts(&self.prompt, &info.model)?;
        let n_choices = fields.n_choices();
        check_texts(prompts.len(), n_choices)?;
        let n_probs = fields.completion_probs()?;
        let options = fields.options(info, defaults, n_probs.map_or(0, |n| n.max(1)))?;
        let has_echo = self.echo == Some(true);
        if has_echo && n_probs.is_some() {
            // Logits of prompts are not computed.
            let expected = "none beside `echo`: tokens of the prompt have no log-probabilities";
            return Err(ApiError::field("logprobs", expected, "both"));
        }
        let echo = |tokens: &Vec<u32>| info.model.tokenizer().decode(tokens);
        let is_verbose = fields.verbose == Some(true);
        let answer = CompletionAnswer {
            head: AnswerHead::new("cmpl-", model),
            model: Arc::clone(&info.model),
            echoes: if has_echo { prompts.iter().map(echo).collect() } else { Vec::new() },
            n_choices,
            probs: n_probs.map(|n| fields.prob_fields(n)),
            native: is_verbose.then(|| NativeAnswer::new(fields, model, &prompts, &options)),
            includes_usage: fields.includes_usage(),
            lengths: vec![None; n_choices],
            n_prompts: prompts.len(),
            prompt: 0,
            usage: Usage::default(),
        };
        let request = fields.schedule(Request::new(Vec::new(), options));
        Ok(Prepared::new(prompts, request, answer))
    }
}

impl CompletionAnswer {
    fn object(&self, choices: Vec<Value>) -> Value {
        json!(self.head.object("text_completion", choices))
    }

    fn echo(&self, prompt: usize) -> &str {
        self.echoes.get(prompt).map_or("", String::as_str)
    }

    fn logprobs(&self, probs: &[TokenProbs], offset: usize) -> Option<Value> {
        let tokenizer = self.model.tokenizer();
        self.probs.map(|fields| completion_logprobs(tokenizer, probs, fields, offset))
    }

    /// Chunk of a choice of a prompt.
    fn chunk(
        &self,
        (prompt, choice): (usize, usize),
        text: &str,
        logprobs: Option<Value>,
        finish: Option<FinishReason>,
    ) -> Value {
        self.object(vec![json!({
            "index": prompt * self.n_choices + choice,
            "text": text,
            "finish_reason": finish,
            "logprobs": logprobs,
        })])
    }
}

impl Answer for CompletionAnswer {
    fn event(&mut self, _: &RequestStats, event: RequestEvent) -> Vec<Frame> {
        let RequestEvent::Text { choice, tokens, text } = event else { return Vec::new() };
        let echo = self.echo(self.prompt);
        let (text, offset) = match self.lengths[choice] {
            Some(length) => (text, length),
            None => (format!("{echo}{text}"), echo.chars().count()),
        };
        if text.is_empty() && (self.probs.is_none() || tokens.is_empty()) {
            return Vec::new();
        }
        let before = self.lengths[choice].unwrap_or(0);
        self.lengths[choice] = Some(before + text.chars().count());
        let probs: Vec<_> = tokens.into_iter().filter_map(|token| token.probs).collect();
        let logprobs = self.logprobs(&probs, offset);
        vec![Frame::new(&self.chunk((self.prompt, choice), &text, logprobs, None))]
    }

    fn end(&mut self, _: &RequestStats, completions: &[Completion]) -> Vec<Frame> {
        let (mut chunks, prompt) = (Vec::new(), self.prompt);
        self.usage = self.usage.sum(Usage::of(completions));
        for (choice, completion) in completions.iter().enumerate() {
            // A text without a token repeats the prompt here.
            let echo = if self.lengths[choice].is_none() { self.echo(prompt) } else { "" };
            let finish = Some(finish_reason(completion.finish));
            let mut chunk = self.chunk((prompt, choice), echo, None, finish);
            if let Some(native) = &self.native {
                chunk["__verbose"] = native.last((prompt, choice), completions, false);
            }
            chunks.push(Frame::new(&chunk));
        }
        self.lengths.fill(None);
        self.prompt += 1;
        if self.includes_usage && self.prompt == self.n_prompts {
            let mut chunk = self.object(Vec::new());
            self.usage.write(&mut chunk);
            chunks.push(Frame::new(&chunk));
        }
        chunks
    }

    /// `text_completion` of all prompts.
    fn whole(&self, texts: &[Vec<Completion>]) -> Frame {
        let (mut choices, mut usage) = (Vec::new(), Usage::default());
        for (prompt, completions) in texts.iter().enumerate() {
            let echo = self.echo(prompt);
            for (choice, completion) in completions.iter().enumerate() {
                let logprobs = self.logprobs(&completion.probs, echo.chars().count());
                choices.push(json!({
                    "index": prompt * self.n_choices + choice,
                    "text": format!("{echo}{}", completion.text),
                    "finish_reason": finish_reason(completion.finish),
                    "logprobs": logprobs,
                }));
            }
            usage = usage.sum(Usage::of(completions));
        }
        let mut object = self.object(choices);
        let first = texts.first().filter(|completions| !completions.is_empty());
        if let (Some(native), Some(first)) = (&self.native, first) {
            object["__verbose"] = native.last((0, 0), first, true);
        }
        usage.write(&mut object);
        Frame::new(&object)
    }
}
