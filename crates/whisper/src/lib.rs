//! Whisper speech recognition: model, decoding rules, long-audio pipeline.
//!
//! [`Transcriber`] turns 16 kHz mono samples into a [`Transcript`] or, by a [`Transcription`], into a stream of
//! [`Segment`]s; [`LiveStream`] transcribes audio as it arrives. [`WindowDecoder`] decodes windows of any number of
//! transcriptions in one batch. [`Model`] and [`State`] run encoder and decoder alone.
//!
//! | file | holds |
//! |---|---|
//! | `config.rs`, `source.rs`, `weights.rs`, `model.rs` | sizes, tensor names by file format, checked weights, loaded model |
//! | `encoder.rs`, `decoder.rs` | weights, and the forward passes as programs |
//! | `state.rs` | audio, sequences and steps of a state |
//! | `special.rs`, `languages.rs` | special token ids, language codes |
//! | `options.rs`, `error.rs`, `cancel.rs`, `timings.rs` | decoding options, errors, cancellation, time spent |
//! | `transcript.rs` | results: segments, words, transcripts, events |
//! | `transcriber.rs` | a decoder for one recording at a time |
//! | `audio_source.rs`, `chunking.rs`, `chunk.rs` | samples of a recording, cutting them into chunks, state of a chunk |
//! | `transcription.rs` | chunks to windows, results to segments |
//! | `window_decoder.rs`, `window_request.rs` | batch of windows, its requests |
//! | `window.rs`, `fallback.rs` | result of a window, temperature fallback |
//! | `prompt.rs`, `rules.rs`, `search.rs`, `sampling.rs`, `loops.rs` | prompts, logit filters, beam search and best-of, loop detection |
//! | `logit_filters.rs`, `step_outputs.rs` | filters of the rows of a step, its outputs on the host |
//! | `align.rs`, `alignment_heads.rs`, `words.rs`, `hallucination.rs` | token and word times, hallucinations in silence |
//! | `live.rs` | LocalAgreement-2 over a growing buffer |
//! | `output.rs` | txt, srt, vtt, tsv, lrc, csv and json |
//! | `export.rs` | writing and quantizing GGUF and whisper.cpp files |
//!
//! Units: samples at 16 kHz, mel frames of 10 ms, encoder positions and timestamp steps of 20 ms,
//! windows of 30 s.
//!
//! Behaviour follows openai/whisper 20250625 (`decoding.py`, `transcribe.py`).
#![forbid(unsafe_code)]

mod align;
mod alignment_heads;
mod audio_source;
mod cancel;
mod chunk;
mod chunking;
mod config;
mod decoder;
mod encoder;
mod error;
mod export;
mod fallback;
mod hallucination;
mod languages;
mod live;
mod logit_filters;
mod loops;
mod loudness;
mod model;
mod options;
mod output;
mod ports;
mod prompt;
mod rules;
mod sampling;
mod search;
mod source;
mod special;
mod state;
mod step_outputs;
mod times;
mod timings;
mod transcriber;
mod transcript;
mod transcription;
mod weights;
mod window;
mod window_decoder;
mod window_request;
mod words;
mod zlib;

pub use align::AlignRequest;
pub use audio_source::Samples;
pub use cancel::CancelToken;
pub use config::Config;
pub use error::Error;
pub use export::{ExportFormat, export};
pub use fallback::DecodedWindow;
pub use languages::{LANGUAGES, Language};
pub use live::{
    DetectedSpeech, LiveDecoder, LiveEvent, LiveOptions, LiveStream, LiveWord, OnEvent,
};
pub use model::Model;
pub use options::{Options, Task, VadMode};
pub use output::{OutputFormat, SubtitleLayout, TranscriptWriter};
pub use rules::Rules;
pub use search::FinishReason;
pub use special::SpecialTokens;
pub use state::{BatchPlan, State, StateOptions};
pub use timings::Timings;
pub use transcriber::Transcriber;
pub use transcript::{Event, Segment, Transcript, Word};
pub use transcription::Transcription;
pub use window::WindowResult;
pub use window_decoder::WindowDecoder;
pub use window_request::{
    DecodeRequest, WindowAudio, WindowHandle, WindowOutput, WindowRequest, WindowTask,
};
pub use words::TokenTimes;

/// Sample rate of every input, in Hz.
pub const SAMPLE_RATE: usize = 16_000;
/// Samples between two mel frames (10 ms).
pub const HOP_LENGTH: usize = 160;
/// Mel frames in one window (30 s).
pub const WINDOW_FRAMES: usize = 3000;
/// Samples in one window (30 s).
pub const WINDOW_SAMPLES: usize = WINDOW_FRAMES * HOP_LENGTH;
/// Mel frames in one encoder position and in one timestamp step (20 ms).
pub const FRAMES_PER_POSITION: usize = 2;
/// Seconds in one timestamp step.
pub const TIMESTAMP_SECONDS: f64 = 0.02;

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
