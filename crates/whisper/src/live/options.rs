//! Options of live transcription.

use stonechat_audio::VadOptions;

use crate::error::Error;
use crate::options::{Options, VadMode};

/// Options of a [`LiveStream`](crate::LiveStream). Defaults are those of `whisper_streaming`, but with
/// greedy decoding.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveOptions {
    /// Decoding options of the buffer. Defaults: beam size 1, `min_silence_ms` 1000; [`VadMode::Auto`] is on.
    ///
    /// Word timestamps are always on. Only the last hypothesis of an utterance uses temperature
    /// fallback. `batch_size` and `prefix` are refused. With [`VadMode::Off`], all audio is speech.
    pub decoding: Options,
    /// Seconds of new audio before the buffer is decoded again; default 1, range 0.1 to 10.
    /// `whisper_streaming`'s `--min-chunk-size`.
    pub min_chunk_s: f64,
    /// Seconds of buffer above which it is trimmed at the end of a committed segment; default 15,
    /// range 1 to 25. `whisper_streaming`'s `--buffer_trimming_sec`.
    pub trim_s: f64,
}

impl Default for LiveOptions {
    fn default() -> Self {
        let vad_options = VadOptions { min_silence_ms: 1000, ..VadOptions::default() };
        let decoding = Options { beam_size: 1, vad_options, ..Options::default() };
        Self { decoding, min_chunk_s: 1.0, trim_s: 15.0 }
    }
}

impl LiveOptions {
    /// Checks all ranges.
    ///
    /// # Errors
    /// If an option is out of its range; names option, range and value.
    pub fn validate(&self) -> Result<(), Error> {
        let wrong = |option, expected, got| Err(Error::Option { option, expected, got });
        if !(0.1..=10.0).contains(&self.min_chunk_s) {
            return wrong("chunk", "0.1 to 10 s", self.min_chunk_s.to_string());
        }
        if !(1.0..=25.0).contains(&self.trim_s) {
            return wrong("buffer", "1 to 25 s", self.trim_s.to_string());
        }
        if self.decoding.batch_size.is_some() {
            return wrong("batch-size", "none in a stream", "some".to_owned());
        }
        if self.decoding.prefix.is_some() {
            return wrong("prefix", "none in a stream", "some".to_owned());
        }
        self.decoding.validate()
    }

    /// Options to decode one hypothesis with; the last of an utterance uses all temperatures.
    pub(super) fn hypothesis_options(&self, is_last: bool) -> Options {
        let mut options = self.decoding.clone();
        options.word_timestamps = true;
        options.vad = VadMode::Off;
        if !is_last {
            options.temperatures.truncate(1);
        }
        options
    }
}

#[cfg(test)]
mod tests {
    use super::LiveOptions;
    use crate::options::Options;

    #[test]
    fn other_values_are_refused() {
        LiveOptions::default().validate().unwrap();
        let default = LiveOptions::default;
        let batched = Options { batch_size: Some(2), ..Options::default() };
        for (options, expected) in [
            (LiveOptions { min_chunk_s: 0.0, ..default() }, "chunk: expected 0.1 to 10 s, got 0"),
            (LiveOptions { min_chunk_s: f64::NAN, ..default() }, "chunk: expected"),
            (LiveOptions { trim_s: 26.0, ..default() }, "buffer: expected 1 to 25 s, got 26"),
            (LiveOptions { decoding: batched, ..default() }, "batch-size: expected none"),
        ] {
            let error = options.validate().unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
