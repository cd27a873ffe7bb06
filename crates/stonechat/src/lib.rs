//! stonechat: speech recognition and language models in Rust, on the CPU or a GPU.
//!
//! This facade re-exports the crates of the workspace. It adds [`Models`], which finds a model by name or path,
//! [`pull`], which downloads one, and `KernelCache`, a file cache of compiled GPU kernels.
//!
//! | module | holds |
//! |---|---|
//! | [`whisper`] | the model, decoding rules, long recordings, live speech, subtitles, export |
//! | [`llm`] | language models: loading, generating, beams, perplexity |
//! | [`audio`] | decoding of audio files, resampling, log-mel spectrograms |
//! | [`formats`] | GGUF, safetensors, whisper.cpp and CTranslate2 files |
//! | [`text`] | tokenizers, chat templates |
//! | [`nn`] | backends ([`nn::Cpu`], `nn::Wgpu`), layers, KV cache, sampling |
//! | [`quant`], [`compute`] | block formats and kernels |
//!
//! # Example
//!
//! ```no_run
//! use stonechat::nn::Cpu;
//! use stonechat::whisper::{Options, Transcriber};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let path = stonechat::Models::from_env().find("base")?;
//! let mut transcriber = Transcriber::builder(Cpu::new(0)?).open(path)?;
//!
//! let audio = stonechat::audio::decode_file("talk.mp3")?;
//! for segment in transcriber.segments(&audio.samples, &Options::default())? {
//!     let segment = segment?;
//!     println!("{:7.2} {}", segment.start, segment.text.trim());
//! }
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod error;
#[cfg(feature = "wgpu")]
mod kernel_cache;
mod models;
#[cfg(feature = "pull")]
pub mod pull;

pub use stonechat_audio as audio;
pub use stonechat_compute as compute;
pub use stonechat_formats as formats;
pub use stonechat_llm as llm;
pub use stonechat_nn as nn;
pub use stonechat_quant as quant;
pub use stonechat_text as text;
pub use stonechat_whisper as whisper;

pub use error::Error;
#[cfg(feature = "wgpu")]
pub use kernel_cache::KernelCache;
pub use models::{CATALOG, CatalogEntry, Details, Installed, ModelKind, Models};
