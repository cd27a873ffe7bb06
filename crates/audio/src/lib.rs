//! Audio in: any file or byte stream to 16 kHz mono samples, and samples to log-mel spectrograms.
//!
//! Not here: playback, recording, and everything that knows a speech model.
//!
//! - [`decode`]: containers and codecs, recognised by content; the mean of the channels, or each.
//! - [`pcm`]: raw PCM of any format, streaming.
//! - [`mod@resample`]: any rate to 16 kHz, streaming.
//! - [`mel`]: Whisper's log-mel spectrogram.
//! - [`vad`]: voice activity detection, Silero VAD.
#![forbid(unsafe_code)]

pub mod decode;
mod error;
pub mod mel;
pub mod pcm;
pub mod resample;
pub mod vad;

#[cfg(not(target_arch = "wasm32"))]
pub use decode::decode_file;
pub use decode::{Audio, Channels, Decoder, Progress, SourceInfo, decode_bytes, decode_reader};
pub use error::Error;
pub use mel::{HOP, LogMel, Mel, MelChunk, N_FFT};
pub use pcm::{PcmFormat, PcmStream};
pub use resample::{Resampler, resample};
pub use vad::{SpeechGate, SpeechMap, Vad, VadOptions};

/// Sample rate of decoded audio and of every input of [`mel`] and [`vad`], in Hz.
pub const SAMPLE_RATE: u32 = 16_000;
