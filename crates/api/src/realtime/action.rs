//! Commands to a live stream, and its updates.

use stonechat::Word;

use super::config::Config;
use super::server::ServerEvent;
use crate::ApiError;

/// Names of the server's events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dialect {
    /// The interface without a header.
    #[default]
    Ga,
    /// The interface of the header `OpenAI-Beta: realtime=v1`.
    Beta,
}

/// Effect of an event of the client, in order.
#[derive(Debug, PartialEq)]
pub enum Action {
    /// Send an event.
    Send(ServerEvent),
    /// Check the model of a configuration, then call [`Session::configure`](super::Session::configure).
    Check {
        /// Configuration after the update.
        config: Box<Config>,
        /// Identifier of the client's event.
        event_id: Option<String>,
    },
    /// Append 16 kHz mono samples to the live stream.
    Audio(Vec<f32>),
    /// End the utterance, for the event of this identifier.
    Commit(Option<String>),
    /// Drop the audio that is not committed.
    Clear,
}

/// Update of the live stream, in order. Times are seconds from its start.
#[derive(Debug, Clone, PartialEq)]
pub enum Update {
    /// Speech has begun.
    SpeechStart {
        /// Start of the utterance.
        time: f64,
    },
    /// Speech has ended; its last words follow.
    SpeechEnd {
        /// End of the utterance.
        time: f64,
    },
    /// Final text of the first utterance that is not complete.
    Text {
        /// Text, with its leading space.
        text: String,
        /// Words of the text.
        words: Vec<Word>,
    },
    /// Other words for the last ones of that text, heard with all of the utterance's audio.
    Revised {
        /// The words that are replaced.
        replaced: Vec<Word>,
        /// Words in their place.
        words: Vec<Word>,
    },
    /// The first utterance that is not complete has all of its text.
    End {
        /// Length of the utterance in seconds.
        seconds: f64,
    },
    /// The first utterance that is not complete has failed.
    Failed(ApiError),
    /// A commit found no speech.
    NoSpeech(Option<String>),
    /// The audio that was not committed is gone.
    Cleared,
    /// The language was detected.
    Language(&'static str),
    /// A commit has ended: all text of the audio before it was sent.
    Done,
}
