//! JSON of OpenAI's and llama-server's APIs: bodies of requests to requests of the engine, and its results to answers. No HTTP,
//! no sockets, no files.
//!
//! | module | holds |
//! |---|---|
//! | [`text`] | requests for generated text in any dialect: body, requests of the engine, answer |
//! | [`chat`] | OpenAI's chat completions |
//! | [`anthropic`] | Anthropic's messages |
//! | [`ollama`] | Ollama's chats, completions and embeddings |
//! | [`responses`] | OpenAI's Responses |
//! | [`completions`] | OpenAI's text completions |
//! | [`completion`] | `/completion` and `/infill` of llama-server |
//! | [`embeddings`], [`tokenize`], [`template`] | embeddings, tokens, prompts of chats |
//! | [`speech`] | transcriptions: fields, answers, events |
//! | [`realtime`], [`wyoming`] | live speech over a WebSocket, and over Wyoming's TCP |
//! | [`generation`] | fields of generation, the running request, its counts |
//! | [`json`], `limits` | JSON with limits, whose errors name the field |
//! | `error`, `defaults`, `reasoning`, [`ids`] | [`ApiError`]; [`Defaults`], [`ChatDefaults`]; identifiers of answers |
//!
//! ```no_run
//! use stonechat_api::chat::ChatCompletions;
//! use stonechat_api::generation::Run;
//! use stonechat_api::text::{Body, Model};
//! use stonechat_api::{ApiResult, Defaults, ParseBody};
//!
//! async fn answer(llm: &stonechat::Llm, body: &[u8]) -> ApiResult<()> {
//!     let sampling = Default::default();
//!     let defaults = Defaults::new(&sampling);
//!     let body = Body::<ChatCompletions>::parse(body, &defaults)?;
//!     let mut prepared = body.prepare(Model { llm, id: "tiny", name: "tiny" }, &defaults)?;
//!     for request in prepared.requests {
//!         let mut run = Run::start(llm, request);
//!         while let Some(event) = run.next().await? {
//!             prepared.answer.event(run.stats(), event).iter().for_each(|chunk| println!("{}", chunk.data));
//!         }
//!         let (stats, texts) = (run.stats(), run.completions());
//!         prepared.answer.end(stats, texts).iter().for_each(|chunk| println!("{}", chunk.data));
//!     }
//!     Ok(())
//! }
//! ```
#![forbid(unsafe_code)]

mod answer_object;
mod defaults;
mod error;
mod error_shape;
mod limits;

pub mod anthropic;
pub mod chat;
mod chat_answer;
mod chat_body;
mod chat_messages;
mod chat_tools;
pub mod completion;
pub mod completions;
pub mod embeddings;
mod frame;
pub mod generation;
pub mod ids;
mod input_usage;
pub mod json;
pub mod ollama;
pub mod realtime;
mod reasoning;
pub mod rerank;
pub mod responses;
pub mod speech;
pub mod template;
pub mod text;
pub mod tokenize;
pub mod wyoming;

pub use chat_answer::{ChatAnswer, ChatContext, ChatDialect, ChatStep, ChatWriter, FinishReason};
pub use defaults::Defaults;
pub use error::{ApiError, ApiResult};
pub use error_shape::ErrorShape;
pub use input_usage::InputUsage;
pub use json::ParseBody;
pub use reasoning::{ChatDefaults, ReasoningFormat};
