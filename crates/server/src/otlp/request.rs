//! Spans of one request.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use axum::extract::{FromRequestParts, Request};
use axum::http::Method;
use axum::http::request::Parts;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{Span, SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Array, Context, KeyValue, StringValue, Value};
use opentelemetry_http::HeaderExtractor;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracer;

use super::{SpeechTimes, TextTimes};
use crate::{ApiError, AppState, AudioReport, RequestEnd, RequestReport};

/// Value of the attribute `error.type` of a request whose client went away.
const ABORT: &str = "abort";

/// Trace of a request: its span, which is the parent of those of its parts. It does nothing without a collector, or if the
/// client does not sample. Handlers take it as an extractor; clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestTrace(pub(super) Option<Arc<Root>>);

#[derive(Debug)]
pub(super) struct Root {
    pub(super) tracer: SdkTracer,
    /// Context with the span.
    pub(super) context: Context,
    pub(super) request_id: String,
    pub(super) operation: &'static str,
    pub(super) arrival: Instant,
    /// Wall clock of the arrival. Other times are relative to it: the wall clock may be set meanwhile.
    pub(super) arrival_time: SystemTime,
}

impl RequestTrace {
    /// Starts the span of a request to a route. Its parent is that of the header `traceparent`.
    pub(crate) fn start(state: &AppState, request: &Request, route: &str, id: &str) -> Self {
        let method = request.method();
        // Probes and lists run no model, unlike live sessions.
        let runs_model = method == Method::POST || route.ends_with("/realtime");
        let traces = state.options().traces.as_ref().filter(|_| runs_model);
        let Some(traces) = traces else { return Self::default() };
        let (arrival, arrival_time) = (Instant::now(), SystemTime::now());
        let scheme = if state.options().tls.is_some() { "https" } else { "http" };
        let attributes = [
            KeyValue::new("http.request.method", method.to_string()),
            KeyValue::new("http.route", route.to_owned()),
            KeyValue::new("http.response.header.x-request-id", strings(id.to_owned())),
            KeyValue::new("url.path", request.uri().path().to_owned()),
            KeyValue::new("url.scheme", scheme),
        ];
        let parent = TraceContextPropagator::new()
            .extract_with_context(&Context::new(), &HeaderExtractor(request.headers()));
        let tracer = traces.tracer.clone();
        let builder = tracer
            .span_builder(format!("{method} {route}"))
            .with_kind(SpanKind::Server)
            .with_start_time(arrival_time)
            .with_attributes(attributes);
        let span = tracer.build_with_context(builder, &parent);
        if !span.is_recording() {
            return Self::default();
        }
        Self(Some(Arc::new(Root {
            tracer,
            context: Context::new().with_span(span),
            request_id: id.to_owned(),
            operation: if route.contains("/chat/") { "chat" } else { "text_completion" },
            arrival,
            arrival_time,
        })))
    }

    /// Ends the span of the request. The status of an aborted one is that of the log.
    pub(crate) fn end(&self, status: u16, is_aborted: bool) {
        let Some(root) = &self.0 else { return };
        let span = root.context.span();
        span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status)));
        // OpenTelemetry's conventions for HTTP: a status of 4xx is no error of a server span.
        if is_aborted || status >= 500 {
            let kind = if is_aborted { ABORT.to_owned() } else { status.to_string() };
            span.set_attribute(KeyValue::new("error.type", kind));
            span.set_status(Status::error(""));
        }
        span.end_with_timestamp(root.time(Instant::now()));
    }

    /// Writes the spans of a text, whatever its end.
    pub(crate) fn text(&self, report: &RequestReport, times: &TextTimes) {
        let Some(root) = &self.0 else { return };
        let &TextTimes { queued, started, first_token, ended } = times;
        let attributes = root.text_attributes(report);
        let error = report.error.as_ref();
        let parent = root.begin("llm_request", &root.context, queued, attributes);
        root.part("queue", &parent, queued, started.unwrap_or(ended));
        if let Some(started) = started {
            root.part("prefill", &parent, started, first_token.unwrap_or(ended));
        }
        if let Some(first_token) = first_token {
            root.part("decode", &parent, first_token, ended);
        }
        root.finish(&parent, ended, report.finish, error);
    }

    /// Writes the spans of a recording, whatever its end.
    pub(crate) fn speech(&self, report: &AudioReport, times: &SpeechTimes) {
        let Some(root) = &self.0 else { return };
        let &SpeechTimes { received, queued, started, ended } = times;
        root.part("receive_audio", &root.context, root.arrival, received);
        let mut attributes = root.attributes(&report.model, "transcription", report.finish);
        attributes.extend([
            KeyValue::new("gen_ai.latency.time_in_queue", report.queue_seconds),
            KeyValue::new("gen_ai.latency.e2e", report.queue_seconds + report.work_seconds),
            KeyValue::new("stonechat.audio.seconds", report.audio_seconds),
        ]);
        let parent = root.begin("speech_request", &root.context, queued, attributes);
        root.part("queue", &parent, queued, started.unwrap_or(ended));
        if let Some(started) = started {
            root.part("transcribe", &parent, started, ended);
        }
        root.finish(&parent, ended, report.finish, report.error.as_ref());
    }
}

