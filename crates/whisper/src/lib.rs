//! Whisper speech recognition: the model, its decoding rules and the long-audio pipeline.
//!
//! [`Transcriber`] is the front door: it owns a loaded [`Model`] and turns 16 kHz samples into a
//! [`Transcript`], or gives segments as they become final ([`Transcription`]). The pieces below it are
//! public for those who want to drive them.
//!
//! | file | holds |
//! |---|---|
//! | `config.rs`, `source.rs`, `weights.rs` | sizes, tensor names of each file format, checked weights |
//! | `encoder.rs`, `decoder.rs` | the two forward passes and their state |
//! | `special.rs`, `languages.rs` | special token ids and language codes |
//! | `rules.rs`, `sampling.rs` | logit rules, drawing a token |
//! | `search.rs`, `loops.rs` | beam search and best-of over one window, texts that never end |
//! | `window.rs` | several 30 s windows as one ragged batch |
//! | `ranges.rs`, `track.rs` | cutting a recording; one stretch of it: seek and segments |
//! | `context.rs` | the prompt of a window |
//! | `speech.rs` | leaving out what is not speech, or not asked for |
//! | `speakers.rs` | what several people said as one transcript |
//! | `transcribe.rs`, `builder.rs`, `cancel.rs` | the transcriber, making one, ending its runs early |
//! | `transcription.rs`, `fallback.rs` | batches of windows over long audio, temperature fallback |
//! | `live.rs` | speech as it comes: text that is confirmed, and text that may change |
//! | `align.rs`, `words.rs` | when each token was spoken, and each word |
//! | `hallucination.rs` | text made up in silence |
//! | `output.rs` | txt, srt, vtt, tsv, lrc, csv and json |
//! | `export.rs` | writing GGUF and whisper.cpp files, quantizing |
//!
//! Behaviour follows openai/whisper 20250625 (`decoding.py`, `transcribe.py`).
#![forbid(unsafe_code)]

mod align;
mod builder;
mod cancel;
mod config;
mod context;
mod decoder;
mod encoder;
mod error;
mod export;
mod fallback;
mod hallucination;
mod languages;
mod live;
mod loops;
mod model;
mod options;
mod output;
mod ranges;
mod rules;
mod sampling;
mod search;
mod source;
mod speakers;
mod special;
mod speech;
mod times;
mod track;
mod transcribe;
mod transcription;
mod weights;
mod window;
mod words;

pub use builder::TranscriberBuilder;
pub use cancel::CancelToken;
pub use config::Config;
pub use decoder::DecoderState;
pub use encoder::EncoderState;
pub use error::Error;
pub use export::{ExportFormat, export};
pub use languages::{LANGUAGES, Language};
pub use live::{LiveEvent, LiveOptions, LiveStream, LiveWord};
pub use model::Model;
pub use options::{Options, Task, VadMode};
pub use output::{OutputFormat, SubtitleLayout, TranscriptWriter};
pub use search::Finish;
pub use special::SpecialTokens;
pub use stonechat_nn::Batch;
pub use transcribe::{Progress, Segment, Timings, Transcriber, Transcript};
pub use transcription::Transcription;
pub use window::WindowResult;
pub use words::Word;

/// Sample rate of every input, in Hz.
pub const SAMPLE_RATE: usize = 16_000;
/// Samples between two mel frames.
pub const HOP_LENGTH: usize = 160;
/// Mel frames in one window.
pub const WINDOW_FRAMES: usize = 3000;
/// Samples in one window.
pub const WINDOW_SAMPLES: usize = WINDOW_FRAMES * HOP_LENGTH;
/// Mel frames in one encoder position and in one timestamp step.
pub const FRAMES_PER_POSITION: usize = 2;
/// Seconds of one timestamp step.
pub const TIMESTAMP_SECONDS: f64 = 0.02;
