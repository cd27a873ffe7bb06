//! OTLP traces: spans of requests, sent to an OpenTelemetry collector.
//!
//! ```text
//! POST /v1/chat/completions         from the arrival to the last byte of the body
//! └─ llm_request                    as vLLM names it; one per prompt
//!    ├─ queue
//!    ├─ prefill
//!    └─ decode
//! POST /v1/audio/transcriptions
//! ├─ receive_audio                  upload and decoding
//! └─ speech_request
//!    ├─ queue
//!    └─ transcribe
//! GET /v1/realtime                  the handshake
//! └─ live_session                   to the end of the connection; of Wyoming without the handshake
//!    └─ utterance                   from the start of the speech to its last text
//! ```
//!
//! Spans below the first are made at the end of a request, with the times of its report. A thread of the SDK sends them in
//! batches; it drops those that exceed its queue. Without the feature `traces` a collector is refused.

#[cfg(not(feature = "traces"))]
mod absent;
#[cfg(feature = "traces")]
mod client;
mod endpoint;
#[cfg(feature = "traces")]
mod live;
#[cfg(feature = "traces")]
mod request;
#[cfg(feature = "traces")]
mod sdk;
#[cfg_attr(not(feature = "traces"), expect(dead_code, reason = "no span has them"))]
mod times;

#[cfg(not(feature = "traces"))]
pub use absent::Traces;
#[cfg(not(feature = "traces"))]
pub(crate) use absent::{LiveTrace, RequestTrace};
#[cfg(feature = "traces")]
pub(crate) use live::LiveTrace;
#[cfg(feature = "traces")]
pub(crate) use request::RequestTrace;
#[cfg(feature = "traces")]
pub use sdk::Traces;
pub(crate) use times::{SpeechTimes, TextTimes, UtteranceTimes};

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
    /// This build sends no traces.
    #[error("this build sends no traces (feature `traces`: cargo install --features full)")]
    Missing,
    /// A variable of OpenTelemetry is invalid.
    #[error(transparent)]
    Exporter(Box<dyn std::error::Error + Send + Sync>),
}