impl<S: Sync> FromRequestParts<S> for RequestTrace {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get().cloned().unwrap_or_default())
    }
}

impl Root {
    pub(super) fn time(&self, instant: Instant) -> SystemTime {
        self.arrival_time + instant.saturating_duration_since(self.arrival)
    }

    /// Starts a span; returns a context with it.
    pub(super) fn begin(
        &self,
        name: &'static str,
        parent: &Context,
        from: Instant,
        attributes: Vec<KeyValue>,
    ) -> Context {
        let builder = self.tracer.span_builder(name).with_start_time(self.time(from));
        let builder = builder.with_attributes(attributes);
        parent.with_span(self.tracer.build_with_context(builder, parent))
    }

    /// Writes a span that has ended.
    fn part(&self, name: &'static str, parent: &Context, from: Instant, to: Instant) {
        let context = self.begin(name, parent, from, Vec::new());
        context.span().end_with_timestamp(self.time(to));
    }

    /// Ends the span of a model's work.
    pub(super) fn finish(
        &self,
        context: &Context,
        ended: Instant,
        finish: RequestEnd,
        error: Option<&ApiError>,
    ) {
        let span = context.span();
        let error = match finish {
            RequestEnd::Abort => Some((ABORT, "the client went away, or the server stopped")),
            _ => error.map(|error| (error.kind(), error.message())),
        };
        if let Some((kind, message)) = error {
            span.set_attribute(KeyValue::new("error.type", kind));
            span.set_status(Status::error(message.to_owned()));
        }
        span.end_with_timestamp(self.time(ended));
    }

    /// Attributes of the work of any model.
    pub(super) fn attributes(
        &self,
        model: &str,
        operation: &'static str,
        finish: RequestEnd,
    ) -> Vec<KeyValue> {
        vec![
            KeyValue::new("gen_ai.operation.name", operation),
            KeyValue::new("gen_ai.provider.name", "stonechat"),
            KeyValue::new("gen_ai.request.id", self.request_id.clone()),
            KeyValue::new("gen_ai.request.model", model.to_owned()),
            KeyValue::new("gen_ai.response.model", model.to_owned()),
            KeyValue::new("gen_ai.response.finish_reasons", strings(finish.name())),
        ]
    }

    /// Attributes of a text: those of vLLM, and of OpenTelemetry's conventions where they have newer names.
    fn text_attributes(&self, report: &RequestReport) -> Vec<KeyValue> {
        let count = |name: &'static str, n: usize| KeyValue::new(name, n as i64);
        let mut attributes = self.attributes(&report.model, self.operation, report.finish);
        let inference = report.prefill_seconds + report.decode_seconds;
        attributes.extend([
            count("gen_ai.request.n", report.n_choices),
            count("gen_ai.request.choice.count", report.n_choices),
            KeyValue::new("gen_ai.request.temperature", f64::from(report.temperature)),
            KeyValue::new("gen_ai.request.top_p", f64::from(report.top_p)),
            count("gen_ai.usage.prompt_tokens", report.prompt_tokens),
            count("gen_ai.usage.input_tokens", report.prompt_tokens),
            count("gen_ai.usage.cache_read.input_tokens", report.cached_tokens),
            count("gen_ai.usage.completion_tokens", report.generated_tokens),
            count("gen_ai.usage.output_tokens", report.generated_tokens),
            KeyValue::new("gen_ai.latency.time_in_queue", report.queue_seconds),
            KeyValue::new("gen_ai.latency.time_in_model_prefill", report.prefill_seconds),
            KeyValue::new("gen_ai.latency.time_in_model_decode", report.decode_seconds),
            KeyValue::new("gen_ai.latency.time_in_model_inference", inference),
            KeyValue::new("gen_ai.latency.e2e", report.e2e_seconds),
        ]);
        let max_tokens = report.max_tokens.map(|n| count("gen_ai.request.max_tokens", n));
        let first = report.time_to_first_token;
        let first = first.map(|s| KeyValue::new("gen_ai.latency.time_to_first_token", s));
        attributes.extend([max_tokens, first].into_iter().flatten());
        attributes
    }
}

/// An array of one string.
fn strings(text: impl Into<StringValue>) -> Value {
    Value::Array(Array::String(vec![text.into()]))
}
