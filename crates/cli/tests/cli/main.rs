//! Tests of the binary: output, files and exit codes.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "the exceptions for tests do not reach what they share"
)]

mod background;
mod devices;
mod documents;
mod errors;
mod help;
mod hub;
mod language_models;
mod listen;
mod log;
mod many_files;
mod media;
mod mock_hub;
mod model_files;
mod run;
#[cfg(unix)]
mod serve;
#[cfg(unix)]
mod serve_operation;
#[cfg(unix)]
mod serve_service;
mod settings;
#[cfg(target_os = "linux")]
mod terminal;
mod transcripts;
mod users;
