//! Shared by xtask and its tools: running programs, Python environments, installed models.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a command-line tool reports by printing")]

pub mod models;
pub mod shell;
pub mod venv;
