//! Criterion benches live in `benches/`.
#![forbid(unsafe_code)]
