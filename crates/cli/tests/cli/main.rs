//! The binary from outside: what it prints, where, and how it ends.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "the exceptions for tests do not reach what they share"
)]

mod devices;
mod documents;
mod errors;
mod hub;
mod language_models;
mod listen;
mod many_files;
mod model_files;
mod run;
mod transcripts;
