//! Speech recognition and language models in Rust, on the CPU or a GPU.
//!
//! [`Whisper`] transcribes recordings, [`Llm`] chats and completes texts. Each runs on a thread of its own, in a browser
//! between the events of the worker's thread, where nothing blocks; a request is a [`Job`], which blocks, iterates or
//! awaits. [`Models`] finds models by name, `pull` downloads them. A [`Recording`] and a [`ChatRequest`] have the options of
//! a request, [`Whisper::builder`] and [`Llm::builder`] those of a model, such as its [`Device`]. Subtitles are in
//! [`whisper::OutputFormat`], live speech in [`whisper`].
//!
//! ```no_run
//! # fn main() -> Result<(), stonechat::Error> {
//! let whisper = stonechat::Whisper::open("base")?;
//! let question = whisper.transcribe("question.mp3").wait()?.text;
//! let llm = stonechat::Llm::open("qwen3:0.6b")?;
//! for piece in llm.chat(question) {
//!     print!("{}", piece?);
//! }
//! println!();
//! # Ok(())
//! # }
//! ```
//!
//! [`device`] opens devices without a model. The crates below are re-exported for programs that hold the model, its state and its loop themselves:
//!
//! | module | holds |
//! |---|---|
//! | [`whisper`] | the model, decoding rules, long recordings, live speech, subtitles, export |
//! | [`llm`] | language models: loading, generating, beams, perplexity |
//! | [`audio`] | decoding of audio files, resampling, log-mel spectrograms |
//! | [`formats`] | GGUF, safetensors, whisper.cpp and CTranslate2 files |
//! | [`text`] | tokenizers, chat templates |
//! | [`nn`] | backends ([`nn::Cpu`], `nn::Cuda`, `nn::Wgpu`), layers, KV cache |
//! | [`sampling`] | samplers and grammars |
//! | [`quant`], [`compute`] | block formats and kernels |
#![forbid(unsafe_code)]

mod chat;
pub mod device;
mod drafts;
mod engine;
mod error;
mod job;
mod language_model;
mod llm_loop;
mod llm_output;
mod models;
#[cfg(feature = "pull")]
pub mod pull;
mod recording;
mod runtime;
mod speech_engine;
mod speech_model;
mod speech_queue;

pub use stonechat_audio as audio;
pub use stonechat_compute as compute;
pub use stonechat_formats as formats;
pub use stonechat_llm as llm;
pub use stonechat_nn as nn;
pub use stonechat_quant as quant;
pub use stonechat_sampling as sampling;
pub use stonechat_text as text;
pub use stonechat_whisper as whisper;

pub use chat::{ChatAnswer, ChatRequest, PreparedChat, ReasoningOptions};
pub use device::{Device, GpuLayers};
pub use drafts::DraftSource;
pub use error::Error;
pub use job::Job;
#[cfg(not(target_arch = "wasm32"))]
pub use job::{IntoItems, Items};
pub use language_model::{Llm, LlmBuilder, LlmInfo, TextJob};
pub use models::{CATALOG, CatalogEntry, Details, Installed, ModelKind, Models};
pub use recording::Recording;
pub use runtime::{wait_for_closed, yield_now};
pub use speech_engine::SpeechStep;
pub use speech_model::{TranscriptionJob, Whisper, WhisperBuilder, WhisperInfo};

// Types of requests and results, so that most programs need no other module.
pub use serde_json;
pub use stonechat_llm::{Completion, Finish, GenerateOptions, Request, RequestEvent};
pub use stonechat_nn::KvDType;
pub use stonechat_whisper::{CancelToken, Segment, Transcript, VadMode, Word};

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
