//! Benchmark runs: the protocol of drivers and workers, statistics, reports, comparisons, tables and charts.
//!
//! | module | holds |
//! |---|---|
//! | [`protocol`] | jobs and answers, one JSON object a line |
//! | [`statistics`] | median, percentiles, variation, outliers |
//! | [`report`] | a run with its machine, saved as JSON |
//! | [`comparison`] | whether something changed by more than its noise |
//! | [`table`], [`chart`], [`results`] | reports as text, as pictures and as Markdown |
//!
//! The program of this package (`stonechat-bench-worker`) measures this engine; `cargo xtask bench` drives it
//! beside other engines' workers. Criterion benches of the kernels live in `benches/`.
#![forbid(unsafe_code)]

pub mod chart;
pub mod comparison;
pub mod protocol;
pub mod report;
pub mod results;
pub mod statistics;
pub mod table;
