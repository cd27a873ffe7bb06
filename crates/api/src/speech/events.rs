//! Answers as events: `transcript.text.delta` for each segment, `transcript.text.done` at the end.

use serde_json::{Value, json};
use stonechat::whisper::Task;
use stonechat::{Segment, Transcript};

use super::answer::{language_name, logprobs, usage, word};
use super::fields::{AudioFormat, Fields};

/// Events of a transcription, in OpenAI's format.
#[derive(Debug)]
pub struct SpeechEvents {
    /// Text of the segments so far.
    text: String,
    logprobs: Vec<Value>,
    has_logprobs: bool,
    has_segments: bool,
    /// Whether the events of segments have their words.
    has_words: bool,
    task: Task,
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
    pub fn segment(&mut self, segment: &Segment) -> Vec<Value> {
        let mut events = Vec::new();
        // The deltas are the text of the last event, which does not begin with a space.
        let text = &segment.text[..];
        let delta = if self.text.is_empty() { text.trim_start() } else { text };
        self.text += delta;
        let mut event = json!({"type": "transcript.text.delta", "delta": delta});
        if self.has_logprobs {
            let logprobs: Vec<Value> = logprobs(segment).collect();
            self.logprobs.extend(logprobs.iter().cloned());
            event["logprobs"] = logprobs.into();
        }
        if self.has_segments {
            let id = format!("seg_{}", segment.id);
            event["segment_id"] = id.clone().into();
            let mut whole = json!({
                "type": "transcript.text.segment",
                "id": id,
                "start": segment.start,
                "end": segment.end,
                "text": text,
            });
            if self.has_words {
                whole["words"] = segment.words.iter().flatten().map(word).collect();
            }
            events.push(whole);
        }
        events.push(event);
        events
    }

    /// The event at the end.
    #[must_use]
    pub fn end(mut self, transcript: &Transcript) -> Value {
        let mut event = json!({
            "type": "transcript.text.done",
            "text": self.text,
            "usage": usage(transcript.duration),
        });
        if self.has_segments {
            event["language"] = language_name(transcript, self.task).into();
            event["duration"] = transcript.duration.into();
        }
        if self.has_logprobs {
            event["logprobs"] = std::mem::take(&mut self.logprobs).into();
        }
        event
    }
}
