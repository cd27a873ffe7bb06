//! Answers in one piece: JSON, text, subtitles.

use serde::Serialize;
use stonechat::whisper::{Language, OutputFormat, SubtitleLayout, Task};
use stonechat::{Segment, Transcript, Word};

use super::fields::Fields;
use super::values::AudioFormat;
use crate::frame::Frame;
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
    logprobs: Option<Vec<TokenLogprob>>,
    /// `{"type": "duration", "seconds": 9}`.
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    usage: AudioUsage,
}

/// Answer in the format `verbose_json`.
#[derive(Debug, Serialize)]
struct VerboseAnswer<'a> {
    task: &'static str,
    language: &'static str,
    duration: f64,
    text: &'a str,
    usage: AudioUsage,
    #[serde(skip_serializing_if = "Option::is_none")]
    segments: Option<Vec<Segment>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    words: Option<Vec<TimedWord>>,
}

/// Billed unit of OpenAI's Whisper: seconds, rounded up.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct AudioUsage {
    #[serde(rename = "type")]
    kind: &'static str,
    seconds: u64,
}

/// A word with its times.
#[derive(Debug, Clone, Serialize)]
pub(super) struct TimedWord {
    word: String,
    start: f64,
    end: f64,
}

/// Log-probability of a token.
#[derive(Debug, Clone, Serialize)]
pub(super) struct TokenLogprob {
    token: String,
    logprob: f64,
    bytes: Vec<u8>,
}

/// Answer in one piece.
#[derive(Debug, Clone, PartialEq)]
pub enum SpeechAnswer {
    /// The formats `json` and `verbose_json`.
    Json(Frame),
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
                let usage = AudioUsage::new(transcript.duration);
                let answer = TranscriptionAnswer { text: text.to_owned(), logprobs, usage };
                Ok(Self::Json(Frame::new(&answer)))
            }
            AudioFormat::VerboseJson => {
                Ok(Self::Json(Frame::new(&VerboseAnswer::new(transcript, fields, task))))
            }
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

impl AudioUsage {
    /// Usage of a recording of this length.
    pub(super) fn new(seconds: f64) -> Self {
        Self { kind: "duration", seconds: seconds.ceil() as u64 }
    }
}

/// English name of the language of the text.
pub(super) fn language_name(transcript: &Transcript, task: Task) -> &'static str {
    match task {
        Task::Translate => "english",
        _ => Language::find(&transcript.language).map_or("", |language| language.name),
    }
}

impl<'a> VerboseAnswer<'a> {
    fn new(transcript: &'a Transcript, fields: &Fields, task: Task) -> Self {
        let segments = fields.has_segments().then(|| {
            // Words are a list beside the segments.
            let mut segments = transcript.segments.clone();
            segments.iter_mut().for_each(|segment| segment.words = None);
            segments
        });
        let words = || transcript.segments.iter().flat_map(TimedWord::of).collect();
        Self {
            task: task.name(),
            language: language_name(transcript, task),
            duration: transcript.duration,
            text: transcript.text.trim(),
            usage: AudioUsage::new(transcript.duration),
            segments,
            words: fields.has_words().then(words),
        }
    }
}

impl TimedWord {
    fn new(word: &Word) -> Self {
        Self { word: word.word.trim().to_owned(), start: word.start, end: word.end }
    }

    /// Words of a segment.
    pub(super) fn of(segment: &Segment) -> impl Iterator<Item = Self> {
        segment.words.iter().flatten().map(Self::new)
    }
}

/// Log-probabilities of the text tokens of a segment.
pub(super) fn logprobs(segment: &Segment) -> impl Iterator<Item = TokenLogprob> {
    let tokens = segment.token_texts.iter().zip(&segment.token_probabilities);
    // Names of special tokens, which no text token has.
    let is_text = |token: &&String| !(token.starts_with("<|") && token.ends_with("|>"));
    tokens.filter(move |(token, _)| is_text(token)).map(|(token, probability)| TokenLogprob {
        token: token.clone(),
        logprob: probability.max(MIN_PROBABILITY).ln(),
        bytes: token.as_bytes().to_vec(),
    })
}
