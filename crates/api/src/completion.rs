//! `/completion` and `/infill` of llama-server.

mod object;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use stonechat::llm::{ModelInfo, TokenProbs};
use stonechat::text::Tokenizer;
use stonechat::{Completion, Finish, GenerateOptions, Request, RequestEvent};

use crate::generation::{
    GenerationFields, ProbFields, RequestStats, Settings, TokenEntry, Usage, prompts, token_entries,
};
use crate::json::{JsonFields, to_value};
use crate::limits::{MAX_TEXTS, check_items, check_texts};
use crate::text::{Answer, Dialect, Frame, Framing, Model, Prepared};
use crate::{ApiResult, Defaults};

use object::NativeEnd;
pub(crate) use object::NativeObject;

/// Fields of `/completion` beside those of generation.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PromptFields {
    /// A text, token ids, both in turn, or a list of such prompts.
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    prompt: Value,
    /// Fields of the answer to return; a field inside another is `outer/inner`.
    #[serde(default)]
    response_fields: Option<Vec<String>>,
}

/// Fields of `/infill` beside those of generation.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct InfillFields {
    /// Text before the gap.
    input_prefix: String,
    /// Text after the gap.
    input_suffix: String,
    /// Other files, which come before.
    #[serde(default)]
    input_extra: Vec<ExtraFile>,
    /// Start of the text in the gap.
    #[serde(default)]
    prompt: String,
    /// Fields of the answer to return.
    #[serde(default)]
    response_fields: Option<Vec<String>>,
}

/// Another file of an infill.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ExtraFile {
    /// Name.
    #[serde(default)]
    filename: String,
    /// Content.
    text: String,
}

impl Dialect for PromptFields {
    fn take(body: &mut JsonFields) -> ApiResult<Self> {
        body.take()
    }

    fn check(&mut self) -> ApiResult<()> {
        check_items("prompt", &self.prompt, MAX_TEXTS)
    }

    fn prepare(
        self,
        fields: &GenerationFields,
        model: Model<'_>,
        defaults: &Defaults<'_>,
    ) -> ApiResult<Prepared> {
        let prompts = prompts(&self.prompt, &model.llm.info().model)?;
        prepare(prompts, self.response_fields, fields, model, defaults)
    }
}

impl Dialect for InfillFields {
    fn take(body: &mut JsonFields) -> ApiResult<Self> {
        body.take()
    }

    fn prepare(
        self,
        fields: &GenerationFields,
        model: Model<'_>,
        defaults: &Defaults<'_>,
    ) -> ApiResult<Prepared> {
        let info = &model.llm.info().model;
        let mut prefix = String::new();
        for file in &self.input_extra {
            prefix += &format!("{}\n{}\n", file.filename, file.text);
        }
        prefix += &self.input_prefix;
        let mut prompt = info.infill(&prefix, &self.input_suffix)?;
        prompt.extend(info.tokenizer().tokenize(&self.prompt, false, true));
        prepare(vec![prompt], self.response_fields, fields, model, defaults)
    }
}

fn prepare(
    prompts: Vec<Vec<u32>>,
    response_fields: Option<Vec<String>>,
    fields: &GenerationFields,
    model: Model<'_>,
    defaults: &Defaults<'_>,
) -> ApiResult<Prepared> {
    check_texts(prompts.len(), fields.n_choices())?;
    let options = fields.options(model.llm.info(), defaults, fields.n_probs())?;
    let mut answer = NativeAnswer::new(fields, model, &prompts, &options);
    answer.selection = response_fields.unwrap_or_default();
    let request = fields.schedule(Request::new(Vec::new(), options));
    Ok(Prepared::new(prompts, request, answer))
}

/// Common fields of the objects of an answer.
#[derive(Debug)]
pub(crate) struct NativeAnswer {
    id: String,
    model: Arc<ModelInfo>,
    options: GenerateOptions,
    /// Texts of the prompts.
    prompts: Vec<String>,
    /// Index of the running prompt.
    prompt: usize,
    n_choices: usize,
    probs: ProbFields,
    id_slot: i64,
    returns_tokens: bool,
    has_progress: bool,
    has_timings_per_token: bool,
    /// Fields to return; all if there are none.
    selection: Vec<String>,
}

impl NativeAnswer {
    /// Common fields of the answer to a request.
    pub(crate) fn new(
        fields: &GenerationFields,
        model: Model<'_>,
        prompts: &[Vec<u32>],
        options: &GenerateOptions,
    ) -> Self {
        let info = &model.llm.info().model;
        let tokenizer = info.tokenizer();
        Self {
            id: model.id.to_owned(),
            model: Arc::clone(info),
            prompts: prompts.iter().map(|tokens| tokenizer.decode_with_special(tokens)).collect(),
            prompt: 0,
            n_choices: fields.n_choices(),
            probs: fields.prob_fields(options.n_probs),
            id_slot: fields.id_slot.unwrap_or(-1),
            returns_tokens: fields.return_tokens.unwrap_or(false),
            has_progress: fields.return_progress.unwrap_or(false),
            has_timings_per_token: fields.timings_per_token.unwrap_or(false),
            selection: Vec::new(),
            options: options.clone(),
        }
    }

    fn tokenizer(&self) -> &Tokenizer {
        self.model.tokenizer()
    }

