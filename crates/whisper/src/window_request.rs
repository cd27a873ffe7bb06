//! Requests of a window decoder and their results.

use std::sync::{Arc, Weak};

use crate::align::AlignRequest;
use crate::fallback::DecodedWindow;
use crate::languages::Language;
use crate::options::Options;
use crate::rules::Rules;
use crate::words::TokenTimes;

/// Request of a [`WindowDecoder`](crate::WindowDecoder).
#[derive(Debug)]
pub struct WindowRequest {
    /// Id of the recording. A free place in the batch goes to the recording with the fewest windows.
    pub owner: u64,
    /// Audio of the window.
    pub audio: WindowAudio,
    /// Task on this audio.
    pub task: WindowTask,
    /// Keeps the audio for a later request. It occupies a window of the state until then, or until the handle is dropped.
    pub keep_audio: bool,
}

/// Audio of a request.
#[derive(Debug)]
pub enum WindowAudio {
    /// Log-mel spectrogram, `[WINDOW_FRAMES, n_mels]`.
    Mel(Vec<f32>),
    /// Audio that a finished request kept.
    Kept(WindowHandle),
}

/// Task of a request.
#[derive(Debug)]
pub enum WindowTask {
    /// Finds the language, one of these or of all if there are none: [`WindowOutput::Language`].
    DetectLanguage(Vec<Language>),
    /// Decodes the text: [`WindowOutput::Text`].
    Decode(DecodeRequest),
    /// Finds the times of the tokens of a text: [`WindowOutput::Times`]. Alignment must be enabled by
    /// [`WindowDecoder::reserve`](crate::WindowDecoder::reserve).
    Align(AlignRequest),
}

/// Options of one window; those of other windows may differ.
#[derive(Debug, Clone)]
pub struct DecodeRequest {
    /// Earlier text, start sequence, prefix.
    pub prompt: Vec<u32>,
    /// Number of tokens of the prefix, at the end of `prompt`.
    pub n_prefix: usize,
    /// Earliest timestamp token that may end the text; `None` if any may.
    pub min_end_timestamp: Option<u32>,
    /// Logit filters.
    pub rules: Arc<Rules>,
    /// Temperatures, beams, thresholds.
    pub options: Arc<Options>,
    /// Seed of the first attempt; the next ones have the numbers after it.
    pub seed: u64,
    /// Start of the window in its recording, for the log, in seconds.
    pub start: f64,
}

/// Result of a request.
#[derive(Debug)]
pub enum WindowOutput {
    /// Most probable language and its probability.
    Language(Language, f32),
    /// Text of the best attempt.
    Text(DecodedWindow),
    /// Times of the tokens.
    Times(TokenTimes),
}

/// A request of a [`WindowDecoder`](crate::WindowDecoder). Dropping it cancels the request at the next step.
#[derive(Debug)]
pub struct WindowHandle(Arc<()>);

impl WindowHandle {
    pub(crate) fn new(owner: Arc<()>) -> Self {
        Self(owner)
    }

    /// Reference that does not keep the request alive.
    pub(crate) fn downgrade(&self) -> Weak<()> {
        Arc::downgrade(&self.0)
    }
}
