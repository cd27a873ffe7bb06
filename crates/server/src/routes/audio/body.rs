//! Answers in one piece: JSON, text, subtitles.

use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use stonechat::whisper::{Language, OutputFormat, SubtitleLayout, Task};
use stonechat::{Segment, Transcript, Word};

use super::TranscriptionAnswer;
use super::fields::{AudioFormat, Fields};
use crate::{ApiError, ApiResult, Json};

/// Smallest probability whose logarithm is sent: JSON has no infinity.
const MIN_PROBABILITY: f64 = 1e-30;

/// Answer to a request without a stream.
pub(super) fn respond(transcript: &Transcript, fields: &Fields, task: Task) -> ApiResult<Response> {
    let text = transcript.text.trim();
    match fields.response_format {
        AudioFormat::Json => {
            let logprobs = fields
                .has_logprobs()
                .then(|| transcript.segments.iter().flat_map(logprobs).collect::<Vec<_>>());
            let usage = usage(transcript.duration);
            Ok(Json(TranscriptionAnswer { text: text.to_owned(), logprobs, usage }).into_response())
        }
        AudioFormat::VerboseJson => Ok(Json(verbose(transcript, fields, task)).into_response()),
        AudioFormat::Text => Ok(plain(format!("{text}\n"), "text/plain; charset=utf-8")),
        AudioFormat::Srt => subtitles(transcript, OutputFormat::Srt, "text/plain; charset=utf-8"),
        AudioFormat::Vtt => subtitles(transcript, OutputFormat::Vtt, "text/vtt; charset=utf-8"),
    }
}

fn plain(text: impl Into<Body>, content_type: &'static str) -> Response {
    let mut response = Response::new(text.into());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

fn subtitles(
    transcript: &Transcript,
    format: OutputFormat,
    content_type: &'static str,
) -> ApiResult<Response> {
    let mut text = Vec::new();
    let written = format.write(&mut text, transcript, SubtitleLayout::default());
    written.map_err(|error| ApiError::server(error.to_string()))?;
    Ok(plain(text, content_type))
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
