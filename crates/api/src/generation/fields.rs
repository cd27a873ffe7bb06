//! Fields of a body that say how a text is generated, under the names of OpenAI and llama-server.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stonechat::LlmInfo;
use stonechat::llm::{GenerateOptions, ModelInfo, OnFull, Request};
use stonechat::sampling::{GrammarSource, SamplerKind, SamplingOptions};
use web_time::Instant;

use super::{ProbFields, logit_bias};
use crate::json::kind_of;
use crate::{ApiError, ApiResult, Defaults};

/// Fields of generation. A field that is absent or null has the default of the server.
#[derive(Debug, Clone, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GenerationFields {
    /// Name of the model.
    pub(crate) model: Option<String>,
    /// Whether the answer is a stream of events.
    pub(crate) stream: Option<bool>,
    /// Options of a stream.
    pub(crate) stream_options: Option<StreamOptions>,
    /// Number of texts.
    pub(crate) n: Option<i64>,
    /// Number of texts, as `/completion` names it.
    pub(crate) n_cmpl: Option<i64>,
    /// Maximum tokens; -1: up to the context.
    pub(crate) max_tokens: Option<i64>,
    /// Maximum tokens, under OpenAI's newer name.
    pub(crate) max_completion_tokens: Option<i64>,
    /// Maximum tokens, under llama-server's name.
    pub(crate) n_predict: Option<i64>,
    /// A stop string, or several.
    pub(crate) stop: Option<Stop>,
    /// Seed; -1: a random one.
    #[cfg_attr(feature = "schema", schema(value_type = Option<i64>))]
    pub(crate) seed: Option<i128>,
    /// Temperature; 0 is greedy.
    pub(crate) temperature: Option<f32>,
    /// Half-width of the dynamic temperature's range; 0 is off.
    pub(crate) dynatemp_range: Option<f32>,
    /// Exponent of the dynamic temperature.
    pub(crate) dynatemp_exponent: Option<f32>,
    /// Number of tokens that top-k keeps; 0 is off.
    pub(crate) top_k: Option<i64>,
    /// Total probability that top-p keeps; 1 is off.
    pub(crate) top_p: Option<f32>,
    /// Fraction of the largest probability that min-p keeps; 0 is off.
    pub(crate) min_p: Option<f32>,
    /// Standard deviations that top-n-sigma keeps; -1 is off.
    pub(crate) top_n_sigma: Option<f32>,
    /// Probability of XTC; 0 is off.
    pub(crate) xtc_probability: Option<f32>,
    /// Threshold of XTC.
    pub(crate) xtc_threshold: Option<f32>,
    /// Total probability of typical sampling; 1 is off.
    #[serde(alias = "typ_p")]
    pub(crate) typical_p: Option<f32>,
    /// Window of the penalties in tokens; -1: the context.
    pub(crate) repeat_last_n: Option<i64>,
    /// Penalty of repeated tokens; 1 is off.
    pub(crate) repeat_penalty: Option<f32>,
    /// Penalty of tokens that occur; 0 is off.
    pub(crate) presence_penalty: Option<f32>,
    /// Penalty of each occurrence; 0 is off.
    pub(crate) frequency_penalty: Option<f32>,
    /// Multiplier of DRY; 0 is off.
    pub(crate) dry_multiplier: Option<f32>,
    /// Base of DRY.
    pub(crate) dry_base: Option<f32>,
    /// Maximum length of a repetition that DRY does not penalize.
    pub(crate) dry_allowed_length: Option<usize>,
    /// Window of DRY in tokens; -1: the context.
    pub(crate) dry_penalty_last_n: Option<i64>,
    /// Strings that end a repetition.
    pub(crate) dry_sequence_breakers: Option<Vec<String>>,
    /// Mirostat: 0 off, 1 or 2.
    pub(crate) mirostat: Option<u8>,
    /// Target surprise of Mirostat.
    pub(crate) mirostat_tau: Option<f32>,
    /// Learning rate of Mirostat.
    pub(crate) mirostat_eta: Option<f32>,
    /// Target of adaptive-p; below 0 is off.
    pub(crate) adaptive_target: Option<f32>,
    /// Decay of adaptive-p.
    pub(crate) adaptive_decay: Option<f32>,
    /// Tokens that truncating samplers keep at least.
    pub(crate) min_keep: Option<usize>,
    /// Names of the samplers in order, or their letters.
    pub(crate) samplers: Option<Samplers>,
    /// Bias of tokens: pairs, or an object by id or text; `false` forbids a token.
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub(crate) logit_bias: Option<Value>,
    /// Whether end tokens are never sampled.
    pub(crate) ignore_eos: Option<bool>,
    /// Grammar in GBNF.
    pub(crate) grammar: Option<String>,
    /// JSON schema of the text.
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub(crate) json_schema: Option<Value>,
    /// Format of the text: `text`, `json_object` or `json_schema`.
    pub(crate) response_format: Option<ResponseFormat>,
    /// Number of probable tokens to report for each token.
    pub(crate) n_probs: Option<i64>,
    /// Whether these are the probabilities after all samplers, as `prob` and `top_probs`.
    pub(crate) post_sampling_probs: Option<bool>,
    /// OpenAI: whether log-probabilities are reported (chat), or how many (completions).
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub(crate) logprobs: Option<Value>,
    /// OpenAI's chat: number of probable tokens.
    pub(crate) top_logprobs: Option<i64>,
    /// Whether cached prefixes are used.
    pub(crate) cache_prompt: Option<bool>,
    /// Requests with another salt share no cached prefix.
    pub(crate) cache_salt: Option<String>,
    /// Requests with a smaller value go first.
    pub(crate) priority: Option<i32>,
    /// Slot that the answer names; any slot serves.
    pub(crate) id_slot: Option<i64>,
    /// Tokens at the start that a context shift keeps, with the server's `--context-shift`.
    pub(crate) n_keep: Option<i64>,
    /// Milliseconds after the first token from which a text with a line break ends; 0 or less: no limit.
    pub(crate) t_max_predict_ms: Option<i64>,
    /// Milliseconds in which the request must end: with 503 before its first token, then with the reason `length`.
    pub(crate) timeout_ms: Option<i64>,
    /// Time at which the request must have ended.
    #[serde(skip)]
    pub(crate) deadline: Option<Instant>,
    /// Whether the tokens are returned.
    pub(crate) return_tokens: Option<bool>,
    /// Whether a stream reports the progress of the prompt.
    pub(crate) return_progress: Option<bool>,
    /// Whether every event of a stream has timings.
    pub(crate) timings_per_token: Option<bool>,
    /// Whether the answer has `__verbose`, that of `/completion`.
    pub(crate) verbose: Option<bool>,
    /// Seconds between comments in a stream without data; -1: none.
    pub(crate) sse_ping_interval: Option<i64>,
    /// Adapters: none can be loaded.
    #[cfg_attr(feature = "schema", schema(value_type = Option<Vec<Object>>))]
    pub(crate) lora: Option<Vec<Value>>,
}

