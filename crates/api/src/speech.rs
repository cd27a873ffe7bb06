//! Transcriptions in OpenAI's format: fields of a form or an object to options of Whisper, a transcript to an answer.

mod answer;
mod events;
mod fields;
mod vad_fields;
mod values;
mod webservice;

pub use answer::{SpeechAnswer, TranscriptionAnswer};
pub use events::SpeechEvents;
pub use fields::{Fields, MAX_FIELD_BYTES, language};
pub use values::AudioFormat;
pub use webservice::{AsrParameters, DetectedLanguage};
