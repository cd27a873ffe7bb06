//! HTTP server of language models and Whisper, with the routes of OpenAI and of llama-server, whose JSON is in [`stonechat_api`].
//!
//! [`Server::bind`] opens the sockets, [`Server::run`] serves until it is told to stop. Models run on engine threads of
//! their own ([`stonechat::Llm`], [`stonechat::Whisper`]); the async side runs no kernel.
//!
//! | module | holds |
//! |---|---|
//! | `app`, `routes` | the router; one file for each group of routes |
//! | `document` | the OpenAPI document of the routes |
//! | `error`, `json`, `sse` | errors as responses; JSON bodies; events |
//! | `tasks` | time limits of requests, work that blocks |
//! | `models` | open models: loading, sharing, eviction by memory |
//! | `generation` | what routes of generated text share: the running requests, streams |
//! | `response_store`, `random` | responses that clients may continue; identifiers that no client guesses |
//! | `page_file` | KV pages of earlier prompts in a file |
//! | `pull` | downloads of models for clients |
//! | `metrics` | Prometheus metrics |
//! | `otlp` | spans of requests for an OpenTelemetry collector |
//! | `lines` | answers of lines |
//! | `server`, `listen`, `write_limit` | sockets, TLS, slow readers, shutdown |
//! | `incoming`, `auth`, `trace` | hosts, origins and times of bodies; API keys; the log of requests |
//! | `credentials` | API keys and TLS, which can be replaced |
//! | `audio_memory` | memory of uploads |
//! | `live`, `wyoming` | live speech: sessions and their engines; Wyoming's sockets |
//! | `static_files` | files of the page |
//!
//! ```no_run
//! use stonechat_server::{ModelOption, Server, ServerOptions};
//!
//! # async fn serve() -> Result<(), stonechat_server::ServerError> {
//! let model = ModelOption { name: "tiny".to_owned(), path: "tiny.gguf".into() };
//! let server = Server::bind(ServerOptions { models: vec![model], ..ServerOptions::default() }).await?;
//! server.run(std::future::pending()).await
//! # }
//! ```
#![forbid(unsafe_code)]

mod app;
mod audio_memory;
mod auth;
mod client_secrets;
mod controls;
mod credentials;
mod dialect_errors;
#[cfg(feature = "discovery")]
mod discovery;
mod document;
mod error;
mod generation;
mod incoming;
mod json;
mod lines;
mod listen;
mod live;
mod metrics;
mod models;
#[cfg(not(feature = "discovery"))]
mod no_discovery;
#[cfg(not(feature = "disk-cache"))]
mod no_page_file;
#[cfg(not(feature = "pull"))]
mod no_pull;
mod options;
mod otlp;
#[cfg(feature = "disk-cache")]
mod page_file;
#[cfg(feature = "pull")]
mod pull;
mod random;
mod response_store;
mod routes;
mod server;
mod sse;
mod state;
mod static_files;
mod tasks;
mod trace;
mod write_limit;
mod wyoming;

pub use app::router;
pub use auth::read_keys;
pub use listen::OpenSocket;
pub use metrics::{AudioReport, Metrics, RequestEnd, RequestReport};
pub use models::{
    LanguageGuard, ListedModel, LoadError, ModelGuard, ModelSpec, ModelStatus, ServerModels,
    SpeechGuard, machine_memory,
};
#[cfg(not(feature = "disk-cache"))]
pub use no_page_file::{PageFile, PageFileError};
pub use options::{EngineOptions, ModelOption, ServerOptions, StepObserver, TlsFiles};
pub use otlp::{Traces, TracesError};
#[cfg(feature = "disk-cache")]
pub use page_file::{PageFile, PageFileError};
pub use server::{Server, ServerError, stop_signal};
pub use state::AppState;
pub use static_files::{WebPackage, WebPackageError};
pub use stonechat_api::{ApiError, ApiResult, ChatDefaults, ReasoningFormat};
pub use trace::RequestId;

#[cfg(not(feature = "discovery"))]
use no_discovery as discovery;

pub(crate) use error::{ErrorResponse, HandlerResult};
pub(crate) use json::Json;
#[cfg(not(feature = "pull"))]
pub(crate) use no_pull as pull;