/// Options of a stream.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StreamOptions {
    /// Whether a last event has the counts of tokens.
    #[serde(default)]
    pub(crate) include_usage: bool,
}

/// Stop strings.
#[derive(Debug, Clone, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(untagged, expecting = "expected a string or a list of strings")]
pub enum Stop {
    /// One string.
    One(String),
    /// Several strings.
    Several(Vec<String>),
}

/// Samplers in order.
#[derive(Debug, Clone, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(untagged, expecting = "expected a list of names or a string of letters")]
pub enum Samplers {
    /// Letters, as llama.cpp's `--sampling-seq`.
    Letters(String),
    /// Names.
    Names(Vec<String>),
}

/// Format of the text.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ResponseFormat {
    /// `text`, `json_object` or `json_schema`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// llama-server: the schema of `json_object`.
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) schema: Option<Value>,
    /// The schema of `json_schema`, as `{"schema": …}`.
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) json_schema: Option<Value>,
}

impl GenerationFields {
    /// Name of the model; `None`: the only one.
    #[must_use]
    pub fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// Whether the answer is a stream.
    #[must_use]
    pub fn is_stream(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    /// Time at which the request must have ended.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Sets the deadline of a request that arrives now.
    pub(crate) fn set_deadline(&mut self, default: Option<Duration>) {
        let own = self.timeout_ms.map(|ms| Duration::from_millis(ms.unsigned_abs()));
        self.deadline = own.or(default).and_then(|time| Instant::now().checked_add(time));
    }

    /// Whether a stream ends with the counts of tokens.
    pub(crate) fn includes_usage(&self) -> bool {
        self.stream_options.unwrap_or_default().include_usage
    }

    /// Number of texts.
    pub(crate) fn n_choices(&self) -> usize {
        self.n.or(self.n_cmpl).map_or(1, natural)
    }

    /// Stop strings that are not empty.
    pub(crate) fn stop_strings(&self) -> Vec<String> {
        let stops = match &self.stop {
            None => &[][..],
            Some(Stop::One(stop)) => std::slice::from_ref(stop),
            Some(Stop::Several(stops)) => stops,
        };
        stops.iter().filter(|stop| !stop.is_empty()).cloned().collect()
    }

    /// Maximum tokens of the text; `None`: up to the context.
    pub(crate) fn max_tokens(&self, defaults: &Defaults<'_>) -> Option<usize> {
        match self.max_completion_tokens.or(self.max_tokens).or(self.n_predict) {
            None => defaults.n_predict,
            Some(n) => usize::try_from(n).ok(),
        }
    }

    /// Salt of the prefix cache.
    pub(crate) fn salt(&self) -> u64 {
        use std::hash::{DefaultHasher, Hash, Hasher};
        self.cache_salt.as_ref().map_or(0, |salt| {
            let mut hasher = DefaultHasher::new();
            salt.hash(&mut hasher);
            hasher.finish() | 1
        })
    }

    /// Options of the texts. `n_probs`: see [`n_probs`](Self::n_probs).
    pub(crate) fn options(
        &self,
        model: &LlmInfo,
        defaults: &Defaults<'_>,
        n_probs: usize,
    ) -> ApiResult<GenerateOptions> {
        let grammar = self.grammar_source()?;
        let grammar = grammar.map(|source| model.model.compile_grammar(&source)).transpose()?;
        let options = self.free_options(model, defaults, n_probs)?;
        Ok(GenerateOptions { grammar: grammar.map(Arc::new), ..options })
    }

    /// As [`options`](Self::options), without the grammar.
    pub(crate) fn free_options(
        &self,
        model: &LlmInfo,
        defaults: &Defaults<'_>,
        n_probs: usize,
    ) -> ApiResult<GenerateOptions> {
        if self.lora.as_ref().is_some_and(|adapters| !adapters.is_empty()) {
            return Err(ApiError::field("lora", "no adapters: none is loaded", "some"));
        }
        let LlmInfo { model, n_ctx, .. } = model;
        Ok(GenerateOptions {
            n_predict: self.max_tokens(defaults),
            sampling: self.sampling(defaults.sampling, model, *n_ctx)?,
            stop: self.stop_strings(),
            n_probs,
            post_sampling_probs: self.post_sampling_probs.unwrap_or(false),
            ignore_eos: self.ignore_eos.unwrap_or(false),
            on_full: if defaults.context_shift {
                OnFull::Shift { keep: window(self.n_keep.unwrap_or(0), *n_ctx) }
            } else {
                OnFull::Stop
            },
            ..GenerateOptions::default()
        })
    }

    /// The request with the number of its texts, its place among others, and its times.
    pub(crate) fn schedule(&self, request: Request) -> Request {
        let max_ms = self.t_max_predict_ms.and_then(|ms| u64::try_from(ms).ok());
        Request {
            deadline: self.deadline,
            max_decode: max_ms.filter(|&ms| ms > 0).map(Duration::from_millis),
            n_choices: self.n_choices(),
            priority: self.priority.unwrap_or(0),
            cache_salt: self.salt(),
            reads_cache: self.cache_prompt.unwrap_or(true),
            ..request
        }
    }

    /// Interval of comments in a stream without data; none for -1.
    #[must_use]
    pub fn ping_interval(&self, default: Option<Duration>) -> Option<Duration> {
        match self.sse_ping_interval {
            None => default,
            Some(seconds) => u64::try_from(seconds).ok().map(Duration::from_secs),
        }
    }

    /// Fields of reported probabilities, with the `n` most probable tokens.
    pub(crate) fn prob_fields(&self, n: usize) -> ProbFields {
        ProbFields { n, is_post_sampling: self.post_sampling_probs.unwrap_or(false) }
    }

    /// Number of probable tokens of the native route.
    pub(crate) fn n_probs(&self) -> usize {
        let n = self.logprobs.as_ref().and_then(Value::as_i64);
        self.n_probs.or(n).map_or(0, natural)
    }

    /// Number of probable tokens of a chat; at least one is needed for those of the text.
    pub(crate) fn chat_probs(&self) -> ApiResult<Option<usize>> {
        match &self.logprobs {
            None | Some(Value::Null | Value::Bool(false)) => match self.top_logprobs {
                None | Some(0) => Ok(None),
                Some(_) => Err(ApiError::field("logprobs", "true with `top_logprobs`", "false")),
            },
            Some(Value::Bool(true)) => Ok(Some(self.top_logprobs.map_or(0, natural))),
            Some(other) => Err(ApiError::field("logprobs", "a boolean", kind_of(other))),
        }
    }

    /// Number of probable tokens of OpenAI's completions.
    pub(crate) fn completion_probs(&self) -> ApiResult<Option<usize>> {
        match &self.logprobs {
            None | Some(Value::Null | Value::Bool(false)) => Ok(None),
            Some(Value::Bool(true)) => Ok(Some(0)),
            Some(Value::Number(n)) => Ok(Some(n.as_i64().map_or(0, natural))),
            Some(other) => Err(ApiError::field("logprobs", "a number", kind_of(other))),
        }
    }

    fn sampling(
        &self,
        defaults: &SamplingOptions,
        model: &ModelInfo,
        n_ctx: usize,
    ) -> ApiResult<SamplingOptions> {
        let mut options = defaults.clone();
        let values = [
            (&mut options.temperature, self.temperature),
            (&mut options.dynatemp_range, self.dynatemp_range),
            (&mut options.dynatemp_exponent, self.dynatemp_exponent),
            (&mut options.top_p, self.top_p),
            (&mut options.min_p, self.min_p),
            (&mut options.top_n_sigma, self.top_n_sigma),
            (&mut options.xtc_probability, self.xtc_probability),
            (&mut options.xtc_threshold, self.xtc_threshold),
            (&mut options.typical_p, self.typical_p),
            (&mut options.repeat_penalty, self.repeat_penalty),
            (&mut options.presence_penalty, self.presence_penalty),
            (&mut options.frequency_penalty, self.frequency_penalty),
            (&mut options.dry_multiplier, self.dry_multiplier),
            (&mut options.dry_base, self.dry_base),
            (&mut options.mirostat_tau, self.mirostat_tau),
            (&mut options.mirostat_eta, self.mirostat_eta),
            (&mut options.adaptive_target, self.adaptive_target),
            (&mut options.adaptive_decay, self.adaptive_decay),
        ];
        for (option, value) in values {
            *option = value.unwrap_or(*option);
        }
        if let Some(seed) = self.seed {
            // llama.cpp's seeds have 32 bits; its random one is the largest.
            options.seed = Some(seed as u32).filter(|&seed| seed != u32::MAX).map(u64::from);
        }
        if let Some(k) = self.top_k {
            options.top_k = usize::try_from(k).unwrap_or(0);
        }
        if let Some(n) = self.repeat_last_n {
            options.repeat_last_n = window(n, n_ctx);
        }
        if let Some(n) = self.dry_penalty_last_n {
            options.dry_penalty_last_n = window(n, n_ctx);
        }
        if let Some(n) = self.dry_allowed_length {
            options.dry_allowed_length = n;
        }
        if let Some(breakers) = &self.dry_sequence_breakers {
            options.dry_sequence_breakers.clone_from(breakers);
        }
        if let Some(mirostat) = self.mirostat {
            options.mirostat = mirostat;
        }
        if let Some(n) = self.min_keep {
            options.min_keep = n;
        }
        match &self.samplers {
            None => {}
            Some(Samplers::Letters(letters)) => {
                options.order = SamplerKind::parse_letters(letters)?;
            }
            Some(Samplers::Names(names)) => {
                options.order = SamplerKind::parse_names(&names.join(";"))?;
            }
        }
        if let Some(bias) = &self.logit_bias {
            options.logit_bias = logit_bias::parse(bias, model.tokenizer())?;
        }
        options.validate()?;
        Ok(options)
    }

    /// Grammar of the text.
    pub(crate) fn grammar_source(&self) -> ApiResult<Option<GrammarSource>> {
        let mut sources = Vec::new();
        if let Some(grammar) = self.grammar.as_ref().filter(|grammar| !grammar.is_empty()) {
            sources.push(GrammarSource::Gbnf(grammar.clone()));
        }
        if let Some(schema) = self.json_schema.as_ref().filter(|schema| !schema.is_null()) {
            sources.push(GrammarSource::JsonSchema(schema.to_string()));
        }
        if let Some(format) = &self.response_format {
            sources.extend(format.grammar()?);
        }
        if sources.len() > 1 {
            let expected = "one of `grammar`, `json_schema` and `response_format`";
            return Err(ApiError::field("grammar", expected, "several"));
        }
        Ok(sources.pop())
    }
}

impl ResponseFormat {
    fn grammar(&self) -> ApiResult<Option<GrammarSource>> {
        let schema = |schema: Option<&Value>| {
            schema
                .filter(|schema| schema.is_object())
                .map(|schema| GrammarSource::JsonSchema(schema.to_string()))
        };
        match self.kind.as_str() {
            "text" => Ok(None),
            "json_object" => match self.schema.as_ref().filter(|schema| !schema.is_null()) {
                None => Ok(Some(GrammarSource::JsonSchema(json!({"type": "object"}).to_string()))),
                given => schema(given).map(Some).ok_or_else(|| {
                    let got = given.map_or("nothing", kind_of);
                    ApiError::field("response_format.schema", "an object", got)
                }),
            },
            "json_schema" => {
                let found = self.json_schema.as_ref().and_then(|format| format.get("schema"));
                schema(found).map(Some).ok_or_else(|| {
                    let name = "response_format.json_schema.schema";
                    ApiError::field(name, "an object", found.map_or("nothing", kind_of))
                })
            }
            other => Err(ApiError::field(
                "response_format.type",
                "`text`, `json_object` or `json_schema`",
                format!("`{other}`"),
            )),
        }
    }
}

/// A window in tokens: -1 is the context.
fn window(n: i64, n_ctx: usize) -> usize {
    usize::try_from(n).unwrap_or(n_ctx).min(n_ctx)
}

/// A number that [`limits`](crate::limits) bounds from below by 0 or more.
fn natural(n: i64) -> usize {
    usize::try_from(n).unwrap_or(0)
}

#[cfg(test)]
mod tests;
