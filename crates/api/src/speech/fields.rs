//! Fields of a transcription request, from a form or JSON, and the options of Whisper that they set.

use serde_json::{Map, Value};
use stonechat::whisper::{Language, Options, Task};

use super::vad_fields::VadFields;
use super::values::{AudioFormat, boolean, list, number};
use crate::json::{from_bytes, kind_of};
use crate::{ApiError, ApiResult};

/// Maximum bytes of all fields but the file.
pub const MAX_FIELD_BYTES: usize = 1 << 20;

/// Fields of a form. Lists are repeated fields, with or without `[]` after their name.
#[derive(Debug, Clone, Default)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Fields {
    /// Audio or video file: WAV, FLAC, MP3, OGG, Opus, M4A, MP4, MKV, `WebM`, AIFF, CAF.
    #[cfg_attr(feature = "schema", schema(value_type = String, format = Binary))]
    #[expect(dead_code, reason = "a part of the document: the file is decoded as it arrives")]
    file: (),
    /// Name of the model; any name if there is one speech model.
    pub(super) model: Option<String>,
    /// Spoken language: code or English name; detected by default.
    pub(super) language: Option<String>,
    /// Languages that detection chooses from.
    pub(super) languages: Vec<String>,
    /// Words to expect.
    pub(super) keywords: Vec<String>,
    /// Text before the recording, for its style and spelling.
    pub(super) prompt: Option<String>,
    /// Temperature. 0, the default, raises it where a text fails; another is the only one.
    pub(super) temperature: Option<f32>,
    /// Format of the answer.
    pub(super) response_format: AudioFormat,
    /// `word`, `segment` or both, with `verbose_json`.
    pub(super) timestamp_granularities: Vec<String>,
    /// `logprobs`: log-probabilities of the tokens, with `json` and events.
    pub(super) include: Vec<String>,
    /// Whether segments are sent as events as soon as they are final.
    pub(super) stream: bool,
    /// `auto`, or `{"type": "server_vad", "threshold", "prefix_padding_ms", "silence_duration_ms"}`: silence is cut out.
    pub(super) chunking_strategy: Option<String>,
    /// Words to expect, in the prompt of every window of 30 s.
    pub(super) hotwords: Option<String>,
    /// Whether silence is cut out.
    pub(super) vad_filter: Option<bool>,
    /// Beams at temperature 0, 1 to 16; default 5.
    pub(super) beam_size: Option<usize>,
    /// Samples at higher temperatures, 1 to 16; default 5.
    pub(super) best_of: Option<usize>,
    /// Whether the times of words are found in any format.
    pub(super) word_timestamps: bool,
    /// Whether the text is decoded without times.
    pub(super) without_timestamps: bool,
    /// Whether the text before a window is its prompt; default true.
    pub(super) condition_on_previous_text: Option<bool>,
    /// Windows of this recording that are decoded side by side, 1 to 64.
    pub(super) batch_size: Option<usize>,
    /// Seed at temperatures above 0.
    pub(super) seed: Option<u64>,
    /// Fields of `chunking_strategy[…]`.
    #[cfg_attr(feature = "schema", schema(ignore))]
    pub(super) vad: VadFields,
}

/// Language of a field, given by its code or English name.
///
/// # Errors
/// 400 with the field.
pub fn language(name: &str, field: &str) -> ApiResult<Language> {
    let expected = "a code such as `de` or an English name such as `german`";
    Language::find(name).ok_or_else(|| ApiError::field(field, expected, format!("`{name}`")))
}

