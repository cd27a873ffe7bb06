//! The server in process and on sockets, on tiny models.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod abuse;
mod abuse_bodies;
mod abuse_models;
mod abuse_transport;
mod anthropic;
mod audio;
mod chat_defaults;
mod client_secrets;
mod clients;
mod complaints;
mod control_tokens;
mod deadlines;
mod drafts;
mod live;
mod live_client;
mod llama_server;
mod models;
mod native_fields;
mod numbers;
mod ollama;
mod operation;
#[cfg(feature = "traces")]
mod otlp;
mod page;
mod rerank;
mod responses;
mod responses_store;
mod routes;
mod scores;
mod support;
mod text;
mod webservice;
mod wyoming;
