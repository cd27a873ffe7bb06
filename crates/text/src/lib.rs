//! Tokenizers and chat templates: messages to text, text to token ids and back, for every model of
//! the workspace.
//!
//! Here: byte-level BPE over the vocabularies of speech models, the vocabularies of GGUF files as
//! llama.cpp reads them, any other `tokenizer.json` through the `tokenizers` crate, a streaming
//! detokenizer, and Jinja chat templates. Not here: file access (callers pass bytes or metadata) and
//! models; speech models look their special tokens up by text or add them with
//! [`Tokenizer::with_special`].
//!
//! File map: `tokenizer` the public type; `detokenize` streaming; `byte_level` byte-level BPE with
//! `vocab` ids and bytes, `bpe`, `pretokenize`, and its file formats `hf_json` and
//! `vocabulary_list`; `hf_tokenizers` every other `tokenizer.json`, `no_tokenizers` in its place without the feature; `ggml` the vocabularies of GGUF
//! files; `merge` the merge loop of both; `byte_map` GPT-2's printable form of bytes;
//! `chat_template` messages to prompts; `edit_distance` Levenshtein distances of token sequences.
#![forbid(unsafe_code)]

mod bpe;
mod byte_level;
mod byte_map;
mod chat_template;
mod detokenize;
mod edit_distance;
mod error;
mod ggml;
mod hf_json;
#[cfg(feature = "tokenizers")]
mod hf_tokenizers;
mod marked_text;
mod merge;
#[cfg(not(feature = "tokenizers"))]
mod no_tokenizers;
mod pretokenize;
mod tokenizer;
mod vocab;
mod vocabulary_list;

pub use chat_template::{ChatTemplate, ChatTemplateCapabilities, Conversation};
pub use detokenize::StreamDecoder;
pub use edit_distance::prefix_distances;
pub use error::{Error, Result};
pub use ggml::{FimTokens, GgmlVocabulary};
pub use marked_text::{MarkedText, SpecialTexts};
pub use tokenizer::Tokenizer;

#[cfg(not(feature = "tokenizers"))]
use no_tokenizers as hf_tokenizers;
