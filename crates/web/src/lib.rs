//! Speech recognition and language models in a web worker: bindings of the engine for JavaScript.
//!
//! The npm package in `js` runs them and is what programs use. One build of this crate is one binary:
//!
//! | binary | target features | threads |
//! |---|---|---|
//! | `relaxed` | simd128, relaxed-simd | web workers |
//! | `base` | simd128 | web workers |
//! | `scalar` | | web workers |
//! | `gpu` | simd128 | none: objects of WebGPU belong to one thread |
#![cfg(target_arch = "wasm32")]
#![forbid(unsafe_code)]
#![expect(unreachable_pub, reason = "exports of the module are public items of private modules")]

#[cfg(feature = "conformance")]
mod conformance;
mod error;
mod files;
#[cfg(feature = "gpu")]
mod gpu;
#[cfg(not(feature = "gpu"))]
#[path = "no_gpu.rs"]
mod gpu;
mod host;
mod job;
#[cfg(feature = "language")]
mod language;
#[cfg(not(feature = "language"))]
#[path = "no_language.rs"]
mod language;
mod listener;
mod model;
mod runtime;
mod self_test;
mod speech;
