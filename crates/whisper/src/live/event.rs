//! Events of live streams.

use crate::transcript::Word;

/// Event of a live stream. Times are seconds from the start of the stream.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum LiveEvent {
    /// Speech has begun; only with voice activity detection.
    SpeechStart {
        /// Start of the utterance with its padding, in seconds.
        time: f64,
    },
    /// Speech has ended, before its last words are decoded; only with voice activity detection.
    SpeechEnd {
        /// End of the utterance with its padding, in seconds.
        time: f64,
    },
    /// The language was detected; it stays for the rest of the stream.
    Language {
        /// Language code.
        language: &'static str,
    },
    /// Text after the committed words, not final; replaces the previous partial text.
    Partial {
        /// Text, with its leading space.
        text: String,
    },
    /// Final words after those committed before; they replace the partial text.
    Committed {
        /// The words, at least one.
        words: Vec<LiveWord>,
    },
    /// Committed words that the last hypothesis of the utterance, which was decoded from all of its audio, hears otherwise.
    /// Words that are committed afterwards follow the new ones.
    Revised {
        /// Words that were committed last.
        replaced: Vec<Word>,
        /// The words in their place.
        words: Vec<Word>,
    },
    /// The utterance has ended; there is no partial text.
    End {
        /// End of the utterance, in seconds.
        time: f64,
    },
}

/// A committed word.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct LiveWord {
    /// The word with its times.
    #[serde(flatten)]
    pub word: Word,
    /// Seconds of the stream between the end of the word and its commit.
    pub latency: f64,
}

/// Callback of the events of a stream.
pub type OnEvent<'a> = dyn FnMut(LiveEvent) + Send + 'a;