    /// `generation_settings` of an ended text.
    fn settings(&self, completion: &Completion, is_stream: bool) -> Settings {
        let Self { options, probs, .. } = self;
        let mut sampling = options.sampling.clone();
        if options.ignore_eos {
            let ends = self.tokenizer().ends_of_generation();
            sampling.logit_bias.extend(ends.map(|token| (token, f32::NEG_INFINITY)));
        }
        let mut settings = Settings::new(&sampling, options.n_predict);
        settings.seed = completion.seed;
        settings.stop.clone_from(&options.stop);
        settings.ignore_eos = options.ignore_eos;
        settings.n_probs = probs.n;
        settings.post_sampling_probs = probs.is_post_sampling;
        settings.timings_per_token = self.has_timings_per_token;
        settings.stream = is_stream;
        settings
    }

    /// Probabilities of tokens, if they were asked for.
    fn entries(&self, probs: &[TokenProbs]) -> Option<Vec<TokenEntry>> {
        let has_probs = self.probs.n > 0;
        has_probs.then(|| token_entries(self.tokenizer(), probs, self.probs))
    }

    /// The object of an ended text, with or without its content.
    pub(crate) fn last<'a>(
        &'a self,
        (prompt, choice): (usize, usize),
        completion: &'a Completion,
        is_whole: bool,
    ) -> NativeObject<'a> {
        let (stop_type, word) = match completion.finish {
            Finish::EndOfText | Finish::GrammarEnd => ("eos", ""),
            Finish::StopString => ("word", completion.stop.as_deref().unwrap_or_default()),
            _ => ("limit", ""),
        };
        let n_tokens = completion.tokens.len();
        NativeObject {
            index: prompt * self.n_choices + choice,
            content: if is_whole { &completion.text } else { "" },
            tokens: match is_whole && self.returns_tokens {
                true => completion.tokens.clone(),
                false => Vec::new(),
            },
            stop: true,
            id_slot: self.id_slot,
            tokens_predicted: n_tokens,
            tokens_evaluated: completion.prompt_tokens,
            end: Some(NativeEnd {
                model: &self.id,
                generation_settings: self.settings(completion, !is_whole),
                prompt: &self.prompts[prompt],
                has_new_line: completion.text.contains('\n'),
                truncated: completion.finish == Finish::ContextFull,
                stop_type,
                stopping_word: word,
                tokens_cached: completion.prompt_tokens + n_tokens.saturating_sub(1),
            }),
            prompt_progress: None,
            completion_probabilities: is_whole.then(|| self.entries(&completion.probs)).flatten(),
            timings: Some(Usage::of([completion]).timings()),
        }
    }

    /// The fields that the client asked for.
    fn selected(&self, object: &NativeObject<'_>) -> ApiResult<Value> {
        let object = to_value(object)?;
        let mut selected = Map::new();
        for field in &self.selection {
            let found = field.split('/').try_fold(&object, |value, key| value.get(key));
            if let Some(value) = found {
                selected.insert(field.clone(), value.clone());
            }
        }
        Ok(selected.into())
    }

    /// Object of a step of the text with this index.
    fn partial<'a>(
        &self,
        stats: &RequestStats,
        index: usize,
        content: &'a str,
        tokens: Vec<u32>,
    ) -> NativeObject<'a> {
        NativeObject {
            index,
            content,
            tokens,
            stop: false,
            id_slot: self.id_slot,
            tokens_predicted: stats.generated_tokens,
            tokens_evaluated: stats.prompt_tokens,
            end: None,
            prompt_progress: None,
            completion_probabilities: None,
            timings: None,
        }
    }
}

impl Answer for NativeAnswer {
    fn framing(&self) -> Framing {
        Framing::Events { ends_with_done: false }
    }

    fn event(&mut self, stats: &RequestStats, event: RequestEvent) -> Vec<Frame> {
        let first = self.prompt * self.n_choices;
        match event {
            RequestEvent::Started { .. } | RequestEvent::Prompt { .. } if self.has_progress => {
                vec![Frame::new(&NativeObject {
                    prompt_progress: Some(stats.progress()),
                    timings: Some(stats.usage().timings()),
                    ..self.partial(stats, first, "", Vec::new())
                })]
            }
            RequestEvent::Text { choice, tokens, text } => {
                if text.is_empty() && tokens.is_empty() {
                    return Vec::new();
                }
                let ids = tokens.iter().map(|token| token.token).collect();
                let probs: Vec<_> = tokens.into_iter().filter_map(|token| token.probs).collect();
                vec![Frame::new(&NativeObject {
                    completion_probabilities: self.entries(&probs),
                    timings: self.has_timings_per_token.then(|| stats.usage().timings()),
                    ..self.partial(stats, first + choice, &text, ids)
                })]
            }
            _ => Vec::new(),
        }
    }

    fn end(&mut self, _: &RequestStats, completions: &[Completion]) -> Vec<Frame> {
        let object = |(choice, it)| Frame::new(&self.last((self.prompt, choice), it, false));
        let objects = completions.iter().enumerate().map(object).collect();
        self.prompt += 1;
        objects
    }

    /// One text is an object, several are a list.
    fn whole(&self, texts: &[Vec<Completion>]) -> Frame {
        let mut answers = Vec::new();
        for (prompt, completions) in texts.iter().enumerate() {
            let object = |(choice, it)| self.last((prompt, choice), it, true);
            answers.extend(completions.iter().enumerate().map(object));
        }
        if self.selection.is_empty() {
            return list_or_one(&answers);
        }
        let selected = answers.iter().map(|object| self.selected(object));
        match selected.collect::<ApiResult<Vec<Value>>>() {
            Ok(answers) => list_or_one(&answers),
            Err(error) => Frame::new(&error.to_json()),
        }
    }
}

/// One object by itself, several as a list.
fn list_or_one(objects: &[impl Serialize]) -> Frame {
    match objects {
        [object] => Frame::new(object),
        _ => Frame::new(&objects),
    }
}
