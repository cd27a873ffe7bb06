//! Answers as server-sent events: `transcript.text.delta` for each segment, `transcript.text.done` at the end.

use std::collections::VecDeque;
use std::time::Duration;

use axum::response::Response;
use axum::response::sse::Event;
use futures_util::stream::unfold;
use serde_json::{Value, json};
use stonechat::whisper::Task;
use stonechat::{Segment, Transcript};
use tokio::time::timeout;

use super::body::{language_name, logprobs, usage, word};
use super::fields::{AudioFormat, Fields};
use super::{MAX_STATUS_DELAY, Running};
use crate::{ApiResult, sse};

/// Starts a stream. An error before the first segment is one of the request, unless that takes long.
pub(super) async fn respond(
    mut running: Running,
    fields: Fields,
    task: Task,
    ping_interval: Option<Duration>,
) -> ApiResult<Response> {
    let delay = ping_interval.map_or(MAX_STATUS_DELAY, |interval| interval.min(MAX_STATUS_DELAY));
    let mut events = AudioEvents {
        ready: VecDeque::new(),
        text: String::new(),
        logprobs: Vec::new(),
        has_logprobs: fields.has_logprobs(),
        has_segments: fields.response_format == AudioFormat::VerboseJson,
        has_words: fields.has_words(),
        task,
        running: None,
    };
    match timeout(delay, running.job.next_async()).await {
        Ok(Some(Ok(segment))) => events.push(&segment),
        Ok(Some(Err(error))) => return running.end(Err(error)),
        // Without a segment the end follows.
        Ok(None) | Err(_) => {}
    }
    events.running = Some(running);
    let events = unfold(events, |mut events| async move { Some((events.next().await?, events)) });
    Ok(sse::respond(events, ping_interval))
}

/// Events of a transcription.
struct AudioEvents {
    ready: VecDeque<Value>,
    /// Text of the segments so far.
    text: String,
    logprobs: Vec<Value>,
    has_logprobs: bool,
    has_segments: bool,
    /// Whether the events of segments have their words.
    has_words: bool,
    task: Task,
    /// `None` after the last segment.
    running: Option<Running>,
}

impl AudioEvents {
    fn push(&mut self, segment: &Segment) {
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
            self.ready.push_back(whole);
        }
        self.ready.push_back(event);
    }

    fn push_end(&mut self, transcript: &Transcript) {
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
        self.ready.push_back(event);
    }

    /// The next event; `None` at the end.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(Event::default().data(event.to_string()));
            }
            let running = self.running.as_mut()?;
            let result = match running.job.next_async().await {
                Some(Ok(segment)) => {
                    self.push(&segment);
                    continue;
                }
                Some(Err(error)) => Err(error),
                None => (&mut running.job).await,
            };
            let result = running.end(result);
            self.running = None;
            match result {
                Ok(transcript) => self.push_end(&transcript),
                Err(error) => self.ready.push_back(error.to_json()),
            }
        }
    }
}
