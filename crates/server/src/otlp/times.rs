//! Times of a request, the source of its spans.

use std::time::Instant;

/// Times of a text.
#[derive(Debug)]
pub(crate) struct TextTimes {
    pub(crate) queued: Instant,
    /// Start of the prefill.
    pub(crate) started: Option<Instant>,
    pub(crate) first_token: Option<Instant>,
    pub(crate) ended: Instant,
}

/// Times of a recording.
#[derive(Debug)]
pub(crate) struct SpeechTimes {
    /// End of the upload and its decoding.
    pub(crate) received: Instant,
    pub(crate) queued: Instant,
    /// Start of the transcription.
    pub(crate) started: Option<Instant>,
    pub(crate) ended: Instant,
}
