//! OTLP traces: spans of requests, sent to an OpenTelemetry collector.
//!
//! ```text
//! POST /v1/chat/completions         from the arrival to the last byte of the body
//! └─ llm_request                    as vLLM's; one a prompt
//!    ├─ queue
//!    ├─ prefill
//!    └─ decode
//! POST /v1/audio/transcriptions
//! ├─ receive_audio                  upload and decoding
//! └─ speech_request
//!    ├─ queue
//!    └─ transcribe
//! ```
//!
//! Spans below the first are made at the end of a request, with the times of its report. A thread of the SDK sends them in
//! batches; it drops those that exceed its queue.

mod client;
mod request;

use std::time::Duration;

use axum::http::Uri;
use opentelemetry::trace::TracerProvider;
use opentelemetry::{InstrumentationScope, Key, KeyValue};
use opentelemetry_otlp::{
    ExporterBuildError, Protocol, SpanExporter, WithExportConfig, WithHttpConfig,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};

use client::Client;
pub(crate) use request::{RequestTrace, SpeechTimes, TextTimes};

/// Path of traces at a collector.
const PATH: &str = "/v1/traces";
/// Name of the service, unless a variable names it.
const SERVICE: &str = "stonechat";
/// Maximum time for the last batches at a stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Error of the options of traces.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TracesError {
    /// The endpoint is no URL of HTTP.
    #[error("OTLP endpoint: expected a URL such as http://localhost:4318, got `{endpoint}`")]
    Endpoint {
        /// Endpoint.
        endpoint: String,
    },
    /// A variable of OpenTelemetry is invalid.
    #[error(transparent)]
    Exporter(#[from] ExporterBuildError),
}

/// Traces of requests, sent to a collector by a thread. Clones share it.
#[derive(Debug, Clone)]
pub struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

impl Traces {
    /// Starts the thread. `endpoint` is the URL of a collector (OTLP over HTTP), with or without `/v1/traces`; without it
    /// that of `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` or `OTEL_EXPORTER_OTLP_ENDPOINT`. `None` if there is none, or the
    /// variables `OTEL_SDK_DISABLED` or `OTEL_TRACES_EXPORTER` switch traces off. Further variables of OpenTelemetry
    /// set headers, the name of the service, sampling and batches.
    ///
    /// # Errors
    /// If the endpoint or a variable is invalid.
    pub fn start(endpoint: Option<&str>) -> Result<Option<Self>, TracesError> {
        let variable = |name: &str| std::env::var(name).ok();
        let Some(url) = url(endpoint, variable)? else { return Ok(None) };
        let exporter = SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(url.to_string())
            .with_http_client(Client::new(&url))
            .build()?;
        let provider = SdkTracerProvider::builder()
            .with_resource(resource())
            .with_batch_exporter(exporter)
            .build();
        let scope = InstrumentationScope::builder(env!("CARGO_PKG_NAME"))
            .with_version(env!("CARGO_PKG_VERSION"))
            .build();
        let tracer = provider.tracer_with_scope(scope);
        Ok(Some(Self { provider, tracer }))
    }

    /// Sends the spans that have ended, for at most 5 s, and stops the thread; later spans are dropped. It blocks.
    /// [`Server::run`](crate::Server::run) calls it.
    pub fn stop(&self) {
        if let Err(error) = self.provider.shutdown_with_timeout(STOP_TIMEOUT) {
            tracing::debug!("the last traces were not sent: {error}");
        }
    }
}

/// URL to which spans are sent, by the flag or the variables; `None`: no traces.
fn url(
    flag: Option<&str>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<Uri>, TracesError> {
    // OpenTelemetry takes an empty variable for none.
    let set = |name| variable(name).map(|text| text.trim().to_owned()).filter(|x| !x.is_empty());
    let is = |name, value: &str| set(name).is_some_and(|text| text.eq_ignore_ascii_case(value));
    if is("OTEL_SDK_DISABLED", "true") || is("OTEL_TRACES_EXPORTER", "none") {
        return Ok(None);
    }
    let with_path = |base: &str| format!("{}{PATH}", base.trim_end_matches('/'));
    let of_flag = |flag: &str| {
        if flag.ends_with(PATH) { flag.to_owned() } else { with_path(flag) }
    };
    let flag = flag.map(str::trim).filter(|flag| !flag.is_empty()).map(of_flag);
    let of_traces = || set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
    let of_all = || set("OTEL_EXPORTER_OTLP_ENDPOINT").map(|base| with_path(&base));
    let Some(endpoint) = flag.or_else(of_traces).or_else(of_all) else { return Ok(None) };
    match endpoint.parse::<Uri>() {
        Ok(url) if matches!(url.scheme_str(), Some("http" | "https")) => Ok(Some(url)),
        _ => Err(TracesError::Endpoint { endpoint }),
    }
}

/// Attributes of the process: those of the variables `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES`, name, version.
fn resource() -> Resource {
    let detected = Resource::builder().build();
    let is_named = detected
        .get(&Key::new("service.name"))
        .is_some_and(|name| !name.as_str().starts_with("unknown_service"));
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let builder = Resource::builder().with_attribute(version);
    if is_named { builder.build() } else { builder.with_service_name(SERVICE).build() }
}

#[cfg(test)]
mod tests {
    use super::url;

    #[track_caller]
    fn check(flag: Option<&str>, variables: &[(&str, &str)], expected: Option<&str>) {
        let variable = |name: &str| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let url = url(flag, variable).unwrap().map(|url| url.to_string());
        assert_eq!(url.as_deref(), expected);
    }

    #[test]
    fn the_flag_comes_before_the_variables() {
        const ALL: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://all:4318/base/");
        const TRACES: (&str, &str) = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://traces/x");
        check(None, &[], None);
        check(None, &[("OTEL_EXPORTER_OTLP_ENDPOINT", "")], None);
        // Only the path of the general variable is extended.
        check(None, &[ALL], Some("http://all:4318/base/v1/traces"));
        check(None, &[ALL, TRACES], Some("http://traces/x"));
        for flag in ["http://a:4318", "http://a:4318/", "http://a:4318/v1/traces"] {
            check(Some(flag), &[ALL, TRACES], Some("http://a:4318/v1/traces"));
        }
    }

    #[test]
    fn variables_switch_traces_off() {
        let flag = Some("http://a:4318");
        check(flag, &[("OTEL_SDK_DISABLED", "True")], None);
        check(flag, &[("OTEL_TRACES_EXPORTER", "none")], None);
        check(flag, &[("OTEL_SDK_DISABLED", "false")], Some("http://a:4318/v1/traces"));
    }

    #[test]
    fn an_endpoint_is_a_url_of_http() {
        for wrong in ["localhost:4318", "grpc://localhost:4317", "http://", "/v1/traces"] {
            let error = url(Some(wrong), |_| None).unwrap_err().to_string();
            assert!(error.starts_with("OTLP endpoint: expected a URL such as "), "{error}");
        }
    }
}