impl Fields {
    /// Sets a field. Clients send an empty text for one that is not set. Tells if there is a field of this name: others have no
    /// effect.
    ///
    /// # Errors
    /// 400 with the field, what was expected and what was found.
    pub fn set(&mut self, name: &str, text: &str) -> ApiResult<bool> {
        if text.is_empty() {
            return Ok(true);
        }
        if let Some(key) = name.strip_prefix("chunking_strategy[") {
            self.vad.set(key.trim_end_matches(']'), text)?;
            return Ok(true);
        }
        let base = name.strip_suffix("[]").unwrap_or(name);
        if let Some(items) = self.list_mut(base) {
            items.extend(list(text));
            return Ok(true);
        }
        match base {
            "model" => self.model = Some(text.to_owned()),
            "language" => self.language = Some(text.to_owned()),
            "prompt" => self.prompt = Some(text.to_owned()),
            "temperature" => self.temperature = Some(number(base, text)?),
            "response_format" => self.response_format = text.parse()?,
            "stream" => self.stream = boolean(base, text)?,
            "chunking_strategy" => self.chunking_strategy = Some(text.to_owned()),
            "hotwords" => self.hotwords = Some(text.to_owned()),
            "vad_filter" => self.vad_filter = Some(boolean(base, text)?),
            "beam_size" => self.beam_size = Some(number(base, text)?),
            "best_of" => self.best_of = Some(number(base, text)?),
            "word_timestamps" => self.word_timestamps = boolean(base, text)?,
            "without_timestamps" => self.without_timestamps = boolean(base, text)?,
            "condition_on_previous_text" => {
                self.condition_on_previous_text = Some(boolean(base, text)?);
            }
            "batch_size" => self.batch_size = Some(number(base, text)?),
            "seed" => self.seed = Some(number(base, text)?),
            "known_speaker_names" | "known_speaker_references" => {
                return Err(ApiError::field(
                    base,
                    "none: no model here tells speakers apart",
                    "one",
                ));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Parses an object. A list is one in JSON, too; `vad` is `vad_filter`, or `auto`; `task` is `transcribe` or `translate`.
    ///
    /// # Errors
    /// 400 with the field, what was expected and what was found; 413 above [`MAX_FIELD_BYTES`].
    pub fn parse(body: &[u8]) -> ApiResult<(Self, Task)> {
        if body.len() > MAX_FIELD_BYTES {
            return Err(ApiError::too_large(MAX_FIELD_BYTES));
        }
        let body: Map<String, Value> = from_bytes(body)?;
        let (mut fields, mut task) = (Self::default(), Task::Transcribe);
        for (name, value) in &body {
            match (name.as_str(), value) {
                (_, Value::Null) => {}
                ("task", Value::String(text)) if text == "transcribe" => task = Task::Transcribe,
                ("task", Value::String(text)) if text == "translate" => task = Task::Translate,
                ("task", other) => {
                    return Err(ApiError::field("task", "`transcribe` or `translate`", other));
                }
                ("vad", Value::String(text)) if text == "auto" => {}
                ("vad", Value::Bool(is_on)) => fields.vad_filter = Some(*is_on),
                ("vad", other) => {
                    return Err(ApiError::field("vad", "true, false or `auto`", other));
                }
                (name, value) => fields.set_json(name, value)?,
            }
        }
        Ok((fields, task))
    }

    fn set_json(&mut self, name: &str, value: &Value) -> ApiResult<()> {
        if let (Some(list), Value::Array(items)) = (self.list_mut(name), value) {
            for item in items {
                let Value::String(text) = item else {
                    return Err(ApiError::field(name, "a list of strings", kind_of(item)));
                };
                list.push(text.clone());
            }
            return Ok(());
        }
        let is_known = match value {
            Value::String(text) => self.set(name, text)?,
            Value::Bool(_) | Value::Number(_) => self.set(name, &value.to_string())?,
            Value::Object(_) if name == "chunking_strategy" => {
                self.set(name, &value.to_string())?
            }
            other => return Err(ApiError::field(name, "one value", kind_of(other))),
        };
        if is_known {
            return Ok(());
        }
        let error = ApiError::bad_request(format!("`{name}`: no such field"));
        Err(error.with_param(name))
    }

    /// The list of this name.
    fn list_mut(&mut self, name: &str) -> Option<&mut Vec<String>> {
        match name {
            "languages" => Some(&mut self.languages),
            "keywords" => Some(&mut self.keywords),
            "timestamp_granularities" => Some(&mut self.timestamp_granularities),
            "include" => Some(&mut self.include),
            _ => None,
        }
    }

    /// Name of the model; `None`: the only one.
    #[must_use]
    pub fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// Whether segments are sent as events.
    #[must_use]
    pub fn is_stream(&self) -> bool {
        self.stream
    }

    /// Whether the answer has segments.
    pub(super) fn has_segments(&self) -> bool {
        let granularities = &self.timestamp_granularities;
        granularities.is_empty() || granularities.iter().any(|one| one == "segment")
    }

    /// Whether the answer has words.
    pub(super) fn has_words(&self) -> bool {
        self.timestamp_granularities.iter().any(|one| one == "word")
    }

    /// Whether the answer has log-probabilities.
    pub(super) fn has_logprobs(&self) -> bool {
        self.include.iter().any(|one| one == "logprobs")
    }

    /// Options of the transcription.
    ///
    /// # Errors
    /// 400 with the field, what was expected and what was found.
    pub fn options(&self, task: Task) -> ApiResult<Options> {
        let one_of = |name, got: &[String], expected: &[&str]| {
            let wrong = got.iter().find(|one| !expected.contains(&one.as_str()));
            wrong.map_or(Ok(()), |got| {
                let got = format!("`{got}`");
                Err(ApiError::field(name, &format!("`{}`", expected.join("` or `")), got))
            })
        };
        one_of("timestamp_granularities", &self.timestamp_granularities, &["word", "segment"])?;
        one_of("include", &self.include, &["logprobs"])?;
        if self.stream && matches!(self.response_format, AudioFormat::Srt | AudioFormat::Vtt) {
            let expected = "json, text or verbose_json for a stream of events";
            return Err(ApiError::field("response_format", expected, "subtitles"));
        }
        let mut options = Options { task, ..Options::default() };
        self.set_languages(&mut options)?;
        if let Some(temperature) = self.temperature.filter(|&temperature| temperature != 0.0) {
            options.temperatures = vec![temperature];
        }
        let is_verbose = self.response_format == AudioFormat::VerboseJson;
        options.word_timestamps = self.word_timestamps || (is_verbose && self.has_words());
        options.initial_prompt = self.prompt.clone();
        let hotwords = self.hotwords.iter().chain(&self.keywords).map(String::as_str);
        let hotwords = hotwords.collect::<Vec<_>>().join(", ");
        options.hotwords = Some(hotwords).filter(|words| !words.is_empty());
        options.without_timestamps = self.without_timestamps;
        options.batch_size = self.batch_size;
        options.beam_size = self.beam_size.unwrap_or(options.beam_size);
        options.best_of = self.best_of.unwrap_or(options.best_of);
        options.seed = self.seed.unwrap_or(options.seed);
        let condition = self.condition_on_previous_text;
        options.condition_on_previous_text =
            condition.unwrap_or(options.condition_on_previous_text);
        let strategy = self.chunking_strategy.as_deref();
        self.vad.clone().apply(strategy, self.vad_filter, &mut options)?;
        options.validate()?;
        Ok(options)
    }

    fn set_languages(&self, options: &mut Options) -> ApiResult<()> {
        let languages = self.languages.iter().map(|name| language(name, "languages"));
        options.languages = languages.collect::<Result<Vec<_>, _>>()?;
        let name = self.language.as_ref().filter(|name| *name != "auto");
        options.language = name.map(|name| language(name, "language")).transpose()?;
        // One language need not be detected.
        if let ([language], None) = (&options.languages[..], options.language) {
            options.language = Some(*language);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
