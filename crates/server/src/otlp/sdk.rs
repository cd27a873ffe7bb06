//! Exporter of spans.

use std::time::Duration;

use opentelemetry::trace::TracerProvider;
use opentelemetry::{InstrumentationScope, Key, KeyValue};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};

use super::TracesError;
use super::client::Client;
use super::endpoint::url;

/// Name of the service, unless a variable names it.
const SERVICE: &str = "stonechat";
/// Maximum time for the last batches at a stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Traces of requests, sent to a collector by a thread. Clones share it.
#[derive(Debug, Clone)]
pub struct Traces {
    provider: SdkTracerProvider,
    pub(super) tracer: SdkTracer,
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
            .build()
            .map_err(|error| TracesError::Exporter(error.into()))?;
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
