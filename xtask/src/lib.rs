//! Shared by xtask and its tools: running programs and jobs, Python environments, other engines, installed models, this machine,
//! accuracy runs.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a command-line tool reports by printing")]

pub mod exactness;
pub mod machine;
pub mod models;
mod parallel;
pub mod peers;
pub mod shell;
pub mod venv;

pub use parallel::in_parallel;
