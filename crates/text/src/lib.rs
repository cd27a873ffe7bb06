//! Tokenizers and chat templates: messages to text, text to token ids and back, for every model of
//! the workspace.
//!
//! Here: byte-level BPE over the vocabularies of speech models, the vocabularies of GGUF files as
//! llama.cpp reads them, any other `tokenizer.json` through the `tokenizers` crate, a streaming
//! detokenizer, and Jinja chat templates. Not here: file access (callers pass bytes or metadata) and
//! models; speech models look their special tokens up by text or add them with
//! [`Tokenizer::with_special`].
//!
//! | file | holds |
//! |---|---|
//! | `tokenizer`, `token_model` | [`Tokenizer`]: encode, decode, look up; the interface of each kind of vocabulary |
//! | `detokenize` | [`StreamDecoder`]: text of tokens as they arrive |
//! | `byte_level`, `bpe`, `vocab`, `pretokenize` | byte-level BPE: encoder, merge rules, ids and bytes, GPT-2's pieces |
//! | `hf_json`, `vocabulary_list` | its file formats: `tokenizer.json`, CTranslate2's lists |
//! | `hf_text`, `hf_around` | normalizers and pre-tokenizers of `tokenizer.json`, and its tokens around a text |
//! | `hf_tokenizers`, `no_tokenizers` | every other `tokenizer.json` (feature `tokenizers`); an error without the feature |
//! | `ggml` | vocabularies of GGUF files |
//! | `merge`, `byte_map` | the merge loop of both; GPT-2's printable form of bytes |
//! | `conversation`, `chat_template` | [`Conversation`] to the prompt of a model: [`ChatTemplate`] |
//! | `marked_text`, `special_texts` | prompts in which messages spell no special tokens |
//! | `edit_distance` | Levenshtein distances of token sequences |
#![forbid(unsafe_code)]

mod bpe;
mod byte_level;
mod byte_map;
mod chat_template;
mod conversation;
mod detokenize;
mod edit_distance;
mod error;
mod ggml;
mod hf_around;
#[cfg(test)]
#[cfg(feature = "tokenizers")]
mod hf_equality;
mod hf_json;
mod hf_text;
#[cfg(feature = "tokenizers")]
mod hf_tokenizers;
mod marked_text;
mod merge;
#[cfg(not(feature = "tokenizers"))]
mod no_tokenizers;
mod pretokenize;
mod special_texts;
mod token_model;
mod tokenizer;
mod vocab;
mod vocabulary_list;

pub use chat_template::{ChatTemplate, ChatTemplateCapabilities};
pub use conversation::Conversation;
pub use detokenize::StreamDecoder;
pub use edit_distance::prefix_distances;
pub use error::{Error, Result};
pub use ggml::{FimTokens, GgmlVocabulary};
pub use marked_text::MarkedText;
pub use special_texts::SpecialTexts;
pub use tokenizer::Tokenizer;

#[cfg(not(feature = "tokenizers"))]
use no_tokenizers as hf_tokenizers;
