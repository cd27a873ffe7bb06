//! Ollama's API: `/api/chat`, `/api/generate`, `/api/embed`, `/api/embeddings`.
//!
//! | module | holds |
//! |---|---|
//! | `body` | a body, or the load or unload of a model |
//! | `fields` | fields that all bodies have, `options` among them |
//! | `chat`, `generate` | the two routes of generated text |
//! | `answer` | lines of their answers |
//! | `embed` | embeddings |
//!
//! Fields without an effect: `keep_alive` other than 0 (the server has one idle time), `truncate` and `shift` (a prompt that
//! exceeds the context is refused), and the options `NO_EFFECT` of `fields`.

mod answer;
mod body;
mod chat;
mod embed;
mod fields;
mod generate;

pub use answer::{LoadedLine, now};
pub use body::{Action, OllamaBody};
pub use chat::OllamaChat;
pub use embed::{EmbedAnswer, EmbedBody, EmbeddingAnswer};
pub use generate::OllamaGenerate;

#[cfg(test)]
mod tests;
