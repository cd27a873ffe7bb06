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

/// Times of an utterance of a live session.
#[derive(Debug)]
pub(crate) struct UtteranceTimes {
    /// Start of the speech, or commit of the client.
    pub(crate) started: Instant,
    pub(crate) first_text: Option<Instant>,
    pub(crate) ended: Instant,
}

impl UtteranceTimes {
    /// Seconds to the first text.
    pub(crate) fn to_first_text(&self) -> Option<f64> {
        let first = self.first_text?;
        Some(first.saturating_duration_since(self.started).as_secs_f64())
    }
}
