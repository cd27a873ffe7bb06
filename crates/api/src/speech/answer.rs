//! Answers in one piece: JSON, text, subtitles.

use serde::Serialize;
use serde_json::{Value, json};
use stonechat::whisper::{Language, OutputFormat, SubtitleLayout, Task};
use stonechat::{Segment, Transcript, Word};

use super::fields::{AudioFormat, Fields};
use crate::{ApiError, ApiResult};

/// Smallest probability whose logarithm is sent: JSON has no infinity.
const MIN_PROBABILITY: f64 = 1e-30;

/// Answer in the format `json`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TranscriptionAnswer {
    /// Text.
    text: String,
    /// Log-probability of each token, with `include[]=logprobs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Vec<Object>>))]
    logprobs: Option<Vec<Value>>,
    /// `{"type": "duration", "seconds": 9}`.
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    usage: Value,
}

/// Answer in one piece.
#[derive(Debug, Clone, PartialEq)]
pub enum SpeechAnswer {
    /// The formats `json` and `verbose_json`.
    Json(Value),
    /// The formats `text`, `srt` and `vtt`.
    Text {
        /// Text.
        text: String,
        /// Value of the header `Content-Type`.
        content_type: &'static str,
    },
}

/// Content type of plain text.
const PLAIN: &str = "text/plain; charset=utf-8";

impl SpeechAnswer {
    /// Answer in the format of the request.
    ///
    /// # Errors
    /// 500 if the subtitles cannot be written.
    pub fn new(transcript: &Transcript, fields: &Fields, task: Task) -> ApiResult<Self> {
        let text = transcript.text.trim();
        match fields.response_format {
            AudioFormat::Json => {
                let logprobs = fields
                    .has_logprobs()
                    .then(|| transcript.segments.iter().flat_map(logprobs).collect::<Vec<_>>());
                let usage = usage(transcript.duration);
                let answer = TranscriptionAnswer { text: text.to_owned(), logprobs, usage };
                Ok(Self::Json(json!(answer)))
            }
            AudioFormat::VerboseJson => Ok(Self::Json(verbose(transcript, fields, task))),
            AudioFormat::Text => Ok(Self::Text { text: format!("{text}\n"), content_type: PLAIN }),
            AudioFormat::Srt => subtitles(transcript, OutputFormat::Srt, PLAIN),
            AudioFormat::Vtt => subtitles(transcript, OutputFormat::Vtt, "text/vtt; charset=utf-8"),
        }
    }
}

fn subtitles(
    transcript: &Transcript,
    format: OutputFormat,
    content_type: &'static str,
) -> ApiResult<SpeechAnswer> {
    Ok(SpeechAnswer::Text { text: write(transcript, format)?, content_type })
}

/// Text of a transcript file.
pub(super) fn write(transcript: &Transcript, format: OutputFormat) -> ApiResult<String> {
    let mut text = Vec::new();
    format
        .write(&mut text, transcript, SubtitleLayout::default())
        .map_err(|error| ApiError::server(error.to_string()))?;
    String::from_utf8(text).map_err(|error| ApiError::server(error.to_string()))
}

/// Billed unit of OpenAI's Whisper: seconds, rounded up.
pub(super) fn usage(seconds: f64) -> Value {
    json!({"type": "duration", "seconds": seconds.ceil() as u64})
}

/// English name of the language of the text.
pub(super) fn language_name(transcript: &Transcript, task: Task) -> &'static str {
    match task {
        Task::Translate => "english",
        _ => Language::find(&transcript.language).map_or("", |language| language.name),
    }
}

fn verbose(transcript: &Transcript, fields: &Fields, task: Task) -> Value {
    let mut answer = json!({
        "task": task.name(),
        "language": language_name(transcript, task),
        "duration": transcript.duration,
        "text": transcript.text.trim(),
        "usage": usage(transcript.duration),
    });
    if fields.has_segments() {
        let segments = transcript.segments.iter().map(|segment| {
            let mut segment = segment.clone();
            // Words are a list beside the segments.
            segment.words = None;
            json!(segment)
        });
        answer["segments"] = segments.collect();
    }
    if fields.has_words() {
        let words = transcript.segments.iter().filter_map(|segment| segment.words.as_ref());
        answer["words"] = words.flatten().map(word).collect();
    }
    answer
}

/// A word with its times.
pub(super) fn word(word: &Word) -> Value {
    json!({"word": word.word.trim(), "start": word.start, "end": word.end})
}

/// Log-probabilities of the text tokens of a segment.
pub(super) fn logprobs(segment: &Segment) -> impl Iterator<Item = Value> {
    let tokens = segment.token_texts.iter().zip(&segment.token_probabilities);
    // Names of special tokens, which no text token has.
    let is_text = |token: &&String| !(token.starts_with("<|") && token.ends_with("|>"));
    tokens.filter(move |(token, _)| is_text(token)).map(|(token, probability)| {
        json!({
            "token": token,
            "logprob": probability.max(MIN_PROBABILITY).ln(),
            "bytes": token.as_bytes(),
        })
    })
}
