//! Wyoming, the protocol of Home Assistant's voice services, without sockets: a line of JSON for each event, then its data
//! and its payload.
//!
//! ```text
//! describe ──► info                              ping ──► pong
//! transcribe, audio-start, audio-chunk…, audio-stop
//!     ──► transcript-start, transcript-chunk…, transcript, transcript-stop
//! ```
//!
//! Clients that know no `transcript-…` skip them.

mod conversation;
mod event;
mod frame;
mod info;

pub use conversation::{Action, Conversation};
pub use event::Answer;
pub use frame::{Frame, FrameError, FrameReader};
pub use info::SpeechModel;
