//! Spans of a live session.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use opentelemetry::trace::TraceContextExt;
use opentelemetry::{Context, KeyValue};
use stonechat_api::ids::new_id;

use super::request::Root;
use super::{RequestTrace, UtteranceTimes};
use crate::{AppState, AudioReport};

/// Trace of a live session: its span, and one for each utterance. It does nothing without a collector, or if the client does
/// not sample.
#[derive(Debug, Default)]
pub(crate) struct LiveTrace(Option<Session>);

#[derive(Debug)]
struct Session {
    root: Arc<Root>,
    /// Context with the span of the session.
    context: Context,
}

impl LiveTrace {
    /// Starts the span of a session below that of its request.
    pub(crate) fn of(request: &RequestTrace) -> Self {
        let Some(root) = &request.0 else { return Self::default() };
        Self::start(Arc::clone(root), Vec::new())
    }

    /// Starts the trace of a session of Wyoming, which has no request of HTTP.
    pub(crate) fn wyoming(state: &AppState) -> Self {
        let Some(traces) = &state.options().traces else { return Self::default() };
        let root = Root {
            tracer: traces.tracer.clone(),
            context: Context::new(),
            request_id: new_id("req-"),
            operation: "transcription",
            arrival: Instant::now(),
            arrival_time: SystemTime::now(),
        };
        Self::start(Arc::new(root), vec![KeyValue::new("network.protocol.name", "wyoming")])
    }

    fn start(root: Arc<Root>, attributes: Vec<KeyValue>) -> Self {
        let context = root.begin("live_session", &root.context, Instant::now(), attributes);
        let is_recording = context.span().is_recording();
        Self(is_recording.then_some(Session { root, context }))
    }

    /// Writes the span of an utterance of `seconds` seconds of audio.
    pub(crate) fn utterance(&self, seconds: f64, times: &UtteranceTimes) {
        let Some(Session { root, context }) = &self.0 else { return };
        let mut attributes = vec![KeyValue::new("stonechat.audio.seconds", seconds)];
        let first = times.to_first_text();
        let first = first.map(|s| KeyValue::new("stonechat.latency.time_to_first_text", s));
        attributes.extend(first);
        let utterance = root.begin("utterance", context, times.started, attributes);
        utterance.span().end_with_timestamp(root.time(times.ended));
    }

    /// Ends the span of the session.
    pub(crate) fn end(&self, report: &AudioReport) {
        let Some(Session { root, context }) = &self.0 else { return };
        let mut attributes = root.attributes(&report.model, "transcription", report.finish);
        attributes.push(KeyValue::new("stonechat.audio.seconds", report.audio_seconds));
        context.span().set_attributes(attributes);
        root.finish(context, Instant::now(), report.finish, report.error.as_ref());
    }
}
