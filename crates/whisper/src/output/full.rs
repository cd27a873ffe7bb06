//! JSON of whisper.cpp (`examples/cli/cli.cpp`, `output_json`), plus words if there are any.

use std::iter::repeat_with;

use serde::Serialize;

use super::{clock, milliseconds};
use crate::transcript::{Segment, Transcript, Word};

#[derive(Debug, Serialize)]
pub(super) struct JsonFull<'a> {
    result: ResultInfo<'a>,
    transcription: Vec<JsonSegment<'a>>,
}

#[derive(Debug, Serialize)]
struct ResultInfo<'a> {
    language: &'a str,
}

/// Start and end, as text and in milliseconds.
#[derive(Debug, Serialize)]
struct Times {
    timestamps: FromTo<String>,
    offsets: FromTo<u64>,
}

#[derive(Debug, Serialize)]
struct FromTo<T> {
    from: T,
    to: T,
}

#[derive(Debug, Serialize)]
struct JsonSegment<'a> {
    #[serde(flatten)]
    times: Times,
    #[serde(skip_serializing_if = "Option::is_none")]
    speaker: Option<&'a str>,
    text: &'a str,
    tokens: Vec<JsonToken<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    words: Option<Vec<JsonToken<'a>>>,
    temperature: f32,
    avg_logprob: f64,
    compression_ratio: f64,
    no_speech_prob: f64,
}

/// A token, or a word.
#[derive(Debug, Serialize)]
struct JsonToken<'a> {
    /// Incomplete characters are U+FFFD.
    text: &'a str,
    #[serde(flatten)]
    times: Option<Times>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u32>,
    p: f64,
}

impl Times {
    fn new(start: f64, end: f64) -> Self {
        let (from, to) = (milliseconds(start), milliseconds(end));
        let timestamps = FromTo { from: clock(from, true, ','), to: clock(to, true, ',') };
        Self { timestamps, offsets: FromTo { from, to } }
    }
}

impl<'a> From<&'a Transcript> for JsonFull<'a> {
    fn from(transcript: &'a Transcript) -> Self {
        Self {
            result: ResultInfo { language: &transcript.language },
            transcription: transcript.segments.iter().map(JsonSegment::from).collect(),
        }
    }
}

impl<'a> From<&'a Segment> for JsonSegment<'a> {
    fn from(segment: &'a Segment) -> Self {
        let timed = |word: &'a Word| JsonToken {
            text: &word.word,
            times: Some(Times::new(word.start, word.end)),
            id: None,
            p: word.probability,
        };
        let texts = segment.token_texts.iter().zip(&segment.token_probabilities);
        let times = segment.token_times.iter().map(|&(start, end)| Some(Times::new(start, end)));
        let tokens = segment.tokens.iter().zip(texts).zip(times.chain(repeat_with(|| None)));
        let token = |((&id, (text, &p)), times): ((&u32, (&'a String, &f64)), _)| {
            let id = Some(id);
            JsonToken { text, times, id, p }
        };
        Self {
            times: Times::new(segment.start, segment.end),
            speaker: segment.speaker.as_deref(),
            text: &segment.text,
            tokens: tokens.map(token).collect(),
            words: segment.words.as_ref().map(|words| words.iter().map(timed).collect()),
            temperature: segment.temperature,
            avg_logprob: segment.avg_logprob,
            compression_ratio: segment.compression_ratio,
            no_speech_prob: segment.no_speech_prob,
        }
    }
}
