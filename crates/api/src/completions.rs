//! OpenAI's text completions: `text_completion`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stonechat::llm::{ModelInfo, TokenProbs};
use stonechat::{Completion, Request, RequestEvent};

use crate::answer_object::{AnswerHead, AnswerObject, finish_reason};
use crate::chat_answer::FinishReason;
use crate::completion::NativeAnswer;
use crate::generation::{
    CompletionLogprobs, GenerationFields, ProbFields, RequestStats, Usage, prompts,
};
use crate::json::JsonFields;
use crate::limits::{MAX_PROMPT_PROBS, MAX_TEXTS, check_items, check_texts};
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
    /// Tokens of the prompts, if they are repeated with their log-probabilities.
    echo_tokens: Vec<Vec<u32>>,
    /// Log-probabilities of the running prompt.
    prompt_probs: Arc<[TokenProbs]>,
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

/// Choice of an answer.
#[derive(Debug, Serialize)]
struct CompletionChoice {
    index: usize,
    text: String,
    finish_reason: Option<FinishReason>,
    logprobs: Option<CompletionLogprobs>,
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
        let mut options = fields.options(info, defaults, n_probs.map_or(0, |n| n.max(1)))?;
        let has_echo = self.echo == Some(true);
        options.prompt_probs = n_probs.filter(|_| has_echo);
        if let Some(n) = options.prompt_probs {
            check_prompt_probs(fields, &prompts, n)?;
        }
        let echo_tokens = if options.prompt_probs.is_some() { prompts.clone() } else { Vec::new() };
        let echo = |tokens: &Vec<u32>| info.model.tokenizer().decode(tokens);
        let is_verbose = fields.verbose == Some(true);
        let answer = CompletionAnswer {
            head: AnswerHead::new("cmpl-", model),
            model: Arc::clone(&info.model),
            echoes: if has_echo { prompts.iter().map(echo).collect() } else { Vec::new() },
            echo_tokens,
            prompt_probs: Arc::default(),
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
    fn object(&self, choices: Vec<CompletionChoice>) -> AnswerObject<'_, CompletionChoice> {
        self.head.object("text_completion", choices)
    }

    /// Object of all prompts, with their counts.
    fn last_object(
        &self,
        choices: Vec<CompletionChoice>,
        usage: Usage,
    ) -> AnswerObject<'_, CompletionChoice> {
        let mut object = self.object(choices);
        (object.usage, object.timings) = (Some(usage.counts()), Some(usage.timings()));
        object
    }

    fn echo(&self, prompt: usize) -> &str {
        self.echoes.get(prompt).map_or("", String::as_str)
    }

    fn logprobs(&self, probs: &[TokenProbs], offset: usize) -> Option<CompletionLogprobs> {
        let tokenizer = self.model.tokenizer();
        self.probs.map(|fields| CompletionLogprobs::of_text(tokenizer, probs, fields, offset))
    }

    /// Log-probabilities of a text from its start: those of a prompt that is repeated come first.
    fn logprobs_from_start(
        &self,
        prompt: usize,
        prompt_probs: &[TokenProbs],
        probs: &[TokenProbs],
    ) -> Option<CompletionLogprobs> {
        let text = self.logprobs(probs, self.echo(prompt).chars().count());
        let (Some(tokens), Some(fields)) = (self.echo_tokens.get(prompt), self.probs) else {
            return text;
        };
        let tokenizer = self.model.tokenizer();
        let lists = CompletionLogprobs::of_prompt(tokenizer, tokens, prompt_probs, fields);
        Some(lists.followed_by(text.unwrap_or_default()))
    }

    /// Appends the end token beside a prompt that is repeated, so that the lists have each token that was sampled: programs
    /// that score prompts drop the last one.
    fn push_end(
        &self,
        logprobs: &mut Option<CompletionLogprobs>,
        completion: &Completion,
        offset: usize,
    ) {
        let Some((fields, end)) = self.probs.zip(completion.end_probs.as_ref()) else { return };
        if !self.echo_tokens.is_empty() {
            let tokenizer = self.model.tokenizer();
            let none = || CompletionLogprobs::of_text(tokenizer, &[], fields, offset);
            logprobs.get_or_insert_with(none).push_end(tokenizer, end, fields, offset);
        }
    }

    /// Chunk of a choice of a prompt.
    fn chunk(
        &self,
        (prompt, choice): (usize, usize),
        text: String,
        logprobs: Option<CompletionLogprobs>,
        finish_reason: Option<FinishReason>,
    ) -> AnswerObject<'_, CompletionChoice> {
        let index = prompt * self.n_choices + choice;
        self.object(vec![CompletionChoice { index, text, finish_reason, logprobs }])
    }
}

