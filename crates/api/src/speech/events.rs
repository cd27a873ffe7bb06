//! Answers as events: `transcript.text.delta` for each segment, `transcript.text.done` at the end.

use serde::Serialize;
use stonechat::whisper::Task;
use stonechat::{Segment, Transcript};

use super::answer::{AudioUsage, TimedWord, TokenLogprob, language_name, logprobs};
use super::fields::Fields;
use super::values::AudioFormat;
use crate::frame::Frame;

/// Events of a transcription, in OpenAI's format.
#[derive(Debug)]
pub struct SpeechEvents {
    /// Text of the segments so far.
    text: String,
    logprobs: Vec<TokenLogprob>,
    has_logprobs: bool,
    has_segments: bool,
    /// Whether the events of segments have their words.
    has_words: bool,
    task: Task,
}

/// Event of a stream.
#[derive(Debug, Serialize)]
#[serde(tag = "type")]
enum SpeechEvent<'a> {
    #[serde(rename = "transcript.text.segment")]
    Segment {
        id: &'a str,
        start: f64,
        end: f64,
        text: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        words: Option<Vec<TimedWord>>,
    },
    #[serde(rename = "transcript.text.delta")]
    Delta {
        delta: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        logprobs: Option<&'a [TokenLogprob]>,
        #[serde(skip_serializing_if = "Option::is_none")]
        segment_id: Option<&'a str>,
    },
    #[serde(rename = "transcript.text.done")]
    Done {
        text: String,
        usage: AudioUsage,
        #[serde(skip_serializing_if = "Option::is_none")]
        language: Option<&'static str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        duration: Option<f64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        logprobs: Option<Vec<TokenLogprob>>,
    },
}

impl SpeechEvents {
    /// Events of the answer to a request.
    #[must_use]
    pub fn new(fields: &Fields, task: Task) -> Self {
        Self {
            text: String::new(),
            logprobs: Vec::new(),
            has_logprobs: fields.has_logprobs(),
            has_segments: fields.response_format == AudioFormat::VerboseJson,
            has_words: fields.has_words(),
            task,
        }
    }

    /// Events of a segment.
    pub fn segment(&mut self, segment: &Segment) -> Vec<Frame> {
        let mut events = Vec::new();
        // The deltas are the text of the last event, which does not begin with a space.
        let text = segment.text.as_str();
        let delta = if self.text.is_empty() { text.trim_start() } else { text };
        self.text += delta;
        let first = self.logprobs.len();
        if self.has_logprobs {
            self.logprobs.extend(logprobs(segment));
        }
        let id = self.has_segments.then(|| format!("seg_{}", segment.id));
        let segment_id = id.as_deref();
        if let Some(id) = segment_id {
            let (start, end) = (segment.start, segment.end);
            let words = self.has_words.then(|| TimedWord::of(segment).collect());
            events.push(Frame::new(&SpeechEvent::Segment { id, start, end, text, words }));
        }
        let logprobs = self.has_logprobs.then(|| &self.logprobs[first..]);
        events.push(Frame::new(&SpeechEvent::Delta { delta, logprobs, segment_id }));
        events
    }

    /// The event at the end.
    #[must_use]
    pub fn end(self, transcript: &Transcript) -> Frame {
        let Self { text, logprobs, has_logprobs, has_segments, task, .. } = self;
        Frame::new(&SpeechEvent::Done {
            text,
            usage: AudioUsage::new(transcript.duration),
            language: has_segments.then(|| language_name(transcript, task)),
            duration: has_segments.then_some(transcript.duration),
            logprobs: has_logprobs.then_some(logprobs),
        })
    }
}
