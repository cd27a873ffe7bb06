//! OpenAI's realtime transcription over a WebSocket, without the socket: events of the client to commands of a live stream,
//! its updates to events of the server.
//!
//! ```text
//! session.update ──► Config ──────────────────────────┐
//! input_audio_buffer.append ──► 16 kHz samples ────────┤ Action
//! input_audio_buffer.commit, .clear ───────────────────┘
//!                                     Session
//! speech_started, speech_stopped, committed ◄──────────┐
//! conversation.item.added, .done ◄─────────────────────┤ Update
//! transcription.delta, .completed, .failed ◄───────────┘
//! ```
//!
//! Names are those of the GA interface; clients of the beta one get its names (`transcription_session.created`,
//! `conversation.item.created`).

mod action;
mod client;
mod config;
mod secret;
mod server;
mod session;

use stonechat::Word;

pub use action::{Action, Dialect, Update};
pub use config::{Config, InputFormat, ServerVad};
pub use secret::{ClientSecret, ClientSecretBody, ExpiresAfter};
pub use server::{Logprob, ServerEvent};
pub use session::Session;

/// Maximum bytes of `audio` in base64, as in OpenAI's API.
pub const MAX_AUDIO_BYTES: usize = 15 << 20;
/// Maximum bytes of a message of the client: `audio` and the object around it.
pub const MAX_MESSAGE_BYTES: usize = MAX_AUDIO_BYTES + (64 << 10);
/// Seconds of audio that may wait for their transcription or their commit.
pub const MAX_PENDING_S: u64 = 600;

/// Replaces the last words of a transcript, as [`Update::Revised`] asks for.
pub fn revise(transcript: &mut String, replaced: &[Word], words: &[Word]) {
    let n_bytes: usize = replaced.iter().map(|word| word.word.len()).sum();
    // The space before the first word is not there.
    let end = transcript.len().saturating_sub(n_bytes);
    transcript.truncate(transcript.floor_char_boundary(end));
    for Word { word, .. } in words {
        let is_first = transcript.is_empty();
        transcript.push_str(if is_first { word.trim_start() } else { word });
    }
}