impl Answer for CompletionAnswer {
    fn event(&mut self, _: &RequestStats, event: RequestEvent) -> Vec<Frame> {
        let (choice, tokens, text) = match event {
            RequestEvent::Text { choice, tokens, text } => (choice, tokens, text),
            RequestEvent::PromptProbs(probs) => {
                self.prompt_probs = probs;
                return Vec::new();
            }
            _ => return Vec::new(),
        };
        let echo = self.echo(self.prompt);
        let length = self.lengths[choice];
        let text = if length.is_none() { format!("{echo}{text}") } else { text };
        if text.is_empty() && (self.probs.is_none() || tokens.is_empty()) {
            return Vec::new();
        }
        self.lengths[choice] = Some(length.unwrap_or(0) + text.chars().count());
        let probs: Vec<_> = tokens.into_iter().filter_map(|token| token.probs).collect();
        let logprobs = match length {
            Some(offset) => self.logprobs(&probs, offset),
            None => self.logprobs_from_start(self.prompt, &self.prompt_probs, &probs),
        };
        vec![Frame::new(&self.chunk((self.prompt, choice), text, logprobs, None))]
    }

    fn end(&mut self, _: &RequestStats, completions: &[Completion]) -> Vec<Frame> {
        let (mut chunks, prompt) = (Vec::new(), self.prompt);
        self.usage = self.usage.sum(Usage::of(completions));
        for (choice, completion) in completions.iter().enumerate() {
            // A text without a token repeats the prompt here.
            let (echo, mut logprobs) = match self.lengths[choice] {
                Some(_) => ("", None),
                None if self.echo_tokens.is_empty() => (self.echo(prompt), None),
                None => {
                    let logprobs = self.logprobs_from_start(prompt, &self.prompt_probs, &[]);
                    (self.echo(prompt), logprobs)
                }
            };
            let length = self.lengths[choice].unwrap_or(echo.chars().count());
            self.push_end(&mut logprobs, completion, length);
            let finish = Some(finish_reason(completion.finish));
            let mut chunk = self.chunk((prompt, choice), echo.to_owned(), logprobs, finish);
            let native = self.native.as_ref();
            chunk.verbose = native.map(|native| native.last((prompt, choice), completion, false));
            chunks.push(Frame::new(&chunk));
        }
        self.lengths.fill(None);
        self.prompt_probs = Arc::default();
        self.prompt += 1;
        if self.includes_usage && self.prompt == self.n_prompts {
            chunks.push(Frame::new(&self.last_object(Vec::new(), self.usage)));
        }
        chunks
    }

    /// `text_completion` of all prompts.
    fn whole(&self, texts: &[Vec<Completion>]) -> Frame {
        let (mut choices, mut usage) = (Vec::new(), Usage::default());
        for (prompt, completions) in texts.iter().enumerate() {
            let echo = self.echo(prompt);
            for (choice, completion) in completions.iter().enumerate() {
                let Completion { probs, prompt_probs, text, .. } = completion;
                let mut logprobs = self.logprobs_from_start(prompt, prompt_probs, probs);
                let length = echo.chars().count() + text.chars().count();
                self.push_end(&mut logprobs, completion, length);
                choices.push(CompletionChoice {
                    index: prompt * self.n_choices + choice,
                    text: format!("{echo}{text}"),
                    finish_reason: Some(finish_reason(completion.finish)),
                    logprobs,
                });
            }
            usage = usage.sum(Usage::of(completions));
        }
        let mut object = self.last_object(choices, usage);
        let first = texts.first().and_then(|completions| completions.first());
        let native = self.native.as_ref().zip(first);
        object.verbose = native.map(|(native, first)| native.last((0, 0), first, true));
        Frame::new(&object)
    }
}

/// Checks that prompts are not too long for log-probabilities of their tokens with the `n` most probable ones each.
///
/// # Errors
/// 400 with the number.
fn check_prompt_probs(fields: &GenerationFields, prompts: &[Vec<u32>], n: usize) -> ApiResult<()> {
    if fields.post_sampling_probs == Some(true) {
        let expected = "false beside `echo` and `logprobs`: tokens of a prompt are not sampled";
        return Err(ApiError::field("post_sampling_probs", expected, true));
    }
    let n_tokens: usize = prompts.iter().map(Vec::len).sum();
    let n_probs = n_tokens.saturating_mul(n + 1).saturating_mul(fields.n_choices());
    if n_probs > MAX_PROMPT_PROBS {
        let expected = format!(
            "at most {MAX_PROMPT_PROBS} log-probabilities of prompts: their tokens times 1 + `logprobs`"
        );
        return Err(ApiError::field("logprobs", &expected, n_probs));
    }
    Ok(())
}
